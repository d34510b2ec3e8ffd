"""What an operation has made in a wider dtype becomes a value of the element type that is held."""

from __future__ import annotations

from functools import partial

import numpy as np

from bridge.onnx.arithmetic.bitcasts import count_up_to, is_negative
from bridge.onnx.arithmetic.bits import shift
from bridge.onnx.graph import nodes
from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.graph.storage_dtypes import Held, HeldFloat, HeldInteger
from bridge.onnx.graph.values import Value
from xla_call_module.dtypes import Array

__all__ = [
    "clip",
    "fit",
    "from_bits",
    "from_natural",
    "join",
    "round_to",
    "split",
    "to_bits",
    "to_natural",
    "wrap",
]

_PRECISION = 53  # bits of a float64, with the one that is not stored


def fit(graph: Graph, value: Value, held: Held) -> Value:
    """The value of the element type for each number: integers wrap around, floats are rounded."""
    if isinstance(held, HeldInteger):
        return wrap(graph, value, held)
    return nodes.cast(graph, round_to(graph, value, held), held.dtype)


def wrap(graph: Graph, value: Value, held: HeldInteger) -> Value:
    """Modulo the size of an integer, in two's complement.

    With a sign it is `((x & 15) ^ 8) - 8` of 4 bits, of which nothing overflows in any runtime.
    """
    if _is_within(_known(graph, value), held):
        return value
    do = partial(nodes.elementwise, graph)
    natural = do("BitwiseAnd", value, nodes.number_like(value, held.mask))
    if held.is_unsigned:
        return natural
    sign = nodes.number_like(value, -held.least)
    return do("Sub", do("BitwiseXor", natural, sign), sign)


def _known(graph: Graph, value: Value) -> Array | None:
    """The array of a constant or of a parameter."""
    return graph.initializers.get(value.name) if value.array is None else value.array


def _is_within(array: Array | None, held: HeldInteger) -> bool:
    return array is not None and bool(((array >= held.least) & (array <= held.greatest)).all())


def clip(graph: Graph, value: Value, held: HeldInteger) -> Value:
    """The nearest number that an integer type has."""
    raised = nodes.elementwise(graph, "Max", value, nodes.number_like(value, held.least))
    return nodes.elementwise(graph, "Min", raised, nodes.number_like(value, held.greatest))


def round_to(graph: Graph, value: Value, held: HeldFloat) -> Value:
    """The nearest number of a float type, and of two the even one, in float64.

    The difference `c * x - (c * x - x)` with `c = 2**k + 1` is x without the last k bits of a
    float64 (T. J. Dekker, A floating-point technique for extending the available precision, 1971),
    rounded as `c * x` is. The numbers below the least that has all bits are multiples of one.
    """
    do = partial(nodes.elementwise, graph)
    number = partial(nodes.constant, dtype=np.float64)
    exact = nodes.cast(graph, value, np.float64)
    size = do("Min", do("Abs", exact), number(4 * held.greatest))  # more is as that is
    product = do("Mul", size, number(2.0 ** (_PRECISION - 1 - held.fraction_bits) + 1))
    rounded = do("Sub", product, do("Sub", product, size))
    multiple = do("Round", do("Mul", size, number(1 / held.least)))
    least = number(held.least * 2.0**held.fraction_bits)
    is_small = do("Less", size, least, dtype=bool)
    rounded = nodes.where(graph, is_small, do("Mul", multiple, number(held.least)), rounded)
    is_beyond = do("Greater", rounded, number(held.greatest), dtype=bool)
    rounded = nodes.where(graph, is_beyond, number(held.beyond), rounded)
    if not held.is_signed:
        return _positive(graph, exact, rounded, held)
    is_nan = do("IsNaN", exact, dtype=bool)  # where there are several they keep their signs
    nan = number(held.of_nan) if held.bits_of_nan is not None else exact
    rounded = nodes.where(graph, is_nan, nan, rounded)
    return _with_sign(graph, exact, rounded, held)


def _with_sign(graph: Graph, exact: Value, size: Value, held: HeldFloat) -> Value:
    """By a product, since what the runtime's Where takes a -0 from is a 0."""
    do = partial(nodes.elementwise, graph)
    one, minus, zero = (nodes.constant(number, np.float64) for number in (1, -1, 0))
    if held.has_negative_zero:
        return do("Mul", size, nodes.where(graph, is_negative(graph, exact), minus, one))
    below = do("Less", exact, zero, dtype=bool)
    signed = do("Mul", size, nodes.where(graph, below, minus, one))
    is_zero = do("Equal", size, zero, dtype=bool)
    return nodes.where(graph, is_zero, zero, signed)


def _positive(graph: Graph, exact: Value, rounded: Value, held: HeldFloat) -> Value:
    """Of a type of powers of two alone: no zero, and all above the least one is at least the next.

    XLA and ml_dtypes alike give that where float32 has numbers of fewer bits.
    """
    do = partial(nodes.elementwise, graph)
    number = partial(nodes.constant, dtype=np.float64)
    above = do("Greater", exact, number(held.least), dtype=bool)
    bound = nodes.where(graph, above, number(2 * held.least), number(held.least))
    is_positive = do("Greater", exact, number(0), dtype=bool)
    return nodes.where(graph, is_positive, do("Max", rounded, bound), number(held.of_nan))


def to_bits(graph: Graph, value: Value, held: Held) -> Value:
    """The bits of a value as an uint8, with zeros in front; not of one of several NaNs."""
    if isinstance(held, HeldInteger):
        return to_natural(graph, value, held)
    assert held.bits_of_nan is not None, "there is no more than one NaN"
    do = partial(nodes.elementwise, graph)
    size = do("Abs", value)
    place = do("Sub", count_up_to(graph, held.ladder, size), nodes.constant(1, np.int64))
    bits = nodes.cast(graph, place, np.uint8)
    if held.is_signed:
        negative = do("BitwiseOr", bits, nodes.number_like(bits, 1 << (held.bits - 1)))
        bits = nodes.where(graph, is_negative(graph, value), negative, bits)
    is_nan = do("IsNaN", value, dtype=bool)
    return nodes.where(graph, is_nan, nodes.number_like(bits, held.bits_of_nan), bits)


def from_bits(graph: Graph, bits: Value, held: Held) -> Value:
    """The value of some bits in an uint8, of which those in front do not matter."""
    if isinstance(held, HeldInteger):
        return from_natural(graph, bits, held)
    own = nodes.elementwise(graph, "BitwiseAnd", bits, nodes.number_like(bits, held.mask))
    index = nodes.cast(graph, own, np.int64)
    table = held.values
    values = Value(table.dtype, table.shape, table.shape, array=table)
    return graph.node("Gather", [values, index], shape=index.held, axis=0).seen_as(index.shape)


def to_natural(graph: Graph, value: Value, held: HeldInteger) -> Value:
    """The bits of an integer as an uint8, with zeros in front."""
    byte = nodes.cast(graph, value, np.uint8)
    if held.is_unsigned:
        return byte
    return nodes.elementwise(graph, "BitwiseAnd", byte, nodes.number_like(byte, held.mask))


def from_natural(graph: Graph, bits: Value, held: HeldInteger) -> Value:
    """The integer of some bits in an uint8, of which those in front do not matter."""
    return wrap(graph, nodes.cast(graph, bits, held.dtype), held)


def split(graph: Graph, bits: Value, width: int, count: int) -> Value:
    """Each uint8 as several of fewer bits, the lowest first, in a new last dimension."""
    parts = [bits, *(shift(graph, bits, width * number, "RIGHT") for number in range(1, count))]
    mask = nodes.number_like(bits, (1 << width) - 1)
    narrow = [nodes.elementwise(graph, "BitwiseAnd", part, mask) for part in parts]
    return nodes.concat(graph, [nodes.expand_dims(graph, part, [-1]) for part in narrow], bits.rank)


def join(graph: Graph, bits: Value, width: int, count: int) -> Value:
    """Several uint8 of the last dimension, the lowest bits first, as one."""
    axis = bits.rank - 1
    whole: Value | None = None
    for number in range(count):
        column = nodes.slice_(graph, bits, [number], [number + 1], [1], axes=[axis])
        part = nodes.squeeze(graph, column, [axis])
        if number:
            part = shift(graph, part, width * number, "LEFT")
        whole = part if whole is None else nodes.elementwise(graph, "BitwiseOr", whole, part)
    assert whole is not None, "there is at least one"
    return whole
