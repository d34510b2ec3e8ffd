"""Several operations together, which converters and optimizers make others of."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.operations.case import ALL, FLOATS, NUMBERS, Lines
from tests.operations.operands import Operand, fixed, integers, rows

M = rows(4)
PLAIN = rows(4, extreme=False)
POSITIVE = Operand((3, 4), 0.5, 4.0, extreme=False)
SQUARE = Operand((3, 3), extreme=False)
OTHER = rows(4, low=-1.0, high=3.1, extreme=False)
TABLE = jnp.arange(30.0).reshape(10, 3)

_numpy = Lines("jax.numpy", FLOATS)
_static = Lines("jax.numpy", FLOATS, without=("symbolic", "empty", "one row"))
_filled = Lines("jax.numpy", FLOATS, without=("empty",))
_lax = Lines("jax.lax", FLOATS)
_some = Lines("jax.lax", FLOATS, without=("empty",))
_loops = Lines("jax.lax", FLOATS, without=("empty", "gradient", "second gradient"))


def _broadcast(x):
    return jnp.broadcast_to(x[:, None], (3, 2, 4))


def _windows(f, x):
    """None of which is empty of one row."""
    at = (x[0, 0] > 0).astype("int32")
    return [
        f(x), x[:, 1:], jnp.concatenate([x[1:], x[:-1], x]), x[-1], x[:, 2], x[:, :1], x[:, ::-1],
        x[::2], x[::-1], x[:, ::-3], x[::2, 1::2], lax.dynamic_slice_in_dim(x, x.shape[0], 1, 0),
        lax.dynamic_update_slice_in_dim(x, x[:, :2], at, 1), jnp.roll(x, at, 1),
    ]  # fmt: skip


def _entries(f, x):
    at = (jnp.clip(jnp.nan_to_num(jnp.abs(x[:, 0])), 0, 9) * 4).astype("int32")
    return [
        x[:, jnp.array([2, 0])], x[at % x.shape[0]], x[at, 1], TABLE[at],
        f(x, jnp.array([[3, -1], [0, 9]]), axis=1, mode="clip"),
        f(x, jnp.array([0, 99]), axis=0, mode="fill", fill_value=-7.0),
        jnp.take_along_axis(x, jnp.argmin(x, 1, keepdims=True), 1), x.T[jnp.array([1, 1])],
        x.at[:, 1].set(3.0), x.at[0].add(1.0), x.at[-1].set(x[0]), x.at[at].add(x),
        x[-1, jnp.arange(4)], jnp.take_along_axis(x.T, at[None] % x.shape[0], 1),
        jnp.roll(x, at[0], 0), lax.dynamic_slice(x.repeat(2, 0), (at[0], at[-1]), (x.shape[0], 2)),
    ]  # fmt: skip


def _shapes(f, x):
    count = x.shape[0]
    return [
        lax.broadcasted_iota(jnp.int32, (count, 3, 2), 0), f(count), x.T @ x, x.reshape(-1),
        x * count, jnp.concatenate([x, x[:1]]), jnp.zeros((count, 2)), x.mean(0),
        lax.broadcasted_iota(jnp.int32, (2, count), 1), jnp.tril(jnp.ones((count, count))), x,
    ]  # fmt: skip


def _reshaped(f, x):
    """Of rows that may be none, and to sizes that change places."""
    count, rest = x.shape[0], x[1:]
    turned = jnp.stack([rest, rest], 1).transpose(1, 0, 2) * 2
    return [
        f(x + 1, (count, 2, 2)), f(x, (-1, 2)), f(turned, (count - 1, 2, 4)),
        f(turned, (count - 1, 2, 2, 2)), f(f(f(x + 1, (2 * count, 2)), (count, 4)), (1, -1)),
    ]  # fmt: skip


def _of_two_sizes(f, x):
    """Of an array whose two sizes are known to a run alone."""
    count = x.shape[0]
    y = f(x[:, :1], (count, 2 * count)) * x[:, 1:2]
    return [
        y[::-1], y[:, ::2], y[::2], y.reshape(-1), y.reshape(2 * count, -1), jnp.stack([y, y], 1),
        lax.pad(y, np.zeros((), x.dtype), [(1, 1, 1), (0, 2, 0)]), f(y.sum(), y.shape),
        jnp.full((), count * count + 1), jnp.arange(2 * count) % count + jnp.arange(count).max(),
        y.sum() / count, jnp.arange(count) * jnp.ones((2 * count, 1), jnp.int32),
    ]  # fmt: skip


def _of_its_size(f, x):
    """Windows as large as the array."""
    rows_, columns = x.shape
    least, zero, one = (np.array(number, x.dtype) for number in (-np.inf, 0, 1))
    numbers, behind = lax.broadcasted_iota(np.int32, x.shape, 0), ((0, 0), (columns, 0))
    return [
        f(x, least, lax.max, x.shape, (1, 1), "VALID"),
        f(x, zero + 2, lax.add, (rows_, 2), (1, 2), "SAME"),
        f(numbers, np.int32(0), lax.min, (rows_, 1), (2, 1), "SAME"),
        f(x, one, lax.mul, (1, columns), (1, 1), behind, None, (1, 2)),
    ]


def _pulled_back(f, x, w):
    """The gradients of a convolution, of which that of the kernel is one by an image."""
    image = x[None]
    made, pull = jax.vjp(
        lambda y, w: f(y, w, (1, 1), "SAME", rhs_dilation=(1, 2),
                       dimension_numbers=("NHWC", "HWIO", "NHWC")), image, w,
    )  # fmt: skip
    return pull(made)


def _written(f, x):
    """Blocks of constants, written into constants."""
    zeros, ones = np.zeros((3, 4), x.dtype), np.ones((2, 2), x.dtype)
    block, row = f(zeros, ones, (1, 2)), f(zeros, ones[:1], (7, 1))
    return [x + block, x + f(block, row[1:, 1:], (0, 1))]


def _scaled(f, x):
    """With numbers around the product, none of which is a float of fewer bits."""
    return [
        f(x, x.T) / 50, f(x, 0.1 * x.T), f(x / 7, x[0]) / 3, 0.3 * f(x, x.T) / 7,
        f(x[0], x[-1]) * 0.3, f(0.3 * x[:, 0], x), f(x, x.T / 50).T * 1.1,
        f(x[:1, :1] * 0.3, x[:1, :1].T) / 7,
    ]  # fmt: skip


def _normalized(f, x):
    """Normalizations of layers and of batches, whose small number has the precision of floats."""
    scale, shift = np.linspace(1, 2, 4).astype(x.dtype), np.linspace(-1, 1, 4).astype(x.dtype)
    small = np.asarray(1e-3, x.dtype)
    centred = x - x.mean(-1, keepdims=True)
    root, other = (
        f(lax.pow(one, jnp.full_like(one, 2)).mean(-1, keepdims=True) + small)
        for one in (x, centred)
    )
    turned = jnp.stack([x, x * 2], 2)
    batch = (jnp.moveaxis(turned, 1, 2) - shift) * (scale * lax.rsqrt(scale + small)) + shift
    return [
        centred * lax.rsqrt(x.var(-1, keepdims=True) + small) * scale + shift, x / root * scale,
        centred / other * scale + shift, jnp.moveaxis(batch, 2, 1),
    ]  # fmt: skip


def _looks_normalized(f, x, e):
    """Around a mean of powers, with another small number or none."""
    scale, shift = (np.linspace(*ends, 4).astype(x.dtype) for ends in ((1, 2), (-1, 1)))
    centred = x - x.mean(-1, keepdims=True)
    found = [
        one / f(lax.pow(one, jnp.full_like(one, power)).mean(-1, keepdims=True) + small)
        for one, power, small in ((centred, 2, e[0]), (centred, 2, e), (centred, 4, 0.1),
                                  (centred, 2, 0.1), (x, 2, e[0]), (x, 2, e))
    ]  # fmt: skip
    return [one * scale + shift for one in found]


def _pooled_at_any_size(f, x):
    """Windows over an image of a height that a run knows, and the gradients of them."""
    image, least, zero = x[None], np.array(-np.inf, x.dtype), np.zeros((), x.dtype)
    shape = (1, 3, 3, 1), (1, 2, 1, 1), "SAME"
    pooled, pull = jax.vjp(
        lambda y: (f(y, least, lax.max, *shape), f(y, zero, lax.add, *shape)), jnp.round(image)
    )
    return [
        f(image, least, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
        f(image, zero, lax.add, (1, 3, 2, 1), (1, 1, 3, 1), "SAME"),
        f(image, zero, lax.add, (1, 3, 3, 1), (1, 1, 1, 1), "SAME") / 9,
        pull(tuple(lax.broadcasted_iota(x.dtype, one.shape, 2) for one in pooled)),
    ]


def _elements(f, x):
    """With constants and with what is broadcast, of up to six dimensions."""
    y = x[:, :, None, None, None, None]
    many = jnp.broadcast_to(y, (*x.shape, 2, 1, 1, 3))
    bias, column = jnp.arange(4).astype(x.dtype), x[:, :1]
    return [
        x + bias, bias - x, 2 / x, x * column, x > column, x != 0.5, jnp.maximum(column, x),
        f(x > 0, x, bias), f(column > 0, 1, x), jnp.clip(x, -0.5, 0.5),
        f(many > 0.25, many, -many), jnp.isnan(many).sum(), jnp.maximum(many, 0.5),
        many <= many.max(1, keepdims=True), x[:, :, None, None, None] + bias.reshape(1, 1, 1, 2, 2),
        jnp.tile(y, 2)[:, 1:],
    ]  # fmt: skip


def _of_rows_and_columns(f, x):
    """With each operand broadcast, along each dimension."""
    row, column = jnp.array([1, 4, 2, 3], x.dtype), x[:, :1]
    pairs = [(x, row), (row, x), (x, column), (column, x), (x, row[:1]), (column, row)]
    return [f(*pair) for pair in pairs]


def _nested(f, x, y):
    def inner(i, v):
        return lax.while_loop(lambda u: u.sum() < i + y[0, 0], lambda u: u * 2 + y[0] ** 2 + 1, v)

    return f(0, 3, inner, abs(x))


def _exchanged(f, x, y):
    """What a loop ends with whose values change places, in and around branches."""

    def inner(j, pair):
        a, b = pair
        return b / 2, lax.cond(j % 2 == 0, lambda q, r: q - r, lambda q, r: r + y, a, b)

    def step(_, pair):
        a, b = lax.cond(
            pair[0].sum() > pair[1].sum(),
            lambda a, b: (b, a + y),
            lambda a, b: lax.fori_loop(0, 3, inner, (a, b)),
            *pair,
        )
        return b * 0.9, a

    return f(0, 6, step, (x, y))


def _branches(f, x, y):
    """Branches in branches, which take their operands in other orders."""

    def otherwise(x, y):
        return f(y.sum() > 0, lambda y, x: y + 2 * x + y, lambda y, x: 7 * y - x, x, y)

    return [f(x.sum() * sign > 100 * sign, lambda x, y: y - x, otherwise, x, y) for sign in (1, -1)]


def _switched(f, x, i):
    def in_a_loop(x):
        return lax.fori_loop(0, 3, lambda j, v: v * 2 + i.astype(v.dtype), x)

    branches = [lambda x: x + 1, in_a_loop, lambda x: x * x - i.astype(x.dtype)]
    return [f(i + n, few, x) for n in (-3, -1, 0, 1, 9) for few in (branches, branches[:2])]


CASES = (
    # Of transposed arrays and broadcasts.
    *_static(
        "subtract true_divide",
        POSITIVE,
        note="transposed",
        by=lambda f, x: [f(3, x.T), f(3, x.T + 0 * x.T), f(jnp.full((4, 3), 3, x.dtype), x.T),
                         f(jnp.arange(3, dtype=x.dtype), x.T),
                         f(1, jnp.einsum("ij,kj->ki", x, x))],
    ),
    *_static(
        "transpose",
        Operand((3, 4)),
        note="of broadcasts",
        by=lambda f, x: [f(_broadcast(x), (2, 0, 1)), f(_broadcast(x) * 1, (2, 1, 0)),
                         1 - f(_broadcast(x), (2, 0, 1))],
    ),
    *Lines("jax.lax", FLOATS)(
        "cond",
        SQUARE,
        note="transposed",
        by=lambda f, x: [
            f(x[0, 0] > n, lambda: 1 - x.T, lambda: 2 / (x.T + 9)) for n in (-100, 100)
        ],
    ),
    *Lines("jax.lax", FLOATS)(
        "fori_loop", SQUARE, note="transposed", by=lambda f, x: f(0, 3, lambda _, y: 1 - y.T / 2, x)
    ),
    *_static(
        "astype",
        Operand((3, 4)),
        note="of broadcasts",
        by=lambda f, x: [f(jnp.broadcast_to(x[:, :, None], (3, 4, 2)), "float16"),
                         f(x > 1, "int32") > 0, f(x.T, "int8"), f(x.T * 2, "float16").T],
    ),
    *[
        case
        for name in ("add", "subtract", "multiply", "maximum", "equal", "less", "greater_equal")
        for case in Lines("jax.numpy", ("float32", "int32"))(
            name, M, note="broadcast", by=_of_rows_and_columns
        )
    ],
    *_numpy("true_divide", PLAIN, note="broadcast", by=_of_rows_and_columns),
    # Of constants.
    *Lines("jax.numpy", NUMBERS)(
        "multiply", M, note="zero",
        by=lambda f, x: [f(x, 0), f(jnp.zeros(4, x.dtype), x), f(x, 0) + 1, f(x[:, :1], x * 0)],
    ),
    *_numpy(
        "power", M, note="constants", by=lambda f, x: [f(x, n) for n in (0.5, -0.5, 2.0, -1.0)]
    ),
    *_numpy(
        "maximum minimum", M, note="constants",
        by=lambda f, x: [f(x, n) for n in (-np.inf, np.inf, np.nan, 0, 2)],
    ),
    *_numpy(
        "clip", M, note="constants",
        by=lambda f, x: [f(x, *b) for b in ((0, 6), (0, np.inf), (-1, 1), (np.nan, 1), (2, -2))],
    ),
    # Of any number of rows.
    *_filled("asarray", M, note="parts", by=_windows),
    *_filled("take", M, note="entries", by=_entries),
    *_filled("eye", M, note="of rows", by=_shapes),
    *_filled("where", M, note="of many dimensions", by=_elements),
    *_filled("reshape", M, note="of rows", by=_reshaped),
    *_filled("reshape", M, note="of no columns", by=lambda f, x: [
        f(x[:, :0] + 1, (0, x.shape[0])), f(x[:, :0], (x.shape[0], 0, 2))]),
    *_filled("broadcast_to", PLAIN, note="of two sizes", by=_of_two_sizes),
    *_some("reduce_window", rows(6, 2, extreme=False), note="any size", by=_pooled_at_any_size),
    *_some("reduce_window", PLAIN, note="of its size", by=_of_its_size),
    *Lines("jax.lax", FLOATS, without=("empty",), loose=2)(
        "conv_general_dilated", rows(7, 3, extreme=False), Operand((3, 2, 3, 4), extreme=False),
        note="gradients of any size", by=_pulled_back),
    *_some("pad", rows(extreme=False), note="that may cut off", by=lambda f, x: [
        f(x, np.array(9, x.dtype), [ends])
        for ends in ((x.shape[0] - 4, 7, 0), (7, x.shape[0] - 4, 1))]),
    *_lax("dynamic_update_slice", Operand((3, 4)), note="into constants", by=_written),
    *Lines("jax.numpy", (*FLOATS,))(
        "asarray", Operand((1,)), Operand(()), note="one element of one",
        by=lambda f, x, y: [
            getattr(f(x).at[0], how)(y, mode=mode, unique_indices=True)
            for how in ("set", "add", "max") for mode in ("promise_in_bounds", "drop")],
    ),
    # Products, and what looks like a normalization.
    *Lines("jax.numpy", ("float64", "float32"), without=("empty",))(
        "matmul", rows(3, extreme=False), note="with numbers", by=_scaled),
    *_numpy("matmul", SQUARE, note="of what is turned", by=lambda f, x: [
        f(x.T, x[0]), f(jnp.stack([x, -x]).mT, x[1]), jnp.einsum("ij,i->j", x, x[2])]),
    *Lines("jax.numpy", ("float32", "float64", "float16"), loose=8)(
        "sqrt", PLAIN, fixed([0.1, 0.4, 0.6, 0.9]), note="like a normalization",
        by=_looks_normalized),
    *Lines("jax.numpy", ("float64", "float32"), loose=4)(
        "sqrt", PLAIN, note="in normalizations", by=_normalized),
    *_filled(
        "sort argsort", M, note="axes",
        by=lambda f, x: [f(x, 0), f(-x, 1), f(x, 1, descending=True)],
    ),
    *_filled(
        "argmax argmin", M, note="special",
        by=lambda f, x: [f(x, 0), f(jnp.where(x > 0, jnp.nan, x), 1), f(x > 0, 1), f(x * 0, 1),
                         f(jnp.full_like(x, -jnp.inf), 1), f(jnp.where(x > 0, jnp.nan, jnp.inf), 1),
                         f(jnp.where(x > 0, jnp.nan, -jnp.inf), 1)],
    ),
    *_lax("cumsum cumprod cummax cummin cumlogsumexp", M, reverse=True),
    *Lines("jax.random", FLOATS, without=("empty", "gradient", "second gradient"), loose=16)(
        "normal", M, note="of rows",
        by=lambda f, x: f(jax.random.wrap_key_data(jnp.array([3, 5], "uint32")), (x.shape[0], 3)),
    ),
    *Lines("jax.numpy.linalg", ("float32", "float64"), loose=64, without=("empty",))(
        "cholesky", PLAIN, note="of rows",
        by=lambda f, x: f(x[:, :, None] * x[:, None, :] + 3 * jnp.eye(4, dtype=x.dtype)),
    ),
    *Lines("jax.nn", ("float32", "float16"), loose=4, without=("empty",))(
        "dot_product_attention", PLAIN, note="of rows",
        by=lambda f, x: f(*[jnp.reshape(x[:, :, None] * jnp.arange(12, dtype=x.dtype),
                                        (x.shape[0], 4, 3, 4))] * 3),
    ),
    # Of no element.
    *_static(
        "concatenate", Operand((3, 4)), note="of nothing",
        by=lambda f, x: [f([x[:0], x, x[:0]]), f([x, x[:, :0], x], 1), f([x[:0]] * 2)],
    ),
    *_static(
        "pad", Operand((3, 4)), note="of nothing",
        by=lambda f, x: [f(x[:0], ((1, 2), (0, 1)), constant_values=3), jnp.cumsum(x[:0]).sum() + x,
                         x[jnp.zeros((0,), int)].sum() + x, x[:, :0] @ x[:0] + 1,
                         x[:0].sum(), x[:0].max(initial=3), jnp.sort(x[:0]).sum()],
    ),
    *_static(
        "asarray", Operand((2, 3)), note="nothing left",
        by=lambda f, x: [lax.pad(x, f(0, x.dtype), ((0, 0, 0), (-2, -3, 1))), x[1:2, 1:1] + 1,
                         lax.dynamic_slice(x, (1, 1), (1, 0))],
    ),
    # Of one and of many dimensions.
    *_static(
        "flip", Operand((2, 2, 2, 2, 2, 3)), note="six dimensions",
        by=lambda f, x: [f(x, (1, 3, 5)), x.transpose(5, 4, 3, 2, 1, 0),
                         x.transpose(1, 3, 5, 0, 2, 4)],
    ),
    *Lines("jax.lax", (*ALL,), without=("symbolic", "empty", "one row"))(
        "pad", Operand((3, 4)), note="computed",
        by=lambda f, x: [f(x, x[0, 0], ((1, 2, 1), (0, 2, 0))),
                         f(x, jnp.ones((), x.dtype), ((-1, 0, 1), (2, -1, 2)))],
    ),
    # Sums of many, and what is reduced from a value on.
    *Lines("jax.numpy", ("float32",), without=("second gradient",))(
        "sum", fixed(np.full(100_000, 0.1)), note="many",
        by=lambda f, x: [f(x), x.reshape(50, 2000).mean(1)],
    ),
    *Lines("jax.lax", FLOATS, without=("empty", "vmap", "gradient", "second gradient"))(
        "reduce", M, note="from a value",
        by=lambda f, x: [
            f(x, start, reducer, (1,))
            for start in (x[0, 0], np.asarray(2, x.dtype)) for reducer in (lax.max, lax.add)
        ],
    ),
    *Lines("jax.numpy", ("bool",))("argmax argmin", M, axis=1, note="of booleans"),
    # Sorts.
    *Lines("jax.lax", NUMBERS, without=("symbolic", "empty", "one row"))(
        "sort", fixed([1, 0, 1, 0, 1]), fixed([3, 2, 1, 1, 2]), note="keys",
        by=lambda f, x, y: [f((x, y), num_keys=2), f((x, y), num_keys=1)],
    ),
    *Lines("jax.numpy", ("complex64", "complex128"), without=("symbolic", "empty", "one row"))(
        "argsort", fixed([1, 1j, 0, 1 + 1j, 1 - 1j, -1])
    ),
    *Lines("jax.lax", FLOATS, without=("symbolic", "empty", "one row"))(
        "approx_min_k", M, k=2, reduction_dimension=0
    ),
    *_static(
        "searchsorted", fixed([1, 1, 2.5, 3, 4, 7]), fixed([0, 2.5, 9, 1]), method="sort",
        side="right",
    ),
    # Of windows.
    *_lax(
        "reduce_window", Operand((40,), extreme=False), note="wide",
        by=lambda f, x: [
            f(x, np.array(-np.inf, x.dtype), lax.max, (size,), (stride,), padding)
            for size, stride, padding in ((13, 1, "SAME"), (21, 3, "VALID"), (9, 2, "SAME"))
        ],
    ),
    *_lax(
        "reduce_window", Operand((2, 6, 6, 3)), note="images",
        by=lambda f, x: [
            f(y, np.array(-np.inf, x.dtype), lax.max, (1, *size, 1), (1, *stride, 1), padding)
            for y in (x, jnp.minimum(x, -jnp.inf))
            for size, stride, padding in (
                ((3, 3), (2, 2), "SAME"), ((2, 2), (2, 2), "VALID"), ((1, 3), (1, 1), "SAME"),
                ((1, 3), (3, 1), "SAME"), ((5, 2), (1, 2), ((0, 0), (1, 3), (0, 1), (0, 0))),
            )
        ],
    ),
    *_loops(
        "reduce_window", Operand((4, 5), extreme=False), note="of a function",
        by=lambda f, x: f(x, np.zeros((), x.dtype), lambda a, b: jnp.maximum(abs(a), abs(b)),
                          (2, 2), (1, 2), "VALID"),
    ),
    *_loops(
        "reduce_window", Operand((4, 5), extreme=False), note="several",
        by=lambda f, x: f(
            (x, x), (np.zeros((), x.dtype),) * 2,
            lambda a, b: (a[0] + b[0], jnp.maximum(a[1], b[1])), (2, 2), (1, 1), "SAME",
        ),
    ),
    # Loops and branches in each other.
    *Lines("jax.lax", (*ALL,))(
        "fori_loop", M, note="rotation",
        by=lambda f, x: f(0, 4, lambda i, v: (v[1], v[2], v[0]), (x, x[::-1], x[:, ::-1])),
    ),
    *_loops("fori_loop", PLAIN, OTHER, note="nested", by=_nested),
    *_lax("fori_loop", PLAIN, OTHER, note="exchanged", by=_exchanged),
    *_lax("cond", PLAIN, OTHER, note="nested", by=_branches),
    *_lax("switch", PLAIN, integers(low=0, high=1), note="in a loop", by=_switched),
    *_loops(
        "while_loop", PLAIN, OTHER, note="captured",
        by=lambda f, x, y: f(
            lambda v: v.sum() < 50 + y[0, 0], lambda v: 2 * v + abs(y) + 1, abs(x)
        ),
    ),
    *_some(
        "scan", PLAIN, note="weights",
        by=lambda f, x: f(lambda c, row: (jnp.tanh(c @ (x[:1].T @ x[:1]) + row), c.sum()), x[0], x),
    ),
)  # fmt: skip
