"""Products of matrices and convolutions, in the forms that LiteRT's kernels have.

Every product is one of matrices, and every convolution one of a padded array, with neither groups
of the batch nor elements that are apart. Of integers LiteRT has no products: they
are sums of products of floats of 8 bits, which are exact as long as not too many are added.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from bridge.lifting.known_values import Dimension
from bridge.lifting.lifted_operation import LiftingRule
from bridge.lifting.product_primitives import RULES as OF_JAX
from bridge.litert.lowering import bit_operations as bits
from bridge.litert.lowering.arithmetic_lowerings import to_integers, widened
from bridge.litert.lowering.lowered_operation import LoweredOperation
from bridge.litert.lowering.storage_dtypes import integer_bits
from xla_call_module.stablehlo.dimension_numbers import read_convolution_dimensions

# Up to how many products of elements are computed one by one, without a product of matrices.
_MAX_PRODUCTS = 1 << 12
# Integers of floats are exact up to 2 to the power of this.
_EXACT_BITS = 24
# Up to how many elements of a window an array is repeated where no convolution is to be had.
MAX_WINDOW = 1024

# The numbers of the dimensions that are summed, in both operands, and those that are the batch.
Axes = tuple[tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]]


def _dot_general(op: LoweredOperation) -> Any:
    numbers = op.dimension_numbers()
    axes: Axes = (
        (tuple(numbers.lhs_contracting_dimensions), tuple(numbers.rhs_contracting_dimensions)),
        (tuple(numbers.lhs_batching_dimensions), tuple(numbers.rhs_batching_dimensions)),
    )
    return contract(op, *_factors(op), axes)


def _dot(op: LoweredOperation) -> Any:
    left, right = _factors(op)
    return contract(op, left, right, (((len(np.shape(left)) - 1,), (0,)), ((), ())))


def _factors(op: LoweredOperation) -> tuple[Any, Any]:
    """Return both operands as numbers of the kind that the result has, where it has more of them.

    Those of 32 bits would overflow, and unsigned ones be negative.
    """
    wanted, given = op.logical_dtype(), [op.operand_dtype(number) for number in (0, 1)]
    if not all(map(_is_whole, given)):
        wanted = np.dtype(np.float32)
    left, right = (
        widened(jnp.asarray(op.array(number)), dtype, wanted) for number, dtype in enumerate(given)
    )
    return left, right


def contract(op: LoweredOperation, left: Any, right: Any, axes: Axes) -> Any:
    """Return the product of two operands of an operation, of any dtype."""
    (left_summed, right_summed), (left_batch, right_batch) = axes
    left, batch, rows, summed = _as_matrices(left, left_batch, left_summed, is_left=True)
    right, _, columns, _ = _as_matrices(right, right_batch, right_summed, is_left=False)
    shape = (*batch, *rows, *columns)
    if 0 in (*shape, summed):
        return jnp.zeros(shape, op.dtype)
    logical = op.logical_dtype()
    if not integer_bits(logical):
        made = _multiply(left.astype(np.float32), right.astype(np.float32))
        made = made != 0 if logical.kind == "b" else made
    elif not all(_is_whole(op.operand_dtype(number)) for number in (0, 1)):
        made = _multiply(left.astype(np.float32), right.astype(np.float32))
        made = to_integers(op, made, logical)  # rounded is only what has been added
    elif integer_bits(logical) == 64 or math.prod(shape) * summed <= _MAX_PRODUCTS:
        products = jnp.expand_dims(left, -1) * jnp.expand_dims(right, -3)
        made = jnp.sum(products.astype(op.dtype), axis=-2, dtype=op.dtype)
    else:
        made = _multiply_integers(left, right, [op.operand_dtype(n) for n in (0, 1)])
    return made.reshape(shape)


def _is_whole(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "b" or bool(integer_bits(dtype))


def _as_matrices(
    value: Any, batch: Sequence[int], summed: Sequence[int], *, is_left: bool
) -> tuple[Any, list[Any], list[Any], Any]:
    """Return an array as matrices, and the sizes of the batch, of what is free and of the sum."""
    value = jnp.asarray(value)
    free = [axis for axis in range(value.ndim) if axis not in (*batch, *summed)]
    order = (*batch, *free, *summed) if is_left else (*batch, *summed, *free)
    sizes = [[value.shape[axis] for axis in axes] for axes in (batch, free, summed)]
    counts = [math.prod(part) for part in sizes]
    if order != tuple(range(value.ndim)):
        value = lax.transpose(value, order)
    inner = (counts[1], counts[2]) if is_left else (counts[2], counts[1])
    value = lax.reshape(value, (counts[0], *inner) if batch else inner)
    return value, sizes[0], sizes[1], counts[2]


def _multiply(left: Any, right: Any) -> Any:
    """Return the product of matrices of floats."""
    batch = tuple(range(left.ndim - 2))
    axes = (((left.ndim - 1,), (left.ndim - 2,)), (batch, batch))
    return lax.dot_general(left, right, axes, preferred_element_type=np.float32)


def _multiply_integers(left: Any, right: Any, dtypes: Sequence[np.dtype[Any]]) -> Any:
    """Return the product of matrices of integers, with the lowest 32 bits of each element."""
    sides = [_digits(*pair) for pair in zip((left, right), dtypes, strict=True)]
    total = None
    for (low, first), (high, second) in itertools.product(*map(enumerate, sides)):
        if low + high >= 4:
            continue
        made = _multiply_exactly(first, second)
        made = made * np.int32(1 << 8 * (low + high)) if low + high else made
        total = made if total is None else total + made
    return total


def _digits(value: Any, dtype: np.dtype[Any]) -> list[Any]:
    """Return integers as floats that are exact, those of more than 8 bits as their bytes."""
    count = integer_bits(dtype)
    if 0 < count <= 8:
        return [value.astype(np.float32)]
    digits = []
    for _ in range(4):
        digits.append(bits.low_bits(value, 8).astype(np.float32))
        value = lax.shift_right_arithmetic(value, jnp.full_like(value, 8))
    return digits


def _multiply_exactly(left: Any, right: Any) -> Any:
    """Return the product of matrices of numbers of 8 bits, as int32."""
    size = left.shape[-1]
    if not isinstance(size, int):
        return _multiply(left, right).astype(np.int32)
    most = 1 << (_EXACT_BITS - 16)
    total = None
    for start in range(0, size, most):
        end = min(size, start + most)
        first = lax.slice_in_dim(left, start, end, axis=left.ndim - 1)
        second = lax.slice_in_dim(right, start, end, axis=right.ndim - 2)
        made = _multiply(first, second).astype(np.int32)
        total = made if total is None else total + made
    return total


@dataclass(frozen=True, slots=True)
class _Convolution:
    """The places of the windows of a convolution, for each spatial dimension.

    Attributes:
        strides: how far windows are apart.
        padding: what is put before and after the array, or taken away.
        base_dilation: how far elements of the array are apart.
        dilation: how far elements of a window are apart.
    """

    strides: tuple[int, ...]
    padding: tuple[tuple[Dimension, Dimension], ...]
    base_dilation: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    batch_groups: int


def _convolution(op: LoweredOperation) -> Any:
    low, high = op.padding(len(op.types[0].shape) - 2)
    return _convolve(op, tuple(zip(low, high, strict=True)))


def _dynamic_convolution(op: LoweredOperation) -> Any:
    sizes = op.dimensions(2)
    return _convolve(op, tuple(zip(sizes[::2], sizes[1::2], strict=True)))


def _convolve(op: LoweredOperation, padding: tuple[tuple[Dimension, Dimension], ...]) -> Any:
    names = read_convolution_dimensions(op)
    count = len(names[0]) - 2
    spatial = [str(number) for number in range(count)]
    ones = (1,) * count
    windows = _Convolution(
        strides=op.integers("window_strides", ones),
        padding=padding,
        base_dilation=op.integers("lhs_dilation", ones),
        dilation=op.integers("rhs_dilation", ones),
        groups=op.integer("feature_group_count", 1),
        batch_groups=op.integer("batch_group_count", 1),
    )
    turned = re.findall(r"true|false", op.text("window_reversal"))
    reversal = turned * count if len(turned) == 1 else turned
    axes = [axis for axis, is_turned in enumerate(reversal) if is_turned == "true"]

    value, kernel = _factors(op)
    value = lax.transpose(value, [names[0].index(name) for name in ("b", *spatial, "f")])
    kernel = lax.transpose(kernel, [names[1].index(name) for name in (*spatial, "i", "o")])
    kernel = lax.rev(kernel, axes) if axes else kernel
    made = _convolved(op, value, kernel, windows)
    order = ["b", *spatial, "f"]
    return lax.transpose(made, [order.index(name) for name in names[2]])


def _convolved(op: LoweredOperation, value: Any, kernel: Any, windows: _Convolution) -> Any:
    """Return a convolution of an array whose features come last, as those of the result."""
    count = value.ndim - 2
    groups, padding = windows.groups, windows.padding
    if windows.batch_groups != 1:
        groups = windows.batch_groups
        value = value.reshape(groups, -1, *value.shape[1:])
        value = jnp.moveaxis(value, 0, -2)
        value = value.reshape(*value.shape[:-2], -1)
    is_integral = bool(integer_bits(op.logical_dtype()))
    is_plain = not is_integral and (count <= 2 or (count == 3 and groups == 1))
    is_dilated = any(step != 1 for step in windows.base_dilation)
    # LiteRT's own takes none, and JAX's traces no symbol there.
    is_padded = not all(isinstance(side, int) and side >= 0 for pair in padding for side in pair)
    if is_dilated or not is_plain or is_padded:
        triples = [
            (*pair, step - 1) for pair, step in zip(padding, windows.base_dilation, strict=True)
        ]
        edges = [(0, 0, 0), *triples, (0, 0, 0)]
        value = lax.pad(value, np.zeros((), value.dtype), edges)
        padding = ((0, 0),) * count
    places = [
        max(0, (size + sum(pad) - (far - 1) * dilation - 1) // stride + 1)
        for size, pad, far, dilation, stride in zip(
            value.shape[1:-1],
            padding,
            kernel.shape,
            windows.dilation,
            windows.strides,
            strict=False,
        )
    ]
    shape = (value.shape[0], *places, kernel.shape[-1])
    if 0 in (*shape, *kernel.shape):
        return jnp.zeros(shape, op.dtype)
    if count == 0 or not is_plain:
        return _convolve_by_product(op, value, kernel, windows, groups, places)
    letters = "".join(chr(ord("0") + axis) for axis in range(count))
    return lax.conv_general_dilated(
        value.astype(np.float32),
        kernel.astype(np.float32),
        window_strides=windows.strides,
        padding=padding,
        rhs_dilation=windows.dilation,
        dimension_numbers=(f"N{letters}C", f"{letters}IO", f"N{letters}C"),
        feature_group_count=groups,
        preferred_element_type=np.float32,
    )


def _convolve_by_product(
    op: LoweredOperation,
    value: Any,
    kernel: Any,
    windows: _Convolution,
    groups: int,
    places: Sequence[int],
) -> Any:
    """Return a convolution as the product of all windows and the kernel."""
    sizes = kernel.shape[:-2]
    count = math.prod(sizes)
    if count > MAX_WINDOW:
        op.refuse(f"LiteRT has no such convolution, and its window has {count} elements")
    parts = []
    for offsets in itertools.product(*map(range, sizes)):
        first = [n * step for n, step in zip(offsets, windows.dilation, strict=True)]
        last = [
            start + (number - 1) * stride + 1
            for start, number, stride in zip(first, places, windows.strides, strict=True)
        ]
        part = lax.slice(
            value,
            (0, *first, 0),
            (value.shape[0], *last, value.shape[-1]),
            (1, *windows.strides, 1),
        )
        parts.append(part.reshape(-1, groups, value.shape[-1] // groups))
    patches = lax.concatenate(parts, 2)
    kernel = kernel.reshape(count * kernel.shape[-2], groups, -1)
    made = contract(op, patches, kernel, (((2,), (0,)), ((1,), (1,))))
    made = jnp.moveaxis(made, 0, 1)
    return made.reshape(value.shape[0], *places, -1)


def _einsum(op: LoweredOperation) -> Any:
    op.refuse("LiteRT has no sums of products in general", "export with products of matrices")


RULES = {
    name: LiftingRule(lower, OF_JAX[name].attributes)
    for name, lower in (
        ("stablehlo.convolution", _convolution),
        ("stablehlo.dot", _dot),
        ("stablehlo.dot_general", _dot_general),
        ("stablehlo.dynamic_conv", _dynamic_convolution),
        ("stablehlo.einsum", _einsum),
        ("stablehlo.unary_einsum", _einsum),
    )
}
