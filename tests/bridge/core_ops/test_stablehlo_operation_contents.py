"""The names of what a module is made of, and what a target lacks of it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from bridge.core_ops.stablehlo_operation import ModuleContents
from xla_call_module.exported import from_exported

X = np.ones((4, 2), np.float32)


def contents(function, *arrays):
    exported = jax.export.export(jax.jit(function), platforms=["cpu"])(*arrays)
    return ModuleContents.of(from_exported(exported, carried=False))


def test_operations_in_regions_and_elements_of_arguments():
    found = contents(lambda x: lax.fori_loop(0, 3, lambda _, y: jnp.sin(y), x), X)
    assert {"stablehlo.while", "stablehlo.sine", "stablehlo.compare"} <= found.operations
    assert found.elements == {"f32", "i32", "i1"}
    assert found.custom_calls == frozenset()


def test_targets_of_custom_calls():
    assert contents(jnp.linalg.cholesky, X @ X.T).custom_calls == {"lapack_spotrf_ffi"}


@pytest.mark.parametrize(
    ("function", "is_lacking"),
    [
        (lambda x: jax.nn.gelu(x @ x.T), False),
        (lambda x: lax.top_k(x, 1), False),
        (lambda x: x * 1j, True),
        (lambda x: x.astype(jnp.int4) == 1, True),
        (lambda x: jnp.abs(jnp.fft.rfft(x)), True),
    ],
)
def test_what_onnx_lacks(function, is_lacking):
    from bridge.onnx.operation_table import TARGET

    assert TARGET.lacks(contents(function, X)) == is_lacking
