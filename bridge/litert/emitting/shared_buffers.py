"""Copies of what a kernel would overwrite while something else reads it.

The runtime's planner of memory (`tflite/arena_planner.cc`) lets some kernels write their result
over an operand that nothing else takes. It looks at who takes that tensor, and who takes the one
whose buffer it is in the end, but not at the tensors between these two: a sum is written over its
operand, then one kernel takes the rows of the sum and overwrites these, and another takes the sum.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from bridge.litert.emitting.block_emitter import BlockEmitter
from bridge.litert.emitting.flatbuffer_file import Operator, Subgraph

# What an operator whose result is in the buffer of its first operand makes of it: nothing else.
_VIEWS = frozenset({"BITCAST", "EXPAND_DIMS", "RESHAPE", "SQUEEZE"})
# How many operands, of the first ones, have a buffer over which the result may be written.
_OVERWRITING: Mapping[str, int] = {
    "ADD": 2, "DIV": 2, "DYNAMIC_UPDATE_SLICE": 1, "MUL": 2, "SOFTMAX": 1, "SUB": 2,
}  # fmt: skip


def keep_what_is_read(emitter: BlockEmitter) -> None:
    """Let no operator of a subgraph overwrite what another one reads.

    Which comes first does not matter, since the runtime exchanges operators when it delegates some.
    """
    graph = emitter.graph
    uses = Counter(tensor for one in graph.operators for tensor in one.table.inputs)
    uses.update(graph.table.outputs)
    made = {tensor for one in graph.operators for tensor in one.table.outputs}
    # Of what may be in the buffer of another tensor: whether one between the two is read elsewhere.
    shared: dict[int, bool] = {}
    operators, graph.operators, graph.table.operators = graph.operators, [], []
    for one in operators:
        operands = {
            number: tensor
            for number, tensor in _in_place(graph, one).items()
            if tensor in made and (one.name in _VIEWS or uses[tensor] == 1)
        }
        for number in [n for n, tensor in operands.items() if shared.get(tensor)]:
            if one.name in _OVERWRITING:
                one.table.inputs[number] = operands[number] = emitter.copy(operands[number])
        if operands:
            shared[one.table.outputs[0]] = any(
                tensor in shared and (shared[tensor] or uses[tensor] > 1)
                for tensor in operands.values()
            )
        graph.operators.append(one)
        graph.table.operators.append(one.table)


def _in_place(graph: Subgraph, operator: Operator) -> dict[int, int]:
    """Return the operands, by their places, whose buffer may be that of the result."""
    is_view = operator.name in _VIEWS
    count = 1 if is_view else _OVERWRITING.get(operator.name, 0)
    if not count or operator.table.outputs[0] in graph.table.outputs:
        return {}
    result = operator.table.outputs[0]
    return {
        number: tensor
        for number, tensor in enumerate(operator.table.inputs[:count])
        if not graph.is_constant(tensor) and (is_view or _may_have_size_of(graph, result, tensor))
    }


def _may_have_size_of(graph: Subgraph, result: int, tensor: int) -> bool:
    shapes = [graph.shape_of(one) for one in (result, tensor)]
    is_known = all(-1 not in shape for shape in shapes)
    return not is_known or math.prod(shapes[0]) == math.prod(shapes[1])
