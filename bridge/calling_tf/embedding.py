"""A traced TensorFlow function as a custom call that carries it, in a program that is exported.

What `bridge.convert` and `bridge.save` make of the program has it as a function of TensorFlow's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import tensorflow as tf

from bridge.calling_tf.concrete_functions import TracedFunction
from bridge.calling_tf.graph_nodes import CALLS, LOOPS, in_topological_order
from bridge.calling_tf.variables import is_split, read
from xla_call_module.analyses.tensorflow_functions import TARGET, pack_functions
from xla_call_module.errors import StructureError

_SUFFIX = "_of_values"
_BRANCHES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})


@dataclass(frozen=True, slots=True)
class Embedding:
    """A call of a TensorFlow function in a program that is exported.

    Attributes:
        has_side_effect: whether it is called even if no result is used.
        only_exported: whether a program that JAX runs itself may not have it.
    """

    has_side_effect: bool
    only_exported: bool

    def like(self, results: Sequence[jax.ShapeDtypeStruct], arguments: Sequence[Any]) -> list[Any]:
        """Return a call with the same results and effects that carries no function."""
        return list(self._call(results, "")(*arguments))

    def run(
        self,
        traced: TracedFunction,
        results: Sequence[jax.ShapeDtypeStruct],
        arguments: Sequence[Any],
        values: Mapping[int, Any],
    ) -> list[Any]:
        """Return the results of the custom call in the program that is being traced."""
        operands = [_operand(captured, traced, values) for captured in traced.captures]
        call = self._call(results, pack_functions(*_definitions(traced)))
        return list(call(*arguments, *operands))

    def _call(
        self, results: Sequence[jax.ShapeDtypeStruct], functions: str
    ) -> Callable[..., Sequence[Any]]:
        return jax.ffi.ffi_call(
            TARGET,
            list(results),
            has_side_effect=self.has_side_effect,
            custom_call_api_version=2,
            legacy_backend_config=functions,
        )


def _operand(captured: Any, traced: TracedFunction, values: Mapping[int, Any]) -> Any:
    """Return the operand of the call for a captured variable or constant."""
    if captured.dtype != tf.resource and is_split(captured):
        raise StructureError(
            f"{traced.name} has captured {captured.dtype.name}, which JAX does not have while "
            "jax_enable_x64 is off. To do: make a constant inside of the function, and have "
            "variables of 32 bits."
        )
    if id(captured) in values:
        return values[id(captured)]
    if captured.dtype == tf.resource or isinstance(captured, tf.Variable):
        is_variable = isinstance(captured, tf.Variable)
        what = f"the variable {captured.name}" if is_variable else "a resource"
        raise StructureError(
            f"{traced.name} has captured {what}, which it cannot read with graph=True while the "
            "JAX program runs. To do: pass variables='argument', which makes them parameters, or "
            "variables='constant'."
        )
    return read([captured])[0]


def _definitions(traced: TracedFunction) -> tuple[str, list[bytes]]:
    """Return the name of the function, and the definitions of it and of those that it calls."""
    definition = traced.concrete.function_def
    library = traced.concrete.graph.as_graph_def().library.function
    count = len(traced.arguments)
    dtypes = {
        count + index: captured.dtype.base_dtype.as_datatype_enum
        for index, captured in enumerate(traced.captures)
        if isinstance(captured, tf.Variable)
    }
    name, known = _take_values([*library, definition], definition.signature.name, dtypes)
    by_name = {f.signature.name: f for f in known}
    return name, [f.SerializeToString(deterministic=True) for _, f in sorted(by_name.items())]


def _take_values(
    definitions: Sequence[Any], main: str, dtypes: Mapping[int, int]
) -> tuple[str, list[Any]]:
    """Return the name of a function of values in the place of variables, and all definitions."""
    if not dtypes:
        return main, list(definitions)
    rewriter = _Rewriter({function.signature.name: function for function in definitions})
    return rewriter.rewrite(main, dtypes), [*definitions, *rewriter.written.values()]


class _Rewriter:
    """Writes functions of values, each once."""

    def __init__(self, functions: Mapping[str, Any]) -> None:
        self._functions = functions
        self.written: dict[str, Any] = {}

    def rewrite(self, name: str, dtypes: Mapping[int, int]) -> str:
        """Return the name of the function that takes values for these arguments."""
        places = "_".join(map(str, sorted(dtypes)))
        new = f"{name}{_SUFFIX}_{places}"
        if new in self.written:
            return new
        function = type(self._functions[name])()
        function.CopyFrom(self._functions[name])
        self.written[new] = function
        function.signature.name = new
        function.attr.pop("_input_shapes", None)
        types = {}
        for index, dtype in dtypes.items():
            argument = function.signature.input_arg[index]
            argument.type = dtype
            argument.ClearField("handle_data")
            types[argument.name] = dtype
        read = {
            node.name
            for node in in_topological_order(function.node_def)
            if self._rewrite_node(node, types)
        }
        for node in function.node_def:
            node.input[:] = [_of_values(text, read) for text in node.input]
        for key, text in list(function.ret.items()):
            function.ret[key] = _of_values(text, read)
        for result in function.signature.output_arg:
            if function.ret[result.name] in types:
                result.type = types[function.ret[result.name]]
        return new

    def _rewrite_node(self, node: Any, types: dict[str, int]) -> bool:
        """Change a node that takes what is now a value, and say whether it has read it."""
        given = {index: types[text] for index, text in enumerate(node.input) if text in types}
        if not given:
            return False
        if node.op == "ReadVariableOp":
            node.op = "Identity"
            node.attr.clear()
            node.attr["T"].type = given[0]
            return True
        if node.op == "Identity":
            node.attr["T"].type = given[0]
            types[f"{node.name}:output:0"] = given[0]
        elif node.op in CALLS:
            self._rewrite_functions(node, ["f"], "Tin", given)
        elif node.op in LOOPS:
            self._rewrite_functions(node, ["cond", "body"], "T", given)
            types.update((f"{node.name}:output:{index}", dtype) for index, dtype in given.items())
        elif node.op in _BRANCHES:
            inside = {index - 1: dtype for index, dtype in given.items()}
            self._rewrite_functions(node, ["then_branch", "else_branch"], "Tin", inside)
        else:
            raise StructureError(
                f"{node.op} ({node.name}) takes a variable itself, and with graph=True a function "
                "takes values only. To do: leave graph=True out; or have the function read the "
                "variable first, as with tf.identity."
            )
        return False

    def _rewrite_functions(
        self, node: Any, keys: Sequence[str], types: str, given: Mapping[int, int]
    ) -> None:
        for index, dtype in given.items():
            node.attr[types].list.type[index] = dtype
        called = [node.attr[key].func for key in keys if key in node.attr]
        if "branches" in node.attr:
            called += node.attr["branches"].list.func
        for function in called:
            function.name = self.rewrite(function.name, given)


def _of_values(text: str, read: set[str]) -> str:
    """Return the name of an output, which may now be one of an `Identity`."""
    name, _, rest = text.partition(":")
    return f"{name}:output:0" if rest and name in read else text
