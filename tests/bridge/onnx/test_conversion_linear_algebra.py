"""Linear algebra, which is arithmetic and loops by the time it gets here."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import bridge
from tests.bridge.onnx.checking import assert_same, check, run

RANDOM = np.random.default_rng(0)
A = RANDOM.standard_normal((2, 4, 4)).astype(np.float32)
B = RANDOM.standard_normal((2, 4, 3)).astype(np.float32)
POSITIVE = A @ A.transpose(0, 2, 1) + 3 * np.eye(4, dtype=np.float32)


def test_factorizations():
    def function(a, positive):
        _, values, _ = jnp.linalg.svd(a)
        return [
            jnp.linalg.cholesky(positive),
            jnp.abs(jnp.linalg.qr(a)[1]),
            jnp.linalg.eigvalsh(positive),
            jnp.linalg.det(a),
            values,
        ]

    check(function, A, POSITIVE, rtol=1e-3, atol=1e-4, reference=False)


def test_solutions():
    def function(positive, b):
        return [
            jnp.linalg.solve(positive, b),
            jnp.linalg.inv(positive),
            jax.scipy.linalg.solve_triangular(positive, b, lower=True),
        ]

    check(function, POSITIVE, B, rtol=1e-3, atol=1e-4)


def test_a_gradient():
    def function(positive):
        return jax.grad(lambda p: jnp.linalg.slogdet(p)[1].sum())(positive)

    check(function, POSITIVE, rtol=1e-3, atol=1e-4)


def test_a_symbolic_batch():
    check(jnp.linalg.cholesky, POSITIVE, shapes=["b, 4, 4"], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_operations_instead_of_library_calls(left, transposed):
    def function(positive, b):
        factor = jax.lax.linalg.cholesky(positive)
        solved = jax.lax.linalg.triangular_solve(
            factor, b, left_side=left, lower=True, transpose_a=transposed
        )
        return factor, solved

    b = B if left else B.transpose(0, 2, 1)
    specs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (POSITIVE, b)]
    exported = export.export(jax.jit(function), platforms=["tpu"])(*specs)
    assert "stablehlo.triangular_solve" in exported.mlir_module()
    model = bridge.to_onnx(exported, platform="tpu")
    expected = [np.asarray(x) for x in function(POSITIVE, b)]
    assert_same(run(model, [POSITIVE, b]), expected, rtol=1e-4, atol=1e-5)
