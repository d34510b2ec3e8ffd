"""Conversions, bits, and numbers at which `jax.lax` differs that are no edges of a dtype."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.operations.case import ALL, FLOATS, INTEGERS, NUMBERS, Lines
from tests.operations.operands import Operand, fixed, numpy_dtype, rows

_WITHOUT = ("vmap", "gradient", "second gradient")
X = Operand((1,))
M = rows(4)
BYTES = fixed(np.arange(256), "uint8")
WORDS = fixed(np.arange(24).reshape(3, 4, 2) * 0x12345679 % 2**32, "uint32")
SMALL = fixed(np.concatenate([np.geomspace(1e-30, 30, 60), -np.geomspace(1e-30, 0.999, 60)]))
BEYOND = fixed([1e5, -1e5, 3e9, -3e9, 1e19, -1e19, 9.3e18, 2.0**63, 127.9, -128.9, 255.5, 65535.5])
SPREAD = np.ldexp(np.linspace(1, 2, 37), np.arange(-22, 15))
ROUNDED = fixed(np.concatenate([SPREAD, -SPREAD, [1 / 3, 1.0009765, 65519, -0.0, np.inf, np.nan]]))
NEAR_ZERO = fixed([-0.0, 0.0, -0.3, 0.3, -1.5])
SATURATED = fixed([-2, -1.5, -0.5, -0.1, 0.3, 0.9, 1.3])
OFFSET = fixed(1000.5 + np.arange(16))
HUGE = fixed([3e38, -3e38, 0, -0.0, np.inf, -np.inf, np.nan, 1e-38, 1e10, 5])
_PARTS = (0.0, -0.0, 1.0, -1.5, 3.0)
_FINITE = [complex(*parts) for parts in itertools.product(_PARTS, repeat=2)]
_ENDLESS = [complex(np.inf, 1), complex(-2, np.inf), 1 + 2j, 0j]
_EVERY = [complex(*p) for p in itertools.product((*_PARTS, np.inf, -np.inf, np.nan), repeat=2)]
_POWERS = [2, 0.5, -1, 0, -3, 1j, 1 + 1j, 2 - 1j]


def _pairs(left, right):
    """All pairs of numbers, as two operands."""
    return [fixed(part.ravel()) for part in np.meshgrid(left, right)]


GREAT = fixed([np.inf, 1.7e308, -np.inf, -1.7e308, 1e305, np.nan, -0.0, 0.0, -1e305, 3.0])
NAN_IN_EACH_ROW = fixed(np.where(np.eye(9, dtype=bool), np.nan, np.arange(81).reshape(9, 9)))
NANS = fixed([np.inf, np.nan, -np.nan, 3, -0.0, -np.inf, 0.0, -np.nan, np.nan, -2, 2])

_floats = Lines("jax.lax", FLOATS, elementwise=True, without=_WITHOUT)
_of_numpy = Lines("jax.numpy", FLOATS, elementwise=True, without=_WITHOUT)
_wider = Lines("jax.lax", ("float32", "bfloat16", "float64"), elementwise=True, without=_WITHOUT)
_numbers = Lines("jax.lax", NUMBERS, elementwise=True, without=_WITHOUT)
_any = Lines("jax.lax", (*ALL, "complex64"), elementwise=True, without=_WITHOUT)
_complex = Lines("jax.lax", ("complex64", "complex128"), loose=4, without=_WITHOUT)
_few = Lines("jax.lax", ("float32", "float64", "bfloat16", "float16"), without=_WITHOUT)
_bytes = Lines("jax.lax", ("float32",), without=_WITHOUT)
_moves = Lines("jax.lax", ("float32",), without=(*_WITHOUT, "empty"))
_integer_rows = Lines("jax.lax", ("int32", "int8", "int64", "uint32", "uint64"))


def every(name):
    """All floats of eight bits, as numbers of float32."""
    return fixed(np.arange(256, dtype=np.uint8).view(numpy_dtype(name)).astype(np.float32))


def _kinds():
    return [name for name in ALL if jax.config.jax_enable_x64 or not name.endswith("64")]


def _same_size(f, x):
    size = x.dtype.itemsize
    floats = {1: (), 2: ("float16", "bfloat16"), 4: ("float32",), 8: ("float64",)}[size]
    bits = f(x, f"uint{8 * size}")
    return [bits, f(x, f"int{8 * size}"), f(bits + 1, x.dtype), *(f(x, kind) for kind in floats)]


def _moved(kind):
    """Calls a concatenation, and what else only moves elements, with those of few bits."""

    def run(f, x):
        x = x.astype(kind)
        found = [
            f([x, x], 1), x[1:, ::2], x.T, x[::-1], x.ravel(), jnp.tile(x, 2), jnp.roll(x, 1, 1),
            lax.pad(x, x[0, 1], [(1, 0, 0), (0, 0, 1)]), x[np.int32([0, 2])], x.at[1].set(x[0]),
            jnp.where(x > x[0], x, x[1]), lax.clamp(x[0, 0], x, x[0, 3]), lax.sort(x),
            lax.reduce(x, x[0, 0] * 0, lax.max, (0,)), lax.scan(lambda c, row: (row, c), x[0], x),
            lax.dynamic_update_slice(x, x[:1, :1], (1, 2)), np.ones((2, 2), x.dtype),
        ]  # fmt: skip
        return [each.astype("float32") for each in jax.tree.leaves(found)]

    return run


def _compared(f, y):
    z = jnp.clip(y, -0.75, 0.75)
    return [f(y, z), y != z, y <= z, y > z, z == 0.75, z]


def _of_rest(f, x):
    """Calls a reduction, and others, of all rows but one."""
    rest = x[1:]
    least = np.array(-np.inf if x.dtype.kind not in "iu" else np.iinfo(x.dtype).min, x.dtype)
    return [
        f(rest, np.zeros((), x.dtype), lax.add, (0,)), f(rest, least, lax.max, (0,)),
        f((rest, lax.broadcasted_iota(np.int32, rest.shape, 0)), (least, np.int32(0)), _greater,
          (0,)),
        jnp.prod(rest, 0), jnp.min(rest, 0, initial=9), jnp.any(rest > 1, 0), jnp.all(rest > 1, 0),
    ]  # fmt: skip


def _greater(one, other):
    is_first = (one[0] > other[0]) | (one[0] != one[0])
    return jax.tree.map(lambda a, b: jnp.where(is_first, a, b), one, other)


CASES = (
    *_any("convert_element_type", X, note="to each", by=lambda f, x: [f(x, k) for k in _kinds()]),
    *_wider("convert_element_type", BEYOND, note="beyond",
            by=lambda f, x: [f(x, k) for k in _kinds()]),
    *_any("bitcast_convert_type", X, note="same size",
          by=lambda f, x: _same_size(f, x) if x.dtype.kind not in "bc" else x),
    *Lines("jax.lax", ("uint32",))(
        "bitcast_convert_type", WORDS, note="other sizes",
        by=lambda f, x: [f(x, "uint8"), f(x, "int16"), f(f(x, "uint8"), "float32"),
                         f(f(x, "int16"), "int32")],
    ),
    *[
        case
        for kind in ("float8_e4m3fn", "float8_e5m2")
        for case in (
            *_bytes("bitcast_convert_type", BYTES, note=kind,
                    by=lambda f, x, kind=kind: [f(f(x, kind), "uint8"), f(x, kind).astype("f")]),
            *_bytes("convert_element_type", every(kind), note=f"all of {kind}",
                    by=lambda f, x, kind=kind: [f(f(x, kind), k) for k in _kinds()]),
        )
    ],
    *[
        case
        for kind in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "int4", "uint4")
        for case in _moves("concatenate", rows(4, low=0, high=7, extreme=False),
                           note=f"and other moves, {kind}", by=_moved(kind))
    ],
    *_floats("reduce_precision", ROUNDED, note="small",
             by=lambda f, x: [f(x, *bits) for bits in ((5, 10), (4, 3), (5, 2), (5, 7))]),
    *_wider("reduce_precision", ROUNDED, note="large",
            by=lambda f, x: [f(x, *bits) for bits in ((8, 7), (8, 23), (3, 20), (11, 52))]),
    # What cancels, and what is rounded.
    *_floats("log1p expm1 logistic cbrt", SMALL, note="small"),
    *_floats("log1p expm1 sin tanh round sign cbrt", NEAR_ZERO, note="signs of zero",
             by=lambda f, x: 1 / f(x)),
    *_of_numpy("subtract", OFFSET, note="before a product", by=lambda f, x: f(x, 1000) * 100 + 1),
    *Lines("jax.lax", ("float32", "float16", "bfloat16", "float64"), elementwise=True)(
        "eq", SATURATED, note="of what was rounded", by=lambda f, x: _compared(f, jnp.tanh(x))),
    # Constants, one, and reciprocals.
    *_numbers("div rem", X, note="by small constants", by=lambda f, x: [
        f(x, jnp.full_like(x, n)) for n in (0, 1, 3, *(() if x.dtype.kind == "u" else (-1,)))]),
    *_of_numpy("multiply", X, note="by constants", by=lambda f, x: [
        x / 3, f(x, 0), f(x, -1), x**0.5, x**-0.5, x**3, x**-1, x**0, 0 - x, ~(x < 1), ~(x >= 1)]),
    *Lines("jax.numpy", NUMBERS, elementwise=True, without=_WITHOUT)(
        "multiply", X, note="of nothing", by=lambda f, x: [f(f(1, x), 1) - 0, -(1 * x - 0)]),
    *_numbers("div rem", X, X, note="of one", by=lambda f, x, y: f(jnp.ones_like(x), x) * (y + 3)),
    *_floats("mul", SATURATED, note="by a reciprocal", by=lambda f, x: [
        f(lax.sin(x) / 1, 1 / lax.sqrt(lax.abs(x) + 1.5)), f(x + 3, jnp.exp(x * 0) / x)]),
    *[
        case
        for note, numbers in (("what has no reciprocal", (3e38, -3e38, 1e-38, 2e-39, 0.0)),
                              ("infinity and NaN", (np.inf, -np.inf, np.nan)))
        for case in Lines("jax.lax", ("float32", "bfloat16"), elementwise=True, without=_WITHOUT)(
            "div", HUGE, note=f"by {note}",
            by=lambda f, x, numbers=numbers: [f(x, jnp.full_like(x, n)) for n in numbers])
    ],
    *Lines("jax.numpy", INTEGERS, elementwise=True, without=_WITHOUT)(
        "power", X, X, note="by edges", by=lambda f, x, y: f(x, jnp.maximum(y, 0))),
    # Complex numbers with parts that are zeros and infinities.
    *_complex("div", *_pairs(_FINITE, _FINITE), note="zeros"),
    *_complex("div", *_pairs(_ENDLESS, _ENDLESS), note="infinities"),
    *_complex("pow", *_pairs(_EVERY, _POWERS), note="special"),
    # Sorts of NaNs with signs, by several keys, and of integers in every form.
    *_few("sort", NANS, note="signs of NaN", by=lambda f, x: [f(x), jnp.argsort(x), jnp.argmax(x)]),
    *_few("top_k", NANS, note="signs of NaN", k=7),
    *Lines("jax.lax", ("float64", "float32"), without=_WITHOUT)(
        "sort", GREAT, note="great numbers", by=lambda f, x: [f(x), jnp.argsort(x), f(-x)]),
    *_few("reduce_max reduce_min", NAN_IN_EACH_ROW, note="NaN at each place",
          by=lambda f, x: [f(x, axes=(0,)), f(x, axes=(1,))]),
    *_few("argmax argmin", NAN_IN_EACH_ROW, note="NaN at each place",
          by=lambda f, x: [f(x, axis, np.int32) for axis in (0, 1)]),
    *Lines("jax.lax", ALL)("sort", M, note="two keys", by=lambda f, x: [
        f((x, lax.rev(x, (1,))), dimension=0, num_keys=2),
        jnp.argsort(x, axis=0, descending=True)]),
    *Lines("jax.lax", NUMBERS)("sort", M, note="of a key and what goes along", by=lambda f, x: f(
        (x * x, x, lax.broadcasted_iota(np.int32, x.shape, 1)), num_keys=1)),
    *_integer_rows("reduce_sum reduce_prod reduce_max reduce_min", M, axes=(0,), note="integers"),
    *_integer_rows("argmax argmin", M, axis=1, index_dtype=np.dtype("int32"), note="integers"),
    *_integer_rows("sort cumsum cummax", M, note="integers"),
    # Of what only a run knows not to be empty.
    *_integer_rows("reduce", M, note="maybe empty", by=_of_rest),
    *Lines("jax.lax", ("float32", "bfloat16"))(
        "reduce", M, note="maybe empty floats", by=_of_rest),
    *Lines("jax.lax", FLOATS)("reduce", fixed([[[0.5], [1], [4]], [[2], [0.25], [3]]]),
                              note="whose order matters", by=lambda f, x: [
        f(x, np.asarray(3, x.dtype), reducer, (0, 1)) for reducer in (lax.sub, lax.div)]),
    *Lines("jax.lax", ("float16",), without=_WITHOUT)(
        "reduce", fixed(np.full(2048, 100)), note="beyond float16",
        by=lambda f, x: f(x, np.zeros((), x.dtype), lax.add, (0,)) / np.asarray(2048, x.dtype)),
)  # fmt: skip
