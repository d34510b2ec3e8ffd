"""The gradient functions of a file: which call each of them is of, and the calls in them.

A gradient is found as `savedmodel.encode.gradients` writes it, and as TensorFlow and jax2tf do: the
results of a call pass through an IdentityN whose attribute `_gradient_op_type` leads to it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from savedmodel.decode.dataflow import (
    Argument,
    CallNode,
    Operation,
    Origin,
    Result,
    callee_of,
    data_inputs,
    find_function,
    trace,
)
from savedmodel.model import Gradient
from savedmodel.protos.schema import Proto
from savedmodel.protos.tensor_values import decode_tensor
from xla_call_module.allowance import Allowance
from xla_call_module.call import CallModule
from xla_call_module.errors import FormatError, InteropError
from xla_call_module.node import SHARDING_OP, decode_node, is_call

_MAX_ORDER = 64


@dataclass(frozen=True, slots=True)
class Described:
    """The captures and results of a gradient function, from the object graph.

    Attributes:
        captured: the names of the tensors that it gets besides its arguments, in the function whose
            gradient it is.
        returned: for each gradient whether it is a tensor; the others are None.
    """

    captured: tuple[str, ...]
    returned: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class GradientFunction:
    """The function that TensorFlow calls for the gradient of a call.

    Attributes:
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
    described: Callable[[str], Described]
    _by_type: dict[str, str]
    _identities: dict[str, dict[str, Proto]] = field(default_factory=dict)
    _shown: dict[str, dict[str, str]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        library: Proto,
        functions: Mapping[str, Proto],
        described: Callable[[str], Described],
        *,
        allowance: Allowance,
    ) -> Gradients:
        """Return the gradient functions of a FunctionDefLibrary."""
        by_type = {g.registered_op_type: g.gradient_func for g in library.registered_gradients}
        return cls(functions, allowance, described, by_type)

    def find(self, call: CallNode) -> GradientFunction | None:
        """Return the gradient function of a call; None where the file has none."""
        identity = self._identity(call.node, call.function)
        name = self._by_type.get(_gradient_op_type(identity))
        return None if name is None or identity is None else GradientFunction(name, identity)

    def nodes(self, call: CallNode) -> list[Proto]:
        """Return the XlaCallModule nodes of a call's gradients, order after order."""
        nodes: list[Proto] = []
        seen: set[str] = set()
        op_type = _gradient_op_type(self._identity(call.node, call.function))
        while op_type in self._by_type and op_type not in seen:
            seen.add(op_type)
            gradient = find_function(self.functions, self._by_type[op_type])
            first = _first_call(gradient, self.functions, set(), self.allowance)
            if first is None:
                break
            nodes.append(first[0])
            op_type = _gradient_op_type(self._identity(*first))
            if len(nodes) > _MAX_ORDER:
                raise FormatError(
                    f"Node {call.node.name} has gradients of over {_MAX_ORDER} orders."
                )
        return nodes

    def _identity(self, node: Proto, function: Proto) -> Proto | None:
        """Return the IdentityN with a gradient that a node's first result goes through."""
        name = function.signature.name
        if name not in self._identities:
            self._identities[name] = _gradient_identities(function, self.shown(function))
        return self._identities[name].get(node.name)

    def shown(self, function: Proto) -> Mapping[str, str]:
        """Return the inputs of a FunctionDef's XlaSharding nodes by the names of the nodes."""
        name = function.signature.name
        if name not in self._shown:
            self.allowance.spend(len(function.node_def))
            nodes = (node for node in function.node_def if node.op == SHARDING_OP and node.input)
            self._shown[name] = {node.name: node.input[0] for node in nodes}
        return self._shown[name]


def _gradient_identities(function: Proto, shown: Mapping[str, str]) -> dict[str, Proto]:
    """Return by nodes the first IdentityN with a gradient that the result of each goes through."""
    identities: dict[str, Proto] = {}
    for user in function.node_def:
        if user.op == "IdentityN" and "_gradient_op_type" in user.attr and user.input:
            first = user.input[0].split(":")[0]
            identities.setdefault(first, user)
            identities.setdefault(shown.get(first, first).split(":")[0], user)
    return identities


def _gradient_op_type(identity: Proto | None) -> str:
    """Return the name by which an IdentityN leads to its gradient, or nothing."""
    if identity is None:
        return ""
    return str(identity.attr["_gradient_op_type"].s.decode("utf-8", "replace"))


def _first_call(
    function: Proto, library: Mapping[str, Proto], seen: set[str], allowance: Allowance
) -> tuple[Proto, Proto] | None:
    """Return the first XlaCallModule node in a function or its callees, with its function."""
    if function.signature.name in seen:
        return None
    seen.add(function.signature.name)
    allowance.spend(1 + len(function.node_def))
    for node in function.node_def:
        if is_call(node):
            return node, function
        if (callee := callee_of(node)) in library:
            first = _first_call(library[callee], library, seen, allowance)
            if first is not None:
                return first
    return None


def read_gradient(call: CallNode, primal: CallModule, gradients: Gradients) -> Gradient | None:
    """Return the gradient of a call that does not describe itself; None for one of another form."""
    function = gradients.find(call)
    if function is None or function.name not in gradients.functions:
        return None
    try:
        origins = trace(function.name, gradients.functions, allowance=gradients.allowance)
        return _Pullback.of(call, primal, gradients, function).read(origins)
    except (InteropError, LookupError, ValueError):
        return None  # it is of another form


@dataclass(frozen=True, slots=True)
class _Pullback:
    """A gradient function, which takes a gradient for each input of an IdentityN.

    Attributes:
        call: the node whose gradient it is.
        passed: the inputs of the IdentityN.
        described: the captures and results of the function, from the object graph.
        shown: the inputs of XlaSharding nodes by the names of the nodes.
        places: for each tensor that the call takes its first place there.
    """

    call: CallNode
    primal: CallModule
    passed: tuple[str, ...]
    described: Described
    shown: Mapping[str, str]
    places: Mapping[tuple[str, int], int]

    @classmethod
    def of(
        cls, call: CallNode, primal: CallModule, gradients: Gradients, function: GradientFunction
    ) -> _Pullback:
        shown = gradients.shown(call.function)
        described = gradients.described(function.name)
        gradients.allowance.spend(len(described.captured) + len(described.returned))
        places: dict[tuple[str, int], int] = {}
        for position, reference in enumerate(data_inputs(call.node)):
            places.setdefault(_split(shown.get(_split(reference)[0], reference)), position)
        return cls(
            call=call,
            primal=primal,
            passed=data_inputs(function.identity),
            described=described,
            shown=shown,
            places=places,
        )

    def read(self, origins: Sequence[Origin]) -> Gradient | None:
        results = [origin for origin in origins if isinstance(origin, Result)]
        calls = {id(result.call): result.call for result in results}
        if len(calls) != 1 or len(results) != len(origins):
            return None
        (vjp,) = calls.values()
        gradient = decode_node(vjp.node)
        operands: list[tuple[str, int]] = []
        zeros = itertools.count()
        for origin, spec in zip(vjp.operands, gradient.operands, strict=True):
            operand = self._operand(origin)
            if operand is None and spec.dtype.name == "bool" and _is_zero(origin):
                # The cotangent of an integer, which is made on the spot.
                operand = ("zero", next(zeros))
            if operand is None:
                return None
            operands.append(operand)
        returned = self._returned([result.index for result in results])
        return Gradient(gradient, tuple(operands), returned)

    def _operand(self, origin: Origin) -> tuple[str, int] | None:
        """Return the operand, or the result with its cotangent, that an operand of the VJP is."""
        if isinstance(origin, Argument) and origin.index < len(self.passed):
            return self._place(self.passed[origin.index])
        if isinstance(origin, Argument):
            place = self._place(self.described.captured[origin.index - len(self.passed)])
            return place if place and place[0] == "operand" else None
        return None

    def _place(self, reference: str) -> tuple[str, int] | None:
        """Return which result or operand of the call a tensor is; None for neither."""
        node, index = _split(self.shown.get(_split(reference)[0], reference))
        if node == self.call.node.name:
            return ("result", index)
        place = self.places.get((node, index))
        return None if place is None else ("operand", place)

    def _returned(self, indices: Sequence[int]) -> tuple[int | None, ...]:
        """Return for each operand of the call which result of the VJP is its cotangent."""
        present = zip(self.passed, self.described.returned, strict=True)
        tensors = [reference for reference, is_tensor in present if is_tensor]
        returned: list[int | None] = [None] * len(self.primal.operands)
        for reference, index in zip(tensors, indices, strict=True):
            place = self._place(reference)
            if place is not None and place[0] == "operand":
                returned[place[1]] = index
        return tuple(returned)


def _is_zero(origin: Origin) -> bool:
    """Return whether something is all zeros, as far as its operation tells."""
    if not isinstance(origin, Operation):
        return False
    if origin.tensor is not None:
        return not decode_tensor(origin.tensor).any()
    place = {"BroadcastTo": 0, "Fill": 1}.get(origin.op)
    return origin.op == "ZerosLike" or (
        place is not None and len(origin.sources) == 2 and _is_zero(origin.sources[place])
    )


def _split(reference: str) -> tuple[str, int]:
    """Return node and number of `node`, `node:0` or `node:output:0`."""
    node, _, rest = reference.partition(":")
    number = rest.rpartition(":")[2]
    return node, int(number) if number.isascii() and number.isdigit() else 0
