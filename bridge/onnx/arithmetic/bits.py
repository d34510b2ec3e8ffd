"""Operations on the bits of integers."""

from __future__ import annotations

from functools import partial, reduce

import numpy as np

from bridge.onnx.arithmetic.reductions import reduce_along
from bridge.onnx.graph import nodes
from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.graph.stablehlo_operation import Emit, Operation, Rule
from bridge.onnx.graph.values import Value, constant_array

__all__ = ["RULES", "join_integers", "pack_bits", "shift", "split_integers", "unpack_bits"]


def _bits_of(value: Value) -> int:
    return 8 * value.dtype.itemsize


def _unsigned(graph: Graph, value: Value) -> Value:
    """The same bits as an unsigned integer, such as BitShift takes."""
    return nodes.cast(graph, value, f"uint{_bits_of(value)}")


def shift(graph: Graph, value: Value, amount: int, direction: str) -> Value:
    """An unsigned integer, shifted `LEFT` or `RIGHT` by fewer bits than it has."""
    return nodes.elementwise(graph, "BitShift", value, amount, direction=direction)


def _shift(direction: str) -> Emit:
    """Return the rule of a shift that brings in zeros, alone if it is by all bits or more."""

    def emit(graph: Graph, op: Operation) -> Value:
        value, amount = op.operands
        bits, by = _unsigned(graph, value), _unsigned(graph, amount)
        moved = nodes.elementwise(graph, "BitShift", bits, by, direction=direction)
        if by.array is None or (by.array >= _bits_of(value)).any():
            inside = nodes.elementwise(graph, "Less", by, _bits_of(value))
            moved = nodes.where(graph, inside, moved, 0)
        return nodes.cast(graph, moved, value.dtype)

    return emit


def _shift_right_arithmetic(graph: Graph, op: Operation) -> Value:
    """The sign comes in: what is negative is shifted as its complement, which is not."""
    value, amount = op.operands
    signed = nodes.cast(graph, value, f"int{_bits_of(value)}")
    by = _unsigned(graph, amount)
    if by.array is None or (by.array > _bits_of(value) - 1).any():
        by = nodes.elementwise(graph, "Min", by, _bits_of(value) - 1)
    negative = nodes.elementwise(graph, "Less", signed, 0)
    complement = nodes.elementwise(graph, "BitwiseNot", signed)
    natural = _unsigned(graph, nodes.where(graph, negative, complement, signed))
    moved = nodes.elementwise(graph, "BitShift", natural, by, direction="RIGHT")
    moved = nodes.cast(graph, moved, signed.dtype)
    result = nodes.where(graph, negative, nodes.elementwise(graph, "BitwiseNot", moved), moved)
    return nodes.cast(graph, result, value.dtype)


def _popcnt(graph: Graph, op: Operation) -> Value:
    (value,) = op.operands
    return nodes.cast(graph, _count_ones(graph, _unsigned(graph, value)), value.dtype)


def _count_ones(graph: Graph, value: Value) -> Value:
    """Count ones by sums of neighbouring groups of bits, twice as wide at each step."""
    bits = _bits_of(value)
    width = 1
    while width < bits:
        pattern = sum(((1 << width) - 1) << start for start in range(0, bits, 2 * width))
        low = nodes.elementwise(graph, "BitwiseAnd", value, pattern)
        high = nodes.elementwise(graph, "BitwiseAnd", shift(graph, value, width, "RIGHT"), pattern)
        value = nodes.elementwise(graph, "Add", low, high)
        width *= 2
    return value


def _count_leading_zeros(graph: Graph, op: Operation) -> Value:
    """Count the zeros that are left when the highest one has been copied to all lower bits."""
    (value,) = op.operands
    bits = _unsigned(graph, value)
    width = 1
    while width < _bits_of(value):
        bits = nodes.elementwise(graph, "BitwiseOr", bits, shift(graph, bits, width, "RIGHT"))
        width *= 2
    zeros = nodes.elementwise(graph, "BitwiseNot", bits)
    return nodes.cast(graph, _count_ones(graph, zeros), value.dtype)


def pack_bits(graph: Graph, flags: Value, bits: int) -> Value:
    """The unsigned integers of some bits whose bits are in the last dimension."""
    numbers = nodes.cast(graph, flags, np.uint64)
    moved = _shifted(graph, numbers, bits, "LEFT")
    return nodes.cast(graph, reduce_along(graph, "add", moved, [moved.rank - 1]), f"uint{bits}")


def unpack_bits(graph: Graph, value: Value) -> Value:
    """The bits of unsigned integers in a new last dimension."""
    column = nodes.expand_dims(graph, nodes.cast(graph, value, np.uint64), [value.rank])
    moved = _shifted(graph, column, 8 * value.dtype.itemsize, "RIGHT")
    return nodes.cast(graph, nodes.elementwise(graph, "BitwiseAnd", moved, 1), bool)


def split_integers(graph: Graph, bits: Value, width: int, count: int) -> list[Value]:
    """Return unsigned integers shifted so that each of several parts is lowest, as columns."""
    parts = [bits, *(shift(graph, bits, width * number, "RIGHT") for number in range(1, count))]
    return [nodes.expand_dims(graph, part, [-1]) for part in parts]


def join_integers(graph: Graph, parts: Value, width: int, count: int) -> Value:
    """Return unsigned integers whose parts are in the last dimension, the lowest bits first."""
    axis, joined = parts.rank - 1, []
    for number in range(count):
        column = nodes.slice_(graph, parts, [number], [number + 1], [1], axes=[axis])
        part = nodes.squeeze(graph, column, [axis])
        joined.append(shift(graph, part, width * number, "LEFT") if number else part)
    return reduce(partial(nodes.elementwise, graph, "BitwiseOr"), joined)


def _shifted(graph: Graph, value: Value, bits: int, direction: str) -> Value:
    """Return integers shifted by 0, 1, 2, … bits along the last dimension."""
    amounts = constant_array(np.arange(bits, dtype=np.uint64))
    return nodes.elementwise(graph, "BitShift", value, amounts, direction=direction)


RULES = {
    "stablehlo.count_leading_zeros": Rule(_count_leading_zeros, expand=False),
    "stablehlo.popcnt": Rule(_popcnt, expand=False),
    "stablehlo.shift_left": Rule(_shift("LEFT"), expand=False),
    "stablehlo.shift_right_arithmetic": Rule(_shift_right_arithmetic, expand=False),
    "stablehlo.shift_right_logical": Rule(_shift("RIGHT"), expand=False),
}
