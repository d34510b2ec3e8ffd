"""`bridge.inspect` of files that are no SavedModel: `Exported`, StableHLO, ONNX."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import bridge
from bridge.cli.main import main
from bridge.inspecting.html import to_html
from xla_call_module.errors import FormatError, StructureError

PARAMS = {"w": np.ones((3, 2), "f")}


def _predict(params, x):
    return {"y": jnp.tanh(x @ params["w"])}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("files")
    x = jax.ShapeDtypeStruct(export.symbolic_shape("b, 3"), np.float32)
    exported = export.export(jax.jit(_predict), platforms=["cpu", "tpu"])(PARAMS, x)
    (path / "f.bin").write_bytes(exported.serialize(vjp_order=2))
    one = export.export(jax.jit(_predict))(PARAMS, x)
    (path / "f.mlir").write_text(one.mlir_module())
    (path / "f.mlirbc").write_bytes(one.mlir_module_serialized)
    eigen = export.export(jax.jit(lambda x: jnp.linalg.eig(x)[0]), platforms=["cpu"])
    (path / "eigen.bin").write_bytes(eigen(np.eye(3, dtype="f")).serialize())
    loop = export.export(jax.jit(lambda x: jax.lax.while_loop(lambda v: v.sum() < 9, jnp.exp, x)))
    bridge.save_onnx(exported, path / "f.onnx", params=PARAMS)
    bridge.save_onnx(exported, path / "apart.onnx", params=PARAMS, external_data=True)
    bridge.save_onnx(loop(np.ones(3, "f")), path / "loop.onnx")
    return path


def test_an_exported_with_its_gradients(folder):
    report = bridge.inspect(folder / "f.bin")
    (signature,) = report.signatures
    assert (signature.key, signature.platforms, signature.gradient_order) == (
        "_predict", ("cpu", "tpu"), 2,
    )  # fmt: skip
    assert [(t.name, t.shape, t.path) for t in signature.inputs] == [
        ("params_w", (3, 2), "args[0]['w']"),
        ("x", ("b", 3), "args[1]"),
    ]
    assert [(t.name, t.shape) for t in signature.outputs] == [("y", ("b", 2))]
    assert [order.order for order in signature.orders] == [0, 1, 2]
    assert signature.orders[0].operations["stablehlo.tanh"] >= 1
    assert report.bytes == (folder / "f.bin").stat().st_size


def test_what_tensorflow_does_not_run_is_shown(folder):
    (signature,) = bridge.inspect(folder / "eigen.bin").signatures
    assert any("geev" in target for target in signature.custom_calls)


@pytest.mark.parametrize("name", ["f.mlir", "f.mlirbc"])
def test_stablehlo(folder, name):
    report = bridge.inspect(folder / name)
    (signature,) = report.signatures
    assert (signature.platforms, report.writer) == ((), "StableHLO")
    assert [t.dtype for t in signature.inputs] == ["float32", "float32"]
    (count,) = signature.orders[0].counts
    assert count.operations["stablehlo.tanh"] >= 1
    assert count.where == "on any platform"


def test_onnx(folder):
    report = bridge.inspect(folder / "f.onnx")
    (signature,) = report.graph.signatures
    assert [(t.name, t.dtype, t.shape) for t in signature.inputs] == [("x", "float32", ("b", 3))]
    assert [(t.name, t.dtype, t.shape) for t in signature.outputs] == [("y", "float32", ("b", 2))]
    assert (signature.operations["MatMul"], signature.operations["Tanh"]) == (1, 1)
    assert [(p.name, p.dtype, p.shape, p.bytes) for p in report.parameters] == [
        ("w", "float32", (3, 2), 24)
    ]
    assert report.writer.startswith("jax-tf-bridge ")
    assert bridge.inspect(folder / "apart.onnx").parameters == report.parameters
    # The operations of its body are counted, too.
    assert bridge.inspect(folder / "loop.onnx").graph.operations["Exp"] == 1


@pytest.mark.parametrize("name", ["f.bin", "f.mlir", "f.onnx", "loop.onnx"])
def test_they_are_shown(folder, name, tmp_path, capsys):
    path = str(folder / name)
    assert main(["inspect", path]) == 0
    assert "operations" in capsys.readouterr().out
    assert main(["inspect", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["path"] == path
    assert main(["inspect", path, "--html", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_text() == to_html(bridge.inspect(path))
    assert main(["inspect", path, "--cost"]) == 2
    assert "--cost and --mlir are for SavedModels" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["f.bin", "f.mlir", "f.onnx", "f"])
def test_damage(folder, name, tmp_path, capsys):
    content = (folder / ("f.bin" if name == "f" else name)).read_bytes()
    (tmp_path / name).write_bytes(content[: len(content) // 2])
    with pytest.raises((FormatError, StructureError), match="To do: "):
        bridge.inspect(tmp_path / name)
    assert main(["inspect", str(tmp_path / name)]) == 2
    assert capsys.readouterr().err.startswith("jax-tf-bridge: ")
