"""`jax.numpy.linalg`, `jax.scipy.linalg` and `jax.lax.linalg`."""

from __future__ import annotations

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
RIGHT = rows(4, 2, extreme=False)
B = Operand((4, 2), extreme=False)
VECTOR = Operand((4,), 0.5, 2.0, extreme=False)
M = rows(4)
BATCH = made(lambda: np.stack([_DRAWN + 3 * np.eye(4)] * 3) * [[[1]], [[2]], [[-1]]], 3, 4, 4,
             rows=True)  # fmt: skip
DIAGONAL = Operand((4,), 4, 7, extreme=False)

_dtypes = ("float32", "float64", "complex64")
_linalg = Lines("jax.numpy.linalg", _dtypes, loose=64)
_real = Lines("jax.numpy.linalg", ("float32", "float64"), loose=64)
_scipy = Lines("jax.scipy.linalg", ("float32", "float64"), loose=64)
_lax = Lines("jax.lax.linalg", ("float32", "float64"), loose=64)
_sums = Lines("jax.numpy.linalg", FLOATS, loose=4)
_made = Lines("jax.scipy.linalg", ("float32",))
_products = Lines("jax.numpy.linalg", (*FLOATS, "int32"), loose=2)
_values = Lines("jax.numpy.linalg", ("float32", "float64"), loose=64, without=("second gradient",))
_alone = ("vmap", "gradient", "second gradient")
_none = Lines("jax.lax.linalg", ("float32", "float64"), loose=64, without=_alone)
_scipy_none = Lines("jax.scipy.linalg", ("float32", "float64"), loose=64, without=_alone, long=True)
_long = Lines("jax.scipy.linalg", ("float32", "float64"), loose=64, long=True)


def _up_to_signs(f, *arrays):
    """The values, and the vectors as far as they are determined."""
    values, vectors = f(*arrays)
    return values, abs(vectors)


CASES = (
    *_linalg("det inv", SQUARE),
    *_linalg("slogdet", SQUARE),
    *_linalg("cholesky", POSITIVE),
    *_linalg("solve", SQUARE, B),
    *_linalg("inv", BATCH, note="batch"),
    *_real("solve", SQUARE, RIGHT, note="batch"),
    *_real("cond", SQUARE),
    *_linalg("matrix_power", SQUARE, n=-2),
    *_linalg("qr", TALL),
    *_linalg("qr", TALL, mode="r"),
    *_values("svd", TALL, compute_uv=False),
    *_values(
        "svd", TALL, note="vectors", by=lambda f, x: [abs(y) for y in f(x, full_matrices=False)]
    ),
    *_values("svdvals", TALL),
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
    *_values("norm", Operand((3, 4), extreme=False), ord="nuc"),
    # SciPy's.
    *_scipy("det inv expm lu", SQUARE),
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
    *_scipy("qr", TALL, mode="economic"),
    *_scipy("qr_multiply", TALL, Operand((3, 5), extreme=False), mode="right"),
    *_long("polar", SQUARE),
    *_long("expm_frechet", SQUARE, SYMMETRIC),
    *Lines("jax.scipy.linalg", ("float32", "float64"), loose=64, without=("second gradient",))(
        "svd", TALL, compute_uv=False
    ),
    *Lines("jax.scipy.linalg", ("float32", "float64"), loose=64, without=("second gradient",))(
        "eigh", SYMMETRIC, by=_up_to_signs
    ),
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
    *_long("pascal invpascal invhilbert", by=lambda f: f(4)),
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
    *_lax("eigh", SYMMETRIC, by=lambda f, x: [abs(y) for y in f(x)]),
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
