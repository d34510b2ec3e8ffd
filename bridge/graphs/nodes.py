"""Operations that the rules of many formats need, with the shapes of their results.

Each takes values as they are and broadcasts them where the operation does not do so by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bridge.graphs import layouts
from bridge.graphs.folding import MAX_COUNTED
from bridge.graphs.tensor_graph import TensorGraph
from bridge.graphs.values import Value, constant_array, of_array, of_size
from xla_call_module.dtypes import Array
from xla_call_module.size_polynomials import (
    Dim,
    Shape,
    Size,
    broadcast,
    floordiv,
    is_static,
    lower_bound,
)

_NEUTRAL = {"Add": 0, "Div": 1, "Mul": 1, "Sub": 0}
# Those whose results are truth values.
_PREDICATES = frozenset({
    "And", "Equal", "Greater", "GreaterOrEqual", "IsFinite", "IsInf", "IsNaN", "Less",
    "LessOrEqual", "Not", "NotEqual", "Or", "Xor",
})  # fmt: skip

# An operand of an elementwise operation: a number is one of the dtype of the other operands.
Operand = Value | float | np.generic


def constant(number: Any, dtype: Any) -> Value:
    """A scalar constant."""
    return of_array(np.array(number, np.dtype(dtype)))


def constant_like(value: Value, number: Any) -> Value:
    """A scalar constant of the dtype of a value."""
    return constant(number, value.dtype)


def count_up(graph: TensorGraph, size: Dim, *, is_constant: bool = True) -> Value:
    """Return 0, 1, 2, … as int64, as a constant where they are few and may be one."""
    if is_constant and isinstance(size, int) and size <= MAX_COUNTED:
        return of_array(np.arange(size))
    ends = [constant(0, np.int64), of_size(size), constant(1, np.int64)]
    return graph.node("Range", ends, shape=(size,))


def cast(graph: TensorGraph, value: Value, dtype: Any) -> Value:
    """Convert values that both dtypes have, and integers modulo the narrower dtype."""
    return graph.cast(value, np.dtype(dtype))


def elementwise(graph: TensorGraph, op_type: str, *operands: Operand, **attributes: Any) -> Value:
    """An operation that broadcasts its operands as NumPy does; what can wait is not broadcast."""
    own = next(value.dtype for value in operands if isinstance(value, Value))
    values = [v if isinstance(v, Value) else constant(v, own) for v in operands]
    kind = np.dtype(bool) if op_type in _PREDICATES else own
    if (composed := graph.compose(op_type, values)) is not None:
        return composed
    if (kept := _unchanged(op_type, values)) is not None:
        return kept.broadcast_to(broadcast([value.shape for value in values]))
    return broadcasting(graph, op_type, values, kind, attributes)


def _unchanged(op_type: str, values: Sequence[Value]) -> Value | None:
    """The operand that an operation leaves as it is, -0 and NaN too; None where there is none."""
    if op_type not in _NEUTRAL:
        return None
    left, right = values
    if _is_neutral(op_type, right):
        return left
    return right if op_type in ("Add", "Mul") and _is_neutral(op_type, left) else None


def _is_neutral(op_type: str, value: Value) -> bool:
    """Return whether it is the identity element of a sum, difference, product or quotient.

    A sum with 0 makes 0 of -0, and so does a difference of -0: these are no floats' neutral ones.
    """
    number = value.scalar
    if number is None or number != _NEUTRAL[op_type]:
        return False
    is_signed_zero = value.is_float and op_type in ("Add", "Sub")
    return not is_signed_zero or bool(np.signbit(np.real(number))) == (op_type == "Add")


def broadcasting(
    graph: TensorGraph,
    op_type: str,
    values: Sequence[Value],
    kind: np.dtype[Any],
    attributes: Mapping[str, Any],
) -> Value:
    """Return an elementwise operation of values, computed before they were transposed."""
    if (untransposed := layouts.untransposed_operands(graph, values)) is not None:
        before, order = untransposed
        shape = broadcast([value.shape for value in before])
        made = graph.node(op_type, before, shape=shape, dtype=kind, **attributes)
        return layouts.transpose(graph, made, order)
    unbroadcast = broadcast([value.unbroadcast_shape for value in values])
    made = graph.node(op_type, values, shape=unbroadcast, dtype=kind, **attributes)
    return made.broadcast_to(broadcast([value.shape for value in values]))


def where(graph: TensorGraph, condition: Value, true: Operand, false: Operand) -> Value:
    """Return elements of one value or of another one; a number is one of the other one's dtype."""
    own = next(value.dtype for value in (true, false) if isinstance(value, Value))
    one, other = (v if isinstance(v, Value) else constant(v, own) for v in (true, false))
    if condition.scalar is not None:
        shape = broadcast([value.shape for value in (condition, one, other)])
        return (one if condition.scalar else other).broadcast_to(shape)
    return broadcasting(graph, "Where", (condition, one, other), own, {})


def broadcast_in_dim(
    graph: TensorGraph, value: Value, axes: Sequence[int], shape: Sequence[Dim]
) -> Value:
    """The value with its dimensions at some axes of a larger shape, repeated along the others."""
    order = sorted(range(len(axes)), key=axes.__getitem__)
    if order != list(range(len(axes))):
        value, axes = transpose(graph, value, order), [axes[i] for i in order]
    missing = value.rank - len(value.unbroadcast_shape)
    kept = list(axes[missing:])
    first = kept[0] if kept else len(shape)
    new = [axis - first for axis in range(first, len(shape)) if axis not in kept]
    if new:
        unbroadcast: list[Dim] = [1] * (len(shape) - first)
        for axis, dim in zip(kept, value.unbroadcast_shape, strict=True):
            unbroadcast[axis - first] = dim
        value = graph.node("Unsqueeze", [value, graph.vector(new)], shape=unbroadcast)
    return value.broadcast_to(tuple(shape))


def expand_dims(graph: TensorGraph, value: Value, axes: Sequence[int]) -> Value:
    """The value with new dimensions of size 1 at some axes of the result."""
    rank = value.rank + len(axes)
    positive = [axis % rank for axis in axes]
    kept = [axis for axis in range(rank) if axis not in positive]
    dims = iter(value.shape)
    return broadcast_in_dim(
        graph, value, kept, [1 if axis in positive else next(dims) for axis in range(rank)]
    )


def squeeze(graph: TensorGraph, value: Value, axes: Sequence[int]) -> Value:
    """The value without some dimensions of size 1."""
    if not axes:
        return value
    positive = [axis % value.rank for axis in axes]
    shape = tuple(dim for axis, dim in enumerate(value.shape) if axis not in positive)
    return reshape(graph, value, shape)


def reshape(graph: TensorGraph, value: Value, shape: Sequence[Dim]) -> Value:
    """The same elements in another shape."""
    new = tuple(shape)
    if value.shape == new:
        return value
    if value.sizes is not None and value.is_expanded:
        return Value(value.dtype, new, new, sizes=value.sizes)
    if value.array is not None and value.array.size == 1:
        return Value(value.dtype, new, (), array=value.array.reshape(()))
    if _is_padded(value.shape, value.unbroadcast_shape) and _is_padded(
        new, value.unbroadcast_shape
    ):
        return value.broadcast_to(new)
    value = graph.expand(value)
    source = graph.producer(value)
    if source is not None and source.op_type in ("Reshape", "Squeeze", "Unsqueeze"):
        old = graph.shape_of(source.inputs[0])
        inner = Value(value.dtype, old or (), old or (), source.inputs[0])
        if old == new:
            return inner
        return _reshaped(graph, inner, (), new)
    return _reshaped(graph, value, value.shape, new)


def _is_padded(shape: Shape, unbroadcast: Shape) -> bool:
    """Return whether a shape is another one behind ones."""
    new = len(shape) - len(unbroadcast)
    return new >= 0 and shape[new:] == unbroadcast and all(dim == 1 for dim in shape[:new])


def _reshaped(graph: TensorGraph, value: Value, old: Shape, new: Shape) -> Value:
    """Return Reshape, in which 0 is a size that stays, and -1 one that follows from the others.

    Where a size may be 0 itself, neither is said if it would be read in another way.
    """
    dims = list(new) if is_static(new) else _abridged(old if graph.zero_copies else (), new)
    marks = [dim for dim in dims if not (isinstance(dim, int) and dim > 0)]
    is_plain = 0 not in new and (marks == [-1] or not any(marks))
    if is_plain or all((lower_bound(dim) or 0) > 0 for dim in new):
        return graph.node("Reshape", [value, graph.vector(dims)], shape=new)
    return graph.node("Reshape", [value, graph.vector(new)], shape=new, allowzero=1)


def _abridged(old: Shape, new: Shape) -> list[Dim]:
    dims: list[Dim] = [
        0 if isinstance(dim, Size) and axis < len(old) and old[axis] == dim else dim
        for axis, dim in enumerate(new)
    ]
    open_ = [axis for axis, dim in enumerate(dims) if isinstance(dim, Size)]
    if open_:
        dims[open_[0]] = -1
    elif dims.count(0) == 1:
        dims[dims.index(0)] = -1
    return dims


def transpose(graph: TensorGraph, value: Value, order: Sequence[int]) -> Value:
    """The value with its dimensions in another order."""
    if list(order) == list(range(value.rank)):
        return value
    if layouts.transposition_of(graph, value) is not None:
        return layouts.transpose(graph, value, order)
    shape = tuple(value.shape[axis] for axis in order)
    if value.unbroadcast_shape == ():
        return value.broadcast_to(shape)
    unbroadcast = (1,) * (value.rank - len(value.unbroadcast_shape)) + value.unbroadcast_shape
    if len(value.unbroadcast_shape) < value.rank:
        new = graph.vector(range(value.rank - len(value.unbroadcast_shape)))
        value = graph.node("Unsqueeze", [value, new], shape=unbroadcast)
    made = graph.node("Transpose", [value], shape=[unbroadcast[a] for a in order], perm=list(order))
    return made.broadcast_to(shape)


def concat(graph: TensorGraph, values: Sequence[Value], axis: int) -> Value:
    """The values one after another along an axis."""
    values = [value for value in values if value.shape[axis] != 0] or values[:1]
    values = [graph.expand(value) for value in values]
    if len(values) == 1:
        return values[0]
    facts = [layouts.transposition_of(graph, value) for value in values]
    orders = {None if fact is None else fact.order for fact in facts}
    if len(orders) == 1 and (order := orders.pop()) is not None:
        joined = concat(graph, [fact.value for fact in facts if fact], order[axis])
        return layouts.transpose(graph, joined, order)
    shape = list(broadcast([value.shape for value in values]))
    total: Dim = 0
    for value in values:
        total = total + value.shape[axis]
    shape[axis] = total
    return graph.node("Concat", values, shape=shape, axis=axis)


def slice_(
    graph: TensorGraph,
    value: Value,
    starts: Sequence[Dim],
    limits: Sequence[Dim],
    strides: Sequence[int],
    axes: Sequence[int] | None = None,
) -> Value:
    """Return the elements from `start` up to `limit`, every `stride`-th, along each axis."""
    every = list(range(value.rank)) if axes is None else list(axes)
    missing = value.rank - len(value.unbroadcast_shape)
    shape, unbroadcast = list(value.shape), list(value.unbroadcast_shape)
    used = []
    for axis, start, limit, stride in zip(every, starts, limits, strides, strict=True):
        if (start, limit, stride) == (0, shape[axis], 1):
            continue
        size = floordiv(limit - start + (stride - 1), stride)
        if axis >= missing and (unbroadcast[axis - missing] != 1 or shape[axis] == 1):
            used.append((start, limit, axis - missing, stride))
            unbroadcast[axis - missing] = size
        shape[axis] = size
    if used:
        vectors = [graph.vector(part) for part in zip(*used, strict=True)]
        value = graph.node("Slice", [value, *vectors], shape=unbroadcast)
    return value.broadcast_to(tuple(shape))


def slice_along(
    graph: TensorGraph, value: Value, axis: int, start: Dim, limit: Dim, stride: int = 1
) -> Value:
    """Return the elements from `start` up to `limit`, every `stride`-th, along one axis."""
    return slice_(graph, value, [start], [limit], [stride], axes=[axis])


def reverse(graph: TensorGraph, value: Value, axes: Sequence[int]) -> Value:
    """The value with the elements along some dimensions from the last to the first."""
    missing = value.rank - len(value.unbroadcast_shape)
    reversed_axes = [axis - missing for axis in axes if axis >= missing]
    if not reversed_axes:
        return value
    rows = [(-1, np.iinfo(np.int64).min, axis, -1) for axis in reversed_axes]
    vectors = [graph.vector(part) for part in zip(*rows, strict=True)]
    made = graph.node("Slice", [value, *vectors], shape=value.unbroadcast_shape)
    return made.broadcast_to(value.shape)


def look_up(graph: TensorGraph, table: Array, index: Value) -> Value:
    """The elements of a table at the indices in a value, which are in bounds."""
    inputs, shape = [constant_array(table), index], index.unbroadcast_shape
    return graph.node("Gather", inputs, shape=shape, axis=0).broadcast_to(index.shape)


def gather(graph: TensorGraph, value: Value, indices: Value, axis: int) -> Value:
    """Return slices along an axis at indices that are in bounds."""
    value, indices = graph.expand(value), graph.expand(indices)
    shape = (*value.shape[:axis], *indices.shape, *value.shape[axis + 1 :])
    return graph.node("Gather", [value, indices], shape=shape, axis=axis)
