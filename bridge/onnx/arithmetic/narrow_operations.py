"""Operations of element types that a wider dtype holds: each by its usual rule, then fitted.

What the usual rule gives is the result but for the bits that the type does not have, and nothing is
left to do for operations that only choose among values. A few depend on how many bits there are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from bridge.onnx.arithmetic.bitcasts import count_up_to, is_negative
from bridge.onnx.arithmetic.bits import shift
from bridge.onnx.arithmetic.reducers import reducer_of
from bridge.onnx.graph import nodes
from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.graph.stablehlo_operation import Operation, ResultType, type_of
from bridge.onnx.graph.storage_dtypes import Held, HeldFloat, HeldInteger
from bridge.onnx.graph.values import Value
from xla_call_module.dtypes import Array

__all__ = [
    "clip",
    "emit_held",
    "fit",
    "from_bits",
    "from_natural",
    "is_held",
    "join",
    "round_to",
    "split",
    "to_bits",
    "to_natural",
    "wrap",
]

_BYTE = 8
_BITCAST = "stablehlo.bitcast_convert"

# What hands on, chooses or orders values that there were before.
_KEEPING = frozenset({
    "broadcast", "broadcast_in_dim", "case", "clamp", "concatenate", "dynamic_broadcast_in_dim",
    "dynamic_gather", "dynamic_pad", "dynamic_reshape", "dynamic_slice", "dynamic_update_slice",
    "gather", "if", "map", "maximum", "minimum", "optimization_barrier", "pad",
    "real_dynamic_slice", "reshape", "reverse", "sdy.sharding_constraint", "select",
    "set_dimension_size", "slice", "sort", "torch_index_select", "transpose", "while",
})  # fmt: skip
# Those of integers: both have the sign in front, or a result is no larger than an operand.
_KEEPING_INTEGERS = _KEEPING | {"and", "or", "remainder", "sign", "xor"}
_REDUCING = frozenset({"reduce", "reduce_window", "scatter"})
_ADDING = ("add", "multiply")


def is_held(op: Operation) -> bool:
    """Whether an operation makes values that a wider dtype holds, or reads their bits."""
    if any(result.held is not None for result in op.results):
        return True
    return op.name == _BITCAST and _source(op).held is not None


def emit_held(
    emit: Callable[[Graph, Operation], Value | Sequence[Value] | None],
    graph: Graph,
    op: Operation,
) -> Sequence[Value]:
    """The results of an operation, each of them a value of its element type.

    Args:
        emit: the rule for dtypes that are not held.
        graph: where it is put.
        op: of which `is_held`.

    Raises:
        UnsupportedError: the rule does, or it is an operation on bits that there are not.
    """
    special = _SPECIAL.get(op.name)
    if special is not None:
        return [special(_Usual(emit), graph, op)]
    _check(op)
    found = emit(graph, op)
    values = [found] if isinstance(found, Value) else list(found or [])
    return [_fitted(graph, op, number, value) for number, value in enumerate(values)]


def _fitted(graph: Graph, op: Operation, number: int, value: Value) -> Value:
    held = op.results[number].held
    return value if held is None or _is_kept(op, held) else fit(graph, value, held)


def _check(op: Operation) -> None:
    """Refuse what nobody says the result of."""
    for held in (result.held for result in op.results if result.held is not None):
        if isinstance(held, HeldFloat) and not held.computes and not _is_kept(op, held):
            op.refuse(
                f"XLA does not compute with {held.name}, so what is to be the result is not known",
                "convert it to float32 before, and the result back",
            )
        if op.name == "stablehlo.rng_bit_generator":
            op.refuse(f"its bits are {held.name}", "take those of 32 bits, and convert them")


def _is_kept(op: Operation, held: Held) -> bool:
    """Whether the results are values of the element type as they are."""
    name = op.name.removeprefix("stablehlo.")
    if name in _REDUCING:  # what else a region does has been fitted in it
        return reducer_of(op.regions[0]) not in _ADDING
    return name in (_KEEPING_INTEGERS if isinstance(held, HeldInteger) else _KEEPING)


@dataclasses.dataclass(frozen=True, slots=True)
class _Usual:
    """The rule for dtypes that are not held."""

    emit: Callable[..., Any]

    def __call__(self, graph: Graph, op: Operation, *operands: Value) -> Value:
        """The result, of other operands if there are any."""
        given = dataclasses.replace(op, operands=operands) if operands else op
        found: Value = self.emit(graph, given)
        return found


_Special = Callable[[_Usual, Graph, Operation], Value]


def _constant(usual: _Usual, graph: Graph, op: Operation) -> Value:
    """Read as the elements that they are."""
    held = _of_result(op)
    own = dataclasses.replace(op, results=(dataclasses.replace(op.result, dtype=held.own),))
    value = usual(graph, own)
    assert value.array is not None, "constants are known"
    return dataclasses.replace(value, dtype=held.dtype, array=value.array.astype(held.dtype))


def _convert(usual: _Usual, graph: Graph, op: Operation) -> Value:
    """The nearest integer of a float; of an integer the last bits."""
    held, source = _of_result(op), op.operands[0]
    if isinstance(held, HeldFloat) and not held.is_signed:
        _check_positive(graph, op, held)
    if isinstance(held, HeldFloat) and source.dtype == np.float64:  # not rounded twice
        return nodes.cast(graph, round_to(graph, source, held), held.dtype)
    value = usual(graph, op)
    if isinstance(held, HeldInteger) and source.is_float:
        return clip(graph, value, held)
    return fit(graph, value, held)


def _check_positive(graph: Graph, op: Operation, held: HeldFloat) -> None:
    """Refuse what is left open where nothing else can have been meant: constants without inputs.

    Of a number that is not positive XLA makes NaN, and StableHLO's interpreter another number.
    """
    array = op.operands[0].array
    if array is not None and not graph.root.inputs and (array.astype(np.float64) <= 0).any():
        op.refuse(
            f"it makes a {held.name} of a constant that is not positive, which StableHLO "
            "leaves open",
            "convert another number",
        )


def _of_bits(usual: _Usual, graph: Graph, op: Operation) -> Value:
    """What treats an integer as bits, of which those in front are no part."""
    held = _integer(op)
    value, *others = op.operands
    natural = nodes.cast(graph, to_natural(graph, value, held), held.dtype)
    return fit(graph, usual(graph, op, natural, *others), held)


def _count_leading_zeros(usual: _Usual, graph: Graph, op: Operation) -> Value:
    held = _integer(op)
    natural = nodes.cast(graph, to_natural(graph, op.operands[0], held), held.dtype)
    zeros = usual(graph, op, natural)
    none = nodes.number_like(zeros, _BYTE - held.bits)
    return fit(graph, nodes.elementwise(graph, "Sub", zeros, none), held)


def _shift_right_arithmetic(usual: _Usual, graph: Graph, op: Operation) -> Value:
    """The first bit comes in, of unsigned integers too."""
    held = _integer(op)
    value, amount = op.operands
    if held.is_unsigned:
        signed = HeldInteger(held.name[1:], held.mlir[1:], held.bits)
        value = nodes.cast(graph, from_natural(graph, value, signed), held.dtype)
    return fit(graph, usual(graph, op, value, amount), held)


def _bitcast_convert(usual: _Usual, graph: Graph, op: Operation) -> Value:
    """By way of bytes where one of the two is not held."""
    value, source, target = graph.whole(op.operands[0]), _source(op), op.result
    if np.dtype(bool) in (source.dtype, target.dtype):
        op.refuse("a type of fewer bits than a byte is read as truth values, or made of them")
    if source.held is None:
        assert target.held is not None, "one of the two is held"
        bytes_ = usual(graph, dataclasses.replace(op, results=(_BYTES,)))
        return _from_bytes(graph, bytes_, target.held, source.dtype.itemsize)
    if isinstance(source.held, HeldFloat) and source.held.bits_of_nan is None:
        op.refuse(f"the bits of a NaN of {source.held.name} cannot be told")
    bits = to_bits(graph, value, source.held)
    if target.held is None:
        return usual(graph, op, _to_bytes(graph, bits, source.held, target.dtype.itemsize))
    old, new = source.held.bits, target.held.bits
    if old < new:
        bits = join(graph, bits, old, new // old)
    elif old > new:
        bits = split(graph, bits, new, old // new)
    return from_bits(graph, bits, target.held)


_BYTES = ResultType(np.dtype(np.uint8), ())  # of which only the dtype matters


def _to_bytes(graph: Graph, bits: Value, held: Held, count: int) -> Value:
    """Bytes, `count` of them in the last dimension if they are several."""
    each = _BYTE // held.bits
    if each == 1:
        return bits
    if count > 1:
        bits = nodes.reshape(graph, bits, (*bits.shape[:-1], count, each))
    return join(graph, bits, held.bits, each)


def _from_bytes(graph: Graph, bytes_: Value, held: Held, count: int) -> Value:
    """Elements of bytes, of which there are `count` in the last dimension if they are several."""
    each, bits = _BYTE // held.bits, graph.whole(bytes_)
    if each > 1:
        bits = split(graph, bits, held.bits, each)
        if count > 1:
            bits = nodes.reshape(graph, bits, (*bits.shape[:-2], count * each))
    return from_bits(graph, bits, held)


def _source(op: Operation) -> ResultType:
    return type_of(str(op.raw.operands[0].type))


def _of_result(op: Operation) -> Held:
    held = op.result.held
    assert held is not None, "the result is held"
    return held


def _integer(op: Operation) -> HeldInteger:
    held = _of_result(op)
    assert isinstance(held, HeldInteger), "it is an operation on bits"
    return held


_SPECIAL: Mapping[str, _Special] = {
    "stablehlo.bitcast_convert": _bitcast_convert,
    "stablehlo.constant": _constant,
    "stablehlo.convert": _convert,
    "stablehlo.count_leading_zeros": _count_leading_zeros,
    "stablehlo.popcnt": _of_bits,
    "stablehlo.shift_right_arithmetic": _shift_right_arithmetic,
    "stablehlo.shift_right_logical": _of_bits,
}


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
