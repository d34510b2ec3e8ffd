"""The origins of the tensors of a function, through what TensorFlow puts around calls.

Saving, loading and saving again wraps a call in more and more functions and identities. Only these
are followed; nothing is run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from savedmodel.protos.schema import Proto
from xla_call_module.allowance import Allowance
from xla_call_module.errors import FormatError
from xla_call_module.node import SHARDING_OP, is_call

_PASS_THROUGH = frozenset({
    "EnsureShape", "Identity", "PreventGradient", "ReadVariableOp", "StopGradient", SHARDING_OP,
})  # fmt: skip
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_ASSIGN = "AssignVariableOp"
# How the names of the other operations begin that change a variable.
_CHANGES = ("AssignAddVariable", "AssignSubVariable", "ResourceApply", "ResourceScatter",
            "ResourceSparseApply", "ResourceStridedSliceAssign")  # fmt: skip
_MAX_STEPS = 500_000

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of the traced function; of a variable's handle also its value."""

    index: int


@dataclass(frozen=True, slots=True)
class Result:
    """A result of an XlaCallModule node, or of the call of a function in its place."""

    call: CallNode
    index: int


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """The result of a node that is not followed any further, such as a Const, a Cast or an Add.

    Attributes:
        sources: for each of its inputs where it comes from.
    """

    op: str
    node: str
    sources: tuple[Origin, ...]
    definition: Proto

    @property
    def tensor(self) -> Proto | None:
        """The TensorProto of a Const; None for any other operation."""
        return self.definition.attr["value"].tensor if self.op == "Const" else None


Origin = Argument | Result | Operation


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CallNode:
    """An XlaCallModule node, the FunctionDef that holds it, and where its operands come from."""

    node: Proto
    function: Proto
    operands: tuple[Origin, ...]

    def __repr__(self) -> str:
        """Return its names; operands that are results of calls would make a text without end."""
        return f"CallNode({self.node.name!r} of {self.function.signature.name!r})"


def steps_allowance() -> Allowance:
    """Return how many steps tracing all signatures of one file may take.

    Functions that call each other with other arguments each time take as many steps as 2 to the
    power of their number.
    """
    return Allowance(_MAX_STEPS, what="steps to follow its functions")


def index_functions(library: Proto) -> dict[str, Proto]:
    """Return every function of a FunctionDefLibrary by name."""
    functions = {function.signature.name: function for function in library.function}
    if len(functions) < len(library.function):
        names = [function.signature.name for function in library.function]
        raise FormatError(f"The file has two functions of the name {_twice(names)}.")
    return functions


def trace(
    function: str | Proto, library: Mapping[str, Proto], *, allowance: Allowance | None = None
) -> list[Origin]:
    """Return where each output of a function comes from."""
    return _trace(function, library, allowance, changing=frozenset())[0]


def trace_with_assignments(
    function: str,
    library: Mapping[str, Proto],
    *,
    changing: frozenset[str],
    allowance: Allowance,
) -> tuple[list[Origin], list[tuple[Origin, Origin]]]:
    """Return where each output of a function comes from, and the variables that it assigns.

    Each variable comes with where its new value comes from. That is an `Operation` where it is
    changed in another way, such as by AssignAddVariableOp, or in a branch or a loop.
    """
    return _trace(function, library, allowance, changing=changing)


def _trace(
    function: str | Proto,
    library: Mapping[str, Proto],
    allowance: Allowance | None,
    *,
    changing: frozenset[str],
) -> tuple[list[Origin], list[tuple[Origin, Origin]]]:
    definition = find_function(library, function) if isinstance(function, str) else function
    arguments = [Argument(index) for index in range(len(definition.signature.input_arg))]
    tracer = _Tracer(library, allowance or steps_allowance())
    try:
        outputs = tracer.outputs(definition, arguments)
        if definition.signature.name not in changing:
            return outputs, []
        return outputs, [*tracer.assignments(definition, arguments, changing)]
    except RecursionError as error:
        name = definition.signature.name
        raise FormatError(f"The functions below {name} call each other without end.") from error


def changing_functions(library: Mapping[str, Proto]) -> frozenset[str]:
    """Return the functions in which, or below which, a variable is changed."""
    callers: dict[str, list[str]] = {}
    pending = []
    for name, function in library.items():
        for node in function.node_def:
            if node.op == _ASSIGN or node.op.startswith(_CHANGES):
                pending.append(name)
            for callee in _callees(node):
                callers.setdefault(callee, []).append(name)
    changing: set[str] = set()
    while pending:
        name = pending.pop()
        if name not in changing:
            changing.add(name)
            pending += callers.get(name, [])
    return frozenset(changing)


def _callees(node: Proto) -> list[str]:
    """Return the functions that a node may call: by its attributes, or by the name of its op."""
    if node.op == "Const" or is_call(node):
        return []
    named = [value.func.name for value in node.attr.values() if value.HasField("func")]
    listed = [f.name for value in node.attr.values() for f in value.list.func]
    return [node.op, *named, *listed]


def callee_of(node: Proto) -> str:
    """Return the name of the function that a node calls, by its attribute or the name of its op."""
    return str(node.attr["f"].func.name if node.op in _CALLS else node.op)


def find_function(library: Mapping[str, Proto], name: str) -> Proto:
    """Return the function of a name."""
    if name not in library:
        raise FormatError(f"The file calls the function {name}, and has none of that name.")
    return library[name]


def data_inputs(node: Proto) -> tuple[str, ...]:
    """Return the tensors that a node takes, without the nodes that only run before it."""
    return tuple(reference for reference in node.input if not reference.startswith("^"))


def _twice(names: Sequence[str]) -> str:
    """Return a name that is there twice, or nothing."""
    seen: set[str] = set()
    return next((name for name in names if name in seen or seen.add(name)), "")  # type: ignore[func-returns-value]


@dataclass(frozen=True, slots=True)
class _Frame:
    """A function with the origins of its arguments, and what is known of its nodes.

    Attributes:
        known: the origins of the tensors that were asked for.
        data: for nodes that were asked for what they take, but for what only runs before them.
        calls: those of XlaCallModule nodes that were asked for.
        results: what the functions return that nodes call which were asked for.
    """

    function: Proto
    arguments: Mapping[str, Origin]
    nodes: Mapping[str, Proto]
    known: dict[str, Origin] = field(default_factory=dict)
    data: dict[str, tuple[str, ...]] = field(default_factory=dict)
    calls: dict[str, CallNode] = field(default_factory=dict)
    results: dict[str, list[Origin]] = field(default_factory=dict)


@dataclass(slots=True)
class _Tracer:
    library: Mapping[str, Proto]
    allowance: Allowance
    _calls: dict[tuple[str, str, tuple[Origin, ...]], CallNode] = field(default_factory=dict)
    _constants: dict[tuple[str, str], Operation] = field(default_factory=dict)
    _nodes: dict[str, dict[str, Proto]] = field(default_factory=dict)
    _frames: dict[tuple[str, tuple[Origin, ...]], _Frame] = field(default_factory=dict)
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

    def assignments(
        self, function: Proto, arguments: Sequence[Origin], changing: frozenset[str]
    ) -> Iterator[tuple[Origin, Origin]]:
        frame = self._frame(function, arguments)
        self.allowance.spend(1 + len(function.node_def))
        for node in function.node_def:
            is_change = node.op.startswith(_CHANGES)
            if not (node.op == _ASSIGN or is_change or changing.intersection(_callees(node))):
                continue
            passed = [self._origin(frame, reference) for reference in self._data(frame, node)]
            if node.op == _ASSIGN:
                yield _pick(passed, 0, node), _pick(passed, 1, node)
            elif is_change or callee_of(node) not in self.library:
                # Whatever it changes is among what it takes.
                changed = Operation(node.op, node.name, tuple(passed), node)
                yield _pick(passed, 0, node), changed
            else:
                yield from self.assignments(self.library[callee_of(node)], passed, changing)

    def _frame(self, function: Proto, arguments: Sequence[Origin]) -> _Frame:
        name = function.signature.name
        key = (name, tuple(arguments))
        if key in self._frames:
            return self._frames[key]
        names = [argument.name for argument in function.signature.input_arg]
        self.allowance.spend(1 + len(names) + len(arguments))
        if len(names) != len(arguments):
            raise FormatError(f"{name} takes {len(names)} arguments, and gets {len(arguments)}.")
        if name not in self._nodes:
            self._nodes[name] = {node.name: node for node in function.node_def}
            if len(self._nodes[name]) + len(set(names)) < len(function.node_def) + len(names):
                twice = _twice([*names, *(node.name for node in function.node_def)])
                raise FormatError(f"The function {name} has two tensors of the name {twice}.")
        by_name = dict(zip(names, arguments, strict=True))
        self._frames[key] = _Frame(function, by_name, self._nodes[name])
        return self._frames[key]

    def _origin(self, frame: _Frame, reference: str) -> Origin:
        """Return the origin of a tensor; what it depends on comes first, in chains of any length.

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

    def _needed(self, frame: _Frame, reference: str) -> Sequence[str]:
        """Return the tensors of the same function that `_find_origin` asks for."""
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
            # In a graph a tensor that is fed may be `node:1`; an argument has no outputs.
            if reference.count(":") > 1:
                function = frame.function.signature.name
                raise FormatError(f"{reference} is not a tensor of the function {function}.")
            return frame.arguments[name]
        return self._node_origin(frame, *self._node(frame, reference))

    def _node(self, frame: _Frame, reference: str) -> tuple[Proto, int]:
        """Return the node that computes a tensor, and the position among its results."""
        name, _, rest = reference.partition(":")
        if name not in frame.nodes:
            raise FormatError(
                f"{reference} is not a tensor of the function {frame.function.signature.name}."
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
        if is_call(node):
            return Result(self._call(frame, node, data), position)
        if (callee := callee_of(node)) in self.library:
            return _pick(self._results(frame, node, self.library[callee]), position, node)
        if node.op == "Const":
            return self._constant(frame, node)
        sources = tuple(self._origin(frame, reference) for reference in data)
        return Operation(node.op, node.name, sources, node)

    def _data(self, frame: _Frame, node: Proto) -> tuple[str, ...]:
        if node.name not in frame.data:
            frame.data[node.name] = data_inputs(node)
        return frame.data[node.name]

    def _results(self, frame: _Frame, node: Proto, function: Proto) -> list[Origin]:
        """Return the results of a function that a node calls."""
        if node.name not in frame.results:
            passed = [self._origin(frame, reference) for reference in self._data(frame, node)]
            frame.results[node.name] = self.outputs(function, passed)
        return frame.results[node.name]

    def _constant(self, frame: _Frame, node: Proto) -> Operation:
        """Return the constant of a node; the same object whenever it is asked for."""
        key = (frame.function.signature.name, node.name)
        if key not in self._constants:
            self._constants[key] = Operation(node.op, node.name, (), node)
        return self._constants[key]

    def _call(self, frame: _Frame, node: Proto, data: Sequence[str]) -> CallNode:
        """Return the call of a node; the same object for each of its results."""
        if node.name not in frame.calls:
            operands = tuple(self._origin(frame, reference) for reference in data)
            key = (frame.function.signature.name, node.name, operands)
            if key not in self._calls:
                self._calls[key] = CallNode(node, frame.function, operands)
            frame.calls[node.name] = self._calls[key]
        return frame.calls[node.name]


def _pick(values: Sequence[_T], position: int, node: Proto) -> _T:
    if position >= len(values):
        raise FormatError(
            f"Node {node.name} ({node.op}) has {len(values)} tensors, not {position}."
        )
    return values[position]
