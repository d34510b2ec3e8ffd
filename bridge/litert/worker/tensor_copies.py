"""Copies of tensors, where LiteRT would have one tensor in two places.

It is a part of the program `bridge.litert.worker.worker_program`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from litert_converter.mlir import ir

_CONSTANTS = frozenset({"arith.constant", "tfl.pseudo_const", "tfl.pseudo_qconst"})


def separate_results(function: Any) -> None:
    """Let a signature return a copy of what is its argument, a variable, or another result.

    To the runtime's `CompiledModel`, and to what is built on it, a tensor has one buffer: a result
    that is something else, too, is not written there. The interpreter copies them. The context of
    the module is to be the current one.
    """
    block = function.regions[0].blocks[0]
    last = block.operations[len(block.operations) - 1].operation
    seen = {*block.arguments}
    for number, value in enumerate(last.operands):
        if is_constant(value) and 0 in ir.RankedTensorType(value.type).shape:
            with last.location, ir.InsertionPoint(last):
                last.operands[number] = _without_elements(value)
        elif value in seen or _is_read(value):
            with last.location, ir.InsertionPoint(last):
                last.operands[number] = copy_of(value)
        seen.add(value)


def _without_elements(constant: Any) -> Any:
    """Return what a constant without elements is, but computed.

    The interpreter for Python refuses to read such a constant: `Invalid tensor size`.
    """
    kind = ir.RankedTensorType(constant.type)
    scalar = ir.RankedTensorType.get([], kind.element_type)
    sizes = ir.DenseElementsAttr.get(np.array(kind.shape, np.int32))
    zero = ir.DenseElementsAttr.get_splat(scalar, _zero(kind.element_type))
    given = [
        *ir.Operation.create("tfl.pseudo_const", [sizes.type], attributes={"value": sizes}).results,
        *ir.Operation.create("tfl.pseudo_const", [scalar], attributes={"value": zero}).results,
    ]
    return ir.Operation.create("tfl.fill", [kind], given).results[0]


def _zero(element: Any) -> Any:
    is_float = isinstance(element, ir.F16Type | ir.F32Type)
    return ir.FloatAttr.get(element, 0.0) if is_float else ir.IntegerAttr.get(element, 0)


def _is_read(value: Any) -> bool:
    return not isinstance(value.owner, ir.Block) and value.owner.name == "tfl.read_variable"


def copy_of(value: Any) -> Any:
    """Return a copy of a value, made at the current insertion point.

    LiteRT has no identity, and the exporter takes out what moves nothing: a cast, a reshape or a
    slice. The kernel of `tfl.tile` takes every dtype and rank. What is computed of constants alone
    is not written by `CompiledModel`, either.
    """
    if is_constant(value):
        return value.owner.operation.clone().results[0]
    rank = ir.RankedTensorType(value.type).rank
    ones = ir.DenseElementsAttr.get(np.ones([rank], np.int32))
    once = ir.Operation.create("arith.constant", [ones.type], attributes={"value": ones})
    return ir.Operation.create("tfl.tile", [value.type], [value, *once.results]).results[0]


def is_constant(value: Any) -> bool:
    """Return whether a value is a constant of a converted module."""
    owner = value.owner
    return not isinstance(owner, ir.Block) and owner.operation.name in _CONSTANTS
