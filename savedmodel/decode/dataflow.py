"""Where the tensors of a function come from, through what TensorFlow puts around calls.

Saving, loading and saving again wraps a call in more and more functions and identities. Only these
are followed; nothing is run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from savedmodel.protos.schema import Proto
from xla_call_module.allowance import Allowance
from xla_call_module.errors import FormatError
from xla_call_module.node import OP
from xla_call_module.sharding_node import SHARDING_OP

__all__ = [
    "Argument",
    "Call",
    "Cast",
    "Constant",
    "GradientFunction",
    "Gradients",
    "Origin",
    "Reshape",
    "Result",
    "Unknown",
    "index_functions",
    "steps_allowance",
    "trace",
]

_PASS_THROUGH = frozenset({
    "EnsureShape", "Identity", "PreventGradient", "ReadVariableOp", "StopGradient", SHARDING_OP,
})  # fmt: skip
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_MAX_STEPS = 500_000
_MAX_ORDER = 64

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of the traced function; of a variable's handle also its value."""

    index: int


@dataclass(frozen=True, slots=True)
class Result:
    """A result of an XlaCallModule node."""

    call: Call
    index: int


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """The value of a Const node, a TensorProto."""

    tensor: Proto


@dataclass(frozen=True, slots=True, eq=False)
class Cast:
    """Something in another dtype, which is TensorFlow's number for it."""

    source: Origin
    dtype: int


@dataclass(frozen=True, slots=True, eq=False)
class Reshape:
    """Something in a shape that is computed elsewhere."""

    source: Origin
    shape: Origin


@dataclass(frozen=True, slots=True, eq=False)
class Unknown:
    """Something computed by another operation, in the node of that name."""

    op: str
    node: str = ""
    sources: tuple[Origin, ...] = ()
    definition: Proto | None = None


Origin = Argument | Result | Constant | Cast | Reshape | Unknown


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Call:
    """An XlaCallModule node, the function that holds it, and where its operands come from."""

    node: Proto
    function: Proto
    operands: tuple[Origin, ...]

    def __repr__(self) -> str:
        """Its names; operands that are results of calls would make a text without end."""
        return f"Call({self.node.name!r} of {self.function.signature.name!r})"


def steps_allowance() -> Allowance:
    """What tracing all signatures of one file may take.

    Functions that call each other with other arguments each time take as many steps as 2 to the
    power of their number.
    """
    return Allowance(_MAX_STEPS, what="steps to follow its functions")


def index_functions(library: Proto) -> dict[str, Proto]:
    """Every function of a FunctionDefLibrary by name.

    Raises:
        FormatError: two have the same name.
    """
    functions = {function.signature.name: function for function in library.function}
    if len(functions) < len(library.function):
        names = [function.signature.name for function in library.function]
        raise FormatError(f"The file has two functions of the name {_twice(names)}.")
    return functions


def trace(
    function: str | Proto, library: Mapping[str, Proto], *, allowance: Allowance | None = None
) -> list[Origin]:
    """For each output of a function where it comes from.

    Args:
        function: the name of the function, or a FunctionDef.
        library: every function of the file by name.
        allowance: what `steps_allowance` gave for the file.

    Raises:
        FormatError: a name leads nowhere or is there twice, functions call each other in a circle,
            or take more steps than are allowed.
    """
    definition = _find(library, function) if isinstance(function, str) else function
    arguments = [Argument(index) for index in range(len(definition.signature.input_arg))]
    tracer = _Tracer(library, allowance or steps_allowance())
    try:
        return tracer.outputs(definition, arguments)
    except RecursionError as error:
        name = definition.signature.name
        raise FormatError(f"The functions below {name} call each other without end.") from error


@dataclass(frozen=True, slots=True)
class GradientFunction:
    """What TensorFlow calls for the gradient of a call.

    Attributes:
        name: of the function.
        identity: the IdentityN whose gradient it is; it returns what that returns, and takes a
            gradient for each of its inputs.
    """

    name: str
    identity: Proto


@dataclass(slots=True)
class Gradients:
    """The gradient functions of a file, and which call each of them is of.

    Each function of the file is looked through once, however many calls are in it.
    """

    functions: Mapping[str, Proto]
    allowance: Allowance
    _by_type: dict[str, str]
    _identities: dict[str, dict[str, Proto]] = field(default_factory=dict)
    _shown: dict[str, dict[str, str]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, library: Proto, functions: Mapping[str, Proto], *, allowance: Allowance
    ) -> Gradients:
        """Those of a FunctionDefLibrary.

        Args:
            library: the FunctionDefLibrary.
            functions: what `index_functions` made of it.
            allowance: what `steps_allowance` gave for the file.
        """
        by_type = {g.registered_op_type: g.gradient_func for g in library.registered_gradients}
        return cls(functions, allowance, by_type)

    def find(self, call: Call) -> GradientFunction | None:
        """The gradient function of a call; None where the file has none.

        Raises:
            FormatError: functions of the file take more steps than are allowed.
        """
        identity = self._identity(call.node, call.function)
        name = self._by_type.get(_gradient_op_type(identity))
        return None if name is None or identity is None else GradientFunction(name, identity)

    def nodes(self, call: Call) -> list[Proto]:
        """The XlaCallModule nodes of a call's gradients, order after order.

        Raises:
            FormatError: a gradient leads nowhere, or there are more orders than any writer makes.
        """
        nodes: list[Proto] = []
        seen: set[str] = set()
        op_type = _gradient_op_type(self._identity(call.node, call.function))
        while op_type in self._by_type and op_type not in seen:
            seen.add(op_type)
            gradient = _find(self.functions, self._by_type[op_type])
            found = _first_call(gradient, self.functions, set(), self.allowance)
            if found is None:
                break
            nodes.append(found[0])
            op_type = _gradient_op_type(self._identity(*found))
            if len(nodes) > _MAX_ORDER:
                raise FormatError(
                    f"Node {call.node.name} has gradients of over {_MAX_ORDER} orders."
                )
        return nodes

    def _identity(self, node: Proto, function: Proto) -> Proto | None:
        """The IdentityN with a gradient that a node's first result goes through."""
        name = function.signature.name
        if name not in self._identities:
            self._identities[name] = _gradient_identities(function, self.shown(function))
        return self._identities[name].get(node.name)

    def shown(self, function: Proto) -> Mapping[str, str]:
        """What the nodes of a FunctionDef that only show a sharding pass on, by their names."""
        name = function.signature.name
        if name not in self._shown:
            self.allowance.spend(len(function.node_def))
            nodes = (node for node in function.node_def if node.op == SHARDING_OP and node.input)
            self._shown[name] = {node.name: node.input[0] for node in nodes}
        return self._shown[name]


def _gradient_identities(function: Proto, shown: Mapping[str, str]) -> dict[str, Proto]:
    """For each node whose result goes through an IdentityN with a gradient the first of those."""
    found: dict[str, Proto] = {}
    for user in function.node_def:
        if user.op == "IdentityN" and "_gradient_op_type" in user.attr and user.input:
            first = user.input[0].split(":")[0]
            found.setdefault(first, user)
            found.setdefault(shown.get(first, first).split(":")[0], user)
    return found


def _gradient_op_type(identity: Proto | None) -> str:
    """The name by which an IdentityN leads to its gradient, or nothing."""
    if identity is None:
        return ""
    return str(identity.attr["_gradient_op_type"].s.decode("utf-8", "replace"))


def _first_call(
    function: Proto, library: Mapping[str, Proto], seen: set[str], allowance: Allowance
) -> tuple[Proto, Proto] | None:
    """The first XlaCallModule node in a function or in those that it calls, with its function."""
    if function.signature.name in seen:
        return None
    seen.add(function.signature.name)
    allowance.spend(1 + len(function.node_def))
    for node in function.node_def:
        if node.op == OP:
            return node, function
        if (callee := _callee(node)) in library:
            found = _first_call(library[callee], library, seen, allowance)
            if found is not None:
                return found
    return None


def _callee(node: Proto) -> str:
    """The function that a node calls: by its attribute, or by the name of its op."""
    return str(node.attr["f"].func.name if node.op in _CALLS else node.op)


def _find(library: Mapping[str, Proto], name: str) -> Proto:
    if name not in library:
        raise FormatError(f"The file calls the function {name}, and has none of that name.")
    return library[name]


def _twice(names: Sequence[str]) -> str:
    """A name that is there twice, or nothing."""
    seen: set[str] = set()
    return next((name for name in names if name in seen or seen.add(name)), "")  # type: ignore[func-returns-value]


@dataclass(frozen=True, slots=True)
class _Frame:
    """A function with the origins of its arguments, and what is known of its nodes.

    Attributes:
        function: the FunctionDef.
        arguments: by their names.
        nodes: by their names.
        known: the origins of the tensors that were asked for.
        data: for nodes that were asked for what they take, but for what only runs before them.
        calls: those of XlaCallModule nodes that were asked for.
        results: what the functions return that nodes call which were asked for.
    """

    function: Proto
    arguments: Mapping[str, Origin]
    nodes: Mapping[str, Proto]
    known: dict[str, Origin] = field(default_factory=dict)
    data: dict[str, list[str]] = field(default_factory=dict)
    calls: dict[str, Call] = field(default_factory=dict)
    results: dict[str, list[Origin]] = field(default_factory=dict)


@dataclass(slots=True)
class _Tracer:
    library: Mapping[str, Proto]
    allowance: Allowance
    _calls: dict[tuple[str, str, tuple[Origin, ...]], Call] = field(default_factory=dict)
    _constants: dict[tuple[str, str], Constant] = field(default_factory=dict)
    _nodes: dict[str, dict[str, Proto]] = field(default_factory=dict)
    _outputs: dict[tuple[str, tuple[Origin, ...]], list[Origin]] = field(default_factory=dict)

    def outputs(self, function: Proto, arguments: Sequence[Origin]) -> list[Origin]:
        key = (function.signature.name, tuple(arguments))
        if key not in self._outputs:
            frame = self._frame(function, arguments)
            self._outputs[key] = [
                self._origin(frame, function.ret[output.name])
                for output in function.signature.output_arg
            ]
        return self._outputs[key]

    def _frame(self, function: Proto, arguments: Sequence[Origin]) -> _Frame:
        name = function.signature.name
        names = [argument.name for argument in function.signature.input_arg]
        self.allowance.spend(1 + len(names) + len(arguments))
        if len(names) != len(arguments):
            raise FormatError(f"{name} takes {len(names)} arguments, and gets {len(arguments)}.")
        if name not in self._nodes:
            self._nodes[name] = {node.name: node for node in function.node_def}
            if len(self._nodes[name]) + len(set(names)) < len(function.node_def) + len(names):
                twice = _twice([*names, *(node.name for node in function.node_def)])
                raise FormatError(f"The function {name} has two tensors of the name {twice}.")
        return _Frame(function, dict(zip(names, arguments, strict=True)), self._nodes[name])

    def _origin(self, frame: _Frame, reference: str) -> Origin:
        """Where a tensor comes from; what it depends on is followed first, in chains of any length.

        Only functions that call each other take Python's stack.
        """
        pending = [reference]
        opened: set[str] = set()
        while pending:
            last = pending[-1]
            if last in frame.known:
                pending.pop()
            elif missing := [name for name in self._needed(frame, last) if name not in frame.known]:
                if last in opened:
                    function = frame.function.signature.name
                    raise FormatError(f"{last} in the function {function} depends on itself.")
                opened.add(last)
                pending.extend(reversed(missing))
            else:
                frame.known[last] = self._find_origin(frame, last)
        return frame.known[reference]

    def _needed(self, frame: _Frame, reference: str) -> list[str]:
        """The tensors of the same function that `_find_origin` asks for."""
        name = reference.partition(":")[0]
        if name in frame.arguments or name in frame.calls or name in frame.results:
            return []
        node, position = self._node(frame, reference)
        if node.op == "Const":
            return []
        data = self._data(frame, node)
        if node.op in _PASS_THROUGH:
            return data[:1]
        return data[position : position + 1] if node.op == "IdentityN" else data

    def _find_origin(self, frame: _Frame, reference: str) -> Origin:
        self.allowance.spend()
        name = reference.partition(":")[0]
        if name in frame.arguments:
            return frame.arguments[name]
        return self._node_origin(frame, *self._node(frame, reference))

    def _node(self, frame: _Frame, reference: str) -> tuple[Proto, int]:
        """The node that computes a tensor, and the position among its results."""
        name, _, rest = reference.partition(":")
        if name not in frame.nodes:
            raise FormatError(
                f"{reference} is no tensor of the function {frame.function.signature.name}."
            )
        output, _, position = rest.partition(":")
        if position and not (position.isascii() and position.isdigit()):
            raise FormatError(f"{reference} names no result of node {name}.")
        # In a graph it is `node:0`, in a function `node:output:0`.
        number = position or (output if output.isascii() and output.isdigit() else "0")
        return frame.nodes[name], int(number)

    def _node_origin(self, frame: _Frame, node: Proto, position: int) -> Origin:
        data = self._data(frame, node)
        if node.op in _PASS_THROUGH or node.op == "IdentityN":
            chosen = position if node.op == "IdentityN" else 0
            return self._origin(frame, _pick(data, chosen, node))
        if node.op == OP:
            return Result(self._call(frame, node, data), position)
        if (callee := _callee(node)) in self.library:
            return _pick(self._results(frame, node, self.library[callee]), position, node)
        if node.op == "Const":
            return self._constant(frame, node)
        sources = tuple(self._origin(frame, reference) for reference in data)
        if node.op == "Cast":
            return Cast(_pick(sources, 0, node), node.attr["DstT"].type)
        if node.op == "Reshape":
            return Reshape(_pick(sources, 0, node), _pick(sources, 1, node))
        return Unknown(node.op, node.name, sources, node)

    def _data(self, frame: _Frame, node: Proto) -> list[str]:
        if node.name not in frame.data:
            frame.data[node.name] = [name for name in node.input if not name.startswith("^")]
        return frame.data[node.name]

    def _results(self, frame: _Frame, node: Proto, function: Proto) -> list[Origin]:
        """What a function returns that a node calls."""
        if node.name not in frame.results:
            passed = [self._origin(frame, reference) for reference in self._data(frame, node)]
            frame.results[node.name] = self.outputs(function, passed)
        return frame.results[node.name]

    def _constant(self, frame: _Frame, node: Proto) -> Constant:
        """The value of a node; the same object whenever it is asked for."""
        key = (frame.function.signature.name, node.name)
        if key not in self._constants:
            self._constants[key] = Constant(node.attr["value"].tensor)
        return self._constants[key]

    def _call(self, frame: _Frame, node: Proto, data: Sequence[str]) -> Call:
        """The call of a node; the same object for each of its results."""
        if node.name not in frame.calls:
            operands = tuple(self._origin(frame, reference) for reference in data)
            key = (frame.function.signature.name, node.name, operands)
            if key not in self._calls:
                self._calls[key] = Call(node, frame.function, operands)
            frame.calls[node.name] = self._calls[key]
        return frame.calls[node.name]


def _pick(values: Sequence[_T], position: int, node: Proto) -> _T:
    if position >= len(values):
        raise FormatError(
            f"Node {node.name} ({node.op}) has {len(values)} tensors, not {position}."
        )
    return values[position]
