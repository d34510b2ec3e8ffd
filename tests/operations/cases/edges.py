"""Edges of single functions that are not those of their dtypes: ranges, constants, layouts."""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.operations.case import COMPLEX, FLOATS, INTEGERS, Lines
from tests.operations.operands import Operand, fixed, made, rows

# Where kernels leave their polynomials, and where the next float is another one.
_NUMBERS = [0.9999999, 1.0000001, 1e-10, -1e-10, 33.3, 88, -80, 12345.678, 1e5, -1e10, 2**23 + 1,
            3e38, -3e38, 1e-3, 0, -1]  # fmt: skip
WIDE = fixed(_NUMBERS)
OTHER = fixed([*_NUMBERS[5:], *_NUMBERS[:5]])
# With those half between two numbers of few bits.
POWERS = fixed([*np.linspace(-300, 300, 60), *np.exp2(np.linspace(-20, 20, 60)),
                *(1 + n * 2.0**-bits for n in (1, 3) for bits in (3, 4, 5, 8, 11))])  # fmt: skip
WHOLE = fixed([0, 1, 2, -3, 31, 32, 127, 128, -129, 255, 256, -32768, 65535, 2**24 + 1, 46341,
               123456789, -987654321, 2**31 - 1, -(2**31), 2**31 + 129, 2**31 + 384, 2**53 + 1,
               -(2**62)])  # fmt: skip
_PARTS = np.meshgrid([0.5, -1.2, 3, 0.25, 2e-3, -4, 1e-6], [1.5, 0.3, -2, 1e-4, 3])
COMPLEX_PLANE = fixed((_PARTS[0] + 1j * _PARTS[1]).ravel())
BEYOND = fixed([[1], [0], [-1], [2], [5], [-9]], "int32")
M = rows(4)
_GREAT = np.array([0, 1, 2**32 - 1, 2**31, 2**31 - 1, 2**16 - 1, 7], np.int64)
ROLLED_OVER = fixed(np.array([2**64 - 1, 2**64 - 2], np.uint64))

_DIMENSIONS = ("NHWC", "HWIO", "NHWC")

_ROWS = lax.GatherDimensionNumbers((1,), (0,), (0,))
_PUT = lax.ScatterDimensionNumbers((1,), (0,), (0,))

_of_floats = Lines("jax.lax", FLOATS, elementwise=True)
_of_integers = Lines("jax.lax", INTEGERS, elementwise=True)
_of_complex = Lines("jax.lax", COMPLEX, loose=4)
_sums = Lines("jax.numpy", COMPLEX, loose=4)


def _generated(f, words):
    """The state and the bits of each algorithm, dtype and shape."""
    return [
        f(words, shape, dtype, algorithm)
        for algorithm in (lax.RandomAlgorithm.RNG_THREE_FRY, lax.RandomAlgorithm.RNG_PHILOX)
        for dtype in ("uint8", "uint16", "uint32", "uint64")
        for shape in ((), (4,), (5, 3))
    ]


def _in_64_bits(f, left, right):
    """Products of integers of fewer bits."""
    dtypes = ("uint32", "int32", "uint16", "int8")
    given = [(left.astype(dtype), right.astype(dtype)) for dtype in dtypes]
    return [f(*pair, preferred_element_type=np.int64) for pair in given]


CASES = (
    *_of_floats(
        "ceil cos erf exp expm1 floor is_finite log log1p logistic round rsqrt sign sin sqrt tan "
        "tanh sinh asinh cbrt",
        WIDE,
        note="wide",
    ),
    *_of_floats("add sub mul div rem pow atan2 nextafter max min", WIDE, OTHER, note="wide"),
    *_of_floats(
        "reduce_precision", POWERS, note="sizes",
        by=lambda f, x: [
            f(x, *sizes) for sizes in ((5, 10), (8, 7), (4, 3), (5, 2), (8, 10), (3, 4), (2, 23))
        ],
    ),
    *_of_integers("population_count clz", WHOLE, note="wide"),
    *_of_integers(
        "convert_element_type", WHOLE, note="wide integers",
        by=lambda f, x: [f(x, kind) for kind in ("float32", "int32", "uint8", "int16", "uint32")],
    ),
    *_of_floats(
        "convert_element_type", WIDE, note="wide",
        by=lambda f, x: [f(x, kind) for kind in ("int32", "uint8", "int16", "uint32", "int8")],
    ),
    *_of_integers(
        "shift_left shift_right_logical shift_right_arithmetic", WHOLE, note="by constants",
        by=lambda f, x: [f(x, jnp.full_like(x, count)) for count in (0, 1, 3, 7, 31, 32, 63, 100)],
    ),
    *_of_integers(
        "div rem bitwise_and", WHOLE, note="by constants",
        by=lambda f, x: [f(x, jnp.full_like(x, number)) for number in (5, 7, 12, 15, 100)],
    ),
    # Of few bits, in which more would be something else.
    *_of_integers(
        "add sub mul", Operand((1,)), Operand((1,)), note="compared",
        by=lambda f, x, y: [f(x, y) > x, f(x, y) >> 1],
    ),
    # At indices that are unsigned, or beyond.
    *Lines("jax.lax", FLOATS)(
        "gather", Operand((3, 4)), BEYOND, note="at bounds",
        by=lambda f, x, i: f(x, i, lax.GatherDimensionNumbers((1, 2), (), (0,)), (2, 3),
                             mode="clip"),
    ),
    *Lines("jax.lax", FLOATS)(
        "scatter_add", Operand((3, 4)), BEYOND, Operand((6, 3, 2), extreme=False),
        note="at bounds",
        by=lambda f, x, i, u: f(x, i, u, lax.ScatterDimensionNumbers((1, 2), (), (1,))),
    ),
    *Lines("jax.lax", ("float32", "int32", "uint32"))(
        "gather", Operand((5, 4)), fixed([[2], [2**31 + 1], [7]], "uint32"), note="unsigned",
        by=lambda f, x, i: [f(x, i, _ROWS, (1, 4), mode=mode) for mode in ("clip", "fill")],
    ),
    *Lines("jax.lax", ("float32", "int32", "uint32"))(
        "scatter_add", Operand((5, 4)), fixed([[2], [2**31 + 1], [7]], "uint32"), Operand((3, 4)),
        note="unsigned", by=lambda f, x, i, u: f(x, i, u, _PUT),
    ),
    *Lines("jax.lax", ("float32", "int32", "uint32"), without=("vmap",))(
        "dynamic_slice", Operand((5, 4)), fixed(2**31 + 1, "uint32"), note="unsigned",
        by=lambda f, x, i: [f(x, (i, i % 3), (2, 3)),
                            lax.dynamic_update_slice(x, x[:2, :3], (i, i % 3))],
    ),
    *Lines("jax.lax", FLOATS, without=("gradient", "second gradient"))(
        "scatter_apply", Operand((5, 4)), fixed([[2], [-9], [7], [2]], "int32"), note="beyond",
        by=lambda f, x, i: f(x, i, lambda y: y * 3, _PUT, update_shape=(4, 4)),
    ),
    # Of complex numbers, all finite.
    *_of_complex(
        "neg exp expm1 log log1p sqrt rsqrt tanh sin cos logistic sign square real imag conj abs "
        "sinh cosh tan asinh acosh asin acos atan",
        COMPLEX_PLANE,
        note="finite",
    ),
    *_of_complex(
        "mul div pow", COMPLEX_PLANE, note="finite",
        by=lambda f, z: [f(z, jnp.full_like(z, number)) for number in (2.5, 1 - 2j)],
    ),
    *Lines("jax.numpy", COMPLEX, elementwise=True)(
        "isfinite isnan", Operand((1,)), note="complex"),
    *_sums("cumsum cumprod", rows(4, extreme=False), axis=1, note="complex"),
    *_sums("mean", rows(4, extreme=False), axis=1, note="complex"),
    *_sums("where", M, note="complex", by=lambda f, z: f(z.real > 0, z, 1j)),
    *_sums(
        "add subtract", Operand((3, 4), extreme=False), note="scattered",
        by=lambda f, z: getattr(z.at[jnp.array([1, 0, 1, 9])], f.func.__name__)(z[:1] * 1j),
    ),
    # Convolutions and products of large numbers.
    *Lines("jax.lax", ("int8", "int32"), loose=2)(
        "conv_general_dilated",
        made(lambda: np.random.default_rng(0).integers(-(2**31), 2**31, (2, 5, 6, 4)), 2, 5, 6, 4),
        made(lambda: np.random.default_rng(1).integers(-(2**31), 2**31, (3, 3, 2, 6)), 3, 3, 2, 6),
        note="integers",
        by=lambda f, x, k: f(x, k, (1, 1), "SAME", dimension_numbers=_DIMENSIONS,
                             feature_group_count=2, preferred_element_type=np.int32),
    ),
    *Lines("jax.lax", ("int8", "int32", "uint8", "int16", "uint32"))(
        "dot",
        made(lambda: np.random.default_rng(0).integers(-(2**31), 2**31, (7, 600)), 7, 600),
        made(lambda: np.random.default_rng(1).integers(-(2**31), 2**31, (600, 5)), 600, 5),
        note="long",
        by=lambda f, x, y: [f(x, y), f(x, y, preferred_element_type=np.int32)],
    ),
    *Lines("jax.lax", ("int8", "int32"))(
        "dot", fixed(np.full((2, 2000), -127)), fixed(np.full((2000, 2), -127)),
        note="beyond 24 bits", by=lambda f, x, y: f(x, y, preferred_element_type=np.int32),
    ),
    # Results that have more numbers than the operands.
    *Lines("jax.lax", ("uint32", "int32", "uint16"), loose=2)(
        "dot", fixed(np.resize(_GREAT, (3, 40))), fixed(np.resize(_GREAT[::-1], (40, 2))),
        note="as floats", by=lambda f, x, y: f(x, y, preferred_element_type=np.float32),
    ),
    *Lines("jax.lax", ("uint32", "int32", "uint16"), loose=2)(
        "conv_general_dilated",
        fixed(np.resize(_GREAT, (1, 5, 6, 2))), fixed(np.resize(_GREAT[::-1], (3, 3, 2, 3))),
        note="as floats",
        by=lambda f, x, k: f(x, k, (1, 1), "SAME", dimension_numbers=_DIMENSIONS,
                             preferred_element_type=np.float32),
    ),
    *Lines("jax.lax", ("int64",))(
        "dot", fixed(np.resize(_GREAT, (3, 40))), fixed(np.resize(_GREAT[::-1], (40, 2))),
        note="of fewer bits", by=_in_64_bits,
    ),
    *Lines("jax.lax", ("int64",))(
        "conv_general_dilated",
        fixed(np.resize(_GREAT, (1, 5, 6, 2))), fixed(np.resize(_GREAT[::-1], (3, 3, 2, 3))),
        note="of fewer bits",
        by=lambda f, x, k: _in_64_bits(
            functools.partial(f, window_strides=(1, 1), padding="SAME",
                              dimension_numbers=_DIMENSIONS), x, k),
    ),
    # Fourier transforms of other lengths.
    *Lines("jax.numpy.fft", COMPLEX, loose=16)(
        "irfftn", Operand((2, 3, 4), extreme=False), s=(3, 4, 6)
    ),
    # Generators.
    *Lines("jax.lax", ("uint64",), without=("one row", "empty", "symbolic", "vmap"))(
        "rng_bit_generator", fixed(np.array([1 + 2**63, 2**32 - 3], np.uint64)), note="all",
        by=_generated,
    ),
    *Lines("jax.lax", ("uint64",), without=("one row", "empty", "symbolic", "vmap"))(
        "rng_bit_generator", ROLLED_OVER, note="rolled over",
        by=lambda f, k: f(k, (14,), np.uint32, lax.RandomAlgorithm.RNG_DEFAULT),
    ),
)  # fmt: skip
