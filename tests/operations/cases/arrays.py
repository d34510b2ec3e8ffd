"""`jax.numpy`."""

from __future__ import annotations

import jax.numpy as jnp

from tests.operations.case import ALL, COMPLEX, FLOATS, INTEGERS, NUMBERS, Lines
from tests.operations.operands import Operand, fixed, integers, rows

X = Operand((1,))
SMALL = Operand((1,), -30, 30, extreme=False)
UNIT = Operand((1,), -0.99, 0.99)
ABOVE_ONE = Operand((1,), 1.1, 5.0)
TRUTH = Operand((1,), dtype="bool")
M = rows(4)
V = rows()
T = Operand((2, 3, 4))
SQUARE = Operand((3, 3))
LONG = Operand((10,))
Z = Operand((1,), extreme=False)
INDEX = fixed([2, 0, -1, 7], "int32")
INSIDE = fixed([2, 0, 1], "int32")

_of_floats = Lines("jax.numpy", FLOATS, elementwise=True)
_of_numbers = Lines("jax.numpy", NUMBERS, elementwise=True)
_of_integers = Lines("jax.numpy", INTEGERS, elementwise=True)
_of_bits = Lines("jax.numpy", (*INTEGERS, "bool"), elementwise=True)
_of_complex = Lines("jax.numpy", COMPLEX, elementwise=True, loose=4)
_of_any = Lines("jax.numpy", ALL, elementwise=True)
_complex_rows = Lines("jax.numpy", COMPLEX, loose=4)
_shapes = Lines("jax.numpy", (*ALL, *COMPLEX))
_static = Lines("jax.numpy", (*ALL, *COMPLEX), without=("symbolic", "empty", "one row"))
_rows = Lines("jax.numpy", NUMBERS)
_float_rows = Lines("jax.numpy", FLOATS)
_float_static = Lines("jax.numpy", FLOATS, without=("symbolic", "empty", "one row"))
_filled = Lines("jax.numpy", FLOATS, without=("empty",))
_filled_numbers = Lines("jax.numpy", NUMBERS, without=("empty",))
_sets = Lines("jax.numpy", NUMBERS, without=("symbolic", "empty", "one row"))
_products = Lines("jax.numpy", (*NUMBERS, "complex64"), loose=2)
_made = Lines("jax.numpy", ("float32",))
_singles = Lines("jax.numpy", ("float32", "float64"))
_indices = Lines("jax.numpy", ("int32",), without=("symbolic", "empty", "one row"))


def with_numbers(f, x):
    """Calls a function of two with an array and a number, and with one that is broadcast."""
    number = [jnp.full((), n, x.dtype) for n in (2.5, 0)]
    return f(x, number[0]), f(number[1], x), f(x, x[:1])


CASES = (
    # Of each element.
    *_of_floats(
        "sin cos tan arctan sinh cosh tanh arcsinh exp exp2 expm1 log log10 log1p log2 sqrt "
        "cbrt deg2rad rad2deg degrees radians fabs sinc i0 spacing asinh atan",
        X,
    ),
    *_of_floats("ceil floor rint trunc isfinite isinf isnan isneginf isposinf signbit modf", X),
    *_of_floats("arcsin arccos arctanh asin acos atanh", UNIT),
    *_of_floats("arccosh acosh", ABOVE_ONE),
    *_of_floats(
        "arctan2 atan2 copysign hypot logaddexp logaddexp2 nextafter fmax fmin fmod heaviside "
        "float_power",
        X,
        X,
    ),
    *_of_floats("hypot logaddexp arctan2", X, note="with a number", by=with_numbers),
    *Lines("jax.numpy", FLOATS, elementwise=True, loose=4)(
        "logaddexp2", X, note="with a number", by=with_numbers
    ),
    *_of_floats("nan_to_num", X),
    *_of_floats("ldexp", X, Operand((1,), -4, 5, dtype="int32", extreme=False)),
    *_of_floats("frexp", X),
    *_of_numbers(
        "absolute abs negative positive sign square reciprocal conjugate conj round around", X
    ),
    *_of_floats("round", X, decimals=-1),
    *_of_numbers("real imag angle iscomplex isreal", X),
    *_of_numbers(
        "add subtract multiply true_divide divide floor_divide remainder mod divmod", X, X
    ),
    *_of_floats("power pow", X, X),
    *_of_integers("power", X, Operand((1,), 0, 4, extreme=False), note="integers"),
    *_of_any(
        "maximum minimum equal not_equal less less_equal greater greater_equal logical_and "
        "logical_or logical_xor",
        X,
        X,
    ),
    *_of_any("logical_not", X),
    *_of_any("where", TRUTH, X, X),
    *_of_numbers("clip", X, X, X),
    *_of_bits("bitwise_and bitwise_or bitwise_xor", X, X),
    *_of_bits("invert bitwise_invert bitwise_not", X),
    *_of_integers("bitwise_count", X),
    *_of_integers("left_shift bitwise_left_shift right_shift bitwise_right_shift", X, X),
    # JAX does not end with the least number of a dtype.
    *_of_integers("gcd lcm", SMALL, SMALL),
    *_of_floats("isclose", X, X, equal_nan=True),
    *_of_complex(
        "sin cos tan sinh cosh tanh exp log log10 log1p log2 sqrt square reciprocal "
        "absolute angle conjugate sign",
        X,
        note="complex",
    ),
    *_of_complex("add subtract multiply true_divide power", X, X, note="complex"),
    *_of_complex("logaddexp logaddexp2 maximum minimum", Z, Z, note="complex"),
    *_complex_rows("max min sum prod", Operand((3, 4), extreme=False), axis=0, note="complex"),
    *_complex_rows("matmul", SQUARE, SQUARE, note="complex"),
    *_complex_rows("convolve", LONG, Operand((3,)), note="complex"),
    *_of_any("astype", X, by=lambda f, x: [f(x, k) for k in ("float32", "int32", "uint8", "bool")]),
    *_of_floats("select", X, X, by=lambda f, x, y: f([x > 1, y > 1], [x, y], 7)),
    *_of_floats("piecewise", X, by=lambda f, x: f(x, [x < -1, x > 1], [lambda y: -y, 2.0, 0.5])),
    *_of_floats("choose", X, X, by=lambda f, x, y: f((x > y).astype("int32"), [x, y], mode="clip")),
    # Reductions.
    *_rows("sum prod", M, axis=0),
    *_rows("sum", M, keepdims=True),
    *_filled_numbers("max min amax amin", M, axis=0),
    *_filled_numbers("argmax argmin", M, axis=0),
    *_filled_numbers("argmax", M, note="all"),
    *_rows("cumsum cumprod nancumsum nancumprod cumulative_sum cumulative_prod", M, axis=0),
    *Lines("jax.numpy", ALL)("any all count_nonzero", M, axis=1),
    *_filled("mean std var", M, axis=0),
    *_filled(
        "mean",
        rows(4, extreme=False),
        note="of integers",
        by=lambda f, x: f(jnp.floor(x).astype("int32")),
    ),
    *_filled(
        "average", M, by=lambda f, x: f(x, axis=1, weights=jnp.array([1, 2, 3, 4.0], x.dtype))
    ),
    *_filled("nanmean nanstd nanvar nanmax nanmin nansum nanprod", M, axis=0),
    *_float_static("nanargmax nanargmin", M, axis=1),
    *_float_static("median nanmedian", M, axis=1),
    *_float_static("quantile percentile nanquantile nanpercentile", M, q=0.3, axis=0),
    *_filled_numbers("ptp minmax", M, axis=0),
    *_rows("trapezoid", M, axis=1),
    *_filled("gradient", Operand((4, 3))),
    *_rows("diff", M, axis=1),
    *_rows("ediff1d", LONG),
    *_float_static("cov corrcoef", Operand((3, 5), extreme=False)),
    *_float_static("histogram", LONG, range=(-2, 2), bins=4),
    *_float_static("histogram_bin_edges", LONG, bins=3),
    *_singles(
        "histogram2d",
        Operand((10,), extreme=False),
        Operand((10,), extreme=False),
        bins=3,
        range=((-2, 2), (-2, 2)),
    ),
    *_singles("histogramdd", Operand((10, 2), extreme=False), bins=3, range=((-2, 2), (-2, 2))),
    *_indices("bincount", integers(8, high=5), length=6),
    *_float_static("digitize", LONG, fixed([-1, 0, 1.5])),
    *_float_static("searchsorted", fixed([-1, 0, 1.5]), LONG),
    *_float_static("searchsorted", fixed([-1, 0, 1.5]), LONG, side="right"),
    *Lines("jax.numpy", ("float32", "float64", "float16"))(
        "interp", LONG, fixed([-1, 0, 1.5]), fixed([3.0, -1, 2])
    ),
    # Shapes.
    *_shapes("atleast_1d atleast_2d atleast_3d copy array asarray ravel", M),
    *_shapes("append", M, M, axis=0),
    *_static("array_split", Operand((5, 3)), indices_or_sections=2),
    *_static("split vsplit", Operand((4, 3)), indices_or_sections=2),
    *_static("hsplit", Operand((3, 4)), indices_or_sections=2),
    *_static("dsplit", T, indices_or_sections=2),
    *_static("block", SQUARE, by=lambda f, x: f([[x, x], [x, x]])),
    *_shapes("broadcast_arrays", M, Operand((4,))),
    *_static("broadcast_to", M, shape=(2, 3, 4)),
    *_shapes("concatenate concat", M, M, by=lambda f, x, y: f([x, y])),
    *_shapes("concatenate", M, note="of dtypes", by=lambda f, x: f([x, jnp.zeros((2, 4), "int8")])),
    *_shapes("stack vstack hstack dstack column_stack", M, M, by=lambda f, x, y: f([x, y])),
    *_static("unstack", M),
    *_shapes("expand_dims", M, axis=(0, 2)),
    *_shapes("squeeze", rows(1, 4), axis=1),
    *_static("reshape", Operand((3, 4)), shape=(2, -1)),
    *_static("reshape", Operand((3, 4)), shape=(6, 2), order="F"),
    *_static("resize", M, new_shape=(5, 3)),
    *_shapes("flip", M),
    *_shapes("fliplr flipud matrix_transpose transpose", M),
    *_shapes("permute_dims", M, axes=(1, 0)),
    *_static("rot90", Operand((3, 4)), k=3),
    *_shapes("roll", M, shift=2, axis=1),
    *_shapes("roll", M, shift=-1, axis=0),
    *_static("rollaxis", T, axis=2),
    *_shapes("moveaxis", T, source=0, destination=2),
    *_shapes("swapaxes", T, axis1=0, axis2=2),
    *_shapes("tile", M, reps=(2, 1)),
    *_shapes("repeat", M, repeats=2, axis=1),
    *_static(
        "repeat",
        Operand((3,)),
        note="by array",
        by=lambda f, x: f(x, jnp.array([2, 0, 1]), total_repeat_length=3),
    ),
    *_static("pad", M, pad_width=((1, 2), (0, 1))),
    *[
        case
        for mode in ("edge", "reflect", "symmetric", "wrap")
        for case in _static("pad", M, pad_width=2, mode=mode)
    ],
    *[
        case
        for mode in ("linear_ramp", "maximum", "mean", "minimum")
        for case in _float_static("pad", M, pad_width=1, mode=mode)
    ],
    *_static("delete", Operand((4, 3)), obj=1, axis=0),
    *_static("insert", Operand((4, 3)), obj=1, values=7, axis=0),
    *_shapes("diag", Operand((4,)), k=1),
    *_shapes("diag", Operand((3, 4)), note="of a matrix"),
    *_static("diagflat", Operand((2, 2))),
    *_shapes("diagonal", Operand((3, 4)), offset=1),
    *_static("fill_diagonal", SQUARE, val=5, inplace=False),
    *_shapes("trace", Operand((3, 4))),
    *_shapes("tril triu", M, k=1),
    *_products("vander", Operand((3,), -1.5, 1.5), N=3),
    *_static("meshgrid", V, Operand((2,))),
    *_sets("ix_", Operand((3,), 0, 3), by=lambda f, x: f(x, x)),
    *_shapes("zeros_like ones_like empty_like", M),
    *_shapes("full_like", M, fill_value=2),
    # Indices.
    *[
        case
        for mode in ("clip", "wrap", "fill")
        for case in _shapes("take", Operand((3, 4)), INDEX, axis=0, mode=mode)
    ],
    *_shapes("take_along_axis", Operand((3, 4)), integers(3, 2), axis=1),
    *_shapes("put", Operand((3, 4)), INSIDE, Operand((3,)), inplace=False),
    *_shapes(
        "put_along_axis",
        Operand((3, 4)),
        integers(3, 1),
        Operand((3, 1)),
        by=lambda f, x, i, v: f(x, i, v, 1, inplace=False),
    ),
    *_static(
        "place",
        Operand((3, 4)),
        by=lambda f, x: f(x, x == x[0, 0], jnp.ones(1, x.dtype), inplace=False),
    ),
    *_static(
        "compress",
        Operand((3, 4)),
        by=lambda f, x: f(jnp.array([True, False, True]), x, axis=0, size=2),
    ),
    *_static("extract", Operand((3, 4)), by=lambda f, x: f(x != 0, x, size=5, fill_value=0)),
    *_static("nonzero argwhere flatnonzero", Operand((3, 4)), size=6, fill_value=0),
    *_static(
        "where",
        Operand((3, 4)),
        note="one argument",
        by=lambda f, x: f(x != 0, size=6, fill_value=0),
    ),
    *_indices("unravel_index", integers(4, high=11), shape=(3, 4)),
    *_indices(
        "ravel_multi_index",
        integers(4, high=2),
        integers(4, high=3),
        by=lambda f, i, j: f((i, j), (3, 4), mode="wrap"),
    ),
    # Sorting and sets.
    *_rows("sort argsort", M, axis=1),
    *_rows("sort", M, axis=0, descending=True),
    *_float_static("partition argpartition", M, kth=1, by=lambda f, x: jnp.sort(f(x)[..., :2])),
    *_sets("lexsort", integers(6), Operand((6,)), by=lambda f, x, y: f((y, x))),
    *_sets("top_k", M, by=lambda f, x: f(x, 2)),
    *_sets("sort_complex", LONG),
    *_sets(
        "unique",
        integers(8, high=4, dtype=None),
        size=6,
        fill_value=0,
        return_inverse=True,
        return_counts=True,
        return_index=True,
    ),
    *_sets(
        "unique_all unique_counts unique_inverse unique_values",
        integers(8, high=4, dtype=None),
        size=6,
        fill_value=0,
    ),
    *_sets(
        "union1d",
        integers(6, dtype=None),
        integers(5, low=2, high=6, dtype=None),
        size=8,
    ),
    *[
        case
        for name in ("intersect1d", "setdiff1d", "setxor1d")
        for case in _sets(
            name,
            integers(6, dtype=None),
            integers(5, low=2, high=6, dtype=None),
            size=6,
        )
    ],
    *_sets("isin", LONG, fixed([1, 2, 0])),
    # Products.
    *_products("dot matmul", M, Operand((4, 2))),
    *_products("inner", M, Operand((2, 4))),
    *_products("outer kron", V, Operand((2,))),
    *_products("tensordot", T, Operand((3, 4, 2)), axes=2),
    *_products("vdot", Operand((4,)), Operand((4,))),
    *_products("vecdot", M, Operand((4,))),
    *_products("matvec", M, Operand((4,))),
    *_products("vecmat", Operand((4,)), Operand((4, 2))),
    *_products("cross", Operand((2, 3)), Operand((2, 3))),
    *_products("einsum", rows(4, 2), rows(2, 3), by=lambda f, x, y: f("bij,bjk->bik", x, y)),
    *_products("einsum", SQUARE, note="diagonal", by=lambda f, x: f("ii->i", x)),
    *_products("convolve correlate", LONG, Operand((3,)), mode="same"),
    *_products("polyval", Operand((3,), extreme=False), LONG),
    *_products("polyadd polysub", Operand((3,)), Operand((4,))),
    *_products("polymul", Operand((3,)), Operand((4,)), trim_leading_zeros=False),
    *_float_static(
        "polydiv", Operand((4,), 1, 3, extreme=False), Operand((2,), 1, 3, extreme=False)
    ),
    *_products("polyder polyint", Operand((4,), extreme=False)),
    *_singles("roots", Operand((4,), 1, 3, extreme=False), strip_zeros=False),
    *_singles("poly", Operand((3,), extreme=False)),
    *Lines("jax.numpy", ("float32", "float64"), loose=32)(
        "polyfit", Operand((8,), extreme=False), Operand((8,), extreme=False), deg=2
    ),
    *_float_rows("unwrap", M, axis=1),
    # Comparisons of arrays, and bytes.
    *_float_rows("allclose array_equal array_equiv", M, M),
    *Lines("jax.numpy", ("uint8", "bool"))("packbits", M, axis=1),
    *Lines("jax.numpy", ("uint8",))("unpackbits", M, axis=1),
    # Functions of functions.
    *_rows("apply_along_axis", M, by=lambda f, x: f(lambda row: row * 2, 1, x)),
    *_rows("apply_over_axes", M, by=lambda f, x: f(jnp.sum, x, (0, 1))),
    *_rows("vectorize", M, by=lambda f, x: f(lambda a: a * 2)(x)),
    *_rows("frompyfunc", V, V, by=lambda f, x, y: f(lambda a, b: a + b, 2, 1, identity=0)(x, y)),
    # Of no array.
    *_made("arange", by=lambda f: [f(5), f(1, 2, 0.25), f(5, 0, -2, dtype="int8")]),
    *_made("linspace", by=lambda f: [f(0, 1, 5), f(0, 9, 4, endpoint=False, dtype="int32")]),
    *_made("logspace geomspace", by=lambda f: f(1, 2, 4)),
    *_made("eye identity zeros ones empty", by=lambda f: f(3)),
    *_made("full", by=lambda f: f((2, 3), 1.5)),
    *_made("tri", by=lambda f: f(3, 4, 1)),
    *_made("bartlett blackman hamming hanning", by=lambda f: f(6)),
    *_made("kaiser", by=lambda f: f(6, 8.6)),
    *_made("indices", by=lambda f: f((2, 3))),
    *_made("diag_indices tril_indices triu_indices", by=lambda f: f(3)),
    *_made("mask_indices", by=lambda f: f(3, jnp.triu, size=6)),
    *_made("fromfunction", by=lambda f: f(lambda i, j: i * 2 + j, (2, 3))),
    *_shapes("diag_indices_from tril_indices_from triu_indices_from", SQUARE),
)
