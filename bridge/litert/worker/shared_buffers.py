"""Copies of what a kernel would overwrite while something else reads it.

The runtime's planner of memory (`tflite/arena_planner.cc`) lets some kernels write their result
over an operand that nothing else takes. It looks at who takes that tensor, and who takes the one
whose buffer it is in the end, but not at the tensors between these two: a sum is written over its
operand, then one kernel takes the rows of the sum and overwrites these, and another takes the sum.

It is a part of the program `bridge.litert.worker.worker_program`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from litert_converter.mlir import ir

from bridge.litert.worker.loop_outlining import nested_operations
from bridge.litert.worker.tensor_copies import copy_of, is_constant

# What an operation whose result is in the buffer of its first operand makes of it: nothing else.
_VIEWS = frozenset({"tfl.bitcast", "tfl.expand_dims", "tfl.reshape", "tfl.squeeze"})
# How many operands, of the first ones, have a buffer over which the result may be written.
_OVERWRITING: Mapping[str, int] = {
    "tfl.add": 2,
    "tfl.div": 2,
    "tfl.dynamic_update_slice": 1,
    "tfl.mul": 2,
    "tfl.softmax": 1,
    "tfl.sub": 2,
}


def keep_what_is_read(function: Any) -> None:
    """Let no operation of a function overwrite what another one reads.

    Which comes first does not matter, since the runtime exchanges operations when it delegates
    some. The context of the module is to be the current one.
    """
    # Of what may be in the buffer of another value: whether one between the two is read elsewhere.
    shared: dict[Any, bool] = {}
    for operation in [*nested_operations(function)]:
        operands = _operands_in_place(operation)
        if operation.name in _OVERWRITING:
            for number in [n for n, value in operands.items() if shared.get(value)]:
                with operation.location, ir.InsertionPoint(operation):
                    operands[number] = operation.operands[number] = copy_of(operands[number])
        if operands:
            shared[operation.results[0]] = any(
                value in shared and (shared[value] or len([*value.uses]) > 1)
                for value in operands.values()
            )


def _operands_in_place(operation: Any) -> dict[int, Any]:
    """Return the operands, by their numbers, whose buffer may be that of the result."""
    is_view = operation.name in _VIEWS
    count = 1 if is_view else _OVERWRITING.get(operation.name, 0)
    if not count or any(use.owner.name == "func.return" for use in operation.results[0].uses):
        return {}
    return {
        number: value
        for number, value in enumerate([*operation.operands][:count])
        if not isinstance(value.owner, ir.Block)
        and not is_constant(value)
        and (is_view or (len([*value.uses]) == 1 and _may_have_size_of(operation, value)))
    }


def _may_have_size_of(operation: Any, value: Any) -> bool:
    kinds = [ir.RankedTensorType(one.type) for one in (operation.results[0], value)]
    sizes = {math.prod(kind.shape) for kind in kinds}
    return len(sizes) == 1 or not all(kind.has_static_shape for kind in kinds)
