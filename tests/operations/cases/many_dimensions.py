"""Arrays of more dimensions than most kernels of the targets take."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.operations.case import Lines
from tests.operations.operands import Operand, fixed

_RANKS = (7, 9)
PLACES = fixed([0, 1], "int32")
_WITHOUT = ("vmap", "gradient", "second gradient")


def _every_other(x, first):
    return x[tuple(slice(0, 1) if axis % 2 == first else slice(None) for axis in range(x.ndim))]


def _odd(x):
    return tuple(range(1, x.ndim, 2))


def _arithmetic(f, x):
    """Operations of two arrays, none of whose neighbouring dimensions are one for both."""
    y, z = _every_other(x, 0), _every_other(x, 1)
    whole = y.astype(int) // (1 + abs(z).astype(int))
    return [f(y, z), y * z, jnp.maximum(y, z), jnp.arctan2(y, z), abs(y) ** z, y < z, whole,
            (y > 0) & (z > 0), jnp.where(y > 0, y, z), jnp.clip(y, z, z + 1)]  # fmt: skip


_CALLS = {
    "jax.lax.add": _arithmetic,
    "jax.lax.broadcast_in_dim": lambda f, x: f(_every_other(x, 0), x.shape, range(x.ndim)),
    "jax.lax.pad": lambda f, x: [
        f(x, np.zeros((), x.dtype), [pads] * x.ndim) for pads in ((1, 0, 0), (-1, 1, 0), (0, 0, 1))
    ],
    "jax.numpy.pad": lambda f, x: f(x, 1, mode="edge"),
    "jax.lax.rev": lambda f, x: [f(x, range(x.ndim)), f(x, _odd(x))],
    "jax.lax.slice": lambda f, x: [
        x[(slice(0, 1),) * x.ndim], x[(slice(None, None, 2),) * x.ndim], x[::-1, ..., 0],
    ],
    "jax.lax.transpose": lambda f, x: f(x, tuple(reversed(range(x.ndim)))),
    "jax.numpy.roll": lambda f, x: f(x, 1, _odd(x)),
    "jax.numpy.argmax": lambda f, x: [f(x, x.ndim // 2), jnp.argmin(x, 0), x.max(_odd(x))],
    "jax.numpy.cumsum": lambda f, x: [f(x, 1), jnp.cumprod(x, 2), lax.cummax(x, 3)],
    "jax.numpy.sort": lambda f, x: [f(x, 1), jnp.argsort(x, 2), jnp.median(x, 3), lax.top_k(x, 2)],
    "jax.nn.softmax": lambda f, x: [f(x, x.ndim // 2), jax.nn.log_softmax(x, -1)],
    "jax.numpy.take_along_axis": lambda f, x: f(x, jnp.ones(x.shape, int), x.ndim // 2),
    "jax.lax.convert_element_type": lambda f, x: f(f(x, "int8"), "float16"),
    "jax.numpy.tril": lambda f, x: f(x),
    "jax.lax.reduce_window": lambda f, x: f(
        x, np.array(-np.inf, x.dtype), lax.max, (2,) * x.ndim, (1,) * x.ndim, "SAME"
    ),
    "jax.lax.complex": lambda f, x: abs(f(x, x) * f(x, x)),
    "jax.lax.mul": lambda f, x: jax.grad(
        lambda x: (x.max(_odd(x)) ** 2).sum() + f(x, _every_other(x, 1)).sum()
    )(x),
}  # fmt: skip
_BY_PLACE = {
    "jax.numpy.take": lambda f, x, i: [x[(i,) * x.ndim], f(x, i, x.ndim // 2)],
    "jax.lax.scatter_add": lambda f, x, i: [x.at[(i,) * x.ndim].add(1.0), x.at[..., i].mul(2.0)],
    "jax.lax.dynamic_slice": lambda f, x, i: [
        f(x, (i[0],) * x.ndim, (1,) * x.ndim),
        lax.dynamic_update_slice(x, x[(slice(0, 1),) * x.ndim], (i[1],) * x.ndim),
    ],
}  # fmt: skip


def _shape(rank):
    return tuple((2, 3)[axis % 2] if rank < 9 else 2 for axis in range(rank))


CASES = tuple(
    case
    for rank in _RANKS
    for names, operands in ((_CALLS, ()), (_BY_PLACE, (PLACES,)))
    for name, call in names.items()
    for case in Lines(name.rpartition(".")[0], ("float32",), without=_WITHOUT)(
        name.rpartition(".")[2],
        # In static sizes, and of any number of rows.
        Operand(_shape(rank), extreme=False, rows=call is _arithmetic),
        *operands,
        note=f"{rank} dimensions",
        by=call,
    )
)
