"""The nodes of a concrete function, and the effects that their operations have."""

from __future__ import annotations

import graphlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
LOOPS = frozenset({"While", "StatelessWhile"})

# By their names, since nodes inside of functions do not tell what their operations are.
_ASSIGNMENTS = re.compile(
    r"Assign\w*VariableOp|Resource(Apply|SparseApply|Scatter|StridedSliceAssign)\w*"
    r"|StatefulRandom\w*|StatefulUniform\w*|StatefulStandardNormal\w*|StatefulTruncatedNormal"
    r"|Rng(ReadAnd)?Skip"
)
_RANDOM = re.compile(r"Random\w+|ParameterizedTruncatedNormal|TruncatedNormal|Multinomial")
_OUTPUT = re.compile(r"Print(V2)?|LogMessage|(Eager)?PyFunc|\w*WriteFile|\w*Summary(V2)?")


def operations_of(concrete: Any) -> frozenset[str]:
    """Return the types of all operations in a concrete function and in those that it calls."""
    return frozenset(node.op for node in nodes_of(concrete))


def has_custom_gradients(concrete: Any) -> bool:
    """Return whether some operation has a gradient of its own, as tf.custom_gradient gives it."""
    return any("_gradient_op_type" in node.attr for node in nodes_of(concrete))


def nodes_of(concrete: Any) -> Iterator[Any]:
    """Yield the nodes of a concrete function and of the functions that it calls."""
    for nodes, _ in scopes_of(concrete):
        yield from nodes


def scopes_of(
    concrete: Any, *, shapes: bool = False
) -> Iterator[tuple[Sequence[Any], Mapping[str, Any]]]:
    """Yield the nodes of a concrete function, then those of each of the functions that it calls.

    With the nodes come the attributes of the arguments of a function that is called.
    """
    graph = concrete.graph.as_graph_def(add_shapes=shapes)
    functions = {function.signature.name: function for function in graph.library.function}
    pending: list[tuple[Sequence[Any], Mapping[str, Any]]] = [(graph.node, {})]
    while pending:
        nodes, arguments = pending.pop()
        yield nodes, arguments
        for called in (called for node in nodes for called in functions_called_by(node)):
            if (function := functions.pop(called.name, None)) is not None:
                names = (argument.name for argument in function.signature.input_arg)
                attributes = {name: function.arg_attr[i] for i, name in enumerate(names)}
                pending.append((function.node_def, attributes))


def functions_called_by(node: Any) -> Iterator[Any]:
    """Yield the function attributes of a node, each with the name of a function."""
    for attribute in node.attr.values():
        if attribute.HasField("func"):
            yield attribute.func
        yield from attribute.list.func


def in_topological_order(nodes: Iterable[Any]) -> list[Any]:
    """Return the nodes of a FunctionDef, each after those whose outputs it takes."""
    known = {node.name: node for node in nodes}
    inputs = {
        name: {source for text in node.input if (source := text.partition(":")[0]) in known}
        for name, node in known.items()
    }
    return [known[name] for name in graphlib.TopologicalSorter(inputs).static_order()]


def stateful_operations(concrete: Any) -> tuple[str, ...]:
    """Return the types of the operations that assign to variables or draw random numbers."""
    return tuple(
        sorted(
            name
            for name in operations_of(concrete)
            if _ASSIGNMENTS.fullmatch(name) or _RANDOM.fullmatch(name)
        )
    )


def is_stateful(concrete: Any) -> bool:
    """Return whether it matters how often, and in which order, a function runs."""
    return bool(stateful_operations(concrete)) or any(
        _OUTPUT.fullmatch(name) for name in operations_of(concrete)
    )
