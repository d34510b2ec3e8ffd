"""`jax.numpy`."""

from __future__ import annotations

import operator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.matrix.case import EXACT, SERIES, Case, complexes, family, floats, integers

_X = floats(3, 4)
_Y = floats(3, 4, low=-1, high=3)
_POSITIVE = floats(3, 4, low=0.2, high=3)
_ROWS = np.array([2, 0, 2], np.int32)

_UNARY = {
    "sin": jnp.sin,
    "arctan": jnp.arctan,
    "nan_to_num": lambda x: jnp.nan_to_num(x / jnp.maximum(x, 0)),
    "sinh": jnp.sinh,
    "cosh": jnp.cosh,
    "arcsinh": jnp.arcsinh,
}
_UNIT = {"arcsin": jnp.arcsin, "arccos": jnp.arccos, "arctanh": jnp.arctanh}
_OF_POSITIVE = {
    "sqrt": jnp.sqrt,
}
_BINARY = {
    "hypot": jnp.hypot,
    "logaddexp": jnp.logaddexp,
    "where": lambda x, y: jnp.where(x > y, x * 2, y),
    "select": lambda x, y: jnp.select([x > 1, y > 1], [x * y, x - y], y),
    "isclose": lambda x, y: (jnp.isclose(x, y, atol=0.5), jnp.isfinite(x / (y > 0))),
}
_EXACT_BINARY = {
    "nextafter": jnp.nextafter,
    "heaviside": jnp.heaviside,
    "divmod": lambda x, y: (jnp.floor_divide(x, y), jnp.remainder(x, y)),
}
_REDUCTIONS = {
    "prod": lambda x: jnp.prod(x, axis=1),
    "std": lambda x: jnp.std(x, axis=0, ddof=1),
    "median": lambda x: jnp.median(x, axis=1),
    "quantile": lambda x: jnp.quantile(x, jnp.array([0.1, 0.75]), axis=0),
    "cumprod": lambda x: jnp.cumprod(x, axis=0),
    "corrcoef": lambda x: jnp.corrcoef(jnp.sin(3 * x)),
    "cov": jnp.cov,
    "gradient": lambda x: jnp.gradient(x),
    "logic": lambda x: (jnp.any(x > 1, axis=0), jnp.all(x < 1.5), jnp.count_nonzero(x > 0)),
}
_SHAPES = {
    "concatenate": lambda x: jnp.concatenate([x, x[:1] * 2, x], axis=0),
    "diagonal": lambda x: (jnp.diag(x[0]), jnp.diagonal(x, 1), jnp.trace(x)),
    "insert": lambda x: (jnp.insert(x, 1, 7.0, axis=0), jnp.delete(x, 2, axis=1)),
    "pad": lambda x: [jnp.pad(x, 2, mode=mode) for mode in ("edge", "symmetric", "wrap")],
}
_PRODUCTS = {
    "tensordot": lambda x, y: jnp.tensordot(x, y, axes=[(0,), (0,)]),
    "cross": lambda x, y: jnp.cross(x[:, :3], y[:, :3]),
    "kron": jnp.kron,
    "einsum": lambda x, y: jnp.einsum("ij,ik,jk->i", x, y, x.T @ y),
    "batched_matmul": lambda x, y: x.reshape(3, 2, 2) @ y.reshape(3, 2, 2),
}
_SEARCHES = {
    "partition": lambda x: jnp.partition(x, 2, axis=1),
    "lexsort": lambda x: jnp.lexsort((x[0], x[1] > 0)),
    "searchsorted": lambda x: jnp.searchsorted(jnp.sort(x[0]), x),
    "nonzero": lambda x: jnp.nonzero(x > 0.5, size=6, fill_value=-1),
}
_WITHOUT_GRADIENT = {
    "histogram": lambda x: jnp.histogram(x, bins=5, range=(-2, 2)),
    "unique": lambda x: jnp.unique(jnp.round(x), size=5, fill_value=9, return_counts=True),
}
_SCATTERS = {
    "scatter_set": lambda x, i: x.at[i[:2], 1].set(5.0),
    "scatter_max": lambda x, i: x.at[i].max(1.0),
    "scatter_power": lambda x, i: x.at[i[:2]].power(2.0),
    "gather_nd": lambda x, i: x.at[i, i[::-1]].get(mode="fill", fill_value=-1),
}
_INTEGERS = {
    "gcd": lambda x, y: (jnp.gcd(x, y), jnp.lcm(x, y)),
    "packbits": lambda x, y: jnp.packbits(x > y),
    "bitwise_count": lambda x, y: (jnp.bitwise_count(x), jnp.left_shift(x, y % 5)),
    "bincount": lambda x, y: jnp.bincount(x % 5, weights=y, length=6),
}


def _statistics(x: Any) -> Any:
    return {"mean": x.mean(0), "var": jnp.var(x, axis=1), "max": x.max(), "norm": jnp.sqrt(x @ x.T)}


def _sorting(x: Any) -> Any:
    return jnp.sort(x, axis=1), jnp.argsort(x, axis=0), jnp.argmax(x, axis=1)


def _indexing(x: Any, i: Any) -> Any:
    rows = jnp.take(x, i, axis=0)
    return rows, x.at[i].add(rows * 2), x[::-1, 1:], jnp.take_along_axis(x, i[:, None], axis=1)


def _layouts(x: Any) -> Any:
    padded = jnp.pad(x, ((1, 0), (0, 2)), mode="reflect")
    return {
        "padded": padded,
        "rolled": jnp.roll(x, 2, axis=1),
        "stacked": jnp.stack([x, x[::-1]]).swapaxes(0, 2),
        "triangle": jnp.tril(x),
        "tiled": jnp.tile(x[:1], (2, 2)),
    }


def _mlp(x: Any, w: Any) -> Any:
    return jnp.einsum("bi,io->bo", jnp.tanh(x), w), jnp.cumsum(x, axis=1), jnp.exp(-(x**2))


def _elementary(x: Any) -> Any:
    return {
        "tan": jnp.tan(x),
        "cbrt": jnp.cbrt(x),
        "expm1": jnp.expm1(x),
        "log1p": jnp.log1p(x),
        "atan2": jnp.arctan2(x, 2 - x),
        "rsqrt": lax.rsqrt(x),
        "tanh": jnp.tanh(x),
        "logistic": lax.logistic(x),
        "power": x**2.5,
    }


def _out_of_bounds(x: Any, i: Any) -> Any:
    return x.at[i + 2].get(mode="clip"), x.at[i + 2].add(1, mode="drop")


def _rounding(x: Any) -> Any:
    return jnp.round(x * 2) / 2, jnp.floor(x), lax.reduce_precision(x, 5, 7), jnp.sign(x)


CASES = (
    *family(_UNARY, _X),
    *family(_UNIT, _X / 2.5),
    Case("arccosh", jnp.arccosh, (_X + 4,)),
    *family(_OF_POSITIVE, _POSITIVE),
    *family(_BINARY, _X, _Y),
    *family(_EXACT_BINARY, _X, _Y, tolerance=EXACT, gradient=False),
    Case("float_power", operator.pow, (_POSITIVE, _Y)),
    *family(_REDUCTIONS, _X),
    *family(_SHAPES, _X),
    *family(_PRODUCTS, _X, _Y),
    *family(_SEARCHES, _X, tolerance=EXACT),
    *family(_WITHOUT_GRADIENT, _X, gradient=False),
    Case("out_of_bounds", _out_of_bounds, (_X, _ROWS)),
    *family(_SCATTERS, _X, _ROWS, tolerance=EXACT),
    *family(_INTEGERS, integers(8), integers(8, modulus=31), tolerance=EXACT),
    Case("angle", jnp.angle, (complexes(5),)),
    Case("statistics", _statistics, (floats(3, 4, low=0.1),)),
    Case("sorting", _sorting, (_X,), tolerance=EXACT),
    Case("indexing", _indexing, (_X, _ROWS)),
    Case("layouts", _layouts, (_X,), tolerance=EXACT),
    Case("mlp", _mlp, (_X, floats(4, 5))),
    Case("interpolation", jnp.interp, (floats(5), np.array([-2, 0, 3], np.float32), floats(3))),
    Case("elementary", _elementary, (floats(6, low=0.2, high=1.2),)),
    Case("rounding", _rounding, (_X,), tolerance=EXACT),
    Case("piecewise", lambda x: jnp.piecewise(x, [x < -1, x > 1], [jnp.sin, jnp.cos, 0.5]), (_X,),
         tolerance=SERIES),
)  # fmt: skip
