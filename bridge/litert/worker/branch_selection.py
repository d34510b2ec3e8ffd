"""Branches chosen by an index, as a chain of those that are chosen by a truth value.

The exporter writes `stablehlo.case` with other operands than its branches take.

It is a part of the program `bridge.litert.worker.worker_program`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from litert_converter.mlir import ir
from litert_converter.mlir.dialects import stablehlo

from bridge.litert.worker.loop_outlining import nested_operations


def chain_branches(module: Any) -> None:
    """Let every `stablehlo.case` of a module be `stablehlo.if`.

    The context of the module is to be the current one.
    """
    cases = [one for one in nested_operations(module.operation) if one.name == "stablehlo.case"]
    for case in cases:
        blocks = [region.blocks[0] for region in case.regions]
        if len(blocks) == 1:
            results = _moved(blocks[0], case)
        else:
            with case.location, ir.InsertionPoint(case):
                results = _chosen(case.operands[0], blocks, 0, [one.type for one in case.results])
        for old, new in zip(case.results, results, strict=True):
            old.replace_all_uses_with(new)
        case.erase()


def _moved(block: Any, case: Any) -> list[Any]:
    """Return what a block ends with, after its operations were moved before the one it is in."""
    *operations, last = (one.operation for one in block)
    for operation in operations:
        operation.move_before(case)
    return [*last.operands]


def _chosen(index: Any, blocks: Sequence[Any], number: int, types: Sequence[Any]) -> list[Any]:
    """Return the results of the branches from some number on, at the current insertion point.

    The last branch is that of an index that is out of bounds, too.
    """
    constant = stablehlo.constant(ir.DenseElementsAttr.get(np.array(number, np.int32)))
    is_this = stablehlo.compare(index, constant, stablehlo.ComparisonDirectionAttr.get("EQ"))
    choice = ir.Operation.create("stablehlo.if", types, [is_this], regions=2)
    this, others = choice.regions
    blocks[number].append_to(this)
    if number + 2 == len(blocks):
        blocks[-1].append_to(others)
        return list(choice.results)
    with ir.InsertionPoint(others.blocks.append()):
        chosen = _chosen(index, blocks, number + 1, types)
        ir.Operation.create("stablehlo.return", [], [*chosen])
    return list(choice.results)
