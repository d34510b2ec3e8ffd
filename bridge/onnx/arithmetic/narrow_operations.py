"""Operations of element types that a wider dtype holds: each by its usual rule, then fitted.

What the usual rule gives is the result but for the bits that the type does not have, and nothing is
left to do for operations that only choose among values. A few depend on how many bits there are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from bridge.core.narrow_types import NarrowFloat, NarrowInteger, NarrowType
from bridge.core_ops.regions import reducer_of
from bridge.core_ops.stablehlo_operation import (
    NarrowResults,
    Operation,
    ResultType,
    Rule,
)
from bridge.graphs import nodes
from bridge.graphs.values import Value
from bridge.onnx.arithmetic.bits import count_up_to, is_negative, join_integers, split_integers
from bridge.onnx.graph.graph_builder import Graph
from xla_call_module.dtypes import Array

__all__ = ["emit_narrow", "has_narrow_types"]

_BYTE = 8
_BITCAST = "stablehlo.bitcast_convert"

_ADDING = ("add", "multiply")


def has_narrow_types(op: Operation) -> bool:
    """Return whether results of an operation are of narrow types, or it reads the bits of one."""
    if any(result.narrow is not None for result in op.results):
        return True
    return op.name == _BITCAST and _source(op).narrow is not None


def emit_narrow(rule: Rule, graph: Graph, op: Operation) -> Sequence[Value]:
    """Return the results of an operation that `has_narrow_types`, as values of their types.

    Raises:
        UnsupportedError: the rule does, or XLA does not compute with the type.
    """
    special = _SPECIAL.get(op.name)
    if special is not None:
        return [special(rule, graph, op)]
    types = [result.narrow for result in op.results]
    converted = [None if t is None or _is_kept(rule, op, t) else t for t in types]
    for narrow in converted:
        if isinstance(narrow, NarrowFloat) and not narrow.has_arithmetic:
            op.refuse(
                f"XLA does not compute with {narrow.name}, so its result is not known",
                "convert it to float32 before, and the result back",
            )
    emitted = rule.emit(graph, op)
    values = [emitted] if isinstance(emitted, Value) else list(emitted or [])
    return [
        value if narrow is None else to_narrow(graph, value, narrow)
        for value, narrow in zip(values, converted, strict=False)
    ]


def _is_kept(rule: Rule, op: Operation, narrow: NarrowType) -> bool:
    """Return whether the results are values of the narrow type as they are."""
    match rule.narrow:
        case NarrowResults.KEPT:
            return True
        case NarrowResults.KEPT_INTEGERS:
            return isinstance(narrow, NarrowInteger)
        case NarrowResults.CONVERTED_SUMS:  # results of other regions have been converted in them
            return reducer_of(op.regions[0]) not in _ADDING
    return False


def _emit(rule: Rule, graph: Graph, op: Operation, *operands: Value) -> Value:
    """Return the result of the rule for dtypes that are not narrow, perhaps of other operands."""
    result = rule.emit(graph, dataclasses.replace(op, operands=operands) if operands else op)
    assert isinstance(result, Value), "the operation has one result"
    return result


def _constant(rule: Rule, graph: Graph, op: Operation) -> Value:
    """Return a constant, read as elements of the narrow type."""
    narrow = _of_result(op)
    own = dataclasses.replace(
        op, results=(dataclasses.replace(op.result, dtype=narrow.numpy_dtype),)
    )
    value = _emit(rule, graph, own)
    assert value.array is not None, "constants are known"
    return dataclasses.replace(
        value, dtype=narrow.storage_dtype, array=value.array.astype(narrow.storage_dtype)
    )


def _convert(rule: Rule, graph: Graph, op: Operation) -> Value:
    """The nearest integer of a float; of an integer the last bits."""
    narrow, source = _of_result(op), op.operands[0]
    if isinstance(narrow, NarrowFloat) and not narrow.is_signed:
        _check_positive(graph, op, narrow)
    if isinstance(narrow, NarrowFloat) and source.dtype == np.float64:  # not rounded twice
        return nodes.cast(graph, round_to(graph, source, narrow), narrow.storage_dtype)
    value = _emit(rule, graph, op)
    if isinstance(narrow, NarrowInteger) and source.is_float:
        return clip(graph, value, narrow)
    return to_narrow(graph, value, narrow)


def _check_positive(graph: Graph, op: Operation, narrow: NarrowFloat) -> None:
    """Refuse what is left open where nothing else can have been meant: constants without inputs.

    Of a number that is not positive XLA makes NaN, and StableHLO's interpreter another number.
    """
    array = op.operands[0].array
    if array is not None and not graph.root.inputs and (array.astype(np.float64) <= 0).any():
        op.refuse(
            f"it makes a {narrow.name} of a constant that is not positive, which StableHLO "
            "leaves open",
            "convert another number",
        )


def _of_bits(rule: Rule, graph: Graph, op: Operation) -> Value:
    """Return the result of an operation on bits, of which those in front are no part."""
    narrow = _integer(op)
    value, *others = op.operands
    unsigned = nodes.cast(graph, to_unsigned(graph, value, narrow), narrow.storage_dtype)
    return to_narrow(graph, _emit(rule, graph, op, unsigned, *others), narrow)


def _count_leading_zeros(rule: Rule, graph: Graph, op: Operation) -> Value:
    narrow = _integer(op)
    unsigned = nodes.cast(graph, to_unsigned(graph, op.operands[0], narrow), narrow.storage_dtype)
    zeros = nodes.elementwise(graph, "Sub", _emit(rule, graph, op, unsigned), _BYTE - narrow.bits)
    return to_narrow(graph, zeros, narrow)


def _shift_right_arithmetic(rule: Rule, graph: Graph, op: Operation) -> Value:
    """The first bit comes in, of unsigned integers too."""
    narrow = _integer(op)
    value, amount = op.operands
    if narrow.is_unsigned:
        signed = NarrowInteger(narrow.name[1:], narrow.mlir[1:], narrow.bits)
        value = nodes.cast(graph, from_unsigned(graph, value, signed), narrow.storage_dtype)
    return to_narrow(graph, _emit(rule, graph, op, value, amount), narrow)


def _bitcast_convert(rule: Rule, graph: Graph, op: Operation) -> Value:
    """Return the bits as another type, by way of bytes where one of the two is not narrow."""
    value, source, target = graph.expand(op.operands[0]), _source(op), op.result
    if np.dtype(bool) in (source.dtype, target.dtype):
        op.refuse("a type of fewer bits than a byte is read as truth values, or made of them")
    if source.narrow is None:
        assert target.narrow is not None, "one of the two is narrow"
        bytes_ = _emit(rule, graph, dataclasses.replace(op, results=(_BYTES,)))
        return _from_bytes(graph, bytes_, target.narrow, source.dtype.itemsize)
    if isinstance(source.narrow, NarrowFloat) and source.narrow.bits_of_nan is None:
        op.refuse(f"the bits of a NaN of {source.narrow.name} cannot be read")
    bits = to_bits(graph, value, source.narrow)
    if target.narrow is None:
        return _emit(rule, graph, op, _to_bytes(graph, bits, source.narrow, target.dtype.itemsize))
    old, new = source.narrow.bits, target.narrow.bits
    if old < new:
        bits = join_integers(graph, bits, old, new // old)
    elif old > new:
        bits = split_bits(graph, bits, new, old // new)
    return from_bits(graph, bits, target.narrow)


_BYTES = ResultType(np.dtype(np.uint8), ())  # of which only the dtype matters


def _to_bytes(graph: Graph, bits: Value, narrow: NarrowType, count: int) -> Value:
    """Return the bits as bytes, `count` of them in the last dimension if they are several."""
    each = _BYTE // narrow.bits
    if each == 1:
        return bits
    if count > 1:
        bits = nodes.reshape(graph, bits, (*bits.shape[:-1], count, each))
    return join_integers(graph, bits, narrow.bits, each)


def _from_bytes(graph: Graph, bytes_: Value, narrow: NarrowType, count: int) -> Value:
    """Return the elements of bytes, `count` of them in the last dimension if several."""
    each, bits = _BYTE // narrow.bits, graph.expand(bytes_)
    if each > 1:
        bits = split_bits(graph, bits, narrow.bits, each)
        if count > 1:
            bits = nodes.reshape(graph, bits, (*bits.shape[:-2], count * each))
    return from_bits(graph, bits, narrow)


def _source(op: Operation) -> ResultType:
    return op.target.type_of(str(op.raw.operands[0].type))


def _of_result(op: Operation) -> NarrowType:
    narrow = op.result.narrow
    assert narrow is not None, "the result is narrow"
    return narrow


def _integer(op: Operation) -> NarrowInteger:
    narrow = _of_result(op)
    assert isinstance(narrow, NarrowInteger), "it is an operation on bits"
    return narrow


_SPECIAL: Mapping[str, Callable[[Rule, Graph, Operation], Value]] = {
    "stablehlo.bitcast_convert": _bitcast_convert,
    "stablehlo.constant": _constant,
    "stablehlo.convert": _convert,
    "stablehlo.count_leading_zeros": _count_leading_zeros,
    "stablehlo.popcnt": _of_bits,
    "stablehlo.shift_right_arithmetic": _shift_right_arithmetic,
    "stablehlo.shift_right_logical": _of_bits,
}


_PRECISION = 53  # bits of a float64, with the one that is not stored


def to_narrow(graph: Graph, value: Value, narrow: NarrowType) -> Value:
    """The value of the element type for each number: integers wrap around, floats are rounded."""
    if isinstance(narrow, NarrowInteger):
        return wrap(graph, value, narrow)
    return nodes.cast(graph, round_to(graph, value, narrow), narrow.storage_dtype)


def wrap(graph: Graph, value: Value, narrow: NarrowInteger) -> Value:
    """Return integers modulo the size of a narrow type, in two's complement.

    With a sign it is `((x & 15) ^ 8) - 8` of 4 bits, of which nothing overflows in any runtime.
    """
    if _is_within(_known(graph, value), narrow):
        return value
    do = partial(nodes.elementwise, graph)
    unsigned = do("BitwiseAnd", value, narrow.mask)
    if narrow.is_unsigned:
        return unsigned
    sign_bit = -narrow.least
    return do("Sub", do("BitwiseXor", unsigned, sign_bit), sign_bit)


def _known(graph: Graph, value: Value) -> Array | None:
    """The array of a constant or of a parameter."""
    return graph.initializers.get(value.name) if value.array is None else value.array


def _is_within(array: Array | None, narrow: NarrowInteger) -> bool:
    return array is not None and bool(((array >= narrow.least) & (array <= narrow.greatest)).all())


def clip(graph: Graph, value: Value, narrow: NarrowInteger) -> Value:
    """The nearest number that an integer type has."""
    raised = nodes.elementwise(graph, "Max", value, narrow.least)
    return nodes.elementwise(graph, "Min", raised, narrow.greatest)


def round_to(graph: Graph, value: Value, narrow: NarrowFloat) -> Value:
    """The nearest number of a float type, and of two the even one, in float64.

    The difference `c * x - (c * x - x)` with `c = 2**k + 1` is x without the last k bits of a
    float64 (T. J. Dekker, A floating-point technique for extending the available precision, 1971),
    rounded as `c * x` is. The numbers below the least that has all bits are multiples of one.
    """
    do = partial(nodes.elementwise, graph)
    exact = nodes.cast(graph, value, np.float64)
    size = do("Min", do("Abs", exact), 4 * narrow.greatest)  # more is as that is
    product = do("Mul", size, 2.0 ** (_PRECISION - 1 - narrow.fraction_bits) + 1)
    rounded = do("Sub", product, do("Sub", product, size))
    multiple = do("Mul", do("Round", do("Mul", size, 1 / narrow.least)), narrow.least)
    is_small = do("Less", size, narrow.least * 2.0**narrow.fraction_bits)
    rounded = nodes.where(graph, is_small, multiple, rounded)
    is_beyond = do("Greater", rounded, narrow.greatest)
    rounded = nodes.where(graph, is_beyond, narrow.overflow, rounded)
    if not narrow.is_signed:
        return _positive(graph, exact, rounded, narrow)
    is_nan = do("IsNaN", exact)  # where there are several they keep their signs
    nan = narrow.converted_nan if narrow.bits_of_nan is not None else exact
    rounded = nodes.where(graph, is_nan, nan, rounded)
    return _with_sign(graph, exact, rounded, narrow)


def _with_sign(graph: Graph, exact: Value, size: Value, narrow: NarrowFloat) -> Value:
    """Return the size with a sign, by a product, since the runtime's Where takes a -0 for a 0."""
    do = partial(nodes.elementwise, graph)
    negative = is_negative(graph, exact) if narrow.has_negative_zero else do("Less", exact, 0)
    signed = do("Mul", size, nodes.where(graph, negative, nodes.constant_like(size, -1), 1))
    if narrow.has_negative_zero:
        return signed
    return nodes.where(graph, do("Equal", size, 0), 0, signed)


def _positive(graph: Graph, exact: Value, rounded: Value, narrow: NarrowFloat) -> Value:
    """Return the value in a type of powers of two, without zero; above the least comes the next.

    XLA and ml_dtypes alike give that where float32 has numbers of fewer bits.
    """
    do = partial(nodes.elementwise, graph)
    least = nodes.constant_like(exact, narrow.least)
    bound = nodes.where(graph, do("Greater", exact, least), 2 * narrow.least, least)
    is_positive = do("Greater", exact, 0)
    return nodes.where(graph, is_positive, do("Max", rounded, bound), narrow.converted_nan)


def to_bits(graph: Graph, value: Value, narrow: NarrowType) -> Value:
    """The bits of a value as an uint8, with zeros in front; not of one of several NaNs."""
    if isinstance(narrow, NarrowInteger):
        return to_unsigned(graph, value, narrow)
    assert narrow.bits_of_nan is not None, "there is no more than one NaN"
    do = partial(nodes.elementwise, graph)
    size = do("Abs", value)
    place = do("Sub", count_up_to(graph, narrow.magnitudes, size), 1)
    bits = nodes.cast(graph, place, np.uint8)
    if narrow.is_signed:
        negative = do("BitwiseOr", bits, 1 << (narrow.bits - 1))
        bits = nodes.where(graph, is_negative(graph, value), negative, bits)
    return nodes.where(graph, do("IsNaN", value), narrow.bits_of_nan, bits)


def from_bits(graph: Graph, bits: Value, narrow: NarrowType) -> Value:
    """The value of some bits in an uint8, of which those in front do not matter."""
    if isinstance(narrow, NarrowInteger):
        return from_unsigned(graph, bits, narrow)
    own = nodes.elementwise(graph, "BitwiseAnd", bits, narrow.mask)
    return nodes.look_up(graph, narrow.values, nodes.cast(graph, own, np.int64))


def to_unsigned(graph: Graph, value: Value, narrow: NarrowInteger) -> Value:
    """The bits of an integer as an uint8, with zeros in front."""
    byte = nodes.cast(graph, value, np.uint8)
    if narrow.is_unsigned:
        return byte
    return nodes.elementwise(graph, "BitwiseAnd", byte, narrow.mask)


def from_unsigned(graph: Graph, bits: Value, narrow: NarrowInteger) -> Value:
    """The integer of some bits in an uint8, of which those in front do not matter."""
    return wrap(graph, nodes.cast(graph, bits, narrow.storage_dtype), narrow)


def split_bits(graph: Graph, bits: Value, width: int, count: int) -> Value:
    """Return each uint8 as several of fewer bits, the lowest first, in a new dimension."""
    columns = split_integers(graph, bits, width, count)
    mask = (1 << width) - 1
    narrow = [nodes.elementwise(graph, "BitwiseAnd", column, mask) for column in columns]
    return nodes.concat(graph, narrow, bits.rank)
