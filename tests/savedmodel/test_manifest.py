"""The manifest: what it says of the files, and what it finds."""

from __future__ import annotations

import json
import shutil
from hashlib import sha256

import jax
import numpy as np
import pytest
from jax import export

import bridge
from bridge.cli.main import main
from savedmodel.manifest import MANIFEST_FILE, compare_manifest, read_manifest
from xla_call_module.errors import FormatError, StructureError


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("manifest") / "model"
    params = {"w": np.arange(6, dtype=np.float32)}
    bridge.save(_scale, folder, params=params, args="f32[b,6]", manifest=True)
    return folder


def _scale(params, x):
    return params["w"] * x


@pytest.fixture
def folder(written, tmp_path):
    return shutil.copytree(written, tmp_path / "model")


def test_it_has_the_hash_of_every_file(folder):
    manifest = read_manifest(folder)
    files = {f.relative_to(folder).as_posix(): f for f in folder.rglob("*") if f.is_file()}
    del files[MANIFEST_FILE]
    assert manifest.files.keys() == files.keys()
    for name, file in files.items():
        data = file.read_bytes()
        found = manifest.files[name]
        assert (found.bytes, found.sha256) == (len(data), sha256(data).hexdigest())
    assert manifest.versions["jax"] == jax.__version__
    assert compare_manifest(folder) == ()


def test_save_says_where_the_source_is(folder):
    """This file is in a checkout, or in none where the tests run from an archive."""
    source = read_manifest(folder).source
    assert source is None or len(source["revision"]) in (40, 64)


def test_without_being_asked_there_is_none(tmp_path):
    bridge.save(_scale, tmp_path / "m", params={"w": np.ones(6, "f")}, args="f32[6]")
    assert read_manifest(tmp_path / "m") is None
    with pytest.raises(StructureError, match=r"has no manifest.*manifest=True"):
        compare_manifest(tmp_path / "m")
    assert bridge.inspect(tmp_path / "m").manifest is None


def test_changes_are_found(folder):
    data = folder / "variables" / "variables.data-00000-of-00001"
    changed = bytearray(data.read_bytes())
    changed[-1] ^= 1
    data.write_bytes(changed)
    (folder / "variables" / "variables.index").unlink()
    (folder / "saved_model.pb").write_bytes(b"short")
    (folder / "more").write_text("")
    missing, added, model, value = compare_manifest(folder)
    assert missing == "variables/variables.index is missing"
    assert added == "more is not in the manifest"
    assert model.startswith("saved_model.pb has 5 bytes, in the manifest ")
    assert value.startswith("variables/variables.data-00000-of-00001 has the SHA-256 ")


def test_what_serving_adds_is_no_change(folder):
    (folder / "batching_params.pbtxt").write_text("")
    (folder / "assets.extra" / "jax_tf_bridge_publication.json").write_text("{}")
    assert compare_manifest(folder) == ()


def test_another_target_has_no_manifest(folder, tmp_path):
    """It would have the hash of the old module."""
    bridge.retarget(folder, "2.16", to=tmp_path / "older")
    assert read_manifest(tmp_path / "older") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a manifest, or a damaged one"),
        ("[1]", "is not a manifest, or a damaged one"),
        ('{"format": 1}', "KeyError"),
        ('{"format": 2}', "is of format 2; known is 1"),
        ('{"format": 1, "files": {"a": 3}, "versions": {}}', "TypeError"),
        ("[" * 100_000, "RecursionError"),
    ],
)
def test_a_damaged_manifest(folder, text, message):
    (folder / MANIFEST_FILE).write_text(text)
    with pytest.raises(FormatError, match=message):
        read_manifest(folder)


def test_the_command(folder, capsys):
    assert main(["manifest", str(folder)]) == 0
    assert "3 files, all as in the manifest" in capsys.readouterr().out
    assert main(["manifest", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["differences"] == []
    assert found["files"].keys() >= {"saved_model.pb"}
    (folder / "saved_model.pb").write_bytes(b"")
    assert main(["manifest", str(folder)]) == 1
    assert "saved_model.pb has 0 bytes" in capsys.readouterr().out
    assert main(["manifest", str(folder / "nowhere")]) == 2
    assert "nowhere does not exist" in capsys.readouterr().err


def test_inspect_shows_it(folder, capsys, tmp_path):
    assert main(["inspect", str(folder)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "manifest 3 files" in shown
    assert f"jax {jax.__version__}" in shown
    assert main(["inspect", str(folder), "--html", str(tmp_path / "page.html")]) == 0
    assert f"jax {jax.__version__}" in (tmp_path / "page.html").read_text()


def test_an_older_folder_stays_when_it_fails(folder):
    before = read_manifest(folder)
    exported = export.export(jax.jit(lambda: ()))()
    with pytest.raises(StructureError, match="returns no array"):
        bridge.save(exported, folder, manifest=True, overwrite=True)
    with pytest.raises(StructureError, match="exists"):
        bridge.save(_scale, folder, params={"w": np.ones(6, "f")}, args="f32[6]", manifest=True)
    assert read_manifest(folder) == before
    assert [entry.name for entry in folder.parent.iterdir()] == ["model"]
