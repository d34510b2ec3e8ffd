"""Operations of element types that a wider dtype holds: each by its usual rule, then fitted.

What the usual rule gives is the result but for the bits that the type does not have, and nothing is
left to do for operations that only choose among values. A few depend on how many bits there are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bridge.onnx.arithmetic.fitting import (
    clip,
    fit,
    from_bits,
    from_natural,
    join,
    round_to,
    split,
    to_bits,
    to_natural,
)
from bridge.onnx.arithmetic.reducers import reducer_of
from bridge.onnx.graph import nodes
from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.graph.stablehlo_operation import Operation, ResultType, type_of
from bridge.onnx.graph.storage_dtypes import Held, HeldFloat, HeldInteger
from bridge.onnx.graph.values import Value

__all__ = ["emit_held", "is_held"]

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
