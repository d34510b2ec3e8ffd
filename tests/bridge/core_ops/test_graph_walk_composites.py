"""Functions that JAX lowers to composites, and special functions that are made of others."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import bridge
from tests.bridge.onnx.checking import check, operations
from tests.bridge.onnx.edges import edges
from tests.xla_call_module.stablehlo.mhlo_calls import as_old_jax_writes_it

NATIVE = {
    "Acos": jnp.arccos,
    "Acosh": jnp.arccosh,
    "Asin": jnp.arcsin,
    "Asinh": jnp.arcsinh,
    "Atanh": jnp.arctanh,
    "Cosh": jnp.cosh,
    "Erf": lax.erf,
    "Sinh": jnp.sinh,
}
SMALL = np.concatenate([np.linspace(-1, 1, 21), [1e-8, -1e-8, 1e-3, 1.5, 3, 30]])


def _is_a_composite(function):
    """JAX before 0.9.1 has custom calls for some functions, and operations in most; 0.12 in one."""
    text = str(export.export(jax.jit(function))(jnp.float32(1)).mlir_module())
    return "stablehlo.composite" in text or "@mhlo." in text


@pytest.mark.parametrize("name", NATIVE)
def test_one_operation(name):
    numbers = np.concatenate([edges("float32"), SMALL]).astype(np.float32)
    model = check(NATIVE[name], numbers, rtol=2e-6)
    if _is_a_composite(NATIVE[name]):
        assert operations(model) == [name]


def test_custom_calls_of_old_versions():
    def function(x):
        return [lax.erf(x), lax.top_k(x, 2)]

    numbers = jax.ShapeDtypeStruct((3, 5), jnp.float32)
    exported = export.export(jax.jit(function))(numbers)
    found = operations(bridge.to_onnx(exported))
    assert {"Erf", "TopK"} < set(found)
    assert operations(bridge.to_onnx(as_old_jax_writes_it(exported))) == found


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_dtypes(dtype):
    tolerance = {"float16": 2e-3, "bfloat16": 1.6e-2, "float64": 1e-12}[dtype]
    numbers = SMALL.astype(getattr(jnp, dtype))
    check(lambda x: [f(x) for f in NATIVE.values()], numbers, rtol=tolerance)


def test_symbolic_sizes():
    check(lambda x: [f(x) for f in NATIVE.values()], np.float32([[0.5, 0.25]]), shapes=["b, t"],
          rtol=2e-6)  # fmt: skip


def test_special_functions():
    special = jax.scipy.special

    def function(x):
        return [
            special.erfc(x), special.erfinv(x / 4), special.gammaln(x), special.digamma(x),
            special.i0e(x), special.log_ndtr(x), jax.nn.softplus(x), jax.nn.silu(x),
        ]  # fmt: skip

    check(function, np.float32([0.3, 1.0, 2.5, 3.75]), rtol=2e-5, atol=1e-6)
