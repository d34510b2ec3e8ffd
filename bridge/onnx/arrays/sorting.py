"""Sorts, and the greatest elements: TopK, which keeps the order of equal elements.

What comes before what is said by a region. It is applied to two numbers in every order, and where
it does what a list of keys does, the keys are sorted one after another, the last one first.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bridge.core.size_polynomials import Dim
from bridge.onnx.arithmetic.bits import in_total_order
from bridge.onnx.graph import nodes
from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.graph.stablehlo_operation import NarrowResults, Operation, Region, ResultType, Rule
from bridge.onnx.graph.values import Value, constant_array
from xla_call_module.dtypes import Array
from xla_call_module.stablehlo.attributes import comparison_direction

__all__ = ["RULES", "approx_top_k", "dynamic_top_k", "top_k"]

_MAX_OPERANDS = 5
# Whether the signs of zeros matter, and those of NaNs.
_SIGNED = ((False, False), (True, False), (True, True))
# What comparators are made of; older versions of JAX compare the bits of floats as integers.
_PLAIN = frozenset({
    "stablehlo.and", "stablehlo.bitcast_convert", "stablehlo.compare", "stablehlo.constant",
    "stablehlo.not", "stablehlo.or", "stablehlo.return", "stablehlo.select", "stablehlo.subtract",
    "stablehlo.xor",
})  # fmt: skip
_TRIALS = 300
_TINY = float(np.finfo(np.float64).tiny)  # less than all numbers that are tried


@dataclass(frozen=True, slots=True)
class _Key:
    """The key of a sort.

    Attributes:
        operand: the index of the operand that is sorted by.
        descending: whether the greatest comes first.
        signed_zeros: whether -0 is less than 0; otherwise they are equal.
        signed_nans: whether -NaN is the least; otherwise every NaN is the greatest.
    """

    operand: int
    descending: bool
    signed_zeros: bool
    signed_nans: bool = False


def _sort(graph: Graph, op: Operation) -> Sequence[Value]:
    values, axis = op.operands, op.integer("dimension", -1) % op.operands[0].rank
    keys = _keys_of(graph, op.regions[0])
    compared = {key.operand for key in keys or ()}
    shows = len(values) > 1 or values[0].is_float  # integers that are equal are the same
    if shows and len(compared) < len(values) and not op.flag("is_stable"):
        op.refuse(
            "it is unstable, so the order of elements with equal keys is undefined",
            "sort with is_stable=True (stable=True in jax.numpy)",
        )
    if keys is None:
        places = _pairwise_order(graph, op, axis)
        return [_along(graph, value, places, axis) for value in values]
    order: Value | None = None
    for key in reversed(keys):
        value = values[key.operand]
        if order is not None:
            value = _along(graph, value, order, axis)
        place = _order(graph, value, key, axis, value.shape[axis])
        order = place if order is None else _along(graph, order, place, axis)
    if order is None:
        return values
    return [_along(graph, value, order, axis) for value in values]


def _along(graph: Graph, value: Value, order: Value, axis: int) -> Value:
    value = graph.expand(value)
    return graph.node("GatherElements", [value, order], shape=order.shape, axis=axis)


def _order(graph: Graph, value: Value, key: _Key, axis: int, count: Dim) -> Value:
    """Return the indices of the first elements in the order of one key."""
    if key.signed_nans and (ordered := in_total_order(graph, value)) is not None:
        return _top(graph, ordered, axis, count, descending=key.descending)
    if value.dtype == np.float64:
        return _order_of_doubles(graph, value, key, axis, count)
    return _top(graph, _comparable(graph, value, key), axis, count, descending=key.descending)


def _comparable(graph: Graph, value: Value, key: _Key) -> Value:
    """Return integers or finite numbers in the same order, which the runtime compares."""
    if value.dtype == bool:
        return nodes.cast(graph, value, np.uint8)
    if value.dtype == np.uint64:
        return nodes.cast(graph, nodes.elementwise(graph, "BitwiseXor", value, 1 << 63), np.int64)
    if not value.is_float:
        return value
    do = partial(nodes.elementwise, graph)
    wide = nodes.cast(graph, value, np.float64)
    wide = nodes.where(graph, do("Equal", wide, np.inf), 1e300, wide)
    if key.signed_zeros:
        wide = nodes.where(graph, do("Less", do("Reciprocal", wide), -1e300), -1e-300, wide)
    return nodes.where(graph, do("IsNaN", value), np.inf, wide)


def _order_of_doubles(graph: Graph, value: Value, key: _Key, axis: int, count: Dim) -> Value:
    """Return the order of float64: no float is wider, so NaNs and zeros are ordered before."""
    do = partial(nodes.elementwise, graph)
    is_nan = do("IsNaN", value)
    rank = nodes.cast(graph, is_nan, np.uint8)
    if key.signed_zeros:
        below = do("Less", do("Reciprocal", value), 0)
        minus = do("And", do("Equal", value, 0), below)
        rank = nodes.where(graph, is_nan, 2, nodes.where(graph, minus, rank, 1))
    size = value.shape[axis]
    first = _top(graph, rank, axis, size, descending=key.descending)
    numbers = _along(graph, nodes.where(graph, is_nan, np.inf, value), first, axis)
    second = _top(graph, numbers, axis, count, descending=key.descending)
    return _along(graph, first, second, axis)


def _top(graph: Graph, value: Value, axis: int, count: Dim, *, descending: bool) -> Value:
    value = graph.expand(value)
    shape = tuple(count if number == axis else dim for number, dim in enumerate(value.shape))
    results = [(shape, value.dtype), (shape, np.dtype(np.int64))]
    size = graph.size(count)
    return graph.nodes_of("TopK", [value, size], results, axis=axis, largest=int(descending))[1]


def top_k(graph: Graph, op: Operation) -> Sequence[Value] | None:
    """The composite `chlo.top_k` and its like: the greatest elements of the last dimension, where.

    0 is greater than -0, NaN greater than all numbers, and -NaN less than all of them. Of equal
    elements the first comes first, whether or not that is asked for.
    """
    settings = op.text("composite_attributes") or op.text("mhlo.attributes")
    options = dict(part.strip("{} ").split(" = ") for part in settings.split(","))
    if (
        options.keys() - {"is_stable", "k", "largest"}
        or len(op.operands) != 1
        or "k" not in options
    ):
        return None
    descending = options.get("largest", "true").startswith("true")
    return _greatest(graph, op, int(options["k"].split(":")[0]), descending=descending)


def dynamic_top_k(graph: Graph, op: Operation) -> Sequence[Value]:
    """The same, which JAX has as a custom call where it is computed how many they are."""
    (count,) = op.sizes(graph, 1)
    return _greatest(graph, op, count, descending=True)


def _greatest(graph: Graph, op: Operation, count: Dim, *, descending: bool) -> Sequence[Value]:
    value = graph.expand(op.operands[0])
    is_float = value.is_float
    key = _Key(0, descending=descending, signed_zeros=is_float, signed_nans=is_float)
    order = _order(graph, value, key, value.rank - 1, count)
    taken = _along(graph, value, order, value.rank - 1)
    return [taken, nodes.cast(graph, order, op.results[1].dtype)]


def approx_top_k(graph: Graph, op: Operation) -> Sequence[Value]:
    """The custom call `ApproxTopK`: the greatest or least elements, which are found exactly."""
    values, axis = op.operands[:2], _setting(op, "reduction_dim")
    count = op.results[0].shape[axis]
    direction = _comparison_of(op)
    if count is None or direction not in ("GT", "LT") or len(op.operands) != 4:
        op.refuse("its size or its comparator is not supported")
    key = _Key(0, descending=direction == "GT", signed_zeros=False)
    order = _order(graph, graph.expand(values[0]), key, axis, count)
    return [_along(graph, value, order, axis) for value in values]


def _setting(op: Operation, name: str) -> int:
    config = op.text("mhlo.backend_config") or op.text("backend_config")
    return int(config.partition(f"{name} = ")[2].split(" ")[0])


def _comparison_of(op: Operation) -> str:
    """The direction of the only comparison in the function that a custom call names."""
    body = op.regions[0].block
    comparisons = [v.operation for v in body if v.operation.name == "stablehlo.compare"]
    arguments = list(body.arguments)[:2]
    if len(comparisons) != 1 or list(comparisons[0].operands) != arguments:
        return ""
    return comparison_direction(comparisons[0])


def _keys_of(graph: Graph, region: Region) -> list[_Key] | None:
    """The keys of a comparator; None if it is no list of them."""
    kinds = region.arguments[::2]
    names = {view.operation.name for view in region.block}
    if len(kinds) > _MAX_OPERANDS or not names <= _PLAIN:
        return None
    arrays = _trials(kinds)
    (result,) = region.apply(graph.trial(), list(map(constant_array, arrays)))
    if result.array is None:
        return None
    outcome = np.broadcast_to(result.array, arrays[0].shape)
    for keys in _candidates(kinds):
        if np.array_equal(outcome, _expected(keys, arrays)):
            return keys
        # A plain comparison of floats is false for NaN, whose order is undefined then.
        unordered = _has_nan(keys[0], arrays)
        if len(keys) == 1 and np.array_equal(outcome, _expected(keys, arrays) & ~unordered):
            return keys
    return None


def _trials(kinds: Sequence[ResultType]) -> list[Array]:
    """Return pairs of numbers for each operand: in every order that there is, and at random."""
    pairs = [_pairs(kind) for kind in kinds]
    chosen = zip(*itertools.product(*(range(len(p)) for p, _ in pairs)), strict=True)
    random = np.random.default_rng(0)
    arrays: list[Array] = []
    for (numbers, dtype), index in zip(pairs, chosen, strict=True):
        some = random.choice(_some(dtype), (2, _TRIALS))
        for side in (0, 1):
            orders = np.array([numbers[i][side] for i in index], dtype)
            arrays.append(np.concatenate([orders, some[side]]))
    return arrays


def _some(dtype: np.dtype[Any]) -> Array:
    """Return numbers of every sign and size."""
    if dtype.kind == "b":
        return np.array([False, True])
    if np.zeros(0, dtype).dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        signs = (1, -1) if bounds.min < 0 else (1,)
        numbers = [sign * size for sign in signs for size in (0, 1, 2, 3, 5, 100)]
        return np.array([*numbers, bounds.min, bounds.max], dtype)
    sizes = np.array([0, 1e-3, 0.5, 1, 1.5, 2, 3, 100, 1e4, np.nan])
    return np.concatenate([sizes, -sizes]).astype(dtype)


def _has_nan(key: _Key, arrays: Sequence[Array]) -> Array:
    pair = arrays[2 * key.operand : 2 * key.operand + 2]
    missing: Array = np.isnan(pair[0].astype(np.float64)) | np.isnan(pair[1].astype(np.float64))
    return missing


def _pairs(kind: ResultType) -> tuple[list[tuple[float, float]], np.dtype[np.generic]]:
    """Return pairs in every order that there is between two numbers of a dtype."""
    if kind.dtype == bool:
        return [(0, 1), (1, 0), (1, 1)], kind.dtype
    pairs = [(1.0, 2.0), (2.0, 1.0), (1.0, 1.0)]
    if np.zeros(0, kind.dtype).dtype.kind not in "iu":
        nan = float("nan")
        pairs += [(-0.0, 0.0), (0.0, -0.0)]
        pairs += [*itertools.permutations((nan, 1.0, -nan), 2), (nan, nan), (-nan, -nan)]
    if not kind.dtype.name.startswith("uint"):
        pairs += [(-1.0, 1.0), (1.0, -1.0)]
    return pairs, kind.dtype


def _candidates(kinds: Sequence[ResultType]) -> list[list[_Key]]:
    """Return the lists of keys to try: the first operands, or any one of them."""
    options = [
        [
            _Key(operand, descending, zeros, nans)
            for descending in (False, True)
            for zeros, nans in _SIGNED
        ]
        for operand in range(len(kinds))
    ]
    lists = [[key] for keys in options for key in keys]
    for count in range(2, len(kinds) + 1):
        # The zeros and NaNs of all keys are treated alike.
        for flags in itertools.product((False, True), repeat=count):
            lists += [[_Key(n, flags[n], *signed) for n in range(count)] for signed in _SIGNED]
    return lists


def _expected(keys: Sequence[_Key], arrays: Sequence[Array]) -> Array:
    """Return whether the first of two comes before the second one by some keys."""
    before = np.zeros(arrays[0].shape, bool)
    undecided = np.ones(arrays[0].shape, bool)
    for key in keys:
        ranks = []
        for array in arrays[2 * key.operand : 2 * key.operand + 2]:
            numbers = array.astype(np.float64)
            rank = np.where(np.isnan(numbers), np.inf, numbers)
            if key.signed_zeros:
                rank = np.where((numbers == 0) & np.signbit(numbers), -_TINY, rank)
            if key.signed_nans:
                rank = np.where(np.isnan(numbers) & np.signbit(numbers), -np.inf, rank)
            ranks.append(-rank if key.descending else rank)
        before |= undecided & (ranks[0] < ranks[1])
        undecided &= ranks[0] == ranks[1]
    return before


# All elements are compared with all others, so that many are a hundred million comparisons.
_MAX_ELEMENTS = 10_000


def _pairwise_order(graph: Graph, op: Operation, axis: int) -> Value:
    """Return the index of the element for each place of a stable sort along a dimension.

    Raises:
        UnsupportedError: there are too many elements to compare all of them.
    """
    values = [graph.expand(value) for value in op.operands]
    shape, rank = values[0].shape, values[0].rank
    size = shape[axis]
    if isinstance(size, int) and size > _MAX_ELEMENTS:
        op.refuse(
            f"its comparator is not the order of one operand after another, and {size} elements "
            "are too many to compare each with each",
            "sort by keys, as jax.lax.sort does",
        )
    square = (*shape[:axis], size, size, *shape[axis + 1 :])
    after = [number for number in range(rank + 1) if number != axis]  # the other one comes first
    before = [number for number in range(rank + 1) if number != axis + 1]
    own = [graph.expand(nodes.broadcast_in_dim(graph, value, after, square)) for value in values]
    other = [graph.expand(nodes.broadcast_in_dim(graph, value, before, square)) for value in values]
    first = _compare_pairs(graph, op, other, own)
    tie = nodes.elementwise(graph, "Equal", first, _compare_pairs(graph, op, own, other))
    line = nodes.count_up(graph, size)
    indices = [nodes.broadcast_in_dim(graph, line, [n], square) for n in (axis, axis + 1)]
    earlier, later = (nodes.elementwise(graph, name, *indices) for name in ("Less", "Greater"))
    # XLA, and StableHLO's interpreter, turn around what a comparator says to be before each other.
    precedes = nodes.where(graph, tie, nodes.where(graph, first, later, earlier), first)
    places = _count_before(graph, precedes, axis, shape)
    ends = [(shape, np.dtype(np.int64))] * 2
    return graph.nodes_of("TopK", [places, graph.size(size)], ends, axis=axis, largest=0)[1]


def _compare_pairs(
    graph: Graph, op: Operation, left: Sequence[Value], right: Sequence[Value]
) -> Value:
    pairs = [value for pair in zip(left, right, strict=True) for value in pair]
    (before,) = op.regions[0].apply(graph, pairs)
    return before.broadcast_to(left[0].shape)


def _count_before(graph: Graph, flags: Value, axis: int, shape: tuple[Dim, ...]) -> Value:
    """Return the number of elements that come before each element."""
    numbers = graph.expand(nodes.cast(graph, flags, np.float32))  # exact, up to 2**24 of them
    total = graph.node("ReduceSum", [numbers, graph.vector([axis])], shape=shape, keepdims=0)
    return nodes.cast(graph, total, np.int64)


RULES = {
    "stablehlo.sort": Rule(_sort, ("dimension", "is_stable"), narrow=NarrowResults.KEPT),
}
