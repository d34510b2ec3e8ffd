"""Factorizations by kernels, and by loops where kernels do not return what is read."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
import pytest
from jax import enable_x64, export, lax

from tests.bridge.tf_operations.checking import check, check_call, operations

_ROUNDING = {"rtol": 1e-4, "of_largest": True}


def _square(name="float32", batch=()):
    random = np.random.default_rng(0)
    matrix = random.normal(size=(*batch, 4, 4)) + 3 * np.eye(4)
    if name.startswith("complex"):
        matrix = matrix + 1j * random.normal(size=(*batch, 4, 4))
    return matrix.astype(name)


@pytest.mark.parametrize("name", ["float32", "float64", "complex64"])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_factorizations(name, batch):
    with enable_x64(True):
        check(
            lambda a: [
                jnp.linalg.cholesky(a @ jnp.swapaxes(a.conj(), -1, -2)), jnp.linalg.qr(a)[1],
                jnp.linalg.eigvalsh(a), jnp.linalg.svd(a, compute_uv=False),
            ],
            _square(name, batch),
            **_ROUNDING,
        )  # fmt: skip


def test_factors_make_the_matrix_again():
    def reconstruct(a):
        q, r = jnp.linalg.qr(a, mode="complete")
        u, s, v = jnp.linalg.svd(a, full_matrices=False)
        values, vectors = jnp.linalg.eigh(a[:3])
        return [q @ r, (u * s) @ v, (vectors * values) @ vectors.T, q.T @ q]

    a = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    a[:3] += a[:3].T
    check(reconstruct, a, **_ROUNDING)


@pytest.mark.parametrize("name", ["float32", "complex64"])
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("trans", [0, 1, 2])
@pytest.mark.parametrize("unit", [False, True])
def test_triangular_systems(name, lower, trans, unit):
    def solve(a, b):
        left = jsl.solve_triangular(a, b, lower=lower, trans=trans, unit_diagonal=unit)
        right = lax.linalg.triangular_solve(
            a, b.T, left_side=False, lower=lower, transpose_a=trans > 0, conjugate_a=trans > 1,
            unit_diagonal=unit,
        )  # fmt: skip
        return [left, right]

    check(solve, _square(name), _square(name)[:, :2], **_ROUNDING)


def test_kernels_are_used():
    a = _square()
    assert operations(jnp.linalg.qr, a).count("Qr") == 1
    assert "StatelessWhile" not in operations(lambda a: jnp.linalg.qr(a)[0], a)
    assert "Svd" in operations(lambda a: jnp.linalg.svd(a)[1], a)
    assert "SelfAdjointEigV2" in operations(jnp.linalg.eigvalsh, a)


def test_reflectors_that_are_read_are_computed_by_loops():
    a = _square()[:, :3]
    check(lambda a: jnp.linalg.qr(a, mode="raw"), a, **_ROUNDING)
    assert "Qr" not in operations(lambda a: jnp.linalg.qr(a, mode="raw"), a)


def test_gradients_of_factorizations():
    def loss(a):
        q, r = jnp.linalg.qr(a)
        return jnp.linalg.cholesky(a @ a.T + jnp.eye(4)).sum() + (q * 2 + r).sum()

    check(jax.grad(loss), _square(), rtol=1e-3, of_largest=True)


def test_any_number_of_matrices():
    spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 4, 4"), "float32")
    assert "Cholesky" in operations(jnp.linalg.cholesky, spec)


def test_matrices_of_any_size():
    spec = jax.ShapeDtypeStruct(export.symbolic_shape("m, n"), "float32")
    exported = export.export(jax.jit(lambda a: jnp.linalg.svd(a, compute_uv=False)))(spec)
    check_call(exported, _square()[:, :3], **_ROUNDING)
