"""Operations on the bits of integers, and the bits of one dtype read as another one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bridge.core_ops.elementary import bits_of, shift_rule, unsigned
from bridge.core_ops.stablehlo_operation import Operation, Rule
from bridge.graphs import nodes
from bridge.graphs.values import Value
from bridge.tf_operations.operation_graph import Graph
from xla_call_module.dtypes import Array

# Of each dtype of floats the bits of the exponent and of the fraction.
_FORMATS = {"float16": (5, 10), "bfloat16": (8, 7), "float32": (8, 23), "float64": (11, 52)}

_FLOATS_OF_8_BITS = ("float8_e4m3fn", "float8_e5m2")


def bitcast(graph: Graph, value: Value, dtype: Any) -> Value:
    """Return the bits of elements as those of another dtype of the same size."""
    kind = np.dtype(dtype)
    if value.dtype == kind:
        return value
    if value.array is not None:
        array: Array = np.ascontiguousarray(value.array).view(kind).reshape(value.array.shape)
        return Value(kind, value.shape, value.unbroadcast_shape, array=array)
    if "int" in value.dtype.name and "int" in kind.name:
        return nodes.cast(graph, value, kind)
    if value.dtype.name in _FLOATS_OF_8_BITS:
        return bitcast(graph, _bits_of_float8(graph, value), kind)
    if kind.name in _FLOATS_OF_8_BITS:
        return _float8_of_bits(graph, bitcast(graph, value, np.uint8), kind)
    made = graph.node("Bitcast", [value], shape=value.unbroadcast_shape, dtype=kind)
    return made.broadcast_to(value.shape)


@dataclass(frozen=True, slots=True)
class _BitsOf:
    """The fact that floats of 8 bits were made of bits.

    Attributes:
        bits: the bits, as uint8.
    """

    bits: Value


def _float8_of_bits(graph: Graph, bits: Value, kind: np.dtype[Any]) -> Value:
    """Return floats of 8 bits, which TensorFlow casts and moves, but has no Bitcast of."""
    made = nodes.look_up(
        graph, np.arange(256).astype(np.uint8).view(kind), nodes.cast(graph, bits, np.int32)
    )
    graph.remember(made, _BitsOf(bits))
    return made


def _bits_of_float8(graph: Graph, value: Value) -> Value:
    """Return the bits of floats of 8 bits, of every NaN those of the quiet one of its sign.

    Those of float8_e5m2 are the upper half of a float16. Of float8_e4m3fn the exponent and the
    fraction are within those of a float16 that is less by what the exponents are biased.
    """
    fact = graph.recall(value.name) if value.name else None
    if isinstance(fact, _BitsOf):
        return fact.bits.broadcast_to(value.shape)
    do, half = partial(nodes.elementwise, graph), graph.cast(value, np.dtype(np.float16))
    if value.dtype.name == "float8_e5m2":
        upper = do("RightShift", bitcast(graph, half, np.uint16), 8)
        return nodes.cast(graph, upper, np.uint8)
    whole = bitcast(graph, do("Mul", half, 2.0**-8), np.uint16)
    sign = do("BitwiseAnd", do("RightShift", whole, 8), 0x80)
    size = do("RightShift", do("BitwiseAnd", whole, 0x7FFF), 7)
    size = nodes.where(graph, do("IsNaN", half), 0x7F, size)
    return nodes.cast(graph, do("BitwiseOr", sign, size), np.uint8)


def _bitcast_convert(graph: Graph, op: Operation) -> Value:
    """Return the bits as elements of another size, too, of which there are more or fewer."""
    (value,), dtype = op.operands, op.result.dtype
    if value.dtype.itemsize == dtype.itemsize:
        return bitcast(graph, value, dtype)
    if value.dtype.name in _FLOATS_OF_8_BITS:
        value = bitcast(graph, value, np.uint8)
    known = value.shape[: len(op.result.shape)]
    more = tuple(dim for dim in op.result.shape[len(known) :] if dim is not None)
    shape, is_small = (*known, *more), dtype.name in _FLOATS_OF_8_BITS
    kind = np.dtype(np.uint8) if is_small else dtype
    made = graph.node("Bitcast", [graph.expand(value)], shape=shape, dtype=kind)
    return bitcast(graph, made, dtype)


def _shift_right_arithmetic(graph: Graph, op: Operation) -> Value:
    """Return a shift that brings in the sign."""
    value, amount = op.operands
    signed, by = nodes.cast(graph, value, f"int{bits_of(value)}"), unsigned(graph, amount)
    if by.array is None or (by.array > bits_of(value) - 1).any():
        by = nodes.elementwise(graph, "Min", by, bits_of(value) - 1)
    by = nodes.cast(graph, by, signed.dtype)
    return nodes.cast(graph, nodes.elementwise(graph, "RightShift", signed, by), value.dtype)


def _count_ones(graph: Graph, value: Value) -> Value:
    kind = np.dtype(np.uint8)
    made = graph.node("PopulationCount", [value], shape=value.unbroadcast_shape, dtype=kind)
    return nodes.cast(graph, made.broadcast_to(value.shape), value.dtype)


def _count_leading_zeros(graph: Graph, op: Operation) -> Value:
    """Return the number of bits that stay 0 when all those behind the first 1 are set."""
    (value,), do = op.operands, partial(nodes.elementwise, graph)
    bits, reach = unsigned(graph, value), 1
    while reach < bits_of(value):
        bits = do("BitwiseOr", bits, do("RightShift", bits, reach))
        reach *= 2
    ones = nodes.cast(graph, _count_ones(graph, bits), value.dtype)
    return do("Sub", bits_of(value), ones)


def in_total_order(graph: Graph, value: Value) -> Value:
    """Return integers that are in the order of floats: -NaN, -inf, …, -0, 0, …, inf, NaN."""
    if value.dtype.name.startswith("float8"):
        value = nodes.cast(graph, value, np.float32)
    do, signed = partial(nodes.elementwise, graph), np.dtype(f"int{bits_of(value)}")
    bits = bitcast(graph, value, signed)
    flipped = do("BitwiseXor", bits, int(np.iinfo(signed).max))
    return nodes.where(graph, do("Less", bits, 0), flipped, bits)


def _reduce_precision(graph: Graph, op: Operation) -> Value:
    """Round to fewer bits of the fraction, and to 0 and infinity for fewer of the exponent."""
    (value,), do = op.operands, partial(nodes.elementwise, graph)
    exponents, fractions = op.integer("exponent_bits"), op.integer("mantissa_bits")
    if value.dtype.name not in _FORMATS:
        op.refuse(f"it is of {value.dtype.name}")
    own_exponents, own_fractions = _FORMATS[value.dtype.name]
    unsigned = np.dtype(f"uint{bits_of(value)}")
    bits = bitcast(graph, value, unsigned)
    if fractions < own_fractions:
        dropped = own_fractions - fractions
        last = do("BitwiseAnd", do("RightShift", bits, dropped), 1)
        bits = do("Add", bits, do("Add", last, (1 << (dropped - 1)) - 1))
        kept = int(np.iinfo(unsigned).max) >> dropped << dropped
        bits = do("BitwiseAnd", bits, kept)
    rounded = bitcast(graph, bits, value.dtype)
    if exponents < own_exponents:
        rounded = _with_exponent(graph, rounded, exponents, fractions, value)
    return nodes.where(graph, do("IsNaN", value), value, rounded)


def _with_exponent(
    graph: Graph, rounded: Value, exponents: int, fractions: int, value: Value
) -> Value:
    """Return infinity for what is greater than an exponent of some bits has, 0 for what is less."""
    do = partial(nodes.elementwise, graph)
    bias = (1 << (exponents - 1)) - 1
    size = do("Abs", rounded)
    has_fractions = min(fractions, _FORMATS[value.dtype.name][1])  # beside which it is rounded up
    greatest = float(np.ldexp(2.0 - 2.0**-has_fractions, bias))
    least = float(np.ldexp(1.0, 1 - bias))
    zero = do("Mul", rounded, 0)
    infinite = nodes.where(graph, do("Less", value, 0), -np.inf, nodes.constant_like(value, np.inf))
    small = nodes.where(graph, do("Less", size, least), zero, rounded)
    return nodes.where(graph, do("Greater", size, greatest), infinite, small)


RULES = {
    "stablehlo.bitcast_convert": Rule(_bitcast_convert, expand=False),
    "stablehlo.count_leading_zeros": Rule(_count_leading_zeros, expand=False),
    "stablehlo.popcnt": Rule(lambda graph, op: _count_ones(graph, *op.operands), expand=False),
    "stablehlo.reduce_precision": Rule(
        _reduce_precision, ("exponent_bits", "mantissa_bits"), expand=False
    ),
    "stablehlo.shift_left": Rule(shift_rule("LeftShift"), expand=False),
    "stablehlo.shift_right_arithmetic": Rule(_shift_right_arithmetic, expand=False),
    "stablehlo.shift_right_logical": Rule(shift_rule("RightShift"), expand=False),
}
