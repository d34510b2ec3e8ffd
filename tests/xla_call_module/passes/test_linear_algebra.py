"""Linear algebra without LAPACK: the same results, run by TensorFlow."""

from __future__ import annotations

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
import pytest
import tensorflow as tf
from jax import export, lax

from xla_call_module import from_exported, retarget
from xla_call_module._tf import imported_release
from xla_call_module.checks import DisabledCheck
from xla_call_module.errors import InteropError, StructureError
from xla_call_module.linalg.lapack import is_portable
from xla_call_module.passes.linear_algebra import lower_linalg
from xla_call_module.passes.module_pass import run_passes
from xla_call_module.runtime.op import Op
from xla_call_module.stablehlo.modules import custom_call_targets, open_module, walk

pytestmark = pytest.mark.usefixtures("x64")


def _draw(*shape, dtype=np.float64, seed=0):
    generator = np.random.default_rng(seed)
    values = generator.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * generator.standard_normal(shape)
    return values.astype(dtype)


def _positive(*shape, dtype=np.float64):
    a = _draw(*shape, dtype=dtype)
    return (a @ a.conj().swapaxes(-1, -2) + shape[-1] * np.eye(shape[-1])).astype(dtype)


def _call(function, *args, platforms=("cpu",), allowed=(), **kwargs):
    checks = [export.DisabledSafetyCheck.custom_call(target) for target in allowed]
    exporter = export.export(jax.jit(function), platforms=platforms, disabled_checks=checks)
    return from_exported(exporter(*args), allow_flat_trees=True, **kwargs)


def _targets(call):
    with open_module(call.module) as module:
        return custom_call_targets(walk(module))


def _run(call, *args):
    """Return what TensorFlow computes, of a call that has no library calls any more."""
    lowered = run_passes(call, [lower_linalg()])
    assert not any(map(is_portable, _targets(lowered)))
    results = Op(retarget(lowered, imported_release())).run([tf.constant(x) for x in args])
    return [result.numpy() for result in results]


def _check(function, *args, rtol=1e-9, call=None, **kwargs):
    """TensorFlow's results are those of JAX's LAPACK."""
    results = _run(call or _call(function, *args, **kwargs), *args)
    for result, wanted in zip(results, jax.tree.leaves(function(*args)), strict=True):
        assert result.dtype == wanted.dtype
        np.testing.assert_allclose(result, wanted, rtol=rtol, atol=rtol)


def _spectrum(vectors, values, adjoint=None):
    """Return what does not depend on the signs of vectors: the product."""
    adjoint = jnp.swapaxes(vectors, -1, -2).conj() if adjoint is None else adjoint
    return values, (vectors * values[..., None, :]) @ adjoint


def _eigh(a, **kwargs):
    values, vectors = jnp.linalg.eigh(a, **kwargs)
    return _spectrum(vectors, values)


def _svd(a, **kwargs):
    u, s, v = jnp.linalg.svd(a, **kwargs)
    k = s.shape[-1]
    squares = [abs(jnp.swapaxes(u, -1, -2).conj() @ u), abs(v @ jnp.swapaxes(v, -1, -2).conj())]
    return _spectrum(u[..., :k], s, v[..., :k, :]), squares


TALL, WIDE, SQUARE = _draw(2, 5, 3), _draw(2, 3, 5), _draw(2, 4, 4)
COMPLEX = _draw(3, 3, dtype=np.complex128)
FUNCTIONS = {
    "cholesky": (jnp.linalg.cholesky, _positive(2, 4, 4)),
    "cholesky_upper": (lambda a: jnp.linalg.cholesky(a, upper=True), _positive(2, 4, 4)),
    "cholesky_complex": (jnp.linalg.cholesky, _positive(4, 4, dtype=np.complex128)),
    "cholesky_blocks": (jnp.linalg.cholesky, _positive(70, 70)),
    "qr": (lambda a: tuple(jnp.linalg.qr(a)), TALL),
    "qr_complete": (lambda a: tuple(jnp.linalg.qr(a, mode="complete")), TALL),
    "qr_r": (lambda a: jnp.linalg.qr(a, mode="r"), WIDE),
    "qr_raw": (lambda a: tuple(jnp.linalg.qr(a, mode="raw")), TALL),
    "qr_wide": (lambda a: tuple(jnp.linalg.qr(a)), WIDE),
    "qr_complex": (lambda a: tuple(jnp.linalg.qr(a)), COMPLEX),
    "qr_blocks": (lambda a: tuple(jnp.linalg.qr(a)), _draw(70, 40)),
    "lu": (lambda a: tuple(lax.linalg.lu(a)), TALL),
    "lu_wide": (lambda a: tuple(lax.linalg.lu(a)), WIDE),
    "lu_complex": (lambda a: tuple(lax.linalg.lu(a)), COMPLEX),
    "lu_blocks": (lambda a: tuple(lax.linalg.lu(a)), _draw(70, 40)),
    "solve": (jnp.linalg.solve, SQUARE, _draw(2, 4, 2)),
    "solve_float32": (jnp.linalg.solve, SQUARE[0].astype(np.float32), np.ones((4, 1), np.float32)),
    "inv": (jnp.linalg.inv, COMPLEX),
    "det": (lambda a: (jnp.linalg.det(a), *jnp.linalg.slogdet(a)), SQUARE),
    "eigh": (_eigh, _positive(2, 4, 4)),
    "eigh_upper": (functools.partial(_eigh, UPLO="U"), _positive(5, 5)),
    "eigh_complex": (jnp.linalg.eigvalsh, _positive(3, 3, dtype=np.complex128)),
    "svd": (_svd, TALL),
    "svd_values": (lambda a: jnp.linalg.svd(a, compute_uv=False), COMPLEX[:, :2]),
    "svd_of_wide": (functools.partial(_svd, full_matrices=False), WIDE[0]),
    "tridiagonal": (lax.linalg.tridiagonal, _positive(2, 5, 5)),
    "tridiagonal_upper": (lambda a: lax.linalg.tridiagonal(a, lower=False), _positive(5, 5)),
    "tridiagonal_complex": (lax.linalg.tridiagonal, _positive(4, 4, dtype=np.complex128)),
    "tridiagonal_solve": (
        lambda d: lax.linalg.tridiagonal_solve(d[0], d[1], d[2], d[3:].T),
        _draw(5, 7),
    ),
}


# What others below cover as well.
SLOW = ("svd_values", "svd_of_wide", "eigh_complex", "qr_complete", "tridiagonal_complex")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in FUNCTIONS],
)
def test_the_same_as_lapack(name):
    function, *args = FUNCTIONS[name]
    _check(function, *args, rtol=1e-5 if args[0].dtype == np.float32 else 1e-9)


def test_every_triangular_solve():
    """Both sides and triangles, transposed and conjugated or not, with and without a diagonal."""
    options = list(itertools.product([True, False], repeat=5))

    def solve_all(a, b):
        names = ("left_side", "lower", "transpose_a", "conjugate_a", "unit_diagonal")
        return [
            lax.linalg.triangular_solve(a, b, **dict(zip(names, values, strict=True)))
            for values in options
        ]

    _check(solve_all, _positive(3, 3, dtype=np.complex128), _draw(3, 3, dtype=np.complex128))


def test_a_pivoted_qr():
    call_args = _draw(5, 4)
    function = functools.partial(jsl.qr, pivoting=True, mode="economic")
    _check(function, call_args, allowed=["lapack_dgeqp3_ffi"])


class TestBatches:
    @pytest.mark.parametrize("name", ["cholesky", "solve", "qr", "svd", "eigh"])
    def test_symbolic_dimensions(self, name):
        function, *args = FUNCTIONS[name]
        specs = export.symbolic_args_specs(args, "b, ...")
        _check(function, *args, call=_call(function, *specs))

    def test_several_dimensions(self):
        a = _positive(2, 3, 3, 3)
        specs = export.symbolic_args_specs((a,), "b, 3, c + 1, c + 1")
        with pytest.raises(
            StructureError,
            match=r"cholesky calls lapack_dpotrf_ffi at .*, on a matrix of type "
            r"tensor<\?x3x\?x\?xf64>: its own shape is symbolic.*To do",
        ):
            run_passes(_call(jnp.linalg.cholesky, *specs), [lower_linalg()])
        specs = export.symbolic_args_specs((a,), "b, c, 3, 3")
        _check(jnp.linalg.cholesky, a, call=_call(jnp.linalg.cholesky, *specs))

    @pytest.mark.parametrize("name", ["left", "right", "blocks", "batches", "diagonals", "q"])
    def test_any_number_of_right_hand_sides(self, name):
        solve = lax.linalg.triangular_solve
        a, more, right = _positive(4, 4), _positive(40, 40), _draw(3, 4)
        d = _draw(3, 4)
        function = {
            "left": lambda x: solve(a, x.T, left_side=True, lower=True),
            "right": lambda x: solve(a, x, left_side=False, transpose_a=True),
            "blocks": lambda x: solve(more, jnp.tile(x.T, (10, 1)), left_side=True),
            "batches": lambda x: solve(jnp.stack([a, 2 * a]), jnp.stack([x, -x]), lower=True),
            "diagonals": lambda x: lax.linalg.tridiagonal_solve(d[0], 9 + d[1], d[2], x.T),
            "q": lambda x: [jsl.qr_multiply(a, x)[0], jsl.qr_multiply(a, x.T, mode="left")[0]],
        }[name]
        (spec,) = export.symbolic_args_specs((right,), "b, 4")
        allowed = ["lapack_dormqr_ffi"] if name == "q" else []
        _check(function, right, call=_call(function, spec, allowed=allowed))

    def test_any_number_of_columns_of_a_product(self):
        """A GPU's routine; JAX has none of it for a CPU."""
        zeros = np.zeros((4, 4))
        (spec,) = export.symbolic_args_specs((_draw(4, 3),), "4, b")
        call = _call(
            lambda x: lax.linalg.symmetric_product(x, zeros), spec, platforms=["cuda"],
            allowed=["cusolver_syrk_ffi"],
        )  # fmt: skip
        assert "cusolver_syrk_ffi" in _targets(call)
        assert "cusolver_syrk_ffi" not in _targets(run_passes(call, [lower_linalg()]))

    def test_two_calls_with_different_symbolic_batches(self):
        def function(a, b):
            return jnp.linalg.cholesky(a), jnp.linalg.cholesky(jnp.concatenate([b, b]))

        args = (_positive(2, 3, 3), _positive(4, 3, 3))
        specs = export.symbolic_args_specs(args, "b, ...")[:1]
        specs += export.symbolic_args_specs(args, "c, ...", scope=specs[0].shape[0].scope)[1:]
        _check(function, *args, call=_call(function, *specs))

    def test_an_empty_batch(self):
        _check(jnp.linalg.cholesky, np.zeros((0, 3, 3)))
        _check(lambda a: lax.linalg.lu(a)[0], np.zeros((2, 0, 3, 3)))

    def test_empty_matrices(self):
        _check(lambda a: tuple(jnp.linalg.qr(a)), np.zeros((3, 0)))
        square = np.zeros((2, 0, 0))
        _check(jnp.linalg.inv, square)
        _check(jnp.linalg.solve, square, np.zeros((2, 0, 3)))
        _check(lambda a: tuple(jnp.linalg.eigh(a)), square)

    @pytest.mark.parametrize("shape", [(0, 0), (2, 0, 0), (3, 0), (0, 3)])
    def test_empty_matrices_of_every_platform(self, shape):
        """A GPU's permutation is a call of its own."""
        function = export.export(jax.jit(lax.linalg.lu), platforms=["cuda", "cpu", "tpu"])
        call = run_passes(
            from_exported(function(jax.ShapeDtypeStruct(shape, "float32"))), [lower_linalg()]
        )
        matrix = np.zeros(shape, "float32")
        for found, want in zip(_run(call, matrix), lax.linalg.lu(matrix), strict=True):
            np.testing.assert_array_equal(found, want)

    def test_gradients_of_empty_matrices(self):
        specs = (jax.ShapeDtypeStruct((1000, 0, 0), "float32"),) * 2
        exported = export.export(jax.jit(lambda a, b: (jnp.linalg.cholesky(a), a @ b)))(*specs)
        for _ in range(2):
            exported = exported.vjp()
            run_passes(from_exported(exported), [lower_linalg()])


class TestFailures:
    """JAX puts NaN where LAPACK reports that it failed, and nowhere else in the batch."""

    def test_not_positive_definite(self):
        a = np.stack([np.eye(3), -np.eye(3), np.diag([1.0, 0.0, 1.0]), np.full((3, 3), np.nan)])
        (result,) = _run(_call(jnp.linalg.cholesky, a), a)
        np.testing.assert_array_equal(result[0], np.eye(3))
        assert np.isnan(result[1:, 2, 0]).all()
        np.testing.assert_array_equal(result, jnp.linalg.cholesky(a))

    def test_singular_matrices_factor(self):
        a = np.array([[[1.0, 2.0], [2.0, 4.0]], [[0.0, 0.0], [0.0, 0.0]]])
        _check(lambda a: (*lax.linalg.lu(a), jnp.linalg.det(a)), a)

    @pytest.mark.parametrize(
        "function",
        [
            jnp.linalg.eigvalsh,
            pytest.param(lambda a: jnp.linalg.svd(a)[1], marks=pytest.mark.slow),
        ],
    )
    def test_a_nan(self, function):
        a = np.stack([np.eye(3), np.full((3, 3), np.nan)])
        (result,) = _run(_call(function, a), a)
        np.testing.assert_allclose(result, [[1.0] * 3, [np.nan] * 3], rtol=1e-12)


class TestPlatforms:
    @pytest.mark.parametrize(
        "platforms", [("cpu", "cuda", "tpu"), ("tpu", "cpu", "cuda"), ("cuda", "tpu", "cpu")]
    )
    def test_every_branch(self, platforms):
        call = _call(lambda a: tuple(lax.linalg.lu(a)), SQUARE[0], platforms=platforms)
        assert {"lapack_dgetrf_ffi", "cusolver_getrf_ffi"} < set(_targets(call))
        # XLA has this one on TPUs.
        assert set(_targets(run_passes(call, [lower_linalg()]))) == {"LuDecomposition"}
        _check(lambda a: tuple(lax.linalg.lu(a)), SQUARE[0], call=call)

    @pytest.mark.parametrize(
        ("platform", "name"),
        [
            *itertools.product(["cuda"], ["cholesky", "qr", "lu", "eigh", "svd"]),
            *itertools.product(["rocm"], ["lu", "svd_values"]),
        ],
    )
    def test_what_gpus_would_run(self, platform, name):
        """It is portable, so the CPU shows that it is right."""
        function, *args = FUNCTIONS[name]
        call = _call(function, *args, platforms=[platform])
        assert any(map(is_portable, _targets(call)))
        anywhere = dataclasses.replace(call, disabled_checks=(DisabledCheck("platform"),))
        _check(function, *args, call=anywhere)


class TestThePass:
    def test_it_depends_on_nothing_else(self):
        call = _call(jnp.linalg.cholesky, SQUARE)
        once = run_passes(call, [lower_linalg()])
        assert (
            once
            == run_passes(call, [lower_linalg()])
            == dataclasses.replace(call, module=once.module)
        )
        assert b"factorizations.py" not in once.module
        with jax.default_matmul_precision("bfloat16"), jax.numpy_rank_promotion("raise"):
            assert run_passes(call, [lower_linalg()]) == once

    def test_equal_calls_share_a_replacement(self):
        def twice(a):
            return jnp.linalg.cholesky(a), jnp.linalg.cholesky(2 * a)

        one, two = (
            run_passes(_call(f, SQUARE), [lower_linalg()]) for f in (jnp.linalg.cholesky, twice)
        )
        assert len(two.module) < 1.5 * len(one.module)

    def test_an_unknown_form(self):
        def old(a):
            out = jax.ShapeDtypeStruct(a.shape, a.dtype)
            return jax.ffi.ffi_call("lapack_dpotrf_ffi", out)(a, a, uplo=np.uint8(76))

        call = _call(old, SQUARE[0])
        with pytest.raises(InteropError, match=r"old calls lapack_dpotrf_ffi at .*with 2 operands"):
            run_passes(call, [lower_linalg()])

        def lacking(a):
            return jax.ffi.ffi_call("lapack_dpotrf_ffi", jax.ShapeDtypeStruct(a.shape, a.dtype))(a)

        with pytest.raises(InteropError, match=r"lapack_dpotrf_ffi at .*has no attribute 'lower'"):
            run_passes(_call(lacking, SQUARE[0]), [lower_linalg()])

    @pytest.mark.parametrize(
        "target",
        [
            "lapack_sgeev_ffi", "lapack_zgees_ffi", "lapack_dgehrd_ffi", "cusolver_geev_ffi",
            "hiphybrid_eig_comp", "my_library",
        ],
    )  # fmt: skip
    def test_what_has_no_portable_form(self, target):
        assert not is_portable(target)


def _norm(a):
    return np.linalg.norm(a, 2, axis=(-2, -1))


def _orthogonality(q):
    return _norm(q.conj().swapaxes(-1, -2) @ q - np.eye(q.shape[-1]))


def _adjoint(a):
    return a.conj().swapaxes(-1, -2)


# Of each factorization: how it is computed, and of its results the errors that are measured.
MEASURES = {
    "cholesky": (
        lambda a: (jnp.linalg.cholesky(a),),
        lambda a, low: [_norm(low @ _adjoint(low) - a) / _norm(a)],
    ),
    "lu": (
        lambda a: tuple(jax.vmap(jsl.lu)(a)),
        lambda a, p, low, u: [_norm(p @ low @ u - a) / _norm(a)],
    ),
    "qr": (
        lambda a: tuple(jnp.linalg.qr(a)),
        lambda a, q, r: [_norm(q @ r - a) / _norm(a), _orthogonality(q)],
    ),
    "solve": (
        lambda a: (jnp.linalg.solve(a, a[..., ::-1]),),
        lambda a, x: [_norm(a @ x - a[..., ::-1]) / _norm(a) / _norm(x)],
    ),
    "eigh": (
        lambda a: tuple(jnp.linalg.eigh(a)),
        lambda a, w, v: [_norm(a @ v - v * w[..., None, :]) / _norm(a), _orthogonality(v)],
    ),
    "svd": (
        lambda a: tuple(jnp.linalg.svd(a)),
        lambda a, u, s, v: [
            _norm((u * s[..., None, :]) @ v - a) / _norm(a),
            _orthogonality(u),
            _orthogonality(_adjoint(v)),
        ],
    ),
}


def _matrices(order, dtype, *, hermitian):
    """Well-conditioned, ill-conditioned, and, where that is no failure, of half rank."""
    epsilon = np.finfo(dtype).eps
    u, _ = np.linalg.qr(_draw(order, order, seed=order))
    v = u if hermitian else np.linalg.qr(_draw(order, order, seed=order + 1))[0]
    smallest = (0.1, 100 * epsilon)
    spectra = [np.geomspace(1, low, order) for low in smallest]
    return np.stack([(u * values) @ v.T for values in spectra]).astype(dtype)


@pytest.mark.parametrize(
    ("order", "dtype"),
    [
        (5, np.float64),
        (32, np.float32),
        *(
            pytest.param(order, dtype, marks=pytest.mark.slow)
            for order, dtype in (
                (5, np.float32),
                (32, np.float64),
                (128, np.float32),
                (128, np.float64),
                (256, np.float32),
                (256, np.float64),
            )
        ),
    ],
)
@pytest.mark.parametrize("name", MEASURES)
def test_accuracy(name, order, dtype):
    """Residuals and orthogonality are within ten times LAPACK's."""
    compute, measure = MEASURES[name]
    a = _matrices(order, dtype, hermitian=name in ("cholesky", "eigh"))
    if name == "cholesky":
        a = a + np.finfo(dtype).eps * order * np.eye(order, dtype=dtype)
    ours = measure(a.astype(np.float64), *(_wide(x) for x in _run(_call(compute, a), a)))
    theirs = measure(a.astype(np.float64), *(_wide(np.asarray(x)) for x in compute(a)))
    for mine, lapacks in zip(ours, theirs, strict=True):
        limit = 10 * np.maximum(lapacks, np.finfo(dtype).eps)
        assert (mine <= limit).all(), (mine, lapacks)


def _wide(array):
    return array.astype(np.float64)
