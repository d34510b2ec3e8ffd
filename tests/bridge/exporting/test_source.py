"""Whatever holds an exported function is opened in one place, for each verb that takes one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import bridge
from bridge.exporting.source import default_of, open_model
from bridge.keras import ExportedLayer
from bridge.loading.loaded import LoadedSignature
from bridge.loading.loaded_model import LoadedModel
from xla_call_module.call import CallModule
from xla_call_module.errors import FormatError, StructureError

X = np.linspace(-1, 1, 4, dtype=np.float32)


@pytest.fixture(scope="module")
def exported():
    return export.export(jax.jit(lambda x: jnp.sin(x) * 2), platforms=["cpu"])(X)


@pytest.fixture(scope="module")
def held(exported, tmp_path_factory):
    """The same function, as everything that can hold it."""
    folder = tmp_path_factory.mktemp("held")
    (folder / "exported").write_bytes(exported.serialize())
    (folder / "module.mlir").write_text(exported.mlir_module())
    bridge.save(exported, folder / "model")
    return {
        "Exported": exported,
        "file of an Exported": folder / "exported",
        "bytes of an Exported": bytes(exported.serialize()),
        "bytearray": exported.serialize(),
        "artifact": exported.mlir_module_serialized,
        "text": exported.mlir_module(),
        "file of text": folder / "module.mlir",
        "SavedModel": str(folder / "model"),
        "loaded": bridge.load(folder / "model"),
        "signature": bridge.load(folder / "model").default,
    }


KINDS = {
    "Exported": export.Exported, "file of an Exported": export.Exported,
    "bytes of an Exported": export.Exported, "bytearray": export.Exported, "artifact": CallModule,
    "text": CallModule, "file of text": CallModule, "SavedModel": LoadedModel,
    "loaded": LoadedModel, "signature": LoadedSignature,
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_opened(held, kind):
    assert isinstance(open_model(held[kind]), KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", [bridge.to_jax, bridge.to_onnx])
def test_a_verb_takes_it(held, kind, verb):
    made = verb(held[kind])
    if verb is bridge.to_jax:
        np.testing.assert_allclose(made(X), np.sin(X) * 2, rtol=1e-6)
    else:
        assert [node.op_type for node in made.graph.node] == ["Sin", "Mul"]


@pytest.mark.parametrize("kind", ["Exported", "file of an Exported", "bytes of an Exported"])
def test_save_and_layers_take_an_exported(held, kind, tmp_path):
    bridge.save(held[kind], tmp_path / "m")
    np.testing.assert_allclose(bridge.load(tmp_path / "m")(X), np.sin(X) * 2, rtol=1e-6)


def test_a_layer_of_the_file_of_an_exported(held):
    layer = ExportedLayer(held["file of an Exported"])
    np.testing.assert_allclose(layer(X), np.sin(X) * 2, rtol=1e-6)


def test_anything_else_is_as_it_was():
    assert open_model(jnp.sin) is jnp.sin


@pytest.mark.parametrize("verb", [bridge.to_jax, bridge.to_onnx, lambda m: bridge.save(m, "never")])
def test_bytes_of_something_else(verb):
    with pytest.raises(FormatError, match="the bytes is not a serialized Exported, or is damaged"):
        verb(b"nothing")


@pytest.mark.parametrize("verb", [bridge.to_jax, bridge.to_onnx, default_of])
def test_no_signature_is_the_default(tmp_path, exported, verb):
    bridge.save({"a": exported, "b": exported}, tmp_path / "m")
    with pytest.raises(StructureError, match=r"Which signature is meant.* 'a', 'b', and no 'serv"):
        verb(bridge.load(tmp_path / "m"))
