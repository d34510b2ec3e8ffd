"""Places where a model may be written, and errors of those where it may not."""

from __future__ import annotations

import pytest

from bridge.sources.target_file import target_file
from xla_call_module.errors import StructureError


def test_a_new_file_is_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert target_file("new/model.onnx", overwrite=False) == tmp_path / "new" / "model.onnx"


def test_what_is_there_is_replaced_on_request_alone(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_text("mine")
    with pytest.raises(StructureError, match=r"model\.onnx exists.*overwrite=True"):
        target_file(path, overwrite=False)
    assert target_file(path, overwrite=True) == path
    with pytest.raises(StructureError, match="exists"):
        target_file(tmp_path, overwrite=True)


def test_files_beside_it_count(tmp_path):
    (tmp_path / "model.data").write_text("mine")
    with pytest.raises(StructureError, match=r"model\.data exists"):
        target_file(
            tmp_path / "model.onnx",
            overwrite=False,
            beside=lambda target: [target.with_suffix(".data")],
        )


@pytest.mark.parametrize(
    ("path", "match"),
    [
        ("gs://bucket/model.tflite", "a file on a disk"),
        (None, "Expected a path, got a NoneType"),
        (target_file, "Expected a path, got target_file"),
        ("C:\\models\\m.onnx", "a path of Windows"),
    ],
)
def test_only_files_on_a_disk(path, match):
    with pytest.raises(StructureError, match=match):
        target_file(path, overwrite=False)
