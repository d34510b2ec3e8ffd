"""Which operations of a derivative TensorFlow cannot differentiate, where it would say zero.

A tape takes the gradient of an operation that has none for zero and says nothing. That is right
for what is piecewise constant. A derivative is linear in its tangents or cotangents, so each
operation between these and the results must have a gradient.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bridge._tf import gradient_query

__all__ = ["operations_without_gradient"]

# What these give depends on other things of their inputs than values, or is piecewise constant.
_CONSTANT = frozenset(
    {
        "EmptyTensorList", "Equal", "Greater", "GreaterEqual", "IsFinite", "IsInf", "IsNan", "Less",
        "LessEqual", "NotEqual", "OnesLike", "PreventGradient", "Rank", "Shape", "ShapeN", "Size",
        "StopGradient", "TensorListElementShape", "TensorListLength", "TensorListReserve",
        "ZerosLike",
    }
)  # fmt: skip
_GRADIENT = re.compile(r"\w*(Grad|Gradient|Backprop)\w*")


def operations_without_gradient(
    concrete: Any, *, linear: Iterable[int], others: Iterable[int] = ()
) -> tuple[str, ...]:
    """The types of the operations through which a tape would lose a gradient.

    Args:
        concrete: the concrete function of a derivative.
        linear: the arguments in which it is linear, as far as it is differentiated by them.
        others: the other arguments by which it is differentiated. What depends on these may be
            constant, so that only the gradients of operations are looked at.
    """
    library = concrete.graph.as_graph_def().library.function
    functions = {function.signature.name: function for function in library}
    root = concrete.function_def
    strict = _Search(functions, of_gradients_only=False)
    strict.results_of(root, frozenset(linear))
    lenient = _Search(functions, of_gradients_only=True)
    lenient.results_of(root, frozenset(others))
    return tuple(sorted(strict.found | lenient.found))


class _Search:
    """Follows arguments through a function and through those that it calls."""

    def __init__(self, functions: Mapping[str, Any], *, of_gradients_only: bool) -> None:
        self.found: set[str] = set()
        self._functions = functions
        self._of_gradients_only = of_gradients_only
        self._has_gradient = gradient_query()
        self._known: dict[tuple[str, frozenset[int]], frozenset[int]] = {}

    def results_of(self, function: Any, given: frozenset[int]) -> frozenset[int]:
        """The indices of the results that depend on the arguments of these indices."""
        key = (function.signature.name, given)
        if not given or key in self._known:
            return self._known.get(key, frozenset())
        self._known[key] = frozenset()  # a function that calls itself adds nothing
        reached = {function.signature.input_arg[index].name for index in given}
        pending = list(function.node_def)
        while pending:
            later = [node for node in pending if not self._follow(node, reached)]
            if len(later) == len(pending):
                break
            pending = later
        results = (function.ret[output.name] for output in function.signature.output_arg)
        found = frozenset(i for i, name in enumerate(results) if _is_reached(name, reached))
        self._known[key] = found
        return found

    def _follow(self, node: Any, reached: set[str]) -> bool:
        """Whether the node depends on what is reached, of which its outputs then are a part."""
        inputs = [name for name in node.input if not name.startswith("^")]
        given = frozenset(i for i, name in enumerate(inputs) if _is_reached(name, reached))
        if not given:
            return False
        if node.op in _CONSTANT:
            return True
        called = self._called(node, given)
        if called is None:
            self._look_at(node)
            reached.add(node.name)
        else:
            reached.update(f"{node.name}:output:{index}" for index in called)
        return True

    def _called(self, node: Any, given: frozenset[int]) -> frozenset[int] | None:
        """The outputs of a node that calls functions; None of any other."""
        names = {key: value.func.name for key, value in node.attr.items() if value.HasField("func")}
        shifted = frozenset(index - 1 for index in given if index)
        if "body" in names:
            return self._results_of_loop(names["body"], given)
        if "then_branch" in names:
            return self._all_results([names["then_branch"], names["else_branch"]], shifted)
        if "branches" in node.attr:
            branches = [function.name for function in node.attr["branches"].list.func]
            return self._all_results(branches, shifted)
        return self._all_results([names["f"]], given) if "f" in names else None

    def _results_of_loop(self, body: str, given: frozenset[int]) -> frozenset[int]:
        while True:
            reached = given | self._all_results([body], given)
            if reached == given:
                return given
            given = reached

    def _all_results(self, names: Sequence[str], given: frozenset[int]) -> frozenset[int]:
        functions = (self._functions[name] for name in names if name in self._functions)
        return frozenset[int]().union(*(self.results_of(one, given) for one in functions))

    def _look_at(self, node: Any) -> None:
        told = node.attr["_gradient_op_type"].s if "_gradient_op_type" in node.attr else b""
        known = self._has_gradient(told.decode() or node.op)
        if known or (self._of_gradients_only and not _GRADIENT.fullmatch(node.op)):
            return
        self.found.add(node.op)


def _is_reached(name: str, reached: set[str]) -> bool:
    """Whether an input such as `node:output:0`, or an argument, depends on what is looked for."""
    return name in reached or name.partition(":")[0] in reached
