"""The derivatives that TensorFlow has of a function, and the errors for those that it lacks.

A tape takes the gradient of an operation that has none for zero and says nothing. That is right
for what is piecewise constant. A derivative is linear in its tangents or cotangents, so each
operation between these and the results must have a gradient.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from bridge.calling_tf.concrete_functions import TracedFunction
from bridge.calling_tf.graph_nodes import in_topological_order, stateful_operations
from bridge.core._tf import gradient_query, is_of_recompute_grad
from xla_call_module.dtypes import dtype_from_name
from xla_call_module.errors import StructureError

_DERIVATIVES = {"tangent": "derivative in forward mode", "pullback": "gradient of its gradient"}
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


# For each result or input that depends on what is looked for, the operations without a gradient
# that lie between.
_Lost = Mapping[int, frozenset[str]]


def is_differentiable(dtype: str) -> bool:
    """Return whether TensorFlow has gradients for a dtype."""
    return dtype_from_name(dtype, where="a value").differentiable


def conjugate(tensor: tf.Tensor) -> tf.Tensor:
    """Return a cotangent of TensorFlow as one of JAX, and back."""
    return tf.math.conj(tensor) if tensor.dtype.is_complex else tensor


def refuse_effects(traced: TracedFunction) -> None:
    """Refuse to differentiate what would run once more for its derivative."""
    if stateful := stateful_operations(traced.concrete):
        raise StructureError(
            f"{traced.name} cannot be differentiated: TensorFlow would run it again, and "
            f"{', '.join(stateful)} would assign, or draw random numbers, again. To do: take and "
            "return what changes, and use tf.random.stateless_uniform and the like."
        )


def lost_gradients(name: str, kind: str, lost: Sequence[str]) -> StructureError:
    """Return the error for a derivative that TensorFlow would silently compute as zero."""
    return StructureError(
        f"{name} has no {_DERIVATIVES[kind]}: TensorFlow's gradient of it uses {', '.join(lost)}, "
        "which has no gradient itself. To do: leave the operation out, give it a gradient of other "
        "operations with tf.custom_gradient, or take the first derivative alone, in reverse mode."
    )


def without_derivative(name: str, kind: str, error: Exception) -> StructureError:
    """Return the error for a function that TensorFlow cannot differentiate, with its own words."""
    text = str(error).partition("\n")[0]
    if is_of_recompute_grad(error):
        return StructureError(
            f"{name} has no {_DERIVATIVES[kind]}: tf.recompute_grad gives a function a first "
            "gradient only. To do: leave it out, and have JAX compute the values again, as in "
            f"jax.checkpoint(bridge.call_tf(fun)). TensorFlow says: {text}"
        )
    return StructureError(
        f"{name} has no derivative: TensorFlow says: {text}. To do: give the operation a gradient "
        "with tf.custom_gradient."
    )


def operations_without_gradient(
    concrete: Any, *, linear: Iterable[int], others: Iterable[int] = ()
) -> tuple[str, ...]:
    """Return the types of the operations through which a tape would lose a gradient."""
    library = concrete.graph.as_graph_def().library.function
    functions = {function.signature.name: function for function in library}
    lost: set[str] = set()
    for arguments, of_gradients_only in ((linear, False), (others, True)):
        search = _Search(functions, of_gradients_only=of_gradients_only)
        results = search.results_of(concrete.function_def, dict.fromkeys(arguments, frozenset()))
        lost.update(*results.values())
    return tuple(sorted(lost))


class _Search:
    """Follows arguments through a function and through those that it calls."""

    def __init__(self, functions: Mapping[str, Any], *, of_gradients_only: bool) -> None:
        self._functions = functions
        self._of_gradients_only = of_gradients_only
        self._has_gradient = gradient_query()
        self._known: dict[Any, _Lost] = {}

    def results_of(self, function: Any, given: _Lost) -> _Lost:
        """Return what is lost on the way to those results that depend on the arguments."""
        key = (function.signature.name, frozenset(given.items()))
        if not given or key in self._known:
            return self._known.get(key, {})
        self._known[key] = {}  # a function that calls itself adds nothing
        names = [argument.name for argument in function.signature.input_arg]
        reached = {names[index]: lost for index, lost in given.items()}
        for node in in_topological_order(function.node_def):
            self._follow(node, reached)
        results = [function.ret[output.name] for output in function.signature.output_arg]
        self._known[key] = _select(results, reached)
        return self._known[key]

    def _follow(self, node: Any, reached: dict[str, frozenset[str]]) -> None:
        """Add the outputs of the node, where it depends on what is reached."""
        given = _select([name for name in node.input if not name.startswith("^")], reached)
        if not given or node.op in _CONSTANT:
            return
        if "_gradient_op_type" in node.attr:
            # Its gradient is for all of its inputs, and where one has lost nothing goes there.
            reached[node.name] = min(given.values(), key=len)
        elif (called := self._called(node, given)) is not None:
            reached.update((f"{node.name}:output:{index}", lost) for index, lost in called.items())
        else:
            own = () if self._keeps(node.op) else (node.op,)
            reached[node.name] = frozenset(own).union(*given.values())

    def _keeps(self, op_type: str) -> bool:
        looked_at = not self._of_gradients_only or _GRADIENT.fullmatch(op_type)
        return not looked_at or self._has_gradient(op_type)

    def _called(self, node: Any, given: _Lost) -> _Lost | None:
        """Return the outputs of a node that calls functions; None of any other."""
        names = {key: value.func.name for key, value in node.attr.items() if value.HasField("func")}
        after_first = {index - 1: lost for index, lost in given.items() if index}
        if "body" in names:
            return self._results_of_loop(names["body"], given)
        if "then_branch" in names:
            return self._all_results([names["then_branch"], names["else_branch"]], after_first)
        if "branches" in node.attr:
            branches = [function.name for function in node.attr["branches"].list.func]
            return self._all_results(branches, after_first)
        return self._all_results([names["f"]], given) if "f" in names else None

    def _results_of_loop(self, body: str, given: _Lost) -> _Lost:
        while True:
            after = _unite([given, self._all_results([body], given)])
            if after == given:
                return given
            given = after

    def _all_results(self, names: Iterable[str], given: _Lost) -> _Lost:
        functions = (self._functions[name] for name in names if name in self._functions)
        return _unite([self.results_of(function, given) for function in functions])


def _select(names: Sequence[str], reached: Mapping[str, frozenset[str]]) -> _Lost:
    """Return the inputs, such as `node:output:0`, that are reached, by their index."""
    selected = {}
    for index, name in enumerate(names):
        lost = reached.get(name, reached.get(name.partition(":")[0]))
        if lost is not None:
            selected[index] = lost
    return selected


def _unite(losses: Iterable[_Lost]) -> _Lost:
    together: dict[int, frozenset[str]] = {}
    for one in losses:
        for index, lost in one.items():
            together[index] = together.get(index, frozenset()) | lost
    return together
