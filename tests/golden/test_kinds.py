"""A file of each kind from each JAX that was ever supported works, in JAX and in TensorFlow."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import pytest
import tensorflow as tf

import bridge
from savedmodel.read import read
from tests.golden.reading import GOLDEN, check_in_jax, check_leaves, folders_of, numbers_of
from tests.golden.tensorflow_arguments import for_tensorflow
from tests.golden.write_kinds import DEVICES, KINDS, values
from tests.json_schema import violations
from xla_call_module.descriptions.description_json import description_to_json, read_description

FOLDERS = folders_of(several_devices=False)


@pytest.fixture(params=FOLDERS, ids=lambda path: "-".join(path.parts[-3:]))
def folder(request):
    return request.param


def test_each_kind_is_there_for_each_minor_version_of_jax():
    writers = list(GOLDEN.glob("*/jax-*"))
    minors = {path.name.removeprefix("jax-").split(".")[1] for path in writers}
    assert minors >= {"7", "8", "9", "10", "11", "12"}
    for writer in writers:
        assert {path.name for path in writer.iterdir()} == set(KINDS)


def test_loaded_by_jax(folder):
    check_in_jax(folder, KINDS[folder.name])


def test_loaded_by_tensorflow(folder):
    loaded = tf.saved_model.load(folder / "model")
    for key, (_, _, arguments) in KINDS[folder.name].make().items():
        results = getattr(loaded, key)(*map(for_tensorflow, arguments))
        leaves = [leaf for leaf in tf.nest.flatten(results) if leaf is not None]
        check_leaves(leaves, numbers_of(folder), f"{key}/result")


def test_a_file_is_only_ever_added():
    """`digests.json` has each folder of a writer, and grows by those that are written."""
    known = json.loads((GOLDEN / "digests.json").read_text())
    folders = [*GOLDEN.glob("[0-9]*/*"), *GOLDEN.glob("serialized/*"), GOLDEN / "orbax"]
    assert known == {
        str(path.relative_to(GOLDEN)): _digest(path) for path in folders if path.is_dir()
    }


def _digest(folder):
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(f"{path.relative_to(folder)}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _carried(folder):
    return [call.exported for call in read(folder / "model").calls]


@pytest.mark.parametrize("writer", sorted(GOLDEN.glob("2/jax-*")), ids=lambda path: path.name)
def test_descriptions_are_of_the_schema(writer):
    """Those of several devices, too; a file of older ones has what makes such descriptions."""
    for folder in sorted(writer.iterdir()):
        for text in _carried(folder):
            assert violations(json.loads(text)) == [], folder
        for data in _carried(GOLDEN / "1" / writer.name / folder.name):
            assert data[:1] != b"{"
            text = description_to_json(read_description(data, where="f"))
            assert violations(json.loads(text)) == [], folder


@pytest.mark.parametrize("writer", ["jax-0.7.1", "jax-0.8.3"])
@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.devices < DEVICES])
def test_an_expired_file_has_the_same_bits(writer, name):
    """As one with a description of our own: results and gradients of every order."""
    kind, found = KINDS[name], []
    for form in ("1", "2"):
        model = bridge.load(GOLDEN / form / writer / name / "model")
        for key, (_, _, arguments) in kind.make().items():
            computed = values(model.signatures[key].exported.call, arguments, kind.order)
            found.append({what: [x.tobytes() for x in xs] for what, xs in computed.items()})
    half = len(found) // 2
    assert found[:half] == found[half:]
    assert all(len(computed) >= 2 + kind.order for computed in found)


_WITHOUT_FLATBUFFERS = """
import os, sys
sys.modules["flatbuffers"] = None  # as where it is not installed: JAX cannot serialize
before = dict(os.environ)
import numpy as np
import bridge
from tests.golden.reading import GOLDEN
from tests.golden.write_kinds import KINDS

_, _, arguments = KINDS["plain"].make()["f"]
expired = GOLDEN / "1" / "jax-0.7.1" / "plain"
exported = bridge.load(expired / "model").signatures["f"].exported
saved = bridge.save(expired / "exported.bin", sys.argv[1])
again = bridge.load(saved.path)(*arguments)
np.testing.assert_array_equal(exported.call(*arguments), again)
assert len(exported.vjp().out_avals) == 2
assert {**os.environ} == before  # nor is JAX told to read what is expired
try:
    exported.serialize()
except ImportError as error:
    assert "flatbuffers" in str(error)
else:
    raise AssertionError("JAX has flatbuffers")
"""


def test_flatbuffers_are_not_needed(tmp_path):
    """Neither for what is written nor for what is read."""
    command = [sys.executable, "-W", "ignore", "-c", _WITHOUT_FLATBUFFERS, str(tmp_path / "m")]
    environment = {**os.environ, "PYTHONPATH": str(GOLDEN.parents[1])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
