"""Operations on arrays of more dimensions than the kernels of TensorFlow take."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

from tests.bridge.tf_operations.checking import check, check_call


def _array(rank):
    """Return an array none of whose neighbouring dimensions are one for every operation."""
    shape = tuple((2, 3)[axis % 2] if rank < 9 else 2 for axis in range(rank))
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def _every_other(x, first):
    return x[tuple(slice(0, 1) if axis % 2 == first else slice(None) for axis in range(x.ndim))]


def _odd(x):
    return tuple(range(1, x.ndim, 2))


_OF_TWO = {
    "arithmetic": lambda y, z: [y + z, y * z, jnp.maximum(y, z), jnp.arctan2(y, z), abs(y) ** z],
    "comparisons": lambda y, z: [y < z, (y > 0) & (z > 0), jnp.where(y > 0, y, z)],
    "integers": lambda y, z: y.astype(int) // (1 + abs(z).astype(int)),
    "clip": lambda y, z: jnp.clip(y, z, z + 1),
}
_OF_ONE = {
    "broadcast": lambda x: jnp.broadcast_to(_every_other(x, 0), x.shape),
    "pad": lambda x: lax.pad(x, 0.0, [(1, 0, 0)] * x.ndim),
    "pad_and_crop": lambda x: lax.pad(x, 0.0, [(-1, 1, 0)] * x.ndim),
    "pad_inside": lambda x: lax.pad(x, 0.0, [(0, 0, 1)] * x.ndim),
    "edges": lambda x: jnp.pad(x, 1, mode="edge"),
    "reverse": lambda x: [lax.rev(x, range(x.ndim)), lax.rev(x, _odd(x))],
    "slice": lambda x: [x[(slice(0, 1),) * x.ndim], x[(slice(None, None, 2),) * x.ndim]],
    "roll": lambda x: jnp.roll(x, 1, _odd(x)),
    "extremes": lambda x: [jnp.argmax(x, x.ndim // 2), jnp.argmin(x, 0), x.max(_odd(x))],
    "running": lambda x: [jnp.cumsum(x, 1), jnp.cumprod(x, 2), lax.cummax(x, 3)],
    "sort": lambda x: [jnp.sort(x, 1), jnp.argsort(x, 2), jnp.median(x, 3)],
    "top_k": lambda x: lax.top_k(x, 2),
    "softmax": lambda x: [jax.nn.softmax(x, x.ndim // 2), jax.nn.log_softmax(x, -1)],
    "take_along": lambda x: jnp.take_along_axis(x, jnp.ones(x.shape, int), x.ndim // 2),
    "conversions": lambda x: x.astype(np.int8).astype(np.float16),
    "triangle": lambda x: jnp.tril(x),
    "windows": lambda x: lax.reduce_window(
        x, -np.inf, lax.max, (2,) * x.ndim, (1,) * x.ndim, "SAME"
    ),
    "complex": lambda x: abs(lax.complex(x, x) * lax.complex(x, x)),
    "gradients": jax.grad(lambda x: (x.max(_odd(x)) ** 2).sum() + (x * _every_other(x, 1)).sum()),
}  # fmt: skip
_BY_PLACE = {
    "gather": lambda x, i: [x[(i,) * x.ndim], jnp.take(x, i, x.ndim // 2)],
    "scatter": lambda x, i: [x.at[(i,) * x.ndim].add(1.0), x.at[..., i].mul(2.0)],
    "dynamic_slice": lambda x, i: [
        lax.dynamic_slice(x, (i[0],) * x.ndim, (1,) * x.ndim),
        lax.dynamic_update_slice(x, x[(slice(0, 1),) * x.ndim], (i[1],) * x.ndim),
    ],
}


@pytest.mark.parametrize("rank", [6, 7, 9])
@pytest.mark.parametrize("name", [*_OF_ONE, *_OF_TWO, *_BY_PLACE])
def test_every_rank(name, rank):
    x = _array(rank)
    if name in _OF_TWO:
        check(_OF_TWO[name], _every_other(x, 0), _every_other(x, 1), rtol=1e-5)
    elif name in _BY_PLACE:
        check(_BY_PLACE[name], x, np.int32([0, 1]))
    else:
        check(_OF_ONE[name], x, rtol=1e-5, of_largest=True)


@pytest.mark.parametrize("batch", [1, 3])
def test_symbolic_sizes_of_nine_dimensions(batch):
    def function(x):
        rows = _every_other(x, 1)
        padded = lax.pad(x, 0.0, [(0, 0, 0), *[(1, 0, 0)] * 8])
        flipped = jnp.where(x > 0, x, lax.rev(x, (1, 3, 8)))
        return [rows + _every_other(x, 0) * rows, padded, flipped, jnp.argmax(x, 4)]

    x = np.repeat(_array(9)[:1], batch, 0)
    (b,) = export.symbolic_shape("b")
    spec = jax.ShapeDtypeStruct((b, *x.shape[1:]), "float32")
    check_call(export.export(jax.jit(function))(spec), x)
