"""Versions below a base path: whole or not there, one number each, old ones kept or removed."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import get_type_hints

import jax
import numpy as np
import pytest

import bridge
from bridge.serving import Published, base_path, compose, publishing, rollback
from bridge.serving.base_path import parse_version
from savedmodel.manifest import compare_manifest, read_manifest
from tests.bridge.serving.conftest import PARAMS
from tests.policy.source import ROOT
from tests.savedmodel.files.test_remote import store  # noqa: F401 - a fixture
from xla_call_module.errors import (
    FormatError,
    MissingDependencyError,
    ShardingError,
    StructureError,
    installing,
)

# Most tests are about numbers, and their versions are alike.
publish = partial(bridge.serving.publish, force=True)


def _visible(base):
    """Return what TensorFlow Serving would load."""
    return sorted(n for name in os.listdir(base) if (n := parse_version(name)) is not None)


def _contents(folder):
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(Path(folder).rglob("*"))
        if file.is_file()
    }


# What Serving's safe_strto64 takes for a number.
@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("1", 1),
        ("0012", 12),
        ("+3", 3),
        ("-3", -3),
        (" 3 ", 3),
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808", None),
        ("3a", None),
        ("1.5", None),
        ("٣", None),
        ("", None),
        (".publish.jax-tf-bridge-0123456789abcdef", None),
        ("models.config", None),
    ],
)
def test_names_are_read_as_serving_reads_them(name, number):
    assert parse_version(name) == number


def test_versions_are_numbered_from_1(exported, tmp_path):
    base = tmp_path / "made" / "sine"
    first = publish(exported, base, params=PARAMS, gradient_order=0)
    second = publish(exported, base, params=PARAMS, gradient_order=0, warmup=(1, 8))
    assert [type(each) for each in (first, second)] == [Published, Published]
    assert (first.path, first.version, first.warmup) == (str(base / "1"), 1, 0)
    assert (second.path, second.version, second.warmup) == (str(base / "2"), 2, 2)
    assert sorted(os.listdir(base)) == ["1", "2"]
    assert bridge.inspect(second).warmup.records == 2
    assert np.array_equal(bridge.load(first)(np.eye(3, dtype=np.float32)), PARAMS["w"])


def test_the_next_number_follows_the_highest_of_any_form(saved, tmp_path):
    (tmp_path / "007").mkdir()
    (tmp_path / "notes").mkdir()
    (tmp_path / "3").touch()
    assert publish(saved, tmp_path).version == 8
    with pytest.raises(StructureError, match=r"has a version 7 already.*leave version out"):
        publish(saved, tmp_path, version=7)


def test_a_version_can_be_chosen(saved, tmp_path):
    assert publish(saved, tmp_path, version=1700000000).version == 1700000000
    assert publish(saved, tmp_path, version=5).version == 5
    assert publish(saved, tmp_path).version == 1700000001
    before = _contents(tmp_path / "5")
    with pytest.raises(StructureError, match=r"has a version 5 already, and a version never"):
        publish(saved, tmp_path, version=5)
    assert _contents(tmp_path / "5") == before


def test_it_takes_what_save_and_compose_take():
    taken = {name for f in (bridge.save, compose) for name in inspect.signature(f).parameters}
    others = {"model", "path", "overwrite", "options", "signature", "bare"}
    assert set(get_type_hints(publishing.PublishOptions)) == taken - others


def test_several_signatures_and_options_reach_save(exported, tmp_path):
    doubled = jax.export.export(jax.jit(lambda p, x: x * p["w"][0, 1]))(PARAMS, np.float32(1))
    published = publish(
        {"serving_default": exported, "doubled": doubled},
        tmp_path,
        params=PARAMS,
        gradient_order=0,
        outputs={"doubled": ["y"]},
        num_shards=2,
    )
    signatures = {found.key: found for found in bridge.inspect(published).signatures}
    assert signatures.keys() == {"doubled", "serving_default"}
    assert signatures["doubled"].outputs[0].name == "y"
    assert len(list(Path(published, "variables").glob("*.data-*-of-00002"))) == 2


def test_the_same_model_gives_the_same_bytes(exported, tmp_path):
    options = {"params": PARAMS, "gradient_order": 0, "warmup": (1, 4), "batching": True}
    for _ in range(2):
        publish(exported, tmp_path, **options)
    assert _contents(tmp_path / "1") == _contents(tmp_path / "2")


def test_a_folder_is_copied_as_it_is(saved, tmp_path):
    published = publish(saved, tmp_path, operations="xla")
    assert _contents(published) == _contents(saved)
    plain = publish(saved, tmp_path / "plain")
    assert _contents(publish(plain, tmp_path / "again")) == _contents(plain)
    # What a user does to the original later must not reach what is served.
    file = Path(published, "saved_model.pb")
    assert file.stat().st_ino != (saved / "saved_model.pb").stat().st_ino


def test_a_manifest_holds_for_what_is_published(exported, tmp_path):
    options = {"params": PARAMS, "gradient_order": 0, "manifest": True}
    first = publish(exported, tmp_path, warmup=(1,), batching=True, **options)
    files = {"assets.extra/tf_serving_warmup_requests", "batching_params.pbtxt"}
    assert files < read_manifest(Path(first)).files.keys()
    # The copy has other requests, and the manifest says so.
    second = publish(first, tmp_path, warmup=(1, 2))
    manifests = [read_manifest(Path(published)) for published in (first, second)]
    assert manifests[0].versions == manifests[1].versions
    assert manifests[0].files != manifests[1].files
    for published in (first, second, rollback(tmp_path)):
        assert compare_manifest(Path(published)) == ()
    (values,) = Path(first, "variables").glob("*.data*")
    values.write_bytes(values.read_bytes()[:-4])
    with pytest.raises(FormatError, match=r"is not what its manifest says: variables/.* has"):
        publish(first, tmp_path)
    assert _visible(tmp_path) == [1, 2, 3]


def test_the_last_number_has_no_next(saved, tmp_path):
    (tmp_path / str(2**63 - 1)).mkdir()
    with pytest.raises(StructureError, match="9223372036854775807, the highest possible"):
        publish(saved, tmp_path)
    (tmp_path / str(2**63 - 1)).rename(tmp_path / "-5")
    assert publish(saved, tmp_path).version == 1


def test_nothing_is_visible_until_all_is_there(exported, tmp_path, monkeypatch):
    seen = []

    def look(folder, *args, **options):
        seen.extend(os.listdir(tmp_path))
        assert (folder / "saved_model.pb").is_file()
        raise RuntimeError("no warmup")

    monkeypatch.setattr(publishing, "write_warmup", look)
    with pytest.raises(RuntimeError, match="no warmup"):
        publish(exported, tmp_path, params=PARAMS, gradient_order=0, warmup=(1,))
    assert len(seen) == 1
    assert parse_version(seen[0]) is None
    assert os.listdir(tmp_path) == []


def test_a_refused_model_leaves_nothing(exported, tmp_path):
    with pytest.raises(StructureError, match="params has the structure"):
        publish(exported, tmp_path / "base", params={"other": 1})
    assert os.listdir(tmp_path / "base") == []


_HANGS = """
import sys, time
from bridge.serving import publish, publishing
def hang(*args, **options):
    print("here", flush=True)
    time.sleep(600)
publishing.write_warmup = hang
publish(sys.argv[1], sys.argv[2], warmup=(1,))
"""


def test_a_killed_publisher_leaves_nothing_visible(saved, tmp_path):
    base = tmp_path / "base"
    command = [sys.executable, "-c", _HANGS, str(saved), str(base)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "here\n"
        (left,) = base.iterdir()
        # While its writer lives, it is nobody's to remove, however old.
        _age(left)
        assert publish(saved, base).version == 1
        assert left.is_dir()
        process.kill()
    assert _visible(base) == [1]
    _age(left)
    assert publish(saved, base).version == 2
    assert sorted(os.listdir(base)) == ["1", "2"]


def _age(folder):
    then = time.time() - 3600
    os.utime(folder, (then, then))


_PUBLISHES = """
import sys
from bridge.serving import publish
print("ready", flush=True)
sys.stdin.readline()
options = {"warmup": (1,), "batching": True}
print(*(publish(sys.argv[1], sys.argv[2], force=True, **options).version for _ in range(5)))
assert "tensorflow" not in sys.modules
"""


def test_publishers_at_once_never_collide(saved, tmp_path):
    base = tmp_path / "base"
    command = [sys.executable, "-c", _PUBLISHES, str(saved), str(base)]
    processes = [
        subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * 3
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    printed = [process.communicate()[0] for process in processes]
    numbers = [list(map(int, text.split())) for text in printed]
    assert all(mine == sorted(mine) for mine in numbers)
    assert sorted(n for mine in numbers for n in mine) == list(range(1, 16)) == _visible(base)
    assert [process.returncode for process in processes] == [0] * 3
    files = {"models.config", "monitoring.config", "batching_parameters.txt"}
    assert {*os.listdir(base)} == files | {str(number) for number in range(1, 16)}
    whole = _contents(base / "1")
    assert all(_contents(base / str(number)) == whole for number in range(2, 16))


def test_publishers_that_remove_at_once(saved, tmp_path):
    base = tmp_path / "base"
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: publish(saved, base, keep=2), range(16)))
    assert sorted(published.version for published in found) == list(range(1, 17))
    removed = [version for published in found for version in published.removed]
    left = _visible(base)
    assert left[-1] == 16
    assert 2 <= len(left) <= 3  # the last one to look may have a lower number
    assert {*removed, *left} == {*range(1, 17)}
    assert sorted(os.listdir(base)) == sorted(map(str, left))
    whole = _contents(base / "16")
    assert all(_contents(base / str(version)) == whole for version in left)


def test_a_number_that_was_removed_is_not_taken_again(saved, tmp_path, monkeypatch):
    look = base_path._LocalBasePath.taken
    pool = ThreadPoolExecutor(1)
    others = []

    def look_and_wait(base):
        # Two others come between the look for a number and the rename, and remove what is older.
        monkeypatch.undo()
        numbers = look(base)
        others.append(pool.submit(lambda: [publish(saved, tmp_path, keep=1) for _ in "ab"]))
        wait(others, timeout=1)
        return numbers

    monkeypatch.setattr(base_path._LocalBasePath, "taken", look_and_wait)
    with pool:
        assert publish(saved, tmp_path).version == 1
    assert [published.version for published in others[0].result()] == [2, 3]
    assert _visible(tmp_path) == [3]


def test_only_one_of_two_gets_a_chosen_number(saved, tmp_path, monkeypatch):
    # The other one comes between the first look and the rename.
    count_records = publishing._count_records

    def and_another(folder):
        monkeypatch.setattr(publishing, "_count_records", count_records)
        publish(saved, tmp_path, version=4)
        return count_records(folder)

    monkeypatch.setattr(publishing, "_count_records", and_another)
    with pytest.raises(StructureError, match="has a version 4 already"):
        publish(saved, tmp_path, version=4)
    assert os.listdir(tmp_path) == ["4"]


@pytest.mark.parametrize(("keep", "left"), [(1, [6]), (3, [4, 5, 6]), (9, [1, 2, 3, 4, 5, 6])])
def test_old_versions_are_removed_by_count(saved, tmp_path, keep, left):
    for _ in range(5):
        publish(saved, tmp_path)
    (tmp_path / "7a").mkdir()
    published = publish(saved, tmp_path, keep=keep)
    assert _visible(tmp_path) == left
    assert published.removed == tuple(sorted({*range(1, 7)} - {*left}))
    assert sorted(os.listdir(tmp_path)) == sorted([*map(str, left), "7a"])


def test_neither_the_highest_nor_the_new_version_is_removed(saved, tmp_path):
    for version in (3, 7, 9):
        publish(saved, tmp_path, version=version)
    assert publish(saved, tmp_path, version=5, keep=1).removed == (3, 7)
    assert _visible(tmp_path) == [5, 9]


def test_a_number_that_is_no_model_is_not_removed(saved, tmp_path):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "thesis.txt").write_text("mine")
    assert publish(saved, tmp_path, keep=1).removed == ()
    assert (tmp_path / "1" / "thesis.txt").read_text() == "mine"


def test_versions_that_the_configuration_names_stay(saved, tmp_path):
    for _ in range(4):
        publish(saved, tmp_path)
    (tmp_path / "models.config").write_text(
        'model_config_list { config { name: "m" base_path: "/m" model_platform: "tensorflow"\n'
        "  model_version_policy { specific { versions: 4 versions: 2 } }\n"
        '  version_labels { key: "stable" value: 1 } } }'
    )
    assert publish(saved, tmp_path, keep=1).removed == (3,)
    assert _visible(tmp_path) == [1, 2, 4, 5]
    (tmp_path / "models.config").write_text("model_config_list { confg {} }")
    with pytest.raises(FormatError, match=r"models.config is not a ModelServerConfig.*confg"):
        publish(saved, tmp_path, keep=1)


def test_a_rollback_is_one_call(exported, saved, tmp_path):
    publish(saved, tmp_path, warmup=(1,))
    publish(exported, tmp_path, params={"w": PARAMS["w"] + 1}, gradient_order=0)
    back = rollback(tmp_path)
    assert (back.version, back.copy_of, back.warmup) == (3, 1, 1)
    x = np.eye(3, dtype=np.float32)
    assert np.array_equal(bridge.load(back)(x), bridge.load(tmp_path / "1")(x))
    assert bridge.inspect(back).signatures == bridge.inspect(tmp_path / "1").signatures
    # The values take no more room than they did.
    (values,) = Path(back, "variables").glob("*.data*")
    assert values.stat().st_nlink == 2


def test_rollbacks_go_further_back_each_time(saved, tmp_path):
    for _ in range(3):
        publish(saved, tmp_path)
    assert [rollback(tmp_path).copy_of for _ in range(2)] == [2, 1]
    with pytest.raises(StructureError, match=r"versions \[1, 2, 3, 4, 5\], and none before 1"):
        rollback(tmp_path)
    # The newest is good again, and what came before it is a copy of version 1.
    assert publish(saved, tmp_path).version == 6
    assert rollback(tmp_path).copy_of == 1
    assert rollback(tmp_path, to=2, keep=2).removed == (1, 2, 3, 4, 5, 6)
    assert _visible(tmp_path) == [7, 8]
    assert rollback(tmp_path, to=8).copy_of == 2


def test_a_published_rollback_is_published_as_new(saved, tmp_path):
    publish(saved, tmp_path / "a")
    publish(saved, tmp_path / "a")
    published = publish(rollback(tmp_path / "a"), tmp_path / "b")
    assert not Path(published, "assets.extra/jax_tf_bridge_publication.json").exists()
    assert rollback(tmp_path / "b", to=1).copy_of == 1


@pytest.mark.parametrize("to", [9, 0, "1"])
def test_a_rollback_to_what_is_not_there(saved, tmp_path, to):
    publish(saved, tmp_path)
    with pytest.raises(StructureError, match=rf"has the versions \[1\], and not {to!r}"):
        rollback(tmp_path, to=to)


def test_a_rollback_of_nothing(tmp_path):
    with pytest.raises(StructureError, match="has the versions none, and none before them"):
        rollback(tmp_path)


def test_a_damaged_record_of_a_rollback(saved, tmp_path):
    publish(saved, tmp_path)
    publish(saved, tmp_path)
    file = Path(rollback(tmp_path), "assets.extra/jax_tf_bridge_publication.json")
    file.write_text("[]")
    with pytest.raises(FormatError, match=r"of version 3 is damaged.*by to="):
        rollback(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"version": 0}, "version=0; expected a whole number of at least 1"),
        ({"version": -3}, "version=-3"),
        ({"version": "1"}, "version='1'"),
        ({"version": True}, "version=True"),
        ({"version": 2**63}, "version=9223372036854775808"),
        ({"keep": 0}, "keep=0; expected a whole number of at least 1"),
        ({"keep": 1.5}, r"keep=1\.5"),
        ({"params": PARAMS}, "is a SavedModel already, so params= has no effect"),
        ({"warmup": ()}, "warmup is empty"),
        ({"warmup": (0, 8)}, "0 among the batch sizes"),
        ({"warmup": "1,8"}, r"is '1,8'; expected numbers.*as in warmup=\(1, 8\)"),
        ({"warmup": {"x": [["a"]]}}, r"is \[\['a'\]\]; expected numbers"),
        ({"batching": "8"}, "batching='8'; expected allowed batch sizes"),
        ({"batching": True}, "neither warmup nor batch_buckets"),
    ],
)
def test_wrong_arguments(saved, tmp_path, options, message):
    with pytest.raises(StructureError, match=message):
        publish(saved, tmp_path, **options)
    assert _visible(tmp_path) == []


@pytest.mark.parametrize("name", ["arg", "overwrite", "unknown"])
def test_keywords_that_it_does_not_take(saved, tmp_path, name):
    hint = r"\. Did you mean 'args'\?$" if name == "arg" else "$"
    with pytest.raises(TypeError, match=f"got an unexpected keyword argument {name!r}{hint}"):
        publish(saved, tmp_path, **{name: True})


def test_a_version_that_goes_while_it_is_copied(saved, tmp_path, monkeypatch):
    publish(saved, tmp_path)
    publish(saved, tmp_path)
    copy = base_path.copy_files

    def and_remove(source, target):
        publish(saved, tmp_path, keep=1)
        copy(source, target)

    monkeypatch.setattr(base_path, "copy_files", and_remove)
    with pytest.raises((StructureError, FileNotFoundError), match="1"):
        rollback(tmp_path)
    assert _visible(tmp_path) == [3]
    monkeypatch.setattr(
        base_path, "copy_files", lambda source, target: publish(saved, tmp_path, keep=1)
    )
    publish(saved, tmp_path)
    with pytest.raises(StructureError, match="3 was removed while it was copied"):
        rollback(tmp_path)


def test_wrong_places(saved, tmp_path):
    with pytest.raises(
        StructureError, match=r"is itself a SavedModel, and base_path is the folder"
    ):
        publish(saved, saved)
    with pytest.raises(StructureError, match=r"is inside of .*, which is to be copied"):
        publish(saved, saved / "versions")
    (tmp_path / "file").touch()
    with pytest.raises(StructureError, match="is not a folder"):
        publish(saved, tmp_path / "file")
    with pytest.raises(FormatError, match=r"has no saved_model\.pb"):
        publish(tmp_path / "nowhere", tmp_path)
    with pytest.raises(StructureError, match=r"s3://bucket/m is an address"):
        publish("s3://bucket/m", tmp_path)


def test_a_damaged_model_is_not_published(saved, tmp_path):
    copy = publish(saved, tmp_path / "a")
    data = bytearray(Path(copy, "saved_model.pb").read_bytes())
    data[-9] ^= 1
    Path(copy, "saved_model.pb").write_bytes(data)
    with pytest.raises(FormatError, match="have the checksum"):
        publish(copy, tmp_path / "b")


def test_parameters_of_several_processes_are_refused(exported, tmp_path, monkeypatch):
    monkeypatch.setattr(publishing, "is_multi_process", lambda params: True)
    with pytest.raises(ShardingError, match=r"call bridge\.save in all of them, and publish"):
        publish(exported, tmp_path, params=PARAMS)


def test_an_address(store, saved, tmp_path):  # noqa: F811 - a fixture
    base = "s3://bucket/models/sine"
    first = publish(saved, base, warmup=(1, 2), batching=True)
    assert first.path == f"{base}/1"
    assert first.configs.models == f"{base}/models.config"
    assert store.written.index("saved_model.pb") > store.written.index("tf_serving_warmup_requests")
    local = publish(saved, tmp_path, warmup=(1, 2), batching=True, name="sine")
    names = store.store
    stored = {
        path.partition("/sine/1/")[2]: file.getvalue()
        for path, file in names.items()
        if "/sine/1/" in path
    }
    assert stored == _contents(local)
    publish(saved, base)
    with pytest.raises(StructureError, match=r"s3://bucket/models/sine has a version 2 already"):
        publish(saved, base, version=2)
    assert rollback(base).copy_of == 1
    assert publish(saved, base, keep=2).removed == (1, 2)
    left = {path.partition("/sine/")[2].split("/")[0] for path in names if "/sine/" in path}
    assert left == {"3", "4", "models.config", "monitoring.config", "batching_parameters.txt"}


def test_an_address_without_etils(saved, monkeypatch):
    monkeypatch.setitem(sys.modules, "etils", None)
    with pytest.raises(MissingDependencyError, match=re.escape(installing("remote"))):
        publish(saved, "gs://bucket/model")


class TestWeights:
    """New values in the newest version, or in a file."""

    def test_the_next_version(self, saved, tmp_path):
        publish(saved, tmp_path, warmup=(1, 8), batching=True)
        first = {name: (tmp_path / "1" / name) for name in _contents(tmp_path / "1")}
        published = publish(None, tmp_path, weights={"w": PARAMS["w"] + 1}, keep=2)
        assert (published.version, published.warmup) == (2, 2)
        assert (published.updated, published.kept) == (("w",), ())
        assert "new values for 1 of 1 variable" in str(published).splitlines()
        np.testing.assert_array_equal(bridge.load(tmp_path / "2").params["w"], PARAMS["w"] + 1)
        np.testing.assert_array_equal(bridge.load(tmp_path / "1").params["w"], PARAMS["w"])
        changed = {f"variables/variables.{end}" for end in ("index", "data-00000-of-00001")}
        for name, file in first.items():
            same = os.path.samefile(file, tmp_path / "2" / name)
            assert same == (name not in changed)
        # What follows is of the newest, and a rollback is nothing that it inherits.
        rollback(tmp_path)
        assert publish(None, tmp_path, weights={"w": PARAMS["w"]}).copy_of is None
        assert rollback(tmp_path).copy_of == 1

    def test_a_file_with_new_values(self, saved, tmp_path):
        np.savez(tmp_path / "new.npz", w=PARAMS["w"] * 2)
        published = publish(saved, tmp_path / "base", weights=tmp_path / "new.npz", warmup=(1,))
        assert published.warmup == 1
        np.testing.assert_array_equal(bridge.load(published).params["w"], PARAMS["w"] * 2)
        # It is somebody else's, who may change it in place.
        proto = "saved_model.pb"
        assert not os.path.samefile(saved / proto, tmp_path / "base" / "1" / proto)

    def test_what_is_refused(self, saved, exported, tmp_path):
        with pytest.raises(StructureError, match="has no version to put new weights"):
            publish(None, tmp_path, weights=PARAMS)
        publish(saved, tmp_path)
        with pytest.raises(StructureError, match=r"version 1 of .* no variable: 'v'"):
            publish(None, tmp_path, weights={"v": 1.0})
        with pytest.raises(StructureError, match=r"model is a Exported.* the weights as params="):
            publish(exported, tmp_path, weights=PARAMS)
        with pytest.raises(StructureError, match=r"weights= are put .* params= has no effect"):
            publish(None, tmp_path, weights=PARAMS, params=PARAMS)
        with pytest.raises(StructureError, match=r"Expected a jax\.export\.Exported|args="):
            publish(None, tmp_path)
        assert _visible(tmp_path) == [1]

    def test_of_publishers_at_once_no_value_is_lost(self, tmp_path):
        params = {f"v{number}": np.float32(0) for number in range(6)}
        publish(lambda p, x: p["v0"] + x, tmp_path, params=params, args="f32[]")

        def put(number):
            return publish(None, tmp_path, weights={f"v{number}": np.float32(number + 1)}).version

        with ThreadPoolExecutor(6) as pool:
            assert sorted(pool.map(put, range(6))) == [2, 3, 4, 5, 6, 7]
        found = bridge.load(tmp_path / "7").params
        assert {k: float(v) for k, v in found.items()} == {f"v{n}": n + 1.0 for n in range(6)}

    def test_in_an_object_store(self, store, saved, tmp_path):  # noqa: F811 - a fixture
        publish(saved, "s3://bucket/model")
        assert publish(None, "s3://bucket/model", weights={"w": PARAMS["w"] + 3}).version == 2
        for name, file in store.store.items():
            number, _, rest = name.removeprefix("/bucket/model/").partition("/")
            place = tmp_path / number / rest
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(file.getvalue())
        np.testing.assert_array_equal(bridge.load(tmp_path / "2").params["w"], PARAMS["w"] + 3)
        np.testing.assert_array_equal(bridge.load(tmp_path / "1").params["w"], PARAMS["w"])


def _scores(params, x):
    return x @ params["w"]


class TestUnchanged:
    """What is there already is said, and there is no new version of it."""

    @pytest.mark.parametrize("base", ["base", "s3://bucket/model"])
    def test_the_same_model(self, saved, tmp_path, store, base):  # noqa: F811 - the fixture
        base = base if "://" in base else tmp_path / base
        first = bridge.serving.publish(saved, base, warmup=(1,))
        again = bridge.serving.publish(saved, base, warmup=(1,))
        assert (first.unchanged, again.unchanged) == (False, True)
        assert (again.version, again.path, again.warmup) == (1, first.path, 1)
        assert "unchanged: the newest version has this program" in str(again)
        assert bridge.serving.publish(saved, base, warmup=(1,), force=True).version == 2

    @pytest.mark.parametrize("operations", ["tensorflow", "xla"])
    def test_the_same_program_on_another_line(self, tmp_path, operations):
        """Modules have the lines of the source, and those of the calls that led there."""

        def predict(params, x):
            return x @ params["w"]

        form = {"operations": operations}
        options = {"params": PARAMS, "args": "f32[b,3]"} | form
        first = bridge.serving.publish(predict, tmp_path / "base", **options)
        moved = bridge.save(predict, tmp_path / "moved", **options)
        graphs = [Path(each, "saved_model.pb").read_bytes() for each in (first, moved)]
        assert graphs[0] != graphs[1]
        again = bridge.serving.publish(moved, tmp_path / "base", **form)
        assert (again.version, again.unchanged) == (1, True)
        publish(moved, tmp_path / "base", **form)
        assert rollback(tmp_path / "base").differences == (
            "the places in the source that messages name",
        )

    @pytest.mark.parametrize(
        "option",
        [
            {"defaults": {"x": [[1.0, 2.0, 3.0]]}}, {"disabled_checks": ["platform"]},
            {"platforms": ["cpu"]}, {"gradient_order": 0}, {"inputs": ["y"]}, {"residuals": True},
        ],
        ids=str,
    )  # fmt: skip
    def test_each_option_is_a_change(self, tmp_path, option):
        options = {"params": PARAMS, "args": "f32[1,3]"}
        bridge.serving.publish(_scores, tmp_path, **options)
        assert bridge.serving.publish(_scores, tmp_path, **options).unchanged
        assert bridge.serving.publish(_scores, tmp_path, **options, **option).version == 2

    @pytest.mark.parametrize("factor", [2.0, 3.0])
    def test_other_operations_around_the_call(self, tmp_path, factor):
        """They are in the graph alone; TensorFlow numbers them anew each time."""
        tf = pytest.importorskip("tensorflow")
        request = {"x": tf.TensorSpec([None, 3])}
        for name, scale in (("first", 2.0), ("second", factor)):
            model = bridge.serving.compose(
                lambda p, x: x @ p["w"], tmp_path / name, params=PARAMS, args="f32[b,3]",
                preprocess=lambda x, scale=scale: x * scale, request=request,
            )  # fmt: skip
            published = bridge.serving.publish(model, tmp_path / "base")
        assert (published.version, published.unchanged) == (2, False)
        served = tf.saved_model.load(published.path).signatures["serving_default"]
        (found,) = served(x=tf.ones([1, 3])).values()
        np.testing.assert_allclose(found, factor * PARAMS["w"].sum(0)[None], rtol=1e-6)
        assert rollback(tmp_path / "base").differences == (
            "TensorFlow's operations around the calls, or their names",
        )

    @pytest.mark.parametrize("operations", ["tensorflow", "xla"])
    def test_another_form_of_the_same_module(self, tmp_path, operations):
        options = {"params": PARAMS, "args": "f32[b,3]", "operations": operations}
        bridge.serving.publish(lambda p, x: x @ p["w"], tmp_path, params=PARAMS, args="f32[b,3]")
        again = bridge.serving.publish(lambda p, x: x @ p["w"], tmp_path, **options)
        assert again.unchanged == (operations == "tensorflow")

    def test_the_same_weights(self, saved, tmp_path):
        bridge.serving.publish(saved, tmp_path, warmup=(1, 8), batching=True)
        new = {"w": PARAMS["w"] + 1}
        versions = [bridge.serving.publish(None, tmp_path, weights=new) for _ in range(3)]
        assert [(each.version, each.unchanged) for each in versions] == [
            (2, False), (2, True), (2, True),
        ]  # fmt: skip
        assert _visible(tmp_path) == [1, 2]

    @pytest.mark.parametrize(
        "change", [{"warmup": (1, 2)}, {"warmup": (1,), "batching": True}, {}], ids=str
    )
    def test_other_files_for_the_server(self, saved, tmp_path, change):
        bridge.serving.publish(saved, tmp_path, warmup=(1,))
        assert bridge.serving.publish(saved, tmp_path, **change).version == 2

    def test_a_measurement_is_no_change(self, saved, tmp_path):
        first = bridge.serving.publish(saved, tmp_path)
        measured = Path(first, "assets.extra/jax_tf_bridge_first_requests.json")
        measured.parent.mkdir(exist_ok=True)
        measured.write_text("{}")
        assert bridge.serving.publish(saved, tmp_path).unchanged

    def test_a_number_that_is_asked_for(self, saved, tmp_path):
        bridge.serving.publish(saved, tmp_path)
        assert bridge.serving.publish(saved, tmp_path, version=4).version == 4

    def test_a_copy_of_an_older_version_is_no_new_one(self, saved, exported, tmp_path):
        bridge.serving.publish(saved, tmp_path)
        publish(None, tmp_path, weights={"w": PARAMS["w"] + 1})
        rollback(tmp_path)
        assert bridge.serving.publish(saved, tmp_path).version == 3


class TestDifferences:
    """`rollback` says what differs from the version that was served before."""

    def test_weights(self, saved, tmp_path):
        publish(saved, tmp_path)
        publish(None, tmp_path, weights={"w": PARAMS["w"] + 1})
        back = rollback(tmp_path)
        (difference,) = back.differences
        assert difference.startswith("w: float32[3,2], 6 of 6 elements differ, by at most 1 at")
        assert f"  {difference}" in str(back).splitlines()

    def test_none(self, saved, tmp_path):
        publish(saved, tmp_path)
        publish(saved, tmp_path)
        back = rollback(tmp_path)
        assert back.differences == ()
        assert "  nothing differs from it" in str(back).splitlines()

    def test_the_program(self, saved, exported, tmp_path):
        publish(exported, tmp_path, params=PARAMS, gradient_order=1)
        publish(exported, tmp_path, params=PARAMS, gradient_order=0)
        assert rollback(tmp_path).differences == ("serving_default, gradient 1: nothing -> there",)
