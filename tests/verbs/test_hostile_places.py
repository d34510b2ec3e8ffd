"""Whatever lies where a file of a model may lie, each verb ends soon, with a value or an error."""

from __future__ import annotations

import itertools
import os
import random
import resource
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

import bridge
import bridge.serving
import savedmodel
from bridge.core import npz_file
from bridge.diff import diff
from bridge.retarget import retarget
from bridge.serving.signatures import read_signatures
from bridge.verifying.trials import read_trials, write_trials
from savedmodel.files.assets import PUBLICATION_FILE, WARMUP_FILE
from savedmodel.manifest import MANIFEST_FILE, compare_manifest
from tests.bridge.exporting.parameters import read_parameters
from tests.bridge.serving import conftest as batch_model
from tests.bridge.serving.conftest import PARAMS
from tests.fuzzing.reading import time_limit
from xla_call_module.errors import FormatError, InteropError

exported = batch_model.exported  # a fixture

PLACES = [
    "saved_model.pb", "saved_model.cpb", "saved_model.pbtxt", "fingerprint.pb", "variables",
    "variables/variables.index", "variables/variables.data-00000-of-00001", "assets",
    "assets/words.txt", "assets.extra", "batching_params.pbtxt", MANIFEST_FILE, PUBLICATION_FILE,
    WARMUP_FILE,
]  # fmt: skip
COUNT = 400
LARGE = 1 << 38  # 256 GB, none of which is on the disk


def _text(text):
    return lambda path: path.write_bytes(text)


def _hole(path):
    if not path.exists():
        path.touch()
    os.truncate(path, LARGE)


def _hole_alone(path):
    path.unlink(missing_ok=True)
    _hole(path)


THINGS = {
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a link to outside": lambda path: path.symlink_to("/etc/passwd"),
    "a hole": _hole_alone,
    "nothing in it": _text(b""),
    "no text": _text(b"\xff\xfe\0"),
    "brackets": _text(b"[" * 200_000),
    "keys": _text(b'{"copy_of":' * 100_000),
    "a large number": _text(b'{"copy_of": 1e999, "format": 1e999, "files": {"a": 1e999}}'),
    "a long number": _text(b'{"copy_of": ' + b"9" * 100_000 + b', "format": 1}'),
    "no number": _text(b'{"copy_of": NaN, "format": NaN}'),
    "a negative number": _text(b'{"copy_of": -3, "format": 1, "files": {"a": {"bytes": 1e999}}}'),
    "a list": _text(b'{"copy_of": [1], "format": 1, "files": [[1, 2]], "versions": 3}'),
}


def _publish(path, target):
    bridge.serving.publish(path, target / "other", warmup=(1,))


def _rollback(path, target):
    bridge.serving.rollback(path.parent, to=2)
    bridge.serving.rollback(path.parent, keep=1)


VERBS = {
    "load": lambda path, target: bridge.load(path).params,
    "inspect": lambda path, target: bridge.inspect(path),
    "diff": lambda path, target: diff(path, path),
    "signatures": lambda path, target: read_signatures(path),
    "manifest": lambda path, target: compare_manifest(path),
    "retarget": lambda path, target: retarget(path, "2.20", to=target / "new"),
    "write": lambda path, target: savedmodel.write(savedmodel.read(path), target / "copy"),
    "publish": _publish,
    "rollback": _rollback,
    "warmup": lambda path, target: bridge.serving.add_warmup(path, (1, 2)),
}


@pytest.fixture(scope="module")
def versions(tmp_path_factory, exported):
    base = tmp_path_factory.mktemp("versions") / "base"
    for _ in range(2):
        bridge.serving.publish(
            exported, base, params=PARAMS, warmup=(1,), manifest=True, force=True
        )
    (base / "2" / "assets").mkdir()
    (base / "2" / "assets" / "words.txt").write_text("a b")
    return base


def _run(versions, folder, thing, place, verb):
    """Return whether the verb refuses; other errors go through."""
    shutil.copytree(versions, folder / "base")
    path = folder / "base" / "2"
    where = path / place
    where.parent.mkdir(exist_ok=True)
    shutil.rmtree(where) if where.is_dir() else where.unlink(missing_ok=True)
    THINGS[thing](where)
    try:
        with time_limit(10):
            VERBS[verb](path, folder)
    except InteropError:
        return True
    except (FileExistsError, IsADirectoryError):
        if verb != "warmup":  # which writes there
            raise
        return True
    except BaseException as error:
        error.add_note(f"{thing} at {place}: {verb}")
        raise
    return False


def test_in_every_place(versions, tmp_path):
    """Some of all combinations, which take minutes."""
    combinations = [*itertools.product(THINGS, PLACES, VERBS)]
    usage = resource.getrusage(resource.RUSAGE_SELF)
    start, before = time.process_time(), usage.ru_maxrss
    refused = 0
    for number, combination in enumerate(random.Random(0).sample(combinations, COUNT)):
        refused += _run(versions, tmp_path / str(number), *combination)
    assert COUNT / 10 < refused < COUNT
    assert time.process_time() - start < COUNT
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10


# Each of them ended in another error, or not at all.
@pytest.mark.parametrize(
    ("thing", "place", "verb"),
    [
        ("a pipe", PUBLICATION_FILE, "rollback"),
        ("brackets", PUBLICATION_FILE, "rollback"),
        ("a large number", PUBLICATION_FILE, "rollback"),
        ("a folder", PUBLICATION_FILE, "rollback"),
        ("a pipe", "assets.extra", "rollback"),
        ("a link to itself", "assets.extra", "rollback"),
        ("a link to nothing", "variables/variables.index", "publish"),
        ("a hole", "saved_model.pb", "load"),
        ("a pipe", MANIFEST_FILE, "inspect"),
    ],
)
def test_in_one_place(versions, tmp_path, thing, place, verb):
    assert _run(versions, tmp_path, thing, place, verb)


@pytest.mark.parametrize("place", ["saved_model.pb", "variables/variables.index", WARMUP_FILE])
@pytest.mark.parametrize("verb", ["publish", "rollback", "retarget", "inspect"])
def test_a_file_that_was_grown(versions, tmp_path, place, verb):
    shutil.copytree(versions, tmp_path / "base")
    (tmp_path / "base" / "2" / MANIFEST_FILE).unlink()
    _hole(tmp_path / "base" / "2" / place)
    with time_limit(10), pytest.raises(InteropError, match=r"bytes|checksum|stored"):
        VERBS[verb](tmp_path / "base" / "2", tmp_path)


@pytest.mark.parametrize("verb", ["publish", "rollback", "retarget", "manifest"])
def test_a_data_file_that_was_grown(versions, tmp_path, verb):
    """Loading it is no matter, but a copy would fill the disk."""
    shutil.copytree(versions, tmp_path / "base")
    path = tmp_path / "base" / "2"
    _hole(path / "variables/variables.data-00000-of-00001")
    _hole(tmp_path / "base" / "1" / "variables/variables.data-00000-of-00001")
    with time_limit(10), pytest.raises(FormatError, match="the last tensor in it ends at byte"):
        VERBS[verb](path, tmp_path)
    assert bridge.load(path).params.keys() == PARAMS.keys()


def test_an_asset_that_was_grown(versions, tmp_path):
    shutil.copytree(versions, tmp_path / "base")
    path = tmp_path / "base" / "2"
    (path / MANIFEST_FILE).unlink()
    _hole(path / "assets/words.txt")
    with time_limit(10), pytest.raises(FormatError, match="of them are holes"):
        bridge.serving.publish(path, tmp_path / "other")


def test_a_copy_keeps_small_holes(versions, tmp_path):
    shutil.copytree(versions, tmp_path / "base")
    path = tmp_path / "base" / "2"
    (path / MANIFEST_FILE).unlink()
    with (path / "assets/words.txt").open("r+b") as file:
        file.truncate(100 << 20)
        file.seek(50 << 20)
        file.write(b"middle")
    published = bridge.serving.publish(path, tmp_path / "other")
    copy = Path(published) / "assets/words.txt"
    assert copy.stat().st_size == 100 << 20
    assert copy.read_bytes() == (path / "assets/words.txt").read_bytes()
    assert copy.stat().st_blocks * 512 < 1 << 20


@pytest.mark.parametrize("thing", THINGS)
@pytest.mark.parametrize("name", ["models.config", "batching_parameters.txt"])
def test_beside_the_versions(versions, tmp_path, thing, name):
    shutil.copytree(versions, tmp_path / "base")
    THINGS[thing](tmp_path / "base" / name)
    with time_limit(10):
        try:
            bridge.serving.publish(tmp_path / "base" / "2", tmp_path / "base", keep=1)
        except InteropError:
            pass
        else:
            assert name != "models.config" or thing in ("a link to nothing", "nothing in it")


@pytest.mark.parametrize("thing", THINGS)
@pytest.mark.parametrize("name", ["params.npz", "params.safetensors", "record.npz", "model.jax"])
def test_files_of_numbers(tmp_path, thing, name):
    from bridge.exporting.exported_file import read_exported

    THINGS[thing](tmp_path / name)
    read = {"params": read_parameters, "record": read_trials, "model": read_exported}
    with time_limit(10):
        try:
            read[name.partition(".")[0]](tmp_path / name)
        except (InteropError, OSError):
            return
    pytest.fail("it was read")


def test_arrays_that_unpack_to_more_than_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(npz_file, "_MAX_EXPANSION", 1 << 20)
    np.savez_compressed(tmp_path / "params.npz", w=np.zeros(1 << 19, np.float32))
    with pytest.raises(FormatError, match=r"unpacks from [\d,]+ bytes to 2,\d+,\d+\."):
        read_parameters(tmp_path / "params.npz")
    with pytest.raises(FormatError, match="unpacks from"):
        read_trials(tmp_path / "params.npz")


def test_a_large_record_is_read_again(tmp_path, monkeypatch):
    from bridge.verifying import trials

    monkeypatch.setattr(trials, "_MAX_COMPRESSED", 10)
    write_trials(tmp_path / "record.npz", [])
    assert read_trials(tmp_path / "record.npz") == ()
