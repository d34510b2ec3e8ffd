"""Linear algebra lifted from calls of LAPACK: the same bits, and the original's derivatives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.lax import linalg

import bridge
from xla_call_module.errors import UnsupportedError
from xla_call_module.linalg.library_calls import TARGETS

pytestmark = pytest.mark.usefixtures("x64")

CHECKS = [export.DisabledSafetyCheck.custom_call(target) for target in TARGETS]
REAL_AND_COMPLEX = ("float64", "complex64")


def draw(*shape, dtype="float64", seed=0):
    generator = np.random.default_rng(seed)
    values = generator.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * generator.standard_normal(shape)
    return jnp.asarray(values.astype(dtype))


def positive(*shape, dtype="float64"):
    matrix = draw(*shape, dtype=dtype)
    return matrix @ matrix.conj().mT + jnp.eye(shape[-1], dtype=dtype)


def lifted(function, *arguments, platforms=None):
    exported = export.export(jax.jit(function), platforms=platforms, disabled_checks=CHECKS)
    return bridge.to_jax(exported(*arguments))


def assert_same_bits(actual, expected):
    pairs = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    for ours, theirs in pairs:
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def inexact(function):
    """The results of a function that have tangents."""

    def kept(*arguments):
        leaves = jax.tree.leaves(function(*arguments))
        return [leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.inexact)]

    return kept


def derivatives(function, matrix):
    """The results, their tangents, a cotangent of the matrix, and the results of three others."""
    kept = inexact(function)

    def run(value):
        out, tangents = jax.jvp(kept, (value,), (0.5 * value + 1,))
        _, pull = jax.vjp(kept, value)
        mapped = jax.vmap(function)(jnp.stack([value, 0.7 * value]))
        return out, tangents, pull(list(map(jnp.ones_like, out))), mapped

    return jax.jit(run)(matrix)


def assert_like_original(function, matrix, *, differentiable=True):
    ours = lifted(function, matrix)
    assert_same_bits(jax.jit(ours)(matrix), jax.jit(function)(matrix))
    if matrix.size:
        broken = matrix.at[(0,) * matrix.ndim].set(jnp.nan)
        assert_same_bits(jax.jit(ours)(broken), jax.jit(function)(broken))
    if differentiable:
        tolerance = 1e-9 if matrix.dtype == np.float64 else 2e-3
        pairs = zip(
            jax.tree.leaves(derivatives(ours, matrix)),
            jax.tree.leaves(derivatives(function, matrix)),
            strict=True,
        )
        for actual, expected in pairs:
            np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", REAL_AND_COMPLEX)
@pytest.mark.parametrize("shape", [(3, 3), (2, 4, 3), (3, 5)])
def test_qr(dtype, shape):
    matrix = draw(*shape, dtype=dtype)
    # Older versions of JAX have no derivative where there are more columns than rows.
    differentiable = shape[-2] >= shape[-1] or hasattr(linalg, "ormqr")
    function = lambda x: linalg.qr(x, full_matrices=False)  # noqa: E731
    assert_like_original(function, matrix, differentiable=differentiable)


def test_qr_with_a_square_q():
    matrix = draw(4, 3, dtype="float32")
    function = lambda x: linalg.qr(x, full_matrices=True)  # noqa: E731
    assert_same_bits(lifted(function, matrix)(matrix), jax.jit(function)(matrix))
    names = [eqn.primitive.name for eqn in equations(lifted(function, matrix), matrix)]
    assert names.count("qr") == 1
    assert not {"geqrf", "householder_product"} & set(names)


def equations(function, *arguments):
    """The equations of what a function traces to, those inside of others among them."""
    pending = [jax.make_jaxpr(function)(*arguments).jaxpr]
    while pending:
        for eqn in pending.pop().eqns:
            yield eqn
            for value in eqn.params.values():
                inner = value if isinstance(value, (list, tuple)) else [value]
                pending += [part.jaxpr for part in inner if hasattr(part, "jaxpr")]


def test_householder_vectors_by_themselves_have_the_bits_and_no_derivative():
    matrix = draw(4, 3)
    raw = lambda x: jnp.linalg.qr(x, mode="raw")  # noqa: E731
    assert_same_bits(lifted(raw, matrix)(matrix), jax.jit(raw)(matrix))

    def with_vectors(x):
        packed, scales = jnp.linalg.qr(x, mode="raw")
        return linalg.householder_product(packed.mT, scales), jnp.tril(packed.mT, -1)

    ours = lifted(with_vectors, matrix)
    assert_same_bits(jax.jit(ours)(matrix), jax.jit(with_vectors)(matrix))
    with pytest.raises(NotImplementedError, match=r"geqrf|householder_product"):
        jax.jvp(ours, (matrix,), (matrix,))


@pytest.mark.parametrize("dtype", REAL_AND_COMPLEX)
def test_cholesky_and_solves(dtype):
    matrix = positive(2, 3, 3, dtype=dtype)

    def function(x):
        factor = linalg.cholesky(x)
        solution = linalg.triangular_solve(
            x, x[..., :2], left_side=True, transpose_a=True, conjugate_a=True
        )
        return factor, linalg.triangular_solve(factor, x, lower=True), solution, jnp.linalg.inv(x)

    assert_like_original(function, matrix)


def test_cholesky_of_what_is_not_positive_is_nan():
    function = lambda x: linalg.cholesky(x)  # noqa: E731
    matrices = jnp.stack([jnp.eye(2), -jnp.eye(2), jnp.ones((2, 2))])
    assert_like_original(function, matrices, differentiable=False)


@pytest.mark.parametrize("shape", [(3, 3), (2, 4, 3), (3, 5), (0, 2)])
def test_lu(shape):
    assert_like_original(linalg.lu, draw(*shape, dtype="complex64"))


@pytest.mark.parametrize("dtype", REAL_AND_COMPLEX)
def test_eigh(dtype):
    def function(x):
        return linalg.eigh(x), linalg.eigh(x.mT, lower=False, symmetrize_input=False)

    assert_like_original(function, positive(3, 3, dtype=dtype))


@pytest.mark.parametrize("dtype", REAL_AND_COMPLEX)
def test_svd(dtype):
    def function(x):
        thin = linalg.svd(x, full_matrices=False)
        by_qr = linalg.svd(x, full_matrices=False, algorithm=linalg.SvdAlgorithm.QR)
        return thin, by_qr, linalg.svd(x, compute_uv=False)

    assert_like_original(function, draw(4, 3, dtype=dtype))
    whole = lambda x: linalg.svd(x, full_matrices=True)  # noqa: E731
    assert_like_original(whole, draw(3, 4, dtype=dtype), differentiable=False)


@pytest.mark.parametrize("dtype", REAL_AND_COMPLEX)
def test_without_derivatives(dtype):
    def function(x):
        return (
            linalg.eig(x),
            linalg.schur(x),
            linalg.schur(x, compute_schur_vectors=False),
            linalg.hessenberg(x),
            linalg.tridiagonal(x, lower=False),
            linalg.householder_product(x, x[0]),
        )

    assert_like_original(function, draw(4, 4, dtype=dtype), differentiable=False)


def test_eigenvalues_and_tridiagonal_solves():
    def function(x):
        values = linalg.eig(x, compute_left_eigenvectors=False, compute_right_eigenvectors=False)
        return values, linalg.tridiagonal_solve(x[0], x[1], x[2], x)

    assert_like_original(function, positive(4, 4))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_determinant(size):
    assert_like_original(jnp.linalg.slogdet, draw(size, size, dtype="complex128"))


def test_pivoted_qr():
    function = lambda x: linalg.qr(x, full_matrices=False, pivoting=True)  # noqa: E731
    ours, matrix = lifted(function, draw(4, 3)), draw(4, 3)
    assert_same_bits(jax.jit(ours)(matrix), jax.jit(function)(matrix))


@pytest.mark.skipif(not hasattr(linalg, "ormqr"), reason="a newer JAX has ormqr")
def test_ormqr():
    function = lambda x: linalg.ormqr(x, x[0], x, left=False, transpose=True)  # noqa: E731
    assert_like_original(function, draw(4, 4, dtype="complex64"), differentiable=False)


def test_status_of_a_library_is_refused_where_it_is_a_result():
    def with_info(x):
        call = jax.ffi.ffi_call(
            "lapack_dpotrf_ffi",
            (jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((), np.int32)),
        )
        return call(x, uplo=np.uint8(ord("L")))

    ours = lifted(with_info, positive(3, 3))
    with pytest.raises(UnsupportedError, match=r"its result 1 is used, which JAX's own function"):
        ours(positive(3, 3))


ALL = ("cpu", "cuda", "tpu")


def test_of_several_platforms_is_one_primitive_with_its_derivative():
    def function(x):
        q, r = jnp.linalg.qr(x)
        values, vectors = jnp.linalg.eigh(x @ x.mT)
        solved = jnp.linalg.solve(x, r)
        u, s, vh = jnp.linalg.svd(x, full_matrices=False)
        return q, r, jnp.linalg.cholesky(x @ x.mT), values, vectors, solved, u, s, vh

    matrix = positive(3, 3)
    ours = lifted(function, matrix, platforms=ALL)
    assert_same_bits(jax.jit(ours)(matrix), jax.jit(function)(matrix))
    gradient = lambda f: jax.grad(lambda x: sum(jnp.sum(jnp.abs(r)) for r in f(x)))  # noqa: E731
    np.testing.assert_allclose(gradient(ours)(matrix), gradient(function)(matrix), rtol=1e-8)
    names = {eqn.primitive.name for eqn in equations(ours, matrix)}
    assert {"qr", "cholesky", "eigh", "svd", "lu"} <= names
    assert not {"cond", "platform_index"} & names
    again = export.export(jax.jit(ours), platforms=ALL)(matrix)
    np.testing.assert_allclose(again.call(matrix)[3], function(matrix)[3], rtol=1e-12)


def test_branches_of_the_author_stay_branches():
    def function(x):
        return lax.platform_dependent(
            x,
            cpu=jnp.linalg.cholesky,
            default=lambda x: 2 * jnp.linalg.cholesky(x),
        )

    ours = lifted(function, positive(3, 3), platforms=ALL)
    assert_same_bits(ours(positive(3, 3)), jnp.linalg.cholesky(positive(3, 3)))
    again = export.export(jax.jit(ours), platforms=("tpu",))(positive(3, 3)).mlir_module()
    assert "stablehlo.multiply" in again


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_of_another_platform_is_lowered_to_it_again(platform):
    def function(x):
        vectors, values = linalg.eigh(x)
        return linalg.cholesky(x), linalg.lu(x), linalg.qr(x), vectors, values

    matrix = draw(4, 4, dtype="float32")
    exported = export.export(jax.jit(function), platforms=(platform,))(matrix)
    again = export.export(jax.jit(bridge.to_jax(exported)), platforms=(platform,))(matrix)
    assert called(again) == called(exported)


def called(exported):
    words = exported.mlir_module().replace("(", " ").split()
    return {word for word in words if word.startswith("@") and word[1:] in TARGETS}


def test_eigenvectors_which_tensorflow_does_not_compute():
    x = jnp.arange(9.0).reshape(3, 3) + jnp.eye(3)
    lifted = bridge.to_jax(export.export(jax.jit(jnp.linalg.eig))(x))
    for result, expected in zip(lifted(x), jax.jit(jnp.linalg.eig)(x), strict=True):
        np.testing.assert_array_equal(result, expected)


def test_calls_that_jax_wrote_before_its_typed_ones_are_refused_by_name():
    """Their options are among the operands, such as `uplo` in the first one here."""
    module = """func.func public @main(%a: tensor<3x3xf64>) -> tensor<3x3xf64> {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %f:2 = stablehlo.custom_call @lapack_dpotrf(%one, %one, %one, %a) {api_version = 2 : i32} :
        (tensor<i32>, tensor<i32>, tensor<i32>, tensor<3x3xf64>) -> (tensor<3x3xf64>, tensor<i32>)
      return %f#0 : tensor<3x3xf64> }"""
    with pytest.raises(UnsupportedError, match="no operation for the custom call of lapack_dpotrf"):
        bridge.to_jax(module)(positive(3, 3))
