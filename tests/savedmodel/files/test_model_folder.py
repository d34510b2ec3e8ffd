"""A reader of a folder that others replace meanwhile sees one version, whole.

The function of a version multiplies by its number, and its weights are that number: a mixture of
two versions gives a sum of two numbers.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
import pytest
import tensorflow as tf

import bridge
import bridge.serving
import savedmodel
from bridge.diff import diff
from bridge.retarget import retarget
from bridge.serving import warmup
from bridge.serving.signatures import read_signatures
from bridge.verifying import tensorflow_process
from savedmodel.files import folder as folder_module
from savedmodel.files import model_folder
from savedmodel.files.model_folder import ModelFolder, read_file
from savedmodel.manifest import compare_manifest
from tests.policy.source import ROOT
from xla_call_module.errors import FormatError

DATA = "variables/variables.data-00000-of-00001"


@pytest.fixture(scope="module")
def versions(tmp_path_factory):
    """Two versions of a model."""
    folder = tmp_path_factory.mktemp("versions")
    for number in (1, 2):

        def function(params, x, number=number):
            return {f"y{number}": x * number + params[f"w{number}"]}

        params = {f"w{number}": np.full(3, number, np.float32)}
        exported = jax.export.export(jax.jit(function))(params, jax.ShapeDtypeStruct((3,), "f4"))
        bridge.save(exported, folder / str(number), params=params, manifest=True)
    return folder


class _Place:
    """A path where version 1 is, until another one takes its place."""

    def __init__(self, versions, folder):
        self.versions = versions
        self.path = folder / "model"
        self.spare = folder / "spare"
        self._numbers = itertools.cycle([2, 1])
        shutil.copytree(versions / "1", self.path)

    def replace(self, *, remove):
        """As a writer does it; without removing, the two change places."""
        if not self.spare.exists():
            shutil.copytree(self.versions / str(next(self._numbers)), self.spare)
        folder_module._rename(self.spare, self.path, folder_module._RENAME_EXCHANGE)
        if remove:
            shutil.rmtree(self.spare)


@pytest.fixture
def place(versions, tmp_path):
    return _Place(versions, tmp_path)


def _check_model(path):
    (item,) = bridge.load(path)(np.ones(3, np.float32)).items()
    name, value = item
    number = int(name.removeprefix("y"))
    np.testing.assert_array_equal(value, np.full(3, 2 * number, np.float32))


def _inspect(place, target):
    report = bridge.inspect(place.path)
    (signature,) = report.signatures
    (output,) = signature.outputs
    (parameter,) = report.parameters
    assert output.name.removeprefix("y") == parameter.name.removeprefix("w")
    assert report.manifest.files.keys() < {file.path for file in report.files}


def _diff(place, target):
    report = diff(place.path, place.versions / "1")
    assert bool(report.differences) == bool(report.weights)


def _publish(place, target):
    _check_model(bridge.serving.publish(place.path, target))


def _retarget(place, target):
    retarget(place.path, "2.19", to=target)
    _check_model(target)


def _sizes(place, target):
    (signature,) = read_signatures(place.path)
    (output,) = signature.outputs
    assert output.name in ("y1", "y2")


def _copy(place, target):
    savedmodel.write(savedmodel.read(place.path), target)
    _check_model(target)


VERBS = {
    "load": lambda place, target: _check_model(place.path),
    "inspect": _inspect,
    "diff": _diff,
    "publish": _publish,
    "retarget": _retarget,
    "signatures": _sizes,
    "manifest": lambda place, target: compare_manifest(place.path) and pytest.fail("it differs"),
    "write": _copy,
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("remove", [False, True], ids=["exchanged", "removed"])
def test_at_each_file_that_is_opened(place, tmp_path, monkeypatch, verb, remove):
    opened = []
    descriptor = ModelFolder.descriptor

    def replacing(self, name, **options):
        # A copy that is read for the comparison is no matter.
        if self.path == place.path:
            opened.append(name)
            if len(opened) == chosen or (chosen == 0 and len(opened) < 6):
                place.replace(remove=remove)
        return descriptor(self, name, **options)

    monkeypatch.setattr(ModelFolder, "descriptor", replacing)
    for chosen in itertools.count():
        opened.clear()
        VERBS[verb](place, tmp_path / str(chosen))
        if chosen > len(opened):
            break
    assert chosen > 1


@pytest.fixture
def replaced_each_time(place, monkeypatch):
    """Another folder takes the place of the model's whenever one of its files is opened."""
    descriptor = ModelFolder.descriptor

    def replacing(self, name, **options):
        if self.path == place.path:
            place.replace(remove=True)
        return descriptor(self, name, **options)

    monkeypatch.setattr(ModelFolder, "descriptor", replacing)


@pytest.mark.parametrize("verb", VERBS)
def test_a_writer_that_is_faster_than_the_reader(place, tmp_path, replaced_each_time, verb):
    """The reader opens all files at once, and reads them in its own time."""
    VERBS[verb](place, tmp_path / "target")


@pytest.mark.parametrize(
    ("name", "value"), [("_DESCRIPTORS", "/nowhere"), ("_MAX_HELD", 0)], ids=["system", "many"]
)
@pytest.mark.parametrize("verb", [bridge.load, bridge.inspect, compare_manifest])
def test_files_that_cannot_be_held(place, monkeypatch, replaced_each_time, verb, name, value):
    monkeypatch.setattr(model_folder, name, value)
    with pytest.raises(FormatError, match=r"replaced or removed 20 times.*To do: try again"):
        verb(place.path)


def test_weights_that_are_asked_for_later(place, tmp_path):
    model = bridge.load(place.path)
    parts = savedmodel.read(place.path).variables[0]
    place.replace(remove=True)
    np.testing.assert_array_equal(model.params["w1"], np.full(3, 1, np.float32))
    np.testing.assert_array_equal(parts.part((slice(1, 3),)), np.full(2, 1, np.float32))
    savedmodel.write(savedmodel.read(place.path), place.path, overwrite=True)
    _check_model(place.path)


def test_a_moment_without_a_folder(place, monkeypatch):
    """As where a file system cannot exchange two folders."""
    away = place.path.with_name("away")
    place.path.rename(away)
    monkeypatch.setattr(time, "sleep", lambda _: away.rename(place.path))
    _check_model(place.path)


def test_a_file_that_is_cut_off_after_it_was_loaded(place):
    model = bridge.load(place.path)
    again = bridge.load(place.path)
    np.testing.assert_array_equal(model(np.ones(3, np.float32))["y1"], np.full(3, 2))
    os.truncate(place.path / DATA, 0)
    # What was read is in memory.
    np.testing.assert_array_equal(model(np.ones(3, np.float32))["y1"], np.full(3, 2))
    with pytest.raises(FormatError, match=r"data-00000-of-00001, byte \d+: the file"):
        again(np.ones(3, np.float32))


def test_a_file_that_is_written_over_after_it_was_loaded(place):
    model = bridge.load(place.path)
    params = model.params
    again = bridge.load(place.path)
    shutil.copy(place.versions / "2" / DATA, place.path / DATA)
    np.testing.assert_array_equal(params["w1"], np.full(3, 1, np.float32))
    with pytest.raises(FormatError, match="the checksum of the 12 bytes"):
        again(np.ones(3, np.float32))


def test_a_file_that_grows_while_it_is_read(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"1234")
    fstat = os.fstat

    def growing(descriptor):
        status = fstat(descriptor)
        with (tmp_path / "file").open("ab") as file:
            file.write(b"5")
        return status

    monkeypatch.setattr(os, "fstat", growing)
    with pytest.raises(FormatError, match=r"file was changed while it was read\. To do: try ag"):
        read_file(tmp_path / "file", limit=100)


def test_a_folder_that_may_not_be_listed(place):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(place.path, folder / "m")
        for path in (folder, folder / "m", folder / "m" / "variables"):
            path.chmod(0o711)
        nobody = os.geteuid() == 0  # who may list everything
        if nobody:
            os.seteuid(65534)
        try:
            _check_model(folder / "m")
        finally:
            if nobody:
                os.seteuid(0)


def test_warmup(place, monkeypatch):
    """It is written into the folder that it was made for."""
    write = warmup.write_records
    counts = []

    def replacing(path, records):
        if not counts:
            place.replace(remove=False)
        counts.append(write(path, records))
        return counts[-1]

    monkeypatch.setattr(warmup, "write_records", replacing)
    assert bridge.serving.add_warmup(place.path, {"x": np.ones(3, np.float32)}) == 1
    assert counts == [1, 1]
    assert bridge.inspect(place.path).warmup.records == 1


def test_verify(place, monkeypatch):
    """TensorFlow reads by the path."""
    run = tensorflow_process.run_trials
    runs = []

    def replacing(*args, **options):
        if not runs:
            place.replace(remove=False)
        runs.append(args)
        return run(*args, **options)

    monkeypatch.setattr(tensorflow_process, "run_trials", replacing)
    assert bridge.verify(place.path).passed
    assert len(runs) == 2


def test_compose(place, tmp_path, monkeypatch):
    load = tf.saved_model.load
    loads = []

    def replacing(path):
        if not loads:
            place.replace(remove=False)
        loads.append(path)
        return load(path)

    monkeypatch.setattr(tf.saved_model, "load", replacing)
    folder = bridge.serving.compose(place.path, tmp_path / "composed")
    assert len(loads) == 2
    model = bridge.load(folder).signatures["bare"]
    np.testing.assert_array_equal(model(np.ones(3, np.float32))["y2"], np.full(3, 4))


WRITER = """
import pathlib, sys, time
import savedmodel
first, second, target = map(pathlib.Path, sys.argv[1:])
models = [savedmodel.read(first), savedmodel.read(second)]
print("ready", flush=True)
number = 0
while True:
    savedmodel.write(models[number % 2], target, overwrite=True)
    number += 1
"""


def test_readers_beside_a_writer(place, tmp_path):
    for number in (1, 2):
        shutil.copytree(place.versions / str(number), tmp_path / str(number))
    paths = [tmp_path / "1", tmp_path / "2", place.path]
    # A manifest is written by nobody there, so nothing has to agree with one.
    verbs = {name: verb for name, verb in VERBS.items() if name not in ("manifest", "inspect")}
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, *map(str, paths)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        try:
            assert writer.stdout.readline() == "ready\n"
            counts = dict.fromkeys(verbs, 0)
            end = time.monotonic() + 4
            while time.monotonic() < end or min(counts.values()) == 0:
                for name, verb in verbs.items():
                    verb(place, tmp_path / f"{name}-{counts[name]}")
                    counts[name] += 1
            assert writer.poll() is None
        finally:
            writer.kill()


@pytest.fixture(scope="module")
def base_path(tmp_path_factory):
    """A folder with the versions 2 and 10, and a number that is none."""
    base = tmp_path_factory.mktemp("base")
    for version in ("2", "10"):
        bridge.save(jax.numpy.tanh, base / version, args="f32[3]")
    (base / "11").mkdir()
    (base / "12").touch()
    return base


@pytest.mark.parametrize(
    "verb",
    [
        bridge.load,
        bridge.inspect,
        bridge.to_onnx,
        bridge.verify,
        savedmodel.read,
        lambda path: diff(path, path),
        lambda path: retarget(path, "2.18", to="never"),
    ],
)
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing", "{path} does not exist.* such as {newest}, the newest version there"),
        ("11/missing", "{path} does not exist.*pass the folder that holds that file[.]"),
        ("12", "{path} has no saved_model.pb, as it is not a folder"),
        ("11", "{path} has no saved_model.pb.*holds that file[.]"),
        (".", "{path} has no saved_model.pb.* such as {newest}, its newest version"),
    ],
)
def test_the_newest_version_is_named(base_path, verb, name, said):
    if verb in (bridge.to_onnx, bridge.verify) and name == "12":
        return  # they read files, too
    path = base_path / name
    with pytest.raises(FormatError, match=said.format(path=path, newest=base_path / "10")):
        verb(path)


@pytest.mark.parametrize("verb", [bridge.load, savedmodel.read])
def test_the_verb_for_a_file_is_named(base_path, verb):
    inside = base_path / "10" / "saved_model.pb"
    with pytest.raises(
        FormatError, match=f"{inside} is a file .* pass its folder, {inside.parent}[.]"
    ):
        verb(inside)
    with pytest.raises(FormatError, match=r"not a folder.*serialized Exported .* bridge\.to_jax"):
        verb(base_path / "12")
