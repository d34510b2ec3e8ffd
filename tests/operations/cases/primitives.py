"""`jax.lax`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from tests.operations.case import ALL, COMPLEX, FLOATS, INTEGERS, NUMBERS, SIGNED, Lines
from tests.operations.operands import Operand, fixed, integers, numpy_dtype, rows

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
T = Operand((2, 3, 4))
SQUARE5 = Operand((5, 5), extreme=False)
X0 = Operand(())

_of_floats = Lines("jax.lax", FLOATS, elementwise=True)
_of_numbers = Lines("jax.lax", NUMBERS, elementwise=True)
_of_integers = Lines("jax.lax", INTEGERS, elementwise=True)
_of_bits = Lines("jax.lax", (*INTEGERS, "bool"), elementwise=True)
_of_complex = Lines("jax.lax", COMPLEX, elementwise=True, loose=4)
_of_any = Lines("jax.lax", ALL, elementwise=True)
_series = Lines("jax.lax", ("float32", "float64"), elementwise=True, loose=16)
_plane = Lines("jax.lax", COMPLEX, loose=4)
_sizes = Lines("jax.lax", ("complex64",), elementwise=True, loose=4)
_GRADIENTS = ("gradient", "second gradient")
_narrow = Lines("jax.lax", ("float32",), without=("vmap", *_GRADIENTS))
_shapes = Lines("jax.lax", (*ALL, *COMPLEX))
_complex_rows = Lines("jax.lax", COMPLEX, loose=2)
_of_indices = Lines("jax.lax", INTEGERS)
_forms = Lines("jax.lax", ("float32", "int32", "float64"))
_fixed = Lines("jax.lax", ("float32",))
_rows = Lines("jax.lax", NUMBERS)
_float_rows = Lines("jax.lax", FLOATS)
_products = Lines("jax.lax", (*NUMBERS, "complex64"), loose=2)
_static = Lines("jax.lax", NUMBERS, without=("symbolic",))

_DIMENSIONS = lax.GatherDimensionNumbers((1,), (0,), (0,))
_SCATTERED = lax.ScatterDimensionNumbers((1,), (0,), (0,))
_COMBINERS = {"add": lax.add, "mul": lax.mul, "max": lax.max, "min": lax.min}
_STARTS = ((1, 2, 3), (-1, -2, -3), (9, 9, 9), (-9, 9, -9))
_PLACES = fixed([[2], [0], [2], [7]], "int32")
_UPDATES = Operand((4, 4))
_LAYOUT = ("NHWC", "HWIO", "NHWC")

CUBE = Operand((4, 5, 6), extreme=False)
# Of products: the shapes, and what is contracted and mapped over.
_DOTS = {
    "vectors": ((5,), (5,), (((0,), (0,)), ((), ()))),
    "matrix by vector": ((3, 5), (5,), (((1,), (0,)), ((), ()))),
    "vector by matrix": ((5,), (5, 4), (((0,), (0,)), ((), ()))),
    "transposed": ((5, 3), (4, 5), (((0,), (1,)), ((), ()))),
    "several rows": ((2, 3, 5), (5, 4), (((2,), (0,)), ((), ()))),
    "several columns": ((3, 5), (5, 2, 4), (((1,), (0,)), ((), ()))),
    "several inner": ((3, 5, 2), (2, 5, 4), (((1, 2), (1, 0)), ((), ()))),
    "batches elsewhere": ((3, 2, 5, 6), (6, 5, 4, 2), (((2,), (1,)), ((1, 3), (3, 0)))),
    "batch of vectors": ((2, 5), (2, 5), (((1,), (1,)), ((0,), (0,)))),
    "batch and inner": ((7, 2, 3), (7, 3, 2, 4), (((1,), (2,)), ((0, 2), (0, 1)))),
    "outer": ((3,), (4, 2), (((), ()), ((), ()))),
    "outer in a batch": ((3, 2), (2, 4), (((), ()), ((1,), (0,)))),
    "scalars": ((), (), (((), ()), ((), ()))),
    "nothing inside": ((3, 0), (0, 4), (((1,), (0,)), ((), ()))),
    "vector of nothing": ((3, 0), (0,), (((1,), (0,)), ((), ()))),
}
# Of products: the dtypes of the operands, and that of the result.
_PREFERRED = (
    ("int8", "int8", "int32"), ("bfloat16", "bfloat16", "float32"),
    ("float8_e3m4", "float8_e3m4", "float32"),
    ("float32", "float32", "int32"), ("float32", "float32", "bfloat16"),
    ("float32", "float32", "bool"), ("float16", "bfloat16", "float16"),
    ("float16", "float16", "int8"), ("int16", "int16", "float16"), ("int32", "float16", "float16"),
    ("int32", "float32", "int32"), ("float8_e4m3fn", "bfloat16", "bfloat16"),
    ("int8", "int8", "float32"), ("bool", "bool", "int32"), ("bool", "bool", "float32"),
)  # fmt: skip
# Of gathers of an array of 4 x 5 x 6: offset_dims, collapsed_slice_dims, start_index_map, operand
# and index batching dims, slice sizes, the shape of the indices.
_GATHERS = {
    "elements": ((), (0, 1, 2), (0, 1, 2), (), (), (1, 1, 1), (7, 3)),
    "elements in another order": ((), (0, 1, 2), (2, 0, 1), (), (), (1, 1, 1), (2, 3, 3)),
    "windows": ((1, 2, 3), (), (0, 1, 2), (), (), (2, 3, 4), (7, 3)),
    "windows in front": ((0, 1, 2), (), (2, 1, 0), (), (), (2, 1, 4), (3, 2, 3)),
    "whole along some": ((1, 2), (1,), (1,), (), (), (4, 1, 6), (3, 1)),
    "whole, and an index for it": ((0, 2), (1,), (0, 1), (), (), (4, 1, 6), (3, 2)),
    "a part of each row": ((2, 3), (0,), (0,), (), (), (1, 2, 6), (3, 2, 1)),
    "a row that keeps its dimension": ((0, 1, 2), (), (1,), (), (), (4, 1, 6), (3, 1)),
    "one slice": ((0, 1), (0,), (0, 2), (), (), (1, 5, 2), (2,)),
    "no index": ((1, 2, 3), (), (), (), (), (2, 5, 3), (3, 0)),
    "batches": ((1,), (1,), (1,), (0,), (0,), (1, 1, 6), (4, 1)),
    "batches behind": ((0, 3), (), (2,), (0,), (1,), (1, 2, 3), (3, 4, 1)),
    "two batches": ((1,), (), (2,), (0, 1), (2, 0), (1, 1, 2), (5, 3, 4, 1)),
    "batches and no index": ((0, 2), (), (), (0,), (0,), (1, 5, 2), (4, 0)),
}
# Of scatters: update_window_dims, inserted_window_dims, scatter_dims_to_operand_dims, operand and
# index batching dims, the shapes of the updates and of the indices.
_SCATTERS = {
    "elements": ((), (0, 1, 2), (0, 1, 2), (), (), (7,), (7, 3)),
    "elements in another order": ((), (0, 1, 2), (2, 0, 1), (), (), (2, 3), (2, 3, 3)),
    "windows": ((1, 2, 3), (), (0, 1, 2), (), (), (3, 2, 3, 4), (3, 3)),
    "windows in front": ((0, 1, 2), (), (2, 1, 0), (), (), (2, 1, 4, 3), (3, 3)),
    "rows in the middle": ((0, 2), (1,), (1,), (), (), (4, 3, 6), (3, 1)),
    "parts of rows": ((1, 2), (0,), (0,), (), (), (3, 2, 6), (3, 1)),
    "whole, and an index for it": ((0, 2), (1,), (0, 1), (), (), (4, 3, 6), (3, 2)),
    "one update": ((0, 1), (0,), (0, 2), (), (), (5, 2), (2,)),
    "all of it": ((0, 1, 2), (), (), (), (), (4, 5, 6), (0,)),
    "batches": ((1,), (1,), (1,), (0,), (0,), (4, 6), (4, 1)),
    "batches behind": ((0, 3), (), (2,), (0,), (1,), (2, 3, 4, 3), (3, 4, 1)),
    "two batches": ((1,), (), (2,), (0, 1), (2, 0), (5, 2, 3, 4), (5, 3, 4, 1)),
}
# Of windows over an array of 2 x 6 x 7.
_POOLS = {
    "plain": ((1, 2, 3), (1, 1, 1), "VALID"),
    "same": ((1, 3, 3), (1, 2, 2), "SAME"),
    "uneven": ((2, 5, 1), (1, 1, 3), ((1, 0), (2, 3), (0, 0))),
    "dilated": ((1, 3, 2), (1, 2, 1), "VALID", (1, 2, 1), (1, 2, 3)),
    "cut off": ((1, 3, 3), (1, 2, 2), ((0, 0), (1, 2), (-1, -1)), (1, 2, 1), (1, 2, 2)),
    "far": ((1, 2, 2), (1, 5, 3), ((0, 0), (0, 0), (1, 2))),
    "far and dilated": ((1, 3, 2), (1, 1, 4), ((0, 0), (0, 0), (1, 2)), (1, 1, 1), (1, 1, 2)),
    "larger than the array": ((3, 2, 2), (1, 1, 1), "VALID"),
    "whole": ((1, 6, 7), (1, 1, 1), "SAME"),
    "running": ((1, 1, 7), (1, 1, 1), ((0, 0), (0, 0), (6, 0))),
}
POOLED = Operand((2, 6, 7))
# The complex plane, and what is lost easily.
PLANE = fixed([a + 1j * b for a in (0.5, -1.2, 3, 0, 2e-3, -4, 1e-9)
               for b in (1.5, 0.3, -2, 1e-4, 3)], None)  # fmt: skip
FAR = fixed([1e30 + 1e30j, -1e-30 + 1e-30j, 3e38, 1e-37j, -4, complex(-4, -0.0), -1e-20])
# All numbers of four bits, and all floats of eight bits with what is between them.
NIBBLES = Operand((16,), -8, 8, dtype="int32", extreme=False)


def _eight_bits(name):
    every = np.arange(256, dtype=np.uint8).view(numpy_dtype(name)).astype(np.float32)
    values = np.unique(every[np.isfinite(every) & (every != 0)])
    values = values[np.abs(values) >= np.finfo(np.float32).tiny]
    halves = (values[1:] + values[:-1]) / np.float32(2)
    halves = halves[np.abs(halves) >= np.finfo(np.float32).tiny]
    beside = [np.nextafter(halves, np.float32(sign * np.inf)) for sign in (1, -1)]
    edges = np.float32([2, -2]) * np.float32(ml_dtypes.finfo(numpy_dtype(name)).max)
    return np.concatenate([every, halves, *beside, edges, np.float32([np.inf, -np.inf])])


def _of_pairs(name):
    """Calls a function with each pair of numbers of four bits, or of some floats of eight."""

    def run(f, x):
        few = (x if "int" in name else x[:256:7]).astype(name)
        left, right = jnp.broadcast_arrays(few[:, None], few)
        result = f(left, right)
        return result.astype("int32" if "int" in name else "float32")

    return run


def _of_a_table(name):
    """Calls `dot`, `sort` or a sum with numbers of four bits."""

    def run(f, x):
        few = x.astype(name)
        given = [few] if f.func is lax.sort else [few, few if f.func is lax.dot else (0,)]
        return f(*given).astype("int32")

    return run


def _added(f, x):
    """Sums and products of numbers of four bits, as numbers of more."""
    zero, one = (np.array(number, x.dtype) for number in (0, 1))
    made = [
        f(lambda c, row: (c + row, c * row), x[0], x), lax.cumsum(x, 1), lax.cummax(x, 1),
        lax.reduce(x, one, lax.mul, (1,)), lax.reduce(x, zero, lambda a, b: a + b + a * b, (1,)),
        lax.reduce_window(x, zero, lax.add, (2, 2), (1, 1), "VALID"),
        x.at[jnp.array([0, 3])].add(x[:2]), lax.conv(x[None], x[:2, :4, None], (2,), "SAME"),
        lax.fori_loop(0, 5, lambda _, c: c * x + x, x), jnp.argmax(x, 1), jnp.argsort(x, 1),
    ]  # fmt: skip
    return [each.astype("int32") for each in jax.tree.leaves(made)]


def _gathered(offsets, collapsed, mapped, batching, others, sizes):
    numbers = lax.GatherDimensionNumbers(
        offsets, collapsed, mapped, operand_batching_dims=batching,
        start_indices_batching_dims=others,
    )  # fmt: skip
    return lambda f, x, i: [f(x, i, numbers, sizes, mode=mode) for mode in ("clip", "fill")]


def _scattered(windows, inserted, mapped, batching, others):
    numbers = lax.ScatterDimensionNumbers(
        windows, inserted, mapped, operand_batching_dims=batching,
        scatter_indices_batching_dims=others,
    )  # fmt: skip
    return lambda f, x, i, u: f(x, i, u, numbers, mode="drop")


def _pooled(combine, *shape):
    """Windows that begin with what changes nothing; sums and products with a number, too."""

    def run(f, x):
        ends = [-np.inf, np.inf]
        if x.dtype.kind in "iu":
            ends = [np.iinfo(x.dtype).min, np.iinfo(x.dtype).max]
        first = {lax.max: ends[0], lax.min: ends[1], lax.add: 0, lax.mul: 1}[combine]
        return f(x, np.array(first, x.dtype), combine, *shape)

    return run


def _preferred(left, right, wanted):
    """Calls a product of arrays of two dtypes with the dtype of its result."""

    def run(f, x):
        whole = jnp.where(jnp.floor(x) % 3 == 0, 0, jnp.floor(x))
        given = [whole.astype(left), whole[::-1].astype(right)]
        found = [
            f(*given, axes, preferred_element_type=jnp.dtype(wanted))
            for axes in ((((1,), (1,)), ((0,), (0,))), (((), ()), ((0, 1, 2), (0, 1, 2))))
        ]
        return [lax.optimization_barrier(one) for one in found]

    return run


_drawn_without = ("vmap",)


_ODD = [(5, 3)]
_ODD_EVEN_ONE = [*_ODD, (3, 2), ()]


def _bits_of(algorithm, dtypes, shapes):
    return lambda f, state: [
        f(state, shape, np.dtype(dtype), lax.RandomAlgorithm[algorithm])
        for dtype in dtypes.split()
        for shape in shapes
    ]


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
    *Lines("jax.lax", ("float16", "float32"), elementwise=True)(
        "integer_pow",
        X,
        note="negative",
        by=lambda f, x: [f.func(x, y) for y in (-3, -5, -8)],
    ),
    *_plane("pow", PLANE, integers(35, high=4, dtype="int8"), note="to integers"),
    *_of_floats(
        "cond",
        X,
        note="of each",
        by=lambda f, x: jax.vmap(lambda y: f(y > 0, lambda z: jnp.log(z) * 2, lambda z: z, y))(x),
    ),
    *_of_floats(
        "switch",
        Operand((1,), -1, 4),
        note="of each",
        by=lambda f, x: jax.vmap(
            lambda y: f(
                jnp.nan_to_num(y, posinf=9, neginf=0).astype("int32"),
                (jnp.sqrt, jnp.log, jnp.reciprocal),
                y,
            )
        )(x),
    ),
    *_of_floats("bitcast_convert_type", X, note="to the same", by=lambda f, x: f(x, x.dtype) * x),
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
    *_series("igamma", POSITIVE, POSITIVE),
    *_series("igammac igamma_grad_a random_gamma_grad", POSITIVE, POSITIVE),
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
    *_plane(
        "acos acosh asin asinh atan cos cosh exp expm1 log1p log logistic rsqrt sign sin sinh "
        "sqrt tan tanh",
        PLANE,
        note="plane",
    ),
    *_plane("pow", PLANE, by=lambda f, z: [f(z, z**0 * 2.5), f(z + 6, z / 4)], note="plane"),
    *_plane("mul div", PLANE, by=lambda f, z: f(z, z[::-1] + 5), note="plane"),
    *_sizes("log log1p sqrt sign", FAR, note="far away"),
    *Lines("jax.lax", ("complex64",), elementwise=True, without=_GRADIENTS)(
        "abs", FAR, note="far away"
    ),
    *_sizes("div", FAR, FAR, note="far away"),
    *[
        case
        for kind in ("int4", "uint4")
        for case in (
            *_narrow(
                "bitcast_convert_type",
                NIBBLES,
                note=kind,
                by=lambda f, x, kind=kind: [
                    f(x.astype(kind), other).astype("int32")
                    for other in (kind.removeprefix("u"), "uint4")
                ],
            ),
            *_narrow(
                "neg bitwise_not sign clz",
                NIBBLES,
                note=kind,
                by=lambda f, x, kind=kind: f(x.astype(kind)).astype("int32"),
            ),
            *_narrow(
                "add sub mul div rem max min bitwise_and bitwise_xor shift_left "
                "shift_right_logical shift_right_arithmetic bitwise_or lt le gt ge eq ne",
                NIBBLES,
                note=kind,
                by=_of_pairs(kind),
            ),
            *_narrow(
                "convert_element_type",
                fixed([-9, -8.5, -0.6, 0, 0.6, 7.4, 7.6, 15.5], "float32"),
                note=kind,
                by=lambda f, x, kind=kind: [
                    f(f(x, kind), "float32"),
                    f(f(x.astype("int32"), kind), "int8"),
                ],
            ),
            *_narrow(
                "dot reduce_sum sort",
                Operand((16, 16), -8, 8, dtype="int32", extreme=False),
                note=kind,
                by=_of_a_table(kind),
            ),
            *_narrow(
                "scan",
                Operand((4, 6), -8, 8, dtype="int32", extreme=False),
                note=f"and other sums, {kind}",
                by=lambda f, x, kind=kind: _added(f, x.astype(kind)),
            ),
        )
    ],
    *[
        case
        for kind in (
            "float8_e4m3fn",
            "float8_e5m2",
            "float8_e3m4",
            "float8_e4m3",
            "float8_e4m3b11fnuz",
            "float8_e4m3fnuz",
            "float8_e5m2fnuz",
            "float4_e2m1fn",
        )
        for case in (
            *_narrow(
                "convert_element_type",
                fixed(_eight_bits(kind), "float32"),
                note=kind,
                by=lambda f, x, kind=kind: f(f(x, kind), "float32"),
            ),
            *_narrow(
                "add mul max lt", fixed(_eight_bits(kind), "float32"), note=kind, by=_of_pairs(kind)
            ),
        )
    ],
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
    *_shapes("rev", T, dimensions=(0, 2)),
    *_shapes("transpose", T, permutation=(2, 0, 1)),
    *_shapes("slice", T, start_indices=(0, 1, 0), limit_indices=(2, 3, 4), strides=(1, 2, 3)),
    *_shapes("concatenate", T, T, note="axis 1", by=lambda f, x, y: f([x, y[:, :1]], 1)),
    *_shapes("reshape", T, new_sizes=(4, 6)),
    *_forms("reshape", Operand((0, 4)), new_sizes=(5, 0, 2)),
    *_shapes("broadcast_in_dim", Operand((3, 1)), shape=(2, 3, 6, 1), broadcast_dimensions=(1, 3)),
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
    *_shapes(
        "pad",
        T,
        X0,
        note="with a number",
        by=lambda f, x, y: [
            f(x, y, config)
            for config in ([(1, 2, 0), (0, 3, 1), (2, -1, 2)], [(-1, 2, 0), (1, -2, 1), (0, 0, 3)])
        ],
    ),
    *_forms("pad", Operand((0,)), X0, note="of nothing", by=lambda f, x, y: f(x, y, [(1, 2, 3)])),
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
    *[
        case
        for shape in ((1, 5, 6), (4, 2, 6), (2, 5, 2), (4, 5, 6))
        for case in _forms(
            "dynamic_slice",
            CUBE,
            note=f"sizes {shape}",
            by=lambda f, x, shape=shape: [f(x, np.int32(start), shape) for start in _STARTS],
        )
    ],
    *[
        case
        for shape in ((1, 5, 6), (4, 2, 6), (2, 5, 2), (4, 5, 6))
        for case in _forms(
            "dynamic_update_slice",
            CUBE,
            Operand(shape, 3, 4, extreme=False),
            INDEX,
            note=f"sizes {shape}",
            by=lambda f, x, y, i: [f(x, y, i + jnp.array(start)) for start in _STARTS],
        )
    ],
    *_of_indices(
        "dynamic_slice_in_dim",
        Operand((7,), dtype="float32"),
        Operand((24,), 0, 9),
        note="of each dtype",
        by=lambda f, x, i: [f(x, i[n], 2) for n in range(24)],
    ),
    *_of_indices(
        "gather",
        Operand((3, 2), dtype="float32"),
        Operand((24, 1), -3, 9),
        note="of each dtype",
        by=lambda f, x, i: f(x, i, _DIMENSIONS, (1, 2), mode="clip"),
    ),
    *[
        case
        for note, (*form, sizes, shape) in _GATHERS.items()
        for case in _forms(
            "gather", CUBE, integers(*shape, low=-2, high=8), note=note, by=_gathered(*form, sizes)
        )
    ],
    *[
        case
        for note, (*form, updates, shape) in _SCATTERS.items()
        for case in _forms(
            "scatter scatter_add scatter_max scatter_min scatter_mul",
            CUBE,
            integers(*shape, low=-1, high=6),
            Operand(updates, extreme=False),
            note=note,
            by=_scattered(*form),
        )
    ],
    *_complex_rows(
        "scatter_add",
        CUBE,
        integers(3, 1, low=-1, high=6),
        Operand((4, 3, 6), extreme=False),
        note="complex",
        by=_scattered((0, 2), (1,), (1,), (), ()),
    ),
    *Lines("jax.lax", ("bool",))(
        "scatter scatter_max scatter_min",
        Operand((6,)),
        fixed([[0], [1], [2], [3], [9]], "int32"),
        Operand((5,)),
        note="truth values",
        by=_scattered((), (0,), (0,), (), ()),
    ),
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
    *_complex_rows("cumsum cumprod", M, note="complex"),
    *_complex_rows("reduce_sum reduce_prod", M, axes=(0,), note="complex"),
    *_complex_rows("sort", M, note="complex"),
    *[
        case
        for name, combine in _COMBINERS.items()
        for case in (
            *_rows(
                "reduce",
                Operand((9, 6), 0.9, 1.1, extreme=False),
                X0,
                note=f"{name} from a start",
                by=lambda f, x, y, combine=combine: f(x, y, combine, (0,)),
            ),
            *_float_rows(
                "reduce_window",
                Operand((9, 6), 0.9, 1.1),
                X0,
                note=f"{name} from a start",
                by=lambda f, x, y, combine=combine: [
                    f(x, y, combine, (7, 1), (1, 1), "SAME"),
                    f(x, y, combine, (9, 1), (1, 1), "VALID"),
                    f(x, y, combine, (2, 3), (2, 1), "VALID", (1, 2), (2, 1)),
                ],
            ),
        )
    ],
    *[
        case
        for name, combine in _COMBINERS.items()
        for note, shape in _POOLS.items()
        for case in _rows(
            "reduce_window", POOLED, note=f"{name}, {note}", by=_pooled(combine, *shape)
        )
    ],
    *_float_rows(
        "reduce_window",
        Operand((6, 8)),
        note="equal ones",
        by=lambda f, x: _pooled(lax.max, (3, 3), (2, 1), "SAME")(f, jnp.round(x)),
    ),
    *_rows(
        "reduce_window",
        Operand((4, 7), extreme=False),
        note="whose order matters",
        by=lambda f, x: f(
            (x, x + 1),
            (np.ones((), x.dtype), np.ones((), x.dtype)),
            lambda a, b: (a[0] + b[0], a[1] - b[1]),
            (2, 3),
            (1, 2),
            "VALID",
            window_dilation=(2, 1),
        ),
    ),
    *_rows(
        "reduce_window",
        Operand((4, 7)),
        note="two at once",
        by=lambda f, x: f(
            (x, jnp.arange(28, dtype=x.dtype).reshape(4, 7)),
            (np.zeros((), x.dtype), np.zeros((), x.dtype)),
            lambda a, b: tuple(jnp.where(a[0] >= b[0], c, d) for c, d in zip(a, b, strict=True)),
            (2, 3),
            (1, 2),
            ((0, 0), (1, 0)),
        ),
    ),
    *Lines("jax.lax", ("int32", "uint8"))(
        "reduce", M, X0, note="xor from a number", by=lambda f, x, y: f(x, y, lax.bitwise_xor, (0,))
    ),
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
    *[
        case
        for note, (left, right, numbers) in _DOTS.items()
        for case in _products(
            "dot_general",
            Operand(left, extreme=False),
            Operand(right, extreme=False),
            note=note,
            by=lambda f, x, y, numbers=numbers: f(x, y, numbers),
        )
    ],
    *[
        case
        for left, right, wanted in _PREFERRED
        for case in _fixed(
            "dot_general",
            Operand((4, 3, 5), -40, 40, extreme=False),
            note=f"{left}, {right} to {wanted}",
            by=_preferred(left, right, wanted),
        )
    ],
    *Lines("jax.lax", ("bool",))(
        "dot_general",
        Operand((3, 2)),
        Operand((2, 4)),
        note="truth values",
        by=lambda f, x, y: [f(x, y, (((1,), (0,)), ((), ()))), f(x, y, (((), ()), ((1,), (0,))))],
    ),
    *_fixed(
        "dot",
        SQUARE5,
        note="algorithms",
        by=lambda f, x: [
            f(x, x, precision=lax.DotAlgorithmPreset[name])
            for name in ("BF16_BF16_F32", "BF16_BF16_F32_X3", "BF16_BF16_F32_X6")
        ],
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
    *_complex_rows(
        "switch",
        V,
        INDEX,
        note="complex",
        by=lambda f, x, i: [
            f(i + n, [lambda y: y + 1j, lambda y: y * y, lambda y: y.conj()], x) for n in (-3, 0, 9)
        ],
    ),
    *_complex_rows(
        "scan", M, note="complex", by=lambda f, x: f(lambda c, r: (c + r, c * r), x[:1].sum(0), x)
    ),
    *_complex_rows(
        "fori_loop",
        V,
        note="complex",
        by=lambda f, x: f(0, 3, lambda i, v: (v[1], v[2], v[0] * (1 + 1j)), (x, x * 2, x[::-1])),
    ),
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
    *[
        case
        for algorithm in ("RNG_THREE_FRY", "RNG_PHILOX", "RNG_DEFAULT")
        for note, shapes, every in (("", _ODD, False), (", each", _ODD_EVEN_ONE, True))
        for case in (
            *Lines("jax.lax", ("uint32",), without=_drawn_without)(
                "rng_bit_generator",
                fixed([7, 2, 2**32 - 3, 2**32 - 1], "uint32"),
                note=f"{algorithm}{note}",
                by=_bits_of(algorithm, "uint8 uint16 uint32" if every else "uint8 uint32", shapes),
            ),
            *Lines("jax.lax", ("uint64",), without=_drawn_without)(
                "rng_bit_generator",
                fixed(np.array([2**64 - 7, 2**64 - 2], np.uint64)),
                note=f"{algorithm}, wide{note}",
                by=_bits_of(algorithm, "uint8 uint32 uint64" if every else "uint64", shapes),
            ),
        )
    ],
)
