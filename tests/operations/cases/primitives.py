"""`jax.lax`."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.operations.case import ALL, COMPLEX, FLOATS, INTEGERS, NUMBERS, SIGNED, Lines
from tests.operations.operands import Operand, fixed, integers, rows

X = Operand((1,))
UNIT = Operand((1,), -0.99, 0.99)
POSITIVE = Operand((1,), 0.1, 4.0)
ABOVE_ONE = Operand((1,), 1.1, 5.0)
TRUTH = Operand((1,), dtype="bool")
SHIFT = Operand((1,), 0, 7, extreme=False)
M = rows(4)
V = rows()
PLAIN = rows(4, extreme=False)
INDEX = integers(low=0, high=2)
IMAGE = Operand((2, 6, 5, 3))
KERNEL = Operand((3, 2, 3, 4), extreme=False)

_of_floats = Lines("jax.lax", FLOATS, elementwise=True)
_of_numbers = Lines("jax.lax", NUMBERS, elementwise=True)
_of_integers = Lines("jax.lax", INTEGERS, elementwise=True)
_of_bits = Lines("jax.lax", (*INTEGERS, "bool"), elementwise=True)
_of_complex = Lines("jax.lax", COMPLEX, elementwise=True, loose=4)
_of_any = Lines("jax.lax", ALL, elementwise=True)
_series = Lines("jax.lax", ("float32", "float64"), elementwise=True, loose=16)
_shapes = Lines("jax.lax", (*ALL, *COMPLEX))
_rows = Lines("jax.lax", NUMBERS)
_float_rows = Lines("jax.lax", FLOATS)
_products = Lines("jax.lax", (*NUMBERS, "complex64"), loose=2)
_static = Lines("jax.lax", NUMBERS, without=("symbolic",))

_DIMENSIONS = lax.GatherDimensionNumbers((1,), (0,), (0,))
_SCATTERED = lax.ScatterDimensionNumbers((1,), (0,), (0,))
_PLACES = fixed([[2], [0], [2], [7]], "int32")
_UPDATES = Operand((4, 4))
_LAYOUT = ("NHWC", "HWIO", "NHWC")


def _while(f, x):
    return f(lambda state: state[0] < 4, lambda state: (state[0] + 1, state[1] * 2 + 1), (0, x))


def _reduced(f, x):
    return f(x, np.zeros((), x.dtype), lambda a, b: a + b + a * b, (1,))


def _windows(f, x):
    return f(x, np.zeros((), x.dtype), lax.add, (2, 2), (1, 2), "SAME")


CASES = (
    *_of_floats(
        "exp exp2 expm1 log log1p log2 logistic tanh sin cos tan erf erfc sinh cosh asinh "
        "atan cbrt sqrt rsqrt ceil floor round is_finite",
        X,
    ),
    *_of_floats("asin acos atanh", UNIT),
    *_of_floats("acosh", ABOVE_ONE),
    *_of_floats("round", X, rounding_method=lax.RoundingMethod.TO_NEAREST_EVEN),
    *_of_floats("reciprocal one_minus_square", X),
    *_of_floats("atan2 pow nextafter", X, X),
    *_of_floats("reduce_precision", X, exponent_bits=5, mantissa_bits=7),
    *_of_numbers("neg sign square", X),
    *_of_numbers("add sub mul div rem", X, X),
    *_of_any("max min lt le gt ge eq ne", X, X),
    *Lines("jax.lax", (*FLOATS, *SIGNED), elementwise=True)("abs", X),
    *_of_numbers("integer_pow", X, y=3),
    *_of_floats("integer_pow", X, y=-2),
    *_of_numbers("clamp", X, X, X),
    *_of_any("select", TRUTH, X, X),
    *_of_any("select_n", TRUTH, X, X),
    *_of_bits("bitwise_and bitwise_or bitwise_xor", X, X),
    *_of_bits("bitwise_not", X),
    *_of_integers("population_count clz", X),
    *_of_integers("mulhi", X, X),
    *_of_integers("shift_left shift_right_arithmetic shift_right_logical", X, X),
    *_of_floats("pow", X, Operand((1,), 0, 4, dtype="int32", extreme=False), note="integers"),
    *_series("digamma lgamma", POSITIVE),
    *_series("erf_inv", UNIT),
    *_series("bessel_i0e bessel_i1e", X),
    *_series("igamma igammac igamma_grad_a random_gamma_grad", POSITIVE, POSITIVE),
    *_series("zeta", ABOVE_ONE, POSITIVE),
    *_series("polygamma", fixed([1] * 12), POSITIVE),
    *_series("betainc", POSITIVE, POSITIVE, Operand((1,), 0.05, 0.95)),
    *_of_complex(
        "neg exp expm1 log log1p sqrt rsqrt tanh sin cos logistic sign square real "
        "imag conj abs sinh cosh tan asinh acosh asin acos atan atanh",
        X,
        note="complex",
    ),
    *_of_complex("add sub mul div eq ne pow", X, X, note="complex"),
    *_of_complex("integer_pow", X, y=3, note="complex"),
    *Lines("jax.lax", ("float32", "float64"), elementwise=True)("complex", X, X),
    *_of_any(
        "convert_element_type",
        X,
        note="all",
        by=lambda f, x: [
            f(x, kind)
            for kind in ("float32", "float16", "int32", "int8", "uint8", "bool", "uint32")
        ],
    ),
    *Lines("jax.lax", ("float32", "int32", "uint32"), elementwise=True)(
        "bitcast_convert_type",
        X,
        by=lambda f, x: [f(x, "int32"), f(x, "uint32"), f(x, "float32"), f(x, "int8")],
    ),
    *_of_any("optimization_barrier stop_gradient", X),
    # Shapes.
    *_shapes("broadcast", M, sizes=(2,)),
    *_static("broadcast_in_dim", M, shape=(2, 3, 4), broadcast_dimensions=(1, 2)),
    *_shapes("broadcast_like", V, rows(), note="same"),
    *_shapes("broadcast_to_rank", M, rank=4),
    *_shapes("collapse", M, start_dimension=0),
    *_shapes("concatenate", M, M, by=lambda f, x, y: f([x, y], 0)),
    *_shapes("stack", M, M, by=lambda f, x, y: f([x, y])),
    *_shapes("unstack", Operand((3, 4))),
    *_shapes("expand_dims", M, dimensions=(1,)),
    *_shapes("squeeze", rows(1, 4), dimensions=(1,)),
    *_static("reshape", M, new_sizes=(6, 2), by=lambda f, x: f(jnp.resize(x, (3, 4)))),
    *_shapes("rev", M, dimensions=(0, 1)),
    *_shapes("transpose", M, permutation=(1, 0)),
    *_shapes("tile", M, reps=(2, 3)),
    *_shapes("split", Operand((4, 3)), sizes=(1, 3)),
    *_shapes(
        "pad",
        M,
        by=lambda f, x: [
            f(x, jnp.zeros((), x.dtype), config)
            for config in ([(1, 2, 0), (0, 1, 2)], [(-1, 1, 0), (2, -3, 1)])
        ],
    ),
    *_shapes("slice", Operand((5, 4)), start_indices=(1, 0), limit_indices=(5, 3), strides=(2, 1)),
    *_shapes("slice_in_dim", Operand((5, 4)), start_index=1, limit_index=-1, stride=2),
    *_shapes("index_in_dim", Operand((5, 4)), index=-2),
    *_shapes(
        "dynamic_slice",
        Operand((5, 4)),
        integers(low=-1, high=9),
        by=lambda f, x, i: [f(x, (i + n, jnp.zeros_like(i)), (2, 3)) for n in (-3, 0, 9)],
    ),
    *_shapes("dynamic_slice_in_dim", Operand((5, 4)), INDEX, slice_size=2),
    *_shapes("dynamic_index_in_dim", M, INDEX),
    *_shapes(
        "dynamic_update_slice",
        Operand((5, 4)),
        Operand((2, 3)),
        INDEX,
        by=lambda f, x, y, i: [f(x, y, (i + n, i - n)) for n in (-2, 0, 9)],
    ),
    *_shapes("dynamic_update_slice_in_dim", Operand((5, 4)), Operand((2, 4)), INDEX, axis=0),
    *_shapes("dynamic_update_index_in_dim", Operand((5, 4)), Operand((4,)), INDEX, axis=0),
    *_shapes("iota", by=lambda f: [f("int32", 5), f("float32", 4)]),
    *_shapes("broadcasted_iota", by=lambda f: [f("int32", (2, 3), 1), f("uint8", (2, 3), 0)]),
    *_shapes("full", by=lambda f: [f((2, 3), 1.5), f((), -2)]),
    *_shapes("full_like", M, fill_value=1),
    *_shapes("empty", by=lambda f: f((2, 0), "float32")),
    *_shapes(
        "gather",
        Operand((5, 4)),
        _PLACES,
        by=lambda f, x, i: [f(x, i, _DIMENSIONS, (1, 4), mode=mode) for mode in ("clip", "fill")],
    ),
    *_shapes(
        "index_take", Operand((5, 4)), fixed([2, 0, 4], "int32"), by=lambda f, x, i: f(x, [i], (0,))
    ),
    *_shapes(
        "scatter",
        Operand((5, 4)),
        fixed([[2], [0], [1], [7]], "int32"),
        _UPDATES,
        by=lambda f, x, i, u: f(x, i, u, _SCATTERED),
    ),
    *_rows(
        "scatter_add scatter_sub scatter_mul scatter_max scatter_min",
        Operand((5, 4)),
        _PLACES,
        _UPDATES,
        by=lambda f, x, i, u: f(x, i, u, _SCATTERED),
    ),
    *_rows(
        "scatter_add",
        Operand((5, 4)),
        _PLACES,
        _UPDATES,
        note="clipped",
        by=lambda f, x, i, u: f(x, i, u, _SCATTERED, mode="clip"),
    ),
    *_float_rows(
        "scatter_apply",
        Operand((5, 4)),
        fixed([[2], [0]], "int32"),
        by=lambda f, x, i: f(x, i, lambda y: y * 3, _SCATTERED, update_shape=(2, 4)),
    ),
    # Reductions.
    *_rows("argmax argmin", M, axis=1, index_dtype=np.dtype("int32")),
    *_rows("cumsum cumprod cummax cummin", M),
    *_rows("cumsum cummax", M, axis=1, reverse=True),
    *_float_rows("cumlogsumexp", M),
    *_rows("reduce_sum reduce_prod reduce_max reduce_min", M, axes=(0,)),
    *_rows("reduce_sum reduce_max", M, axes=(0, 1)),
    *Lines("jax.lax", (*INTEGERS, "bool"))("reduce_and reduce_or reduce_xor", M, axes=(0,)),
    *_rows("reduce", PLAIN, note="of a function", by=_reduced),
    *_rows(
        "reduce",
        M,
        note="several",
        by=lambda f, x: f(
            (x, x),
            (np.zeros((), x.dtype), np.ones((), x.dtype)),
            lambda a, b: (a[0] + b[0], a[1] * b[1]),
            (0,),
        ),
    ),
    *_rows("reduce_window", M, by=_windows),
    *_rows(
        "reduce_window",
        M,
        note="maximum",
        by=lambda f, x: f(
            x,
            np.array(-np.inf if x.dtype.kind not in "iu" else np.iinfo(x.dtype).min, x.dtype),
            lax.max,
            (2, 2),
            (1, 1),
            "VALID",
        ),
    ),
    *_float_rows("associative_scan", M, by=lambda f, x: f(jnp.multiply, x)),
    # Sorting.
    *Lines("jax.lax", ALL)("sort", M),
    *_rows("sort", M, dimension=0),
    *_rows(
        "sort_key_val",
        V,
        fixed([0, 1, 2], "int32"),
        note="static",
        by=lambda f, k, v: f(jnp.resize(k, 3), v),
    ),
    *_rows("top_k", M, k=2),
    *_float_rows("approx_max_k approx_min_k", M, k=2),
    # Products.
    *_products("dot", M, Operand((4, 2))),
    *_products("batch_matmul", rows(3, 4), rows(4, 2)),
    *_products(
        "dot_general", rows(3, 4), rows(2, 4), dimension_numbers=(((2,), (2,)), ((0,), (0,)))
    ),
    *_products("ragged_dot", Operand((5, 4)), Operand((3, 4, 2)), fixed([2, 0, 3], "int32")),
    *_float_rows(
        "ragged_dot_general",
        Operand((5, 4)),
        Operand((3, 4, 2)),
        fixed([2, 0, 3], "int32"),
        note="contracting",
        ragged_dot_dimension_numbers=lax.RaggedDotDimensionNumbers(
            (((1,), (1,)), ((), ())), [0], [0]
        ),
    ),
    *_float_rows("scaled_dot", Operand((3, 32)), Operand((32, 4))),
    *_float_rows(
        "conv",
        Operand((2, 3, 6)),
        Operand((4, 3, 2), extreme=False),
        window_strides=(2,),
        padding="SAME",
    ),
    *_float_rows(
        "conv_general_dilated",
        IMAGE,
        KERNEL,
        window_strides=(2, 1),
        padding=[(1, 0), (0, 2)],
        rhs_dilation=(1, 2),
        dimension_numbers=_LAYOUT,
    ),
    *_float_rows(
        "conv_general_dilated",
        IMAGE,
        KERNEL,
        note="dilated",
        by=lambda f, x, k: f(
            x, k, (1, 1), [(1, 0), (0, 2)], lhs_dilation=(2, 1), dimension_numbers=_LAYOUT
        ),
    ),
    *_float_rows(
        "conv_general_dilated",
        IMAGE,
        Operand((3, 2, 1, 6), extreme=False),
        note="grouped",
        by=lambda f, x, k: f(
            x, k, (1, 1), "SAME", dimension_numbers=_LAYOUT, feature_group_count=3
        ),
    ),
    *_float_rows(
        "conv_general_dilated_local",
        Operand((2, 3, 5)),
        Operand((4, 6, 4), extreme=False),
        window_strides=(1,),
        padding="VALID",
        filter_shape=(2,),
    ),
    *_float_rows(
        "conv_general_dilated_patches",
        Operand((2, 3, 5, 4)),
        filter_shape=(2, 2),
        window_strides=(1, 1),
        padding="VALID",
    ),
    *_float_rows("conv_transpose", IMAGE, KERNEL, strides=(2, 1), padding="SAME"),
    *_float_rows(
        "conv_with_general_padding",
        Operand((2, 3, 6)),
        Operand((4, 3, 2), extreme=False),
        window_strides=(1,),
        padding=[(1, 1)],
        lhs_dilation=(1,),
        rhs_dilation=(2,),
    ),
    *_float_rows(
        "fft",
        Operand((3, 8), extreme=False),
        by=lambda f, x: f(x.astype("complex64"), lax.FftType.FFT, (8,)),
    ),
    # Control flow.
    *_rows(
        "cond",
        V,
        note="both",
        by=lambda f, x: [
            f(x.sum() > n, lambda y: y + 1, lambda y: y * 2, x) for n in (-1000, 1000)
        ],
    ),
    *_rows(
        "switch",
        V,
        INDEX,
        by=lambda f, x, i: [
            f(i + n, [lambda y: y, lambda y: y * 2, lambda y: y + 3], x) for n in (-3, 0, 9)
        ],
    ),
    *_rows("fori_loop", V, by=lambda f, x: f(0, 3, lambda i, y: y * 2 + i.astype(y.dtype), x)),
    *Lines("jax.lax", NUMBERS, without=("gradient", "second gradient"))("while_loop", V, by=_while),
    *_rows("scan", M, by=lambda f, x: f(lambda c, r: (c + r, c * r), x[:1].sum(0), x)),
    *_rows("map", M, by=lambda f, x: f(lambda row: row * 2, x)),
    *_float_rows(
        "custom_root",
        PLAIN,
        by=lambda f, x: f(
            lambda y: y * 3 - x, x, lambda g, y: y - g(y) / 3, lambda g, y: y / g(jnp.ones_like(y))
        ),
    ),
    *_float_rows(
        "custom_linear_solve",
        PLAIN,
        by=lambda f, x: f(lambda y: y * 3, x, lambda g, b: b / 3, symmetric=True),
    ),
    *_float_rows(
        "platform_dependent", M, by=lambda f, x: f(x, cpu=lambda y: y + 1, default=lambda y: y * 2)
    ),
    *_float_rows("composite", M, by=lambda f, x: f(lambda y: jnp.sin(y) + 1, "my.op")(x)),
    *_float_rows("polynomial", V, by=lambda f, x: f(x, [1.0, -2.0, 0.5])),
    *Lines("jax.lax", ("uint32",))("rng_bit_generator", fixed([1, 2, 3, 4], "uint32"), shape=(3,)),
)
