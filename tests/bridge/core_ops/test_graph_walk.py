"""What a walk makes of composites and old custom calls, and of what it does not know."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import export, lax

import bridge
from tests.bridge.onnx.checking import operations
from tests.bridge.onnx.written import exported_of
from tests.xla_call_module.stablehlo.mhlo_calls import as_old_jax_writes_it

NATIVE = {
    "Acos": jnp.arccos, "Acosh": jnp.arccosh, "Asin": jnp.arcsin, "Asinh": jnp.arcsinh,
    "Atanh": jnp.arctanh, "Cosh": jnp.cosh, "Erf": lax.erf, "Sinh": jnp.sinh,
}  # fmt: skip


@pytest.mark.parametrize("name", NATIVE)
def test_one_operation(name):
    """JAX before 0.9.1 has custom calls for some functions, and operations in most; 0.12 in one."""
    exported = export.export(jax.jit(NATIVE[name]))(jnp.float32(1))
    text = str(exported.mlir_module())
    if "stablehlo.composite" in text or "@mhlo." in text:
        # Before ONNX Runtime 1.27 the error function of NaN is 1.
        nodes = ["Erf", "IsNaN", "Where"] if name == "Erf" else [name]
        assert operations(bridge.to_onnx(exported)) == nodes
        assert operations(bridge.to_onnx(exported, exact=False)) == [name]


def test_custom_calls_of_old_versions():
    numbers = jax.ShapeDtypeStruct((3, 5), jnp.float32)
    exported = export.export(jax.jit(lambda x: [lax.erf(x), lax.top_k(x, 2)]))(numbers)
    found = operations(bridge.to_onnx(exported))
    assert {"Erf", "TopK"} < set(found)
    assert operations(bridge.to_onnx(as_old_jax_writes_it(exported))) == found


def test_an_attribute_that_is_not_known_is_refused():
    text = """func.func @main(%x: tensor<5xf32>) -> tensor<5xf32> {
      %0 = stablehlo.tanh %x {saturating = true} : tensor<5xf32>
      return %0 : tensor<5xf32> }"""
    with pytest.raises(bridge.InteropError, match="attribute saturating = true"):
        bridge.to_onnx(exported_of(text))
