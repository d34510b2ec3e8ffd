"""The bits of one dtype read as another one.

ONNX has no operation for it before version 26. Where the bits of NaNs do not matter, floats are
taken apart by arithmetic that is exact: the powers of two are looked up, and everything is a
product or difference without rounding. Elsewhere the model is one of version 26.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bridge.core.size_polynomials import numbers_of, product
from bridge.onnx.arithmetic.bits import pack_bits, shift, unpack_bits
from bridge.onnx.graph import nodes
from bridge.onnx.graph.folding import MAX_BYTES
from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.graph.onnx_runtime import BITCAST_OPSET
from bridge.onnx.graph.stablehlo_operation import Operation, Rule
from bridge.onnx.graph.values import Value, of_array
from xla_call_module.dtypes import Array

__all__ = [
    "NOT_READ",
    "RULES",
    "bits_of_floats",
    "count_up_to",
    "floats_of_bits",
    "in_total_order",
    "is_negative",
]


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
    def lowest(self) -> int:
        """The power of two of the last bit of the smallest numbers."""
        return 2 - (1 << (self.exponent_bits - 1)) - self.fraction_bits


_FORMATS = {
    "bfloat16": _Format(8, 7),
    "float16": _Format(5, 10),
    "float32": _Format(8, 23),
    "float64": _Format(11, 52),
}


NOT_READ = (
    f"the sign of a NaN cannot be told before version {BITCAST_OPSET} of ONNX's operations",
    f"leave opset out, or pass {BITCAST_OPSET}, with a package onnx that knows it",
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
        bits = pack_bits(graph, value, 8 * dtype.itemsize)
    elif value.is_float:
        _check(op, value.dtype)
        if not graph.reads_bits():
            op.refuse(*NOT_READ)
        bits = bits_of_floats(graph, value)
    else:
        bits = nodes.cast(graph, value, unsigned)
    if dtype == np.bool_:
        return unpack_bits(graph, bits)
    wanted = np.dtype(f"uint{8 * dtype.itemsize}")
    if wanted.itemsize < bits.dtype.itemsize:
        bits = _split(graph, bits, wanted)
    elif wanted.itemsize > bits.dtype.itemsize:
        bits = _join(graph, bits, wanted)
    if np.zeros(0, dtype).dtype.kind in "iu":
        return nodes.cast(graph, bits, dtype)
    _check(op, dtype)
    return floats_of_bits(graph, bits, dtype)


def _of_constant(value: Value, dtype: np.dtype[Any]) -> Value | None:
    """Return the bits of a constant, NaNs included; None for any other value."""
    if value.array is None or np.dtype(bool) in (value.dtype, dtype):
        return None
    ratio = value.dtype.itemsize / dtype.itemsize
    if ratio == 1:
        array = np.frombuffer(value.array.tobytes(), dtype).reshape(value.array.shape)
        return Value(dtype, value.shape, value.unbroadcast_shape, array=array)
    count = product(value.shape)
    if not isinstance(count, int) or count * value.dtype.itemsize > MAX_BYTES:
        return None
    array = np.broadcast_to(value.array, numbers_of(value.shape))
    shape = array.shape[:-1] if ratio < 1 else (*array.shape, int(ratio))
    return of_array(np.frombuffer(array.tobytes(), dtype).reshape(shape))


def _check(op: Operation, dtype: np.dtype[Any]) -> None:
    if dtype.name not in _FORMATS:
        op.refuse(f"the bits of {dtype.name} cannot be told")


def _split(graph: Graph, bits: Value, dtype: np.dtype[Any]) -> Value:
    """Return each integer as several, the lowest bits first, in a new last dimension."""
    width = 8 * dtype.itemsize
    count = bits.dtype.itemsize // dtype.itemsize
    parts = [bits, *(shift(graph, bits, width * n, "RIGHT") for n in range(1, count))]
    narrow = [nodes.cast(graph, part, dtype) for part in parts]
    columns = [nodes.expand_dims(graph, part, [-1]) for part in narrow]
    return nodes.concat(graph, columns, bits.rank)


def _join(graph: Graph, bits: Value, dtype: np.dtype[Any]) -> Value:
    """Return the integers of the last dimension, the lowest bits first, as one."""
    width, axis = 8 * bits.dtype.itemsize, bits.rank - 1
    whole: Value | None = None
    for number in range(dtype.itemsize // bits.dtype.itemsize):
        column = nodes.slice_(graph, bits, [number], [number + 1], [1], axes=[axis])
        part = nodes.cast(graph, nodes.squeeze(graph, column, [axis]), dtype)
        if number:
            part = shift(graph, part, width * number, "LEFT")
        whole = part if whole is None else nodes.elementwise(graph, "BitwiseOr", whole, part)
    assert whole is not None, "there is at least one"
    return whole


def _powers(format_: _Format) -> Value:
    """Return the unit of the last fraction bit for each stored exponent; inf for the last."""
    exponents = np.maximum(np.arange(format_.largest + 1), 1) - 1 + format_.lowest
    powers = np.ldexp(1.0, exponents)
    powers[-1] = np.inf
    return Value(powers.dtype, powers.shape, powers.shape, array=powers)


def floats_of_bits(graph: Graph, bits: Value, dtype: np.dtype[Any]) -> Value:
    """The floats of unsigned integers of their size."""
    format_ = _FORMATS[dtype.name]
    if graph.opset >= BITCAST_OPSET:
        return _bitcast(graph, bits, dtype)
    do = partial(nodes.elementwise, graph)
    if (fraction := _random_fraction(graph, bits, format_)) is not None:
        counted = nodes.cast(graph, fraction, np.float64 if format_.bits == 64 else np.float32)
        part = do("Mul", counted, nodes.constant_like(counted, 2.0**-format_.fraction_bits))
        return nodes.cast(graph, do("Add", part, nodes.constant_like(part, 1)), dtype)
    exponent = shift(graph, bits, format_.fraction_bits, "RIGHT")
    exponent = do("BitwiseAnd", exponent, nodes.constant_like(bits, format_.largest))
    index = nodes.cast(graph, exponent, np.int64)
    fraction = do("BitwiseAnd", bits, nodes.constant_like(bits, (1 << format_.fraction_bits) - 1))
    hidden = nodes.constant_like(bits, 1 << format_.fraction_bits)
    zero = nodes.constant_like(bits, 0)
    is_small = do("Equal", exponent, zero, dtype=bool)
    count = do("BitwiseOr", fraction, nodes.where(graph, is_small, zero, hidden))
    size = do("Mul", nodes.cast(graph, count, np.float64), _look_up(graph, format_, index))
    largest = nodes.constant_like(bits, format_.largest)
    special = do("Equal", exponent, largest, dtype=bool)
    some = do("Not", do("Equal", fraction, zero, dtype=bool))
    is_nan = do("And", special, some)
    size = nodes.where(graph, is_nan, nodes.constant(np.nan, np.float64), size)
    sign = shift(graph, bits, format_.bits - 1, "RIGHT")
    positive = do("Equal", sign, zero, dtype=bool)
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


def _look_up(graph: Graph, format_: _Format, index: Value) -> Value:
    made = graph.node("Gather", [_powers(format_), index], shape=index.unbroadcast_shape, axis=0)
    return made.broadcast_to(index.shape)


def bits_of_floats(graph: Graph, value: Value) -> Value:
    """The bits of floats as unsigned integers of their size."""
    format_ = _FORMATS[value.dtype.name]
    dtype = np.dtype(f"uint{format_.bits}")
    if graph.opset >= BITCAST_OPSET:
        return _bitcast(graph, value, dtype)
    do = partial(nodes.elementwise, graph)
    exact = nodes.cast(graph, value, np.float64)
    size = do("Abs", exact)
    finite = nodes.where(graph, _is_special(graph, size), nodes.constant(1, np.float64), size)
    index = _stored_exponent(graph, format_, finite)
    # Twice, since the reciprocal of the smallest power is no number.
    count = _scaled(graph, format_, finite, index)
    wide = np.dtype(np.uint64 if format_.bits == 64 else np.uint32)
    fraction = nodes.cast(graph, nodes.cast(graph, count, np.int64), wide)
    mask = nodes.constant((1 << format_.fraction_bits) - 1, wide)
    fraction = do("BitwiseAnd", fraction, mask)
    exponent = shift(graph, nodes.cast(graph, index, wide), format_.fraction_bits, "LEFT")
    bits = do("BitwiseOr", exponent, fraction)
    infinity = format_.largest << format_.fraction_bits
    quiet = infinity | 1 << (format_.fraction_bits - 1)
    is_inf = do("IsInf", size, dtype=bool)
    is_nan = do("IsNaN", size, dtype=bool)
    bits = nodes.where(graph, is_inf, nodes.constant(infinity, wide), bits)
    bits = nodes.where(graph, is_nan, nodes.constant(quiet, wide), bits)
    sign = nodes.constant(1 << (format_.bits - 1), wide)
    bits = nodes.where(graph, is_negative(graph, exact), do("BitwiseOr", bits, sign), bits)
    return nodes.cast(graph, bits, dtype)


def _bitcast(graph: Graph, value: Value, dtype: np.dtype[Any]) -> Value:
    """The same bits as elements of a dtype of their size."""
    if (known := _of_constant(value, dtype)) is not None:
        return known
    made = graph.node("BitCast", [value], shape=value.unbroadcast_shape, dtype=dtype, to=dtype)
    return made.broadcast_to(value.shape)


def in_total_order(graph: Graph, value: Value) -> Value | None:
    """Return integers in the order -NaN, -inf, …, -0, 0, …, inf, NaN; None without BitCast.

    Raises:
        NewerOpset: it is told by an operation of a later version.
    """
    if value.array is None and not graph.reads_bits():
        return None
    signed = np.dtype(f"int{8 * value.dtype.itemsize}")
    bits = _bitcast(graph, value, signed)
    if signed.itemsize < np.dtype(np.int32).itemsize:
        bits = nodes.cast(graph, bits, np.int32)
    most = nodes.constant_like(bits, np.iinfo(signed).max)
    negative = nodes.elementwise(graph, "Less", bits, nodes.constant_like(bits, 0), dtype=bool)
    return nodes.where(graph, negative, nodes.elementwise(graph, "BitwiseXor", bits, most), bits)


def _is_special(graph: Graph, size: Value) -> Value:
    parts = [nodes.elementwise(graph, name, size, dtype=bool) for name in ("IsInf", "IsNaN")]
    return nodes.elementwise(graph, "Or", *parts)


def is_negative(graph: Graph, value: Value) -> Value:
    """Return whether the sign is set; that of 0 is the sign of its reciprocal."""
    zero = nodes.constant_like(value, 0)
    is_zero = nodes.elementwise(graph, "Equal", value, zero, dtype=bool)
    told = nodes.where(graph, is_zero, nodes.elementwise(graph, "Reciprocal", value), value)
    return nodes.elementwise(graph, "Less", told, zero, dtype=bool)


def _stored_exponent(graph: Graph, format_: _Format, size: Value) -> Value:
    """The exponent as it is stored: how many of the powers of two are no larger than the size."""
    powers = np.ldexp(
        1.0, np.arange(1, format_.largest) - 1 + format_.lowest + format_.fraction_bits
    )
    return count_up_to(graph, powers, size)


def count_up_to(graph: Graph, ascending: Array, value: Value) -> Value:
    """Return the number of ascending numbers that are no larger than a value, in int64."""
    low, high = nodes.constant(0, np.int64), nodes.constant(len(ascending), np.int64)
    table = Value(ascending.dtype, ascending.shape, ascending.shape, array=ascending)
    do: Callable[..., Value] = partial(nodes.elementwise, graph)
    count = low
    step = 1 << (len(ascending).bit_length() - 1)
    while step:
        tried = do("Add", count, nodes.constant(step, np.int64))
        place = do("Min", tried, high)
        index = do("Sub", place, nodes.constant(1, np.int64))
        power = graph.node(
            "Gather", [table, index], shape=index.unbroadcast_shape, axis=0
        ).broadcast_to(index.shape)
        reached = do("LessOrEqual", power, value, dtype=bool)
        count = nodes.where(graph, reached, place, count)
        step //= 2
    return count


def _scaled(graph: Graph, format_: _Format, size: Value, index: Value) -> Value:
    """The size in units of the last bit of its fraction, a whole number."""
    powers = np.maximum(np.arange(format_.largest + 1), 1) - 1 + format_.lowest
    for half in (powers // 2, powers - powers // 2):
        factors = np.ldexp(1.0, -half)
        table = Value(factors.dtype, factors.shape, factors.shape, array=factors)
        factor = graph.node("Gather", [table, index], shape=index.unbroadcast_shape, axis=0)
        size = nodes.elementwise(graph, "Mul", size, factor.broadcast_to(index.shape))
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
    bits = bits_of_floats(graph, value)
    if bits.dtype.itemsize < np.dtype(np.uint32).itemsize:
        bits = nodes.cast(graph, bits, np.uint32)
    if new.fraction_bits < own.fraction_bits:
        bits = _rounded(graph, bits, own.fraction_bits - new.fraction_bits)
    if new.exponent_bits < own.exponent_bits:
        bits = _with_exponent(graph, bits, own, new)
    reduced = nodes.cast(graph, bits, f"uint{own.bits}")
    is_nan = nodes.elementwise(graph, "IsNaN", value, dtype=bool)
    return nodes.where(graph, is_nan, value, floats_of_bits(graph, reduced, value.dtype))


def _rounded(graph: Graph, bits: Value, dropped: int) -> Value:
    """Return the bits without the last ones, rounded to the nearest, halves to even."""
    do = partial(nodes.elementwise, graph)
    one = nodes.constant_like(bits, 1)
    odd = do("BitwiseAnd", shift(graph, bits, dropped, "RIGHT"), one)
    bias = do("Add", odd, nodes.constant_like(bits, (1 << (dropped - 1)) - 1))
    kept = (1 << 8 * bits.dtype.itemsize) - (1 << dropped)
    return do("BitwiseAnd", do("Add", bits, bias), nodes.constant_like(bits, kept))


def _with_exponent(graph: Graph, bits: Value, own: _Format, new: _Format) -> Value:
    do = partial(nodes.elementwise, graph)
    bias, reach = own.largest // 2, new.largest // 2
    infinity = own.largest << own.fraction_bits
    exponent = do("BitwiseAnd", bits, nodes.constant_like(bits, infinity))
    high = nodes.constant_like(bits, (bias + reach) << own.fraction_bits)
    low = nodes.constant_like(bits, (bias - reach) << own.fraction_bits)
    sign = do("BitwiseAnd", bits, nodes.constant_like(bits, 1 << (own.bits - 1)))
    infinite = do("BitwiseOr", sign, nodes.constant_like(bits, infinity))
    bits = nodes.where(graph, do("Greater", exponent, high, dtype=bool), infinite, bits)
    return nodes.where(graph, do("LessOrEqual", exponent, low, dtype=bool), sign, bits)


RULES = {
    "stablehlo.bitcast_convert": Rule(_bitcast_convert, expand=False),
    "stablehlo.reduce_precision": Rule(
        _reduce_precision, ("exponent_bits", "mantissa_bits"), expand=False
    ),
}
