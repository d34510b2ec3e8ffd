"""Where the tensors of a function come from, through what TensorFlow puts around calls.

Saving, loading and saving again wraps a call in more and more functions and identities. Only these
are followed; nothing is run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from savedmodel.schema import Proto
from xla_call_module.errors import FormatError
from xla_call_module.node import OP

__all__ = ["Argument", "Call", "Origin", "Result", "Unknown", "gradient_nodes", "trace"]

_PASS_THROUGH = frozenset({"Identity", "PreventGradient", "ReadVariableOp", "StopGradient"})
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of the traced function; of a variable's handle also its value."""

    index: int


@dataclass(frozen=True, slots=True)
class Result:
    """A result of an XlaCallModule node."""

    call: Call
    index: int


@dataclass(frozen=True, slots=True)
class Unknown:
    """Something computed by another operation."""

    op: str


Origin = Argument | Result | Unknown


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """An XlaCallModule node, the function that holds it, and where its operands come from."""

    node: Proto
    function: Proto
    operands: tuple[Origin, ...]


def trace(function: str, library: Mapping[str, Proto]) -> list[Origin]:
    """For each output of a function where it comes from.

    Args:
        function: the name of the function.
        library: every function of the file by name.

    Raises:
        FormatError: a name leads nowhere, or functions call each other in a circle.
    """
    definition = _find(library, function)
    arguments = [Argument(index) for index in range(len(definition.signature.input_arg))]
    tracer = _Tracer(library)
    try:
        return tracer.outputs(definition, arguments)
    except RecursionError as error:
        raise FormatError(f"The functions below {function} call each other without end.") from error


def gradient_nodes(call: Call, library: Proto) -> list[Proto]:
    """The XlaCallModule nodes of a call's gradients, order after order.

    Args:
        call: the traced call.
        library: the FunctionDefLibrary.
    """
    functions = {function.signature.name: function for function in library.function}
    gradients = {
        gradient.registered_op_type: gradient.gradient_func
        for gradient in library.registered_gradients
    }
    nodes: list[Proto] = []
    node, function = call.node, call.function
    while (name := gradients.pop(_gradient_op_type(node, function), None)) is not None:
        found = _first_call(_find(functions, name), functions, set())
        if found is None:
            break
        node, function = found
        nodes.append(node)
    return nodes


def _first_call(
    function: Proto, library: Mapping[str, Proto], seen: set[str]
) -> tuple[Proto, Proto] | None:
    """The first XlaCallModule node in a function or in those that it calls, with its function."""
    if function.signature.name in seen:
        return None
    seen.add(function.signature.name)
    for node in function.node_def:
        if node.op == OP:
            return node, function
        if (callee := _callee(node)) in library:
            found = _first_call(library[callee], library, seen)
            if found is not None:
                return found
    return None


def _callee(node: Proto) -> str:
    """The function that a node calls: by its attribute, or by the name of its op."""
    return str(node.attr["f"].func.name if node.op in _CALLS else node.op)


def _gradient_op_type(node: Proto, function: Proto) -> str:
    """The gradient of the IdentityN that a node's first result goes through, or nothing."""
    for user in function.node_def:
        if user.op == "IdentityN" and user.input and user.input[0].split(":")[0] == node.name:
            return str(user.attr["_gradient_op_type"].s.decode())
    return ""


def _find(library: Mapping[str, Proto], name: str) -> Proto:
    if name not in library:
        raise FormatError(f"The file calls the function {name}, and has none of that name.")
    return library[name]


@dataclass(slots=True)
class _Tracer:
    library: Mapping[str, Proto]
    _calls: dict[tuple[str, str, tuple[Origin, ...]], Call] = field(default_factory=dict)

    def outputs(self, function: Proto, arguments: Sequence[Origin]) -> list[Origin]:
        return [
            self._origin(function, arguments, function.ret[output.name])
            for output in function.signature.output_arg
        ]

    def _origin(self, function: Proto, arguments: Sequence[Origin], reference: str) -> Origin:
        name, _, rest = reference.partition(":")
        for index, argument in enumerate(function.signature.input_arg):
            if argument.name == name:
                return arguments[index]
        node = next((node for node in function.node_def if node.name == name), None)
        if node is None:
            raise FormatError(
                f"{reference} is no tensor of the function {function.signature.name}."
            )
        output, _, position = rest.partition(":")
        return self._node_origin(function, arguments, node, int(position or 0) if output else 0)

    def _node_origin(
        self, function: Proto, arguments: Sequence[Origin], node: Proto, position: int
    ) -> Origin:
        data = [reference for reference in node.input if not reference.startswith("^")]
        if node.op in _PASS_THROUGH or node.op == "IdentityN":
            chosen = position if node.op == "IdentityN" else 0
            return self._origin(function, arguments, data[chosen])
        if node.op == OP:
            return Result(self._call(function, arguments, node, data), position)
        if (callee := _callee(node)) in self.library:
            inner = _find(self.library, callee)
            passed = [self._origin(function, arguments, reference) for reference in data]
            return self.outputs(inner, passed)[position]
        return Unknown(node.op)

    def _call(
        self, function: Proto, arguments: Sequence[Origin], node: Proto, data: Sequence[str]
    ) -> Call:
        """The call of a node; the same object for each of its results."""
        operands = tuple(self._origin(function, arguments, reference) for reference in data)
        key = (function.signature.name, node.name, operands)
        if key not in self._calls:
            self._calls[key] = Call(node, function, operands)
        return self._calls[key]
