"""A function that reads variables -> the same function of their values, as definitions.

What calls a function of TensorFlow's from a module hands over tensors, never variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bridge.calling_tf.node_order import in_order
from xla_call_module.errors import StructureError

__all__ = ["take_values"]

_SUFFIX = "_of_values"
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_LOOPS = frozenset({"While", "StatelessWhile"})
_BRANCHES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})


def take_values(
    definitions: Sequence[Any], main: str, dtypes: Mapping[int, int]
) -> tuple[str, list[Any]]:
    """The definitions with those of the function of values, and its name.

    Args:
        definitions: FunctionDefs, that of the function and those of what it calls.
        main: the name of the function.
        dtypes: for each argument that is a variable the dtype of its value.

    Raises:
        StructureError: something else is done with a variable than to read it.
    """
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
        """The name of the function that takes values for these arguments."""
        places = "_".join(map(str, sorted(dtypes)))
        new = f"{name}{_SUFFIX}_{places}"
        if new in self.written:
            return new
        function = type(self._functions[name])()
        function.CopyFrom(self._functions[name])
        self.written[new] = function
        function.signature.name = new
        function.attr.pop("_input_shapes", None)
        held = {}
        for index, dtype in dtypes.items():
            argument = function.signature.input_arg[index]
            argument.type = dtype
            argument.ClearField("handle_data")
            held[argument.name] = dtype
        read = {node.name for node in in_order(function.node_def) if self._rewrite_node(node, held)}
        for node in function.node_def:
            node.input[:] = [_of_values(text, read) for text in node.input]
        for key, text in list(function.ret.items()):
            function.ret[key] = _of_values(text, read)
        for result in function.signature.output_arg:
            if function.ret[result.name] in held:
                result.type = held[function.ret[result.name]]
        return new

    def _rewrite_node(self, node: Any, held: dict[str, int]) -> bool:
        """Change a node that takes what is now a value, and say whether it has read it."""
        given = {index: held[text] for index, text in enumerate(node.input) if text in held}
        if not given:
            return False
        if node.op == "ReadVariableOp":
            node.op = "Identity"
            node.attr.clear()
            node.attr["T"].type = given[0]
            return True
        if node.op == "Identity":
            node.attr["T"].type = given[0]
            held[f"{node.name}:output:0"] = given[0]
        elif node.op in _CALLS:
            self._rewrite_functions(node, ["f"], "Tin", given)
        elif node.op in _LOOPS:
            self._rewrite_functions(node, ["cond", "body"], "T", given)
            held.update((f"{node.name}:output:{index}", dtype) for index, dtype in given.items())
        elif node.op in _BRANCHES:
            inside = {index - 1: dtype for index, dtype in given.items()}
            self._rewrite_functions(node, ["then_branch", "else_branch"], "Tin", inside)
        else:
            raise StructureError(
                f"{node.op} ({node.name}) takes a variable itself, and a function that stays "
                "TensorFlow's (graph=True) takes its value only. To do: leave graph=True out; or "
                "have the function read the variable first, as with tf.identity."
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
    """What an output is called, if it is now one of an `Identity`."""
    name, _, rest = text.partition(":")
    return f"{name}:output:0" if rest and name in read else text
