"""Operations on the bits of integers, and the bits of one dtype read as another one.

ONNX has no operation for it before version 26. Where the bits of NaNs do not matter, floats are
taken apart by arithmetic that is exact: the powers of two are looked up, and everything is a
product or difference without rounding. Elsewhere the model is one of version 26.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np

from bridge.core_ops.elementary import bits_of, shift_rule, unsigned
from bridge.core_ops.stablehlo_operation import Operation, Rule
from bridge.graphs import nodes
from bridge.graphs.folding import MAX_BYTES
from bridge.graphs.values import Value, constant_array, of_array
from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.graph.onnx_runtime import BITCAST_OPSET
from bridge.onnx.rules.reductions import reduce_along
from xla_call_module.dtypes import Array
from xla_call_module.size_polynomials import numbers_of, product


def shift(graph: Graph, value: Value, amount: int, direction: str) -> Value:
    """An unsigned integer, shifted `LEFT` or `RIGHT` by fewer bits than it has."""
    return nodes.elementwise(graph, "BitShift", value, amount, direction=direction)


def _shift_right_arithmetic(graph: Graph, op: Operation) -> Value:
    """The sign comes in: what is negative is shifted as its complement, which is not."""
    value, amount = op.operands
    signed = nodes.cast(graph, value, f"int{bits_of(value)}")
    by = unsigned(graph, amount)
    if by.array is None or (by.array > bits_of(value) - 1).any():
        by = nodes.elementwise(graph, "Min", by, bits_of(value) - 1)
    negative = nodes.elementwise(graph, "Less", signed, 0)
    complement = nodes.elementwise(graph, "BitwiseNot", signed)
    natural = unsigned(graph, nodes.where(graph, negative, complement, signed))
    moved = nodes.elementwise(graph, "BitShift", natural, by, direction="RIGHT")
    moved = nodes.cast(graph, moved, signed.dtype)
    result = nodes.where(graph, negative, nodes.elementwise(graph, "BitwiseNot", moved), moved)
    return nodes.cast(graph, result, value.dtype)


def _popcnt(graph: Graph, op: Operation) -> Value:
    (value,) = op.operands
    return nodes.cast(graph, _count_ones(graph, unsigned(graph, value)), value.dtype)


def _count_ones(graph: Graph, value: Value) -> Value:
    """Count ones by sums of neighbouring groups of bits, twice as wide at each step."""
    bits = bits_of(value)
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
    bits = unsigned(graph, value)
    width = 1
    while width < bits_of(value):
        bits = nodes.elementwise(graph, "BitwiseOr", bits, shift(graph, bits, width, "RIGHT"))
        width *= 2
    zeros = nodes.elementwise(graph, "BitwiseNot", bits)
    return nodes.cast(graph, _count_ones(graph, zeros), value.dtype)


def _pack_bits(graph: Graph, flags: Value, bits: int) -> Value:
    """The unsigned integers of some bits whose bits are in the last dimension."""
    numbers = nodes.cast(graph, flags, np.uint64)
    moved = _shifted(graph, numbers, bits, "LEFT")
    return nodes.cast(graph, reduce_along(graph, "add", moved, [moved.rank - 1]), f"uint{bits}")


def _unpack_bits(graph: Graph, value: Value) -> Value:
    """The bits of unsigned integers in a new last dimension."""
    column = nodes.expand_dims(graph, nodes.cast(graph, value, np.uint64), [value.rank])
    moved = _shifted(graph, column, 8 * value.dtype.itemsize, "RIGHT")
    return nodes.cast(graph, nodes.elementwise(graph, "BitwiseAnd", moved, 1), bool)


def _split_integers(graph: Graph, bits: Value, width: int, count: int) -> list[Value]:
    """Return unsigned integers shifted so that each of several parts is lowest, as columns."""
    parts = [bits, *(shift(graph, bits, width * number, "RIGHT") for number in range(1, count))]
    return [nodes.expand_dims(graph, part, [-1]) for part in parts]


def _join_integers(graph: Graph, parts: Value, width: int, count: int) -> Value:
    """Return unsigned integers whose parts are in the last dimension, the lowest bits first."""
    axis, joined = parts.rank - 1, []
    for number in range(count):
        column = nodes.slice_along(graph, parts, axis, number, number + 1)
        part = nodes.squeeze(graph, column, [axis])
        joined.append(shift(graph, part, width * number, "LEFT") if number else part)
    return reduce(partial(nodes.elementwise, graph, "BitwiseOr"), joined)


def _shifted(graph: Graph, value: Value, bits: int, direction: str) -> Value:
    """Return integers shifted by 0, 1, 2, … bits along the last dimension."""
    amounts = constant_array(np.arange(bits, dtype=np.uint64))
    return nodes.elementwise(graph, "BitShift", value, amounts, direction=direction)


@dataclass(frozen=True, slots=True)
class _Format:
    """A binary format of IEEE 754: a sign, then the exponent, then the fraction."""

    exponent_bits: int
    fraction_bits: int

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.fraction_bits

    @property
    def largest(self) -> int:
        """The exponent of infinities and NaN, as it is stored."""
        return (1 << self.exponent_bits) - 1

    @property
    def fraction_units(self) -> Array:
        """The power of two of the last fraction bit, for each exponent as it is stored."""
        lowest = 2 - (1 << (self.exponent_bits - 1)) - self.fraction_bits
        return np.maximum(np.arange(self.largest + 1), 1) - 1 + lowest


_FORMATS = {
    "bfloat16": _Format(8, 7),
    "float16": _Format(5, 10),
    "float32": _Format(8, 23),
    "float64": _Format(11, 52),
}


NOT_READ = (
    f"the sign of a NaN cannot be read before opset {BITCAST_OPSET}",
    f"leave opset out, or pass {BITCAST_OPSET}, with an onnx package that has it",
)


def _bitcast_convert(graph: Graph, op: Operation) -> Value:
    (value,) = op.operands
    dtype = op.result.dtype
    if value.dtype == dtype:
        return value
    if (known := _of_constant(value, dtype)) is not None:
        return known
    unsigned = f"uint{8 * value.dtype.itemsize}"
    if value.dtype == np.bool_:
        bits = _pack_bits(graph, value, 8 * dtype.itemsize)
    elif value.is_float:
        _check(op, value.dtype)
        if not graph.reads_bits():
            op.refuse(*NOT_READ)
        bits = _bits_of_floats(graph, value)
    else:
        bits = nodes.cast(graph, value, unsigned)
    if dtype == np.bool_:
        return _unpack_bits(graph, bits)
    wanted = np.dtype(f"uint{8 * dtype.itemsize}")
    if wanted.itemsize < bits.dtype.itemsize:
        bits = _split(graph, bits, wanted)
    elif wanted.itemsize > bits.dtype.itemsize:
        bits = _join(graph, bits, wanted)
    if np.zeros(0, dtype).dtype.kind in "iu":
        return nodes.cast(graph, bits, dtype)
    _check(op, dtype)
    return _floats_of_bits(graph, bits, dtype)


def _of_constant(value: Value, dtype: np.dtype[Any]) -> Value | None:
    """Return the bits of a constant, NaNs included; None for any other value."""
    if value.array is None or np.dtype(bool) in (value.dtype, dtype):
        return None
    ratio = value.dtype.itemsize / dtype.itemsize
    if ratio == 1:
        array = np.frombuffer(value.array.tobytes(), dtype).reshape(value.array.shape)
        return constant_array(array).broadcast_to(value.shape)
    count = product(value.shape)
    if not isinstance(count, int) or count * value.dtype.itemsize > MAX_BYTES:
        return None
    array = np.broadcast_to(value.array, numbers_of(value.shape))
    shape = array.shape[:-1] if ratio < 1 else (*array.shape, int(ratio))
    return of_array(np.frombuffer(array.tobytes(), dtype).reshape(shape))


def _check(op: Operation, dtype: np.dtype[Any]) -> None:
    if dtype.name not in _FORMATS:
        op.refuse(f"the bits of {dtype.name} cannot be read")


def _split(graph: Graph, bits: Value, dtype: np.dtype[Any]) -> Value:
    """Return each integer as several, the lowest bits first, in a new last dimension."""
    count = bits.dtype.itemsize // dtype.itemsize
    columns = _split_integers(graph, bits, 8 * dtype.itemsize, count)
    return nodes.concat(graph, [nodes.cast(graph, part, dtype) for part in columns], bits.rank)


def _join(graph: Graph, bits: Value, dtype: np.dtype[Any]) -> Value:
    """Return the integers of the last dimension, the lowest bits first, as one."""
    count = dtype.itemsize // bits.dtype.itemsize
    return _join_integers(graph, nodes.cast(graph, bits, dtype), 8 * bits.dtype.itemsize, count)


def _floats_of_bits(graph: Graph, bits: Value, dtype: np.dtype[Any]) -> Value:
    """The floats of unsigned integers of their size."""
    format_ = _FORMATS[dtype.name]
    if graph.opset >= BITCAST_OPSET:
        return _bitcast(graph, bits, dtype)
    do = partial(nodes.elementwise, graph)
    if (fraction := _random_fraction(graph, bits, format_)) is not None:
        counted = nodes.cast(graph, fraction, np.float64 if format_.bits == 64 else np.float32)
        part = do("Mul", counted, 2.0**-format_.fraction_bits)
        return nodes.cast(graph, do("Add", part, 1), dtype)
    exponent = shift(graph, bits, format_.fraction_bits, "RIGHT")
    exponent = do("BitwiseAnd", exponent, format_.largest)
    index = nodes.cast(graph, exponent, np.int64)
    fraction = do("BitwiseAnd", bits, (1 << format_.fraction_bits) - 1)
    zero = nodes.constant_like(bits, 0)
    is_small = do("Equal", exponent, zero)
    hidden = nodes.where(graph, is_small, zero, 1 << format_.fraction_bits)
    count = nodes.cast(graph, do("BitwiseOr", fraction, hidden), np.float64)
    powers = np.ldexp(1.0, format_.fraction_units)
    powers[-1] = np.inf
    size = do("Mul", count, nodes.look_up(graph, powers, index))
    special = do("Equal", exponent, format_.largest)
    is_nan = do("And", special, do("Not", do("Equal", fraction, zero)))
    size = nodes.where(graph, is_nan, np.nan, size)
    positive = do("Equal", shift(graph, bits, format_.bits - 1, "RIGHT"), zero)
    return nodes.cast(graph, nodes.where(graph, positive, size, do("Neg", size)), dtype)


def _random_fraction(graph: Graph, bits: Value, format_: _Format) -> Value | None:
    """The fraction of what is at least 1 and less than 2, as `jax.random.uniform` makes it."""
    one = (format_.largest // 2) << format_.fraction_bits
    node = graph.producer(bits)
    for place, name in enumerate(node.inputs if node and node.op_type == "BitwiseOr" else ()):
        array = graph.initializers.get(name)
        if array is None or array.size != 1 or array.reshape(()) != one or node is None:
            continue
        fraction = dataclasses.replace(bits, name=node.inputs[1 - place])
        source = graph.producer(fraction)
        amount = None if source is None else graph.initializers.get(source.inputs[-1])
        if source is None or source.attributes.get("direction") != "RIGHT" or amount is None:
            continue
        if amount.size == 1 and amount.reshape(()) == format_.bits - format_.fraction_bits:
            return fraction
    return None


def _bits_of_floats(graph: Graph, value: Value) -> Value:
    """The bits of floats as unsigned integers of their size."""
    format_ = _FORMATS[value.dtype.name]
    dtype = np.dtype(f"uint{format_.bits}")
    if graph.opset >= BITCAST_OPSET:
        return _bitcast(graph, value, dtype)
    do = partial(nodes.elementwise, graph)
    exact = nodes.cast(graph, value, np.float64)
    size = do("Abs", exact)
    is_inf, is_nan = do("IsInf", size), do("IsNaN", size)
    finite = nodes.where(graph, do("Or", is_inf, is_nan), 1, size)
    # The exponent as it is stored: how many of the powers of two are no larger than the size.
    powers = np.ldexp(1.0, format_.fraction_units[1:-1] + format_.fraction_bits)
    index = _count_up_to(graph, powers, finite)
    count = _scaled(graph, format_, finite, index)
    wide = np.dtype(np.uint64 if format_.bits == 64 else np.uint32)
    fraction = nodes.cast(graph, nodes.cast(graph, count, np.int64), wide)
    fraction = do("BitwiseAnd", fraction, (1 << format_.fraction_bits) - 1)
    exponent = shift(graph, nodes.cast(graph, index, wide), format_.fraction_bits, "LEFT")
    bits = do("BitwiseOr", exponent, fraction)
    infinity = format_.largest << format_.fraction_bits
    bits = nodes.where(graph, is_inf, infinity, bits)
    bits = nodes.where(graph, is_nan, infinity | 1 << (format_.fraction_bits - 1), bits)
    negative = do("BitwiseOr", bits, 1 << (format_.bits - 1))
    return nodes.cast(graph, nodes.where(graph, is_negative(graph, exact), negative, bits), dtype)


def _bitcast(graph: Graph, value: Value, dtype: np.dtype[Any]) -> Value:
    """The same bits as elements of a dtype of their size."""
    if (known := _of_constant(value, dtype)) is not None:
        return known
    made = graph.node("BitCast", [value], shape=value.unbroadcast_shape, dtype=dtype, to=dtype)
    return made.broadcast_to(value.shape)


def in_total_order(graph: Graph, value: Value) -> Value | None:
    """Return integers in the order -NaN, -inf, …, -0, 0, …, inf, NaN; None without BitCast."""
    if value.array is None and not graph.reads_bits():
        return None
    signed = np.dtype(f"int{8 * value.dtype.itemsize}")
    bits = _bitcast(graph, value, signed)
    if signed.itemsize < np.dtype(np.int32).itemsize:
        bits = nodes.cast(graph, bits, np.int32)
    turned = nodes.elementwise(graph, "BitwiseXor", bits, np.iinfo(signed).max)
    return nodes.where(graph, nodes.elementwise(graph, "Less", bits, 0), turned, bits)


def is_negative(graph: Graph, value: Value) -> Value:
    """Return whether the sign is set; that of 0 is the sign of its reciprocal."""
    is_zero = nodes.elementwise(graph, "Equal", value, 0)
    told = nodes.where(graph, is_zero, nodes.elementwise(graph, "Reciprocal", value), value)
    return nodes.elementwise(graph, "Less", told, 0)


def _count_up_to(graph: Graph, ascending: Array, value: Value) -> Value:
    """Return the number of ascending numbers that are no larger than a value, in int64."""
    do = partial(nodes.elementwise, graph)
    count = nodes.constant(0, np.int64)
    for bit in reversed(range(len(ascending).bit_length())):
        place = do("Min", do("Add", count, 1 << bit), len(ascending))
        number = nodes.look_up(graph, ascending, do("Sub", place, 1))
        count = nodes.where(graph, do("LessOrEqual", number, value), place, count)
    return count


def _scaled(graph: Graph, format_: _Format, size: Value, index: Value) -> Value:
    """The size in units of the last bit of its fraction, a whole number.

    It is scaled twice, since the reciprocal of the smallest power is no number.
    """
    powers = format_.fraction_units
    for half in (powers // 2, powers - powers // 2):
        factor = nodes.look_up(graph, np.ldexp(1.0, -half), index)
        size = nodes.elementwise(graph, "Mul", size, factor)
    return size


def _reduce_precision(graph: Graph, op: Operation) -> Value:
    """Round to fewer bits, and to infinity or zero where the exponent has too few.

    As in xla/service/elemental_ir_emitter.cc, `EmitReducePrecisionIR`.
    """
    (value,) = op.operands
    _check(op, value.dtype)
    own = _FORMATS[value.dtype.name]
    new = _Format(op.integer("exponent_bits"), op.integer("mantissa_bits"))
    if new.exponent_bits >= own.exponent_bits and new.fraction_bits >= own.fraction_bits:
        return value
    if new.fraction_bits == 0 and value.array is not None and np.isnan(value.array).any():
        op.refuse(
            "it rounds a constant NaN to no bits of a fraction, which is NaN in XLA, and infinity "
            "in StableHLO's interpreter"
        )
    if (new.exponent_bits, own.exponent_bits, new.fraction_bits) == (8, 8, 7):
        return nodes.cast(graph, nodes.cast(graph, value, "bfloat16"), value.dtype)
    bits = _bits_of_floats(graph, value)
    if bits.dtype.itemsize < np.dtype(np.uint32).itemsize:
        bits = nodes.cast(graph, bits, np.uint32)
    if new.fraction_bits < own.fraction_bits:
        bits = _rounded(graph, bits, own.fraction_bits - new.fraction_bits)
    if new.exponent_bits < own.exponent_bits:
        bits = _with_exponent(graph, bits, own, new)
    reduced = nodes.cast(graph, bits, f"uint{own.bits}")
    is_nan = nodes.elementwise(graph, "IsNaN", value)
    return nodes.where(graph, is_nan, value, _floats_of_bits(graph, reduced, value.dtype))


def _rounded(graph: Graph, bits: Value, dropped: int) -> Value:
    """Return the bits without the last ones, rounded to the nearest, halves to even."""
    do = partial(nodes.elementwise, graph)
    odd = do("BitwiseAnd", shift(graph, bits, dropped, "RIGHT"), 1)
    bias = do("Add", odd, (1 << (dropped - 1)) - 1)
    kept = (1 << 8 * bits.dtype.itemsize) - (1 << dropped)
    return do("BitwiseAnd", do("Add", bits, bias), kept)


def _with_exponent(graph: Graph, bits: Value, own: _Format, new: _Format) -> Value:
    do = partial(nodes.elementwise, graph)
    bias, reach = own.largest // 2, new.largest // 2
    infinity = own.largest << own.fraction_bits
    exponent = do("BitwiseAnd", bits, infinity)
    sign = do("BitwiseAnd", bits, 1 << (own.bits - 1))
    is_high = do("Greater", exponent, (bias + reach) << own.fraction_bits)
    is_low = do("LessOrEqual", exponent, (bias - reach) << own.fraction_bits)
    bits = nodes.where(graph, is_high, do("BitwiseOr", sign, infinity), bits)
    return nodes.where(graph, is_low, sign, bits)


RULES = {
    "stablehlo.count_leading_zeros": Rule(_count_leading_zeros, expand=False),
    "stablehlo.popcnt": Rule(_popcnt, expand=False),
    "stablehlo.shift_left": Rule(shift_rule("BitShift", direction="LEFT"), expand=False),
    "stablehlo.shift_right_arithmetic": Rule(_shift_right_arithmetic, expand=False),
    "stablehlo.shift_right_logical": Rule(shift_rule("BitShift", direction="RIGHT"), expand=False),
    "stablehlo.bitcast_convert": Rule(_bitcast_convert, expand=False),
    "stablehlo.reduce_precision": Rule(
        _reduce_precision, ("exponent_bits", "mantissa_bits"), expand=False
    ),
}
