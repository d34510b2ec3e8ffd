"""`jax.numpy.linalg`, `jax.scipy.linalg` and `jax.lax.linalg`."""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import numpy as np

from tests.operations.case import FLOATS, Lines
from tests.operations.operands import Operand, fixed, made, rows

_DRAWN = np.random.default_rng(0).normal(size=(4, 4))
SQUARE = made(lambda: _DRAWN + 3 * np.eye(4), 4, 4)
POSITIVE = made(lambda: _DRAWN @ _DRAWN.T + np.eye(4), 4, 4)
SYMMETRIC = made(lambda: _DRAWN + _DRAWN.T, 4, 4)
LOWER = made(lambda: np.tril(_DRAWN) + 3 * np.eye(4), 4, 4)
TALL = made(lambda: np.random.default_rng(1).normal(size=(5, 3)), 5, 3)
WIDE = made(lambda: np.random.default_rng(1).normal(size=(3, 5)), 3, 5)
RIGHT = rows(4, 2, extreme=False)
B = Operand((4, 2), extreme=False)
VECTOR = Operand((4,), 0.5, 2.0, extreme=False)
M = rows(4)
BATCH = made(lambda: np.stack([_DRAWN + 3 * np.eye(4)] * 3) * [[[1]], [[2]], [[-1]]], 3, 4, 4,
             rows=True)  # fmt: skip
WIDE = made(lambda: np.random.default_rng(1).normal(size=(3, 5)), 3, 5)
STACK = made(lambda: np.random.default_rng(2).normal(size=(2, 4, 3)), 2, 4, 3)
BROKEN = made(lambda: np.where(np.eye(4)[0][:, None] * np.eye(4)[0], np.nan, _DRAWN), 4, 4)
NOT_POSITIVE = made(lambda: np.stack([np.eye(2), -np.eye(2), np.ones((2, 2))]), 3, 2, 2)
SINGULAR = made(lambda: np.stack([0 * np.eye(3), np.eye(3), np.nan * np.eye(3)]), 3, 3, 3)
SINGULAR_OR_NOT = made(lambda: np.stack([0 * np.eye(3), np.eye(3)]), 2, 3, 3)
_WAVES = _DRAWN + 1j * np.roll(_DRAWN, 1)
COMPLEX = made(lambda: _WAVES, 4, 4)
HERMITIAN = made(lambda: _WAVES @ _WAVES.conj().T + np.eye(4), 4, 4)
DIAGONAL = Operand((4,), 4, 7, extreme=False)

_dtypes = ("float32", "float64", "complex64")
_linalg = Lines("jax.numpy.linalg", _dtypes, loose=64)
_real = Lines("jax.numpy.linalg", ("float32", "float64"), loose=64)
_scipy = Lines("jax.scipy.linalg", ("float32", "float64"), loose=64)
_lax = Lines("jax.lax.linalg", ("float32", "float64"), loose=64)
_sums = Lines("jax.numpy.linalg", FLOATS, loose=4)
_made = Lines("jax.scipy.linalg", ("float32",))
_of_complex = Lines("jax.lax.linalg", ("complex64", "complex128"), loose=64)
_singular = Lines("jax.numpy.linalg", ("float32",), loose=64, without=("second gradient",))
_products = Lines("jax.numpy.linalg", (*FLOATS, "int32"), loose=2)
_values = Lines("jax.numpy.linalg", ("float32", "float64"), loose=64, without=("second gradient",))
_alone = ("vmap", "gradient", "second gradient")
_values_of_scipy = Lines(
    "jax.scipy.linalg", ("float32", "float64"), loose=64, without=("second gradient",)
)
_none = Lines("jax.lax.linalg", ("float32", "float64"), loose=64, without=_alone)
_scipy_none = Lines("jax.scipy.linalg", ("float32", "float64"), loose=64, without=_alone)


def _up_to_signs(f, *arrays):
    """The values, and the vectors as far as they are determined."""
    values, vectors = f(*arrays)
    return values, abs(vectors)


_KINDS = tuple(itertools.product((False, True), (0, 1, 2), (False, True)))


def _multiplied(f, x):
    """The products of the factors, and what other modes of a decomposition have."""
    q, r = f(x, mode="complete")
    return [q @ r, q.conj().T @ q, abs(f(x, mode="raw")[0])]


def _of_parts(u, s, v):
    return (u * s) @ v


CASES = (
    *_linalg("det inv", SQUARE),
    *_linalg("slogdet", SQUARE),
    *_linalg("slogdet", made(lambda: np.float64([[-2.5]]), 1, 1), note="of one number"),
    *_singular("det", SINGULAR, note="zero and not a number"),
    *_singular("slogdet pinv", SINGULAR, note="zero and not a number"),
    *_singular("slogdet", SINGULAR, note="by QR", by=lambda f, x: f(x, method="qr")),
    *_singular("pinv", SINGULAR_OR_NOT, note="symmetric", by=lambda f, x: f(x, hermitian=True)),
    *_singular("pinv", SINGULAR, note="with a tolerance", by=lambda f, x: f(x, 0.1)),
    *_linalg("cholesky", POSITIVE),
    *_linalg("solve", SQUARE, B),
    *_linalg("inv", BATCH, note="batch"),
    *_real("solve", SQUARE, RIGHT, note="batch"),
    *_real("cond", SQUARE),
    *_linalg("matrix_power", SQUARE, n=-2),
    *_linalg("qr", TALL),
    *_linalg("qr", TALL, mode="r"),
    *_linalg("qr", TALL, note="complete", by=lambda f, x: f(x, mode="complete")[1]),
    *_values("svd", TALL, compute_uv=False),
    *_values(
        "svd", TALL, note="vectors", by=lambda f, x: [abs(y) for y in f(x, full_matrices=False)]
    ),
    *_values("svdvals", TALL),
    *_values("svdvals", WIDE, note="wide"),
    *_values("eigh", SYMMETRIC, by=_up_to_signs),
    *_values("eigvalsh", SYMMETRIC),
    *_real("matrix_rank", TALL),
    *_real("pinv", TALL),
    *_real("lstsq", TALL, Operand((5,), extreme=False), by=lambda f, a, b: f(a, b)[0]),
    *_real("tensorinv", made(lambda: np.eye(6).reshape(2, 3, 3, 2) * 2 + 0.1, 2, 3, 3, 2)),
    *_real(
        "tensorsolve",
        made(lambda: np.eye(4).reshape(2, 2, 4) * 2 + 0.1, 2, 2, 4),
        Operand((2, 2), extreme=False),
    ),
    *_products("matmul", M, Operand((4, 2))),
    *_products("outer", rows(), Operand((2,))),
    *_products("tensordot", M, Operand((4, 2)), axes=1),
    *_products("vecdot", M, Operand((4,))),
    *_products("cross", Operand((2, 3)), Operand((2, 3))),
    *_products("trace diagonal matrix_transpose", Operand((3, 4))),
    *_products("multi_dot", M, Operand((4, 2)), Operand((2, 3)), by=lambda f, *a: f(a)),
    *_values("eig eigvals", SQUARE),
    *_sums("norm vector_norm", M, axis=1),
    *_sums("norm matrix_norm", Operand((3, 4))),
    *_sums("norm", M, ord=np.inf, axis=1),
    *_values("norm", WIDE, ord="nuc"),
    # SciPy's.
    *_scipy("det inv", SQUARE),
    *_scipy("lu", SQUARE),
    *_scipy("expm", SQUARE),
    *_scipy("cholesky", POSITIVE),
    *_scipy("cho_factor", POSITIVE, by=lambda f, x: jnp.triu(f(x)[0])),
    *_scipy("cho_solve", POSITIVE, B, by=lambda f, a, b: f((jnp.linalg.cholesky(a), True), b)),
    *_scipy("lu_factor", SQUARE),
    *_scipy("lu_solve", SQUARE, B, by=lambda f, a, b: f((a, jnp.array([1, 1, 3, 3], "int32")), b)),
    *_scipy("solve", SQUARE, B),
    *_scipy("solve", POSITIVE, B, assume_a="pos"),
    *[
        case
        for trans in (0, 1)
        for case in _scipy("solve_triangular", LOWER, B, lower=True, trans=trans)
    ],
    *_linalg("qr", TALL, note="complete and raw", by=_multiplied),
    *_values("svd", TALL, note="multiplied", by=lambda f, x: _of_parts(*f(x, False))),
    *_values(
        "eigh",
        SYMMETRIC,
        note="multiplied",
        by=lambda f, x: (lambda v: (v[1] * v[0]) @ v[1].T)(f(x)),
    ),
    *Lines("jax.scipy.linalg", ("float32", "float64", "complex64"), loose=64)(
        "solve_triangular",
        SQUARE,
        B,
        note="each",
        by=lambda f, a, b: [
            f(a, b, lower=lower, trans=trans, unit_diagonal=unit) for lower, trans, unit in _KINDS
        ],
    ),
    *Lines("jax.lax.linalg", ("float32", "float64", "complex64"), loose=64)(
        "triangular_solve",
        SQUARE,
        B,
        note="on the right",
        by=lambda f, a, b: [
            f(a, b.T, lower=lower, transpose_a=trans > 0, conjugate_a=trans > 1, unit_diagonal=unit)
            for lower, trans, unit in _KINDS
        ],
    ),
    *_lax(
        "cholesky",
        made(lambda: _DRAWN @ _DRAWN.T + np.eye(4) + np.triu(np.ones((4, 4)), 1), 4, 4),
        note="of a triangle",
        symmetrize_input=False,
    ),
    *_scipy("qr", TALL, mode="economic"),
    *_scipy("qr_multiply", TALL, Operand((3, 5), extreme=False), mode="right"),
    *_scipy("polar", SQUARE),
    *_values_of_scipy("polar", SQUARE, method="svd"),
    *_scipy("expm_frechet", SQUARE, SYMMETRIC),
    *_values_of_scipy("svd", TALL, compute_uv=False),
    *_values_of_scipy("eigh", SYMMETRIC, by=_up_to_signs),
    *Lines(
        "jax.scipy.linalg",
        ("float32", "float64"),
        loose=64,
        without=("vmap", "gradient", "second gradient"),
    )("eigh_tridiagonal", VECTOR, Operand((3,), extreme=False), eigvals_only=True),
    *_scipy("block_diag", Operand((2, 2)), Operand((3, 1))),
    *_scipy("toeplitz hankel", Operand((4,)), Operand((3,))),
    *_scipy("circulant fiedler", Operand((4,))),
    *_scipy("companion fiedler_companion", VECTOR),
    *_scipy("leslie", Operand((4,)), Operand((3,))),
    *_scipy("convolution_matrix", Operand((4,)), n=3),
    *_made("dft hilbert helmert", by=lambda f: f(4)),
    *_scipy("pascal invpascal invhilbert", by=lambda f: f(4)),
    *_made("hadamard", by=lambda f: f(4)),
    *_scipy_none("hessenberg schur", SQUARE),
    *_scipy_none("sqrtm", POSITIVE),
    *_scipy_none("solve_sylvester", SQUARE, POSITIVE, SYMMETRIC),
    *_scipy_none("rsf2csf", LOWER, SQUARE),
    *_scipy_none("funm", SQUARE, func=jnp.sin, disp=False, note="sine"),
    # The primitives.
    *_lax("cholesky", POSITIVE),
    *_lax(
        "cholesky_update",
        made(lambda: np.linalg.cholesky(_DRAWN @ _DRAWN.T + np.eye(4)).T, 4, 4),
        VECTOR,
    ),
    *_lax("cholesky", NOT_POSITIVE, note="not positive"),
    *_lax("eigh", SYMMETRIC, by=lambda f, x: [abs(y) for y in f(x)]),
    *_lax(
        "eigh",
        SQUARE,
        note="of one triangle",
        by=lambda f, x: [abs(y) for y in f(x, lower=False, symmetrize_input=False)],
    ),
    *_of_complex("cholesky", HERMITIAN, note="complex"),
    *_of_complex("lu", HERMITIAN, note="complex"),
    *_of_complex("qr", COMPLEX, full_matrices=False, note="complex"),
    *_of_complex("eigh", HERMITIAN, note="complex", by=lambda f, x: [abs(y) for y in f(x)]),
    *_of_complex("svd", COMPLEX, compute_uv=False, note="complex"),
    *_of_complex(
        "triangular_solve",
        COMPLEX,
        COMPLEX,
        note="complex",
        by=lambda f, a, b: [
            f(a, b[..., :2], left_side=True, transpose_a=True, conjugate_a=True),
            f(a, b[:2], left_side=False, lower=True, unit_diagonal=True),
        ],
    ),
    *_none("cholesky", BROKEN, note="not a number"),
    *_none(
        "qr",
        BROKEN,
        note="not a number",
        by=lambda f, x: [jnp.isnan(y).all() for y in f(x, full_matrices=False)],
    ),
    *_lax("lu", WIDE, note="wide"),
    *_lax("lu", STACK, note="stack"),
    *_lax("lu", Operand((0, 2)), note="of nothing"),
    *_lax("qr", WIDE, full_matrices=False, note="wide"),
    *_lax("qr", STACK, full_matrices=False, note="stack"),
    *_none("qr", TALL, full_matrices=True, note="a square q"),
    *_none(
        "svd",
        TALL,
        full_matrices=True,
        note="square",
        by=lambda f, x: [abs(y[..., :3]) for y in f(x)],
    ),
    *_lax("lu", SQUARE),
    *_lax("lu_pivots_to_permutation", fixed([1, 1, 3, 3], "int32"), permutation_size=4),
    *_lax("qr", TALL, full_matrices=False),
    *_lax("householder_product", TALL, Operand((3,), 0.5, 1.0, extreme=False)),
    *_lax("svd", TALL, compute_uv=False),
    *_lax("symmetric_product", SQUARE, SYMMETRIC, symmetrize_output=True),
    *_lax("triangular_solve", LOWER, B, left_side=True, lower=True),
    *_lax("tridiagonal_solve", DIAGONAL, B, by=lambda f, d, b: f(d / 9, d, d / 8, b)),
    *_none("eig", SQUARE),
    *_none("hessenberg", SQUARE),
    *_none("schur", SQUARE),
    *_none("tridiagonal", SYMMETRIC, lower=True),
    *_none(
        "ormqr",
        TALL,
        Operand((3,), 0.5, 1.0, extreme=False),
        Operand((5, 2), extreme=False),
        left=True,
        transpose=False,
    ),
    *_lax("qdwh", SQUARE, by=lambda f, x: f(x)[:2]),
)
