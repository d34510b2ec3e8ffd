"""Linear algebra lifted from calls of LAPACK: the same bits, and JAX's primitives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.lax import linalg

import bridge
from tests.bridge.lifting.lifted import assert_same, lift, names
from xla_call_module.errors import UnsupportedError
from xla_call_module.linalg.library_calls import TARGETS

pytestmark = pytest.mark.usefixtures("x64")

CHECKS = [export.DisabledSafetyCheck.custom_call(target) for target in TARGETS]
ALL = ("cpu", "cuda", "tpu")


def draw(*shape, dtype="float64"):
    values = np.random.default_rng(0).standard_normal((2, *shape))
    return jnp.asarray((values[0] + (1j * values[1] if "complex" in dtype else 0)).astype(dtype))


def positive(size, dtype="float64"):
    matrix = draw(size, size, dtype=dtype)
    return matrix @ matrix.conj().mT + jnp.eye(size, dtype=dtype)


def _all_factors(x):
    return (
        linalg.qr(x, full_matrices=False), linalg.qr(x, full_matrices=True), linalg.lu(x),
        linalg.qr(x, full_matrices=False, pivoting=True),
        linalg.svd(x, full_matrices=False), linalg.svd(x, compute_uv=False),
        linalg.svd(x, full_matrices=True),
        linalg.svd(x, full_matrices=False, algorithm=linalg.SvdAlgorithm.QR),
    )  # fmt: skip


def _of_squares(x):
    factor = linalg.cholesky(x)
    return (
        factor, linalg.triangular_solve(factor, x, lower=True),
        linalg.triangular_solve(x, x[:, :2], left_side=True, transpose_a=True, conjugate_a=True),
        linalg.eigh(x), linalg.eigh(x.mT, lower=False, symmetrize_input=False),
        linalg.eig(x), linalg.schur(x), linalg.schur(x, compute_schur_vectors=False),
        linalg.eig(x, compute_left_eigenvectors=False, compute_right_eigenvectors=False),
        linalg.hessenberg(x), linalg.tridiagonal(x, lower=False),
        linalg.householder_product(x, x[0]), jnp.linalg.slogdet(x), jnp.linalg.inv(x),
        linalg.tridiagonal_solve(x[0], x[1], x[2], x),
        linalg.ormqr(x, x[0], x, left=False, transpose=True) if hasattr(linalg, "ormqr") else x,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("shape", [(4, 3), (3, 5), (2, 4, 3), (0, 2), (4, 4)])
def test_bits_are_those_of_the_original(shape, dtype):
    function = _of_squares if shape == (4, 4) else _all_factors
    matrix = positive(4, dtype) if shape == (4, 4) else draw(*shape, dtype=dtype)
    lifted = lift(function, matrix, disabled=CHECKS)
    assert_same(jax.jit(lifted)(matrix), jax.jit(function)(matrix))
    if matrix.size:
        broken = matrix.at[(0,) * matrix.ndim].set(jnp.nan)
        assert_same(jax.jit(lifted)(broken), jax.jit(function)(broken))


def test_a_square_q_is_of_one_primitive():
    function = lambda x: linalg.qr(x, full_matrices=True)  # noqa: E731
    found = names(lift(function, draw(4, 3)), draw(4, 3))
    assert found.count("qr") == 1
    assert not {"geqrf", "householder_product"} & set(found)


def test_householder_vectors_by_themselves_have_the_bits_and_no_derivative():
    matrix = draw(4, 3)

    def with_vectors(x):
        packed, scales = jnp.linalg.qr(x, mode="raw")
        return packed, linalg.householder_product(packed.mT, scales), jnp.tril(packed.mT, -1)

    lifted = lift(with_vectors, matrix)
    assert_same(jax.jit(lifted)(matrix), jax.jit(with_vectors)(matrix))
    with pytest.raises(NotImplementedError, match=r"geqrf|householder_product"):
        jax.jvp(lifted, (matrix,), (matrix,))


def test_status_of_a_library_is_refused_where_it_is_a_result():
    def with_info(x):
        shapes = jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((), np.int32)
        return jax.ffi.ffi_call("lapack_dpotrf_ffi", shapes)(x, uplo=np.uint8(ord("L")))

    with pytest.raises(UnsupportedError, match=r"its result 1 is used, which JAX's own function"):
        lift(with_info, positive(3), disabled=CHECKS)(positive(3))


def test_of_several_platforms_is_one_primitive_with_its_derivative():
    def function(x):
        q, r = jnp.linalg.qr(x)
        values, vectors = jnp.linalg.eigh(x @ x.mT)
        solved = jnp.linalg.solve(x, r)
        u, s, vh = jnp.linalg.svd(x, full_matrices=False)
        return q, r, jnp.linalg.cholesky(x @ x.mT), values, vectors, solved, u, s, vh

    matrix = positive(3)
    lifted = lift(function, matrix, platforms=ALL, disabled=CHECKS)
    assert_same(jax.jit(lifted)(matrix), jax.jit(function)(matrix))
    gradient = lambda f: jax.grad(lambda x: sum(jnp.sum(jnp.abs(r)) for r in f(x)))  # noqa: E731
    assert_same(gradient(lifted)(matrix), gradient(function)(matrix), rtol=1e-8)
    found = set(names(lifted, matrix))
    assert {"qr", "cholesky", "eigh", "svd", "lu"} <= found
    assert not {"cond", "platform_index"} & found
    again = export.export(jax.jit(lifted), platforms=ALL, disabled_checks=CHECKS)(matrix)
    np.testing.assert_allclose(again.call(matrix)[3], function(matrix)[3], rtol=1e-12)


def test_branches_of_the_author_stay_branches():
    def function(x):
        return lax.platform_dependent(
            x, cpu=jnp.linalg.cholesky, default=lambda x: 2 * jnp.linalg.cholesky(x)
        )

    lifted = lift(function, positive(3), platforms=ALL, disabled=CHECKS)
    assert_same(lifted(positive(3)), jnp.linalg.cholesky(positive(3)))
    again = export.export(jax.jit(lifted), platforms=("tpu",))(positive(3)).mlir_module()
    assert "stablehlo.multiply" in again


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_of_another_platform_is_lowered_to_it_again(platform):
    def function(x):
        return linalg.cholesky(x), linalg.lu(x), linalg.qr(x), linalg.eigh(x)

    matrix = draw(4, 4, dtype="float32")
    exported = export.export(jax.jit(function), platforms=(platform,))(matrix)
    again = export.export(jax.jit(bridge.to_jax(exported)), platforms=(platform,))(matrix)
    assert _called(again) == _called(exported)


def _called(exported):
    words = exported.mlir_module().replace("(", " ").split()
    return {word for word in words if word.startswith("@") and word[1:] in TARGETS}


def test_calls_that_jax_wrote_before_its_typed_ones_are_refused_by_name():
    """Their options are among the operands, such as `uplo` in the first one here."""
    module = """func.func public @main(%a: tensor<3x3xf64>) -> tensor<3x3xf64> {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %f:2 = stablehlo.custom_call @lapack_dpotrf(%one, %one, %one, %a) {api_version = 2 : i32} :
        (tensor<i32>, tensor<i32>, tensor<i32>, tensor<3x3xf64>) -> (tensor<3x3xf64>, tensor<i32>)
      return %f#0 : tensor<3x3xf64> }"""
    with pytest.raises(UnsupportedError, match="no operation for the custom call of lapack_dpotrf"):
        bridge.to_jax(module)(positive(3))
