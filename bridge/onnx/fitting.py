"""What an operation has made in a wider dtype becomes a value of the element type that is held."""

from __future__ import annotations

from functools import partial

import numpy as np

from bridge.onnx import nodes
from bridge.onnx.bits import shift
from bridge.onnx.graph import Graph
from bridge.onnx.held import Held, HeldInteger
from bridge.onnx.values import Array, Value

__all__ = ["clip", "fit", "from_natural", "join", "split", "to_natural", "wrap"]

_BYTE = 8


def fit(graph: Graph, value: Value, held: Held) -> Value:
    """The value of the element type for each number of its holder: integers wrap around."""
    return wrap(graph, value, held) if isinstance(held, HeldInteger) else value


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
