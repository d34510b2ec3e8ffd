"""What a TensorFlow function does besides computing its results."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

__all__ = [
    "WITHOUT_VECTORIZATION",
    "has_own_gradients",
    "is_stateful",
    "operations_of",
    "stateful_operations",
]

# Operations that no rule of `tf.vectorized_map` covers, for which it need not be tried.
WITHOUT_VECTORIZATION = frozenset({"XlaCallModule"})

# By their names, since nodes inside of functions do not tell what their operations are.
_ASSIGNMENTS = re.compile(
    r"Assign\w*VariableOp|Resource(Apply|SparseApply|Scatter|StridedSliceAssign)\w*"
    r"|StatefulRandom\w*|StatefulUniform\w*|StatefulStandardNormal\w*|StatefulTruncatedNormal"
    r"|Rng(ReadAnd)?Skip"
)
_RANDOM = re.compile(r"Random\w+|ParameterizedTruncatedNormal|TruncatedNormal|Multinomial")
_OUTPUT = re.compile(r"Print(V2)?|LogMessage|(Eager)?PyFunc|\w*WriteFile|\w*Summary(V2)?")


def operations_of(concrete: Any) -> frozenset[str]:
    """The types of all operations in a concrete function and in the functions that it calls."""
    return frozenset(node.op for node in _nodes_of(concrete))


def has_own_gradients(concrete: Any) -> bool:
    """Whether the gradient of some operation is not that of its type, as by tf.custom_gradient."""
    return any("_gradient_op_type" in node.attr for node in _nodes_of(concrete))


def _nodes_of(concrete: Any) -> Iterator[Any]:
    graph = concrete.graph.as_graph_def()
    functions = {function.signature.name: function.node_def for function in graph.library.function}
    seen: set[str] = set()
    pending = [graph.node]
    while pending:
        for node in pending.pop():
            yield node
            for name in _callees(node):
                if name in functions and name not in seen:
                    seen.add(name)
                    pending.append(functions[name])


def _callees(node: Any) -> Iterable[str]:
    for attribute in node.attr.values():
        if attribute.HasField("func"):
            yield attribute.func.name
        for function in attribute.list.func:
            yield function.name


def stateful_operations(concrete: Any) -> tuple[str, ...]:
    """The types of those that assign to variables or draw random numbers."""
    return tuple(
        sorted(
            name
            for name in operations_of(concrete)
            if _ASSIGNMENTS.fullmatch(name) or _RANDOM.fullmatch(name)
        )
    )


def is_stateful(concrete: Any) -> bool:
    """Whether it matters how often, and in which order, a function runs."""
    return bool(stateful_operations(concrete)) or any(
        _OUTPUT.fullmatch(name) for name in operations_of(concrete)
    )
