"""Equal operations of a module as one, loops and branches too."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from xla_call_module.stablehlo.modules import functions_of, walk
from xla_call_module.stablehlo.rewriting import replace_operation, run_passes

CONTROL_FLOW = frozenset({"stablehlo.case", "stablehlo.if", "stablehlo.while"})
# Two of them are not the same as one, so that no loop with one of them is merged.
_EFFECTS = frozenset({
    "func.call", "stablehlo.custom_call", "stablehlo.infeed", "stablehlo.outfeed",
    "stablehlo.recv", "stablehlo.rng", "stablehlo.send",
})  # fmt: skip
_CHANNEL = "channel_handle"


def merge_equal(module: Any) -> None:
    """Merge equal operations of a parsed module of one function, in place.

    The `cse` of MLIR merges no loop with a loop in it (llvm/llvm-project, mlir/lib/IR/
    OperationSupport.cpp, `isRegionEquivalentTo`), such as that of a Cholesky decomposition.
    """
    run_passes(module, "cse")
    while sum(map(_merge_loops, functions_of(module).values())):
        run_passes(module, "cse")


def _merge_loops(function: Any) -> int:
    """Merge the equal loops and branches in the body of a function; return how many are gone."""
    merged, first = 0, dict[Hashable, Any]()
    operations = [op.operation for op in function.regions[0].blocks[0].operations]
    loops = [op for op in operations if op.name in CONTROL_FLOW]
    for loop in loops:
        if any(inner.name in _EFFECTS or _CHANNEL in inner.attributes for inner in walk(loop)):
            continue
        key = _structure(loop, {})
        if key in first:
            replace_operation(loop, first[key].results)
            merged += 1
        else:
            first[key] = loop
    return merged


def _structure(operation: Any, numbers: dict[Any, int]) -> Hashable:
    """Return what is equal for operations that compute the same of the same values.

    `numbers` has the values inside of the outermost operation, and gets those in this one.
    """
    operands = tuple(numbers.get(value, value) for value in operation.operands)
    attributes = operation.attributes
    named = (attributes[index] for index in range(len(attributes)))
    regions = []
    for block in (block for region in operation.regions for block in region):
        numbers |= {value: len(numbers) + i for i, value in enumerate(block.arguments)}
        inner = []
        for op in block:
            inner.append(_structure(op.operation, numbers))
            numbers |= {value: len(numbers) + i for i, value in enumerate(op.operation.results)}
        regions.append((tuple(value.type for value in block.arguments), tuple(inner)))
    types = tuple(value.type for value in operation.results)
    return operation.name, operands, tuple((n.name, n.attr) for n in named), types, tuple(regions)
