"""`jax.numpy.linalg` and `jax.scipy.linalg`: each calls LAPACK where JAX itself runs it."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
from jax import lax

from tests.matrix.case import SERIES, Case, floats

_SQUARE = floats(4, 4) + 3 * np.eye(4, dtype=np.float32)
_POSITIVE = (_SQUARE @ _SQUARE.T).astype(np.float32)
_TALL = floats(5, 3)
_RIGHT = floats(4, 2)
_DIAGONAL = np.float32([4, 5, 6, 7])

_OF_A_SQUARE = {
    "det": jnp.linalg.det,
    "slogdet": lambda a: jnp.linalg.slogdet(a)[1],
    "inv": jnp.linalg.inv,
    "lu": lambda a: tuple(lax.linalg.lu(a)[:1]),
    "expm": lambda a: jsl.expm(a / 8),
    "matrix_power": lambda a: jnp.linalg.matrix_power(a, -2),
}


def _tridiagonal_solve(diagonal: Any, right: Any) -> Any:
    return lax.linalg.tridiagonal_solve(diagonal / 9, diagonal, diagonal / 8, right)


CASES: tuple[Case, ...] = (
    *(
        Case(name, function, (_SQUARE,), tolerance=SERIES)
        for name, function in _OF_A_SQUARE.items()
    ),
    Case("cholesky", jnp.linalg.cholesky, (_POSITIVE,), tolerance=SERIES),
    Case("solve", jnp.linalg.solve, (_SQUARE, _RIGHT), tolerance=SERIES),
    Case(
        "cho_solve",
        lambda a, b: jsl.cho_solve(jsl.cho_factor(a), b),
        (_POSITIVE, _RIGHT),
        tolerance=SERIES,
    ),
    Case(
        "triangular_solve",
        lambda a, b: jsl.solve_triangular(jnp.tril(a), b, lower=True),
        (_SQUARE, _RIGHT),
        tolerance=SERIES,
    ),
    Case("tridiagonal_solve", _tridiagonal_solve, (_DIAGONAL, _RIGHT), tolerance=SERIES),
    Case("qr", lambda a: tuple(jnp.linalg.qr(a)), (_TALL,), tolerance=SERIES),
    Case("eigvalsh", jnp.linalg.eigvalsh, (_POSITIVE,), tolerance=SERIES),
    Case(
        "singular_values", lambda a: jnp.linalg.svd(a, compute_uv=False), (_TALL,), tolerance=SERIES
    ),
    Case(
        "symbolic_cholesky",
        jnp.linalg.cholesky,
        (np.stack([_POSITIVE] * 2),),
        more=((np.stack([_POSITIVE] * 3),),),
        shapes=("b, 4, 4",),
        tolerance=SERIES,
    ),
)
