"""The format of a path, by its first bytes or its name, and what is refused of each."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import bridge
from bridge.formats.format_registry import format_of
from xla_call_module.errors import FormatError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("formats")
    exported = jax.export.export(jax.jit(jnp.tanh))(jnp.ones(2))
    bridge.save(exported, folder / "saved")
    (folder / "f.bin").write_bytes(exported.serialize())
    (folder / "f.mlir").write_text(exported.mlir_module())
    (folder / "f.mlirbc").write_bytes(exported.mlir_module_serialized)
    (folder / "f.onnx").write_bytes(b"\x08\x0a")
    (folder / "f.tflite").write_bytes(b"no flatbuffer")
    (folder / "renamed").write_bytes(b"\x1c\0\0\0TFL3")
    (folder / "empty.onnx").touch()
    return folder


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("saved", "a SavedModel"),
        ("saved/saved_model.pb", "a SavedModel"),
        ("nowhere.onnx", "a SavedModel"),
        ("empty.onnx", "a SavedModel"),
        ("f.onnx", "an ONNX model"),
        ("f.tflite", "a LiteRT model"),
        ("renamed", "a LiteRT model"),
        ("f.mlir", "StableHLO"),
        ("f.mlirbc", "StableHLO"),
        ("f.bin", "a serialized Exported"),
    ],
)
def test_the_format_of_a_path(folder, path, name):
    assert format_of(folder / path).name == name
    assert format_of(str(folder / path)).name == name


@pytest.mark.parametrize("path", ["f.bin", "f.mlir"])
def test_files_of_other_formats_are_not_verified(folder, path):
    with pytest.raises(FormatError, match="is a file, and not an ONNX model or a LiteRT model"):
        bridge.verify(folder / path)


@pytest.mark.parametrize("path", ["saved", "f.bin", "f.mlir"])
def test_one_call_for_files_that_jax_runs(folder, path):
    runnable = format_of(folder / path).open(str(folder / path), "serving_default")
    (name,) = runnable.inputs
    (result,) = runnable.call({name: jnp.ones(2)}).values()
    assert result.tolist() == jnp.tanh(jnp.ones(2)).tolist()
    assert runnable.signature == "serving_default"


def test_what_is_assigned_is_no_output(tmp_path):
    options = {"params": {"n": jnp.float32(2)}, "args": "f32[2]", "updates": 0}
    bridge.save(lambda p, x: ({"n": p["n"] + 1}, {"y": p["n"] * x}), tmp_path / "saved", **options)
    runnable = format_of(tmp_path / "saved").open(str(tmp_path / "saved"), None)
    assert runnable.call({"x": jnp.ones(2)})["y"].tolist() == [2, 2]
