"""What was followed in a file's functions becomes a `Wiring`, or is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from savedmodel.decode import dataflow
from savedmodel.decode.dataflow import (
    Argument,
    Call,
    Gradients,
    Origin,
    Result,
    Unknown,
    trace,
)
from savedmodel.decode.read_padding import check_cut, read_buckets, read_cut, read_padded
from savedmodel.protos.schema import Proto
from savedmodel.protos.tensor_values import decode_tensor
from savedmodel.wiring import (
    Cast,
    Constant,
    Gradient,
    Input,
    Invocation,
    Output,
    Parameter,
    Reshape,
    Value,
    Wiring,
)
from xla_call_module.allowance import Allowance
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.dtypes import dtype_from_tensorflow
from xla_call_module.errors import FormatError, InteropError, StructureError
from xla_call_module.node import decode_node

__all__ = ["Described", "Source", "read_wiring"]

_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Described:
    """What the object graph says of a gradient function.

    Attributes:
        captured: the names of the tensors that it gets besides its arguments, in the function whose
            gradient it is.
        returned: for each gradient whether it is a tensor; the others are None.
    """

    captured: tuple[str, ...]
    returned: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a signature is in the file.

    Attributes:
        key: of the signature.
        inputs: for each input what TensorFlow says of it, by name, in the order of the arguments of
            its function.
        outputs: for each output name where it comes from.
        capture: what a further argument of the function is.
        functions: what `index_functions` made of the file.
        gradients: those of the file.
        described: what the object graph says of a gradient function, by its name.
        chain: decodes a call and those of its gradients that describe themselves.
        steps: how far functions may still be followed.
    """

    key: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, Origin]
    capture: Callable[[int], Parameter | dataflow.Constant]
    functions: Mapping[str, Proto]
    gradients: Gradients
    described: Callable[[str], Described]
    chain: Callable[[Call], tuple[CallModule, ...]]
    steps: Allowance


def read_wiring(source: Source) -> Wiring:
    """The wiring of a signature.

    Raises:
        FormatError: a part of it is damaged.
        StructureError: it computes something besides calls of StableHLO modules; the message lists
            the operations.
    """
    unknown = dict.fromkeys(_unknown(source.outputs.values()))
    if unknown:
        listed = ", ".join(list(unknown)[:_SHOWN]) + (", ..." if len(unknown) > _SHOWN else "")
        raise StructureError(
            f"The signature {source.key} computes something besides calls of JAX functions: "
            f"{listed}. To do: use the file through TensorFlow, from JAX by bridge.call_tf."
        )
    reader = _Reader(source, tuple(source.inputs))
    return Wiring(
        source.inputs, {name: reader.value(origin) for name, origin in source.outputs.items()}
    )


def _unknown(origins: Iterable[Origin]) -> Iterator[str]:
    """The operations that are not understood, `Add (node add_1)`, in chains of any length."""
    seen: set[int] = set()
    pending = [*origins][::-1]
    while pending:
        origin = pending.pop()
        if id(origin) in seen:
            continue
        seen.add(id(origin))
        below: Sequence[Origin] = ()
        if (inside := read_padded(origin) or read_cut(origin)) is not None:
            below = (inside.source,)
        elif isinstance(origin, Unknown):
            yield f"{origin.op} ({origin.node})"
            below = origin.sources
        elif isinstance(origin, dataflow.Cast | dataflow.Reshape):
            below = (origin.source,)
            if isinstance(origin, dataflow.Reshape) and not isinstance(
                origin.shape, dataflow.Constant
            ):
                yield "Reshape to a computed shape"
        elif isinstance(origin, Result) and id(origin.call) not in seen:
            # All results of a call lead to the same operands.
            seen.add(id(origin.call))
            below = origin.call.operands
        pending.extend(reversed(below))


def _call_below(origin: Origin) -> Call | None:
    """The call whose result an operand is, as it is or converted, reshaped, padded and cut."""
    while True:
        if isinstance(origin, Result):
            return origin.call
        if isinstance(origin, dataflow.Cast | dataflow.Reshape):
            origin = origin.source
        elif (inside := read_padded(origin) or read_cut(origin)) is not None:
            origin = inside.source
        else:
            return None


@dataclass(slots=True)
class _Reader:
    source: Source
    names: tuple[str, ...]
    _invocations: dict[int, Invocation] = field(default_factory=dict)
    # For each call with a padded batch what its results are cut by.
    _counts: dict[int, Origin] = field(default_factory=dict)

    def value(self, origin: Origin) -> Value:
        cut = read_cut(origin)
        if isinstance(found := origin if cut is None else cut.source, Result):
            invocation = self._invocation(found.call)
            count = self._counts.get(id(found.call))
            check_cut(invocation, found.index, is_cut=cut is not None and cut.count is count)
            return Output(invocation, found.index)
        match origin:
            case Argument(index) if index < len(self.names):
                return Input(self.names[index])
            case Argument(index):
                captured = self.source.capture(index - len(self.names))
                return captured if isinstance(captured, Parameter) else self.value(captured)
            case dataflow.Constant(tensor):
                return Constant(decode_tensor(tensor))
            case dataflow.Cast(below, enum):
                return Cast(self.value(below), dtype_from_tensorflow(enum, where=self.source.key))
            case dataflow.Reshape(below, dataflow.Constant(tensor)):
                return Reshape(self.value(below), tuple(map(int, decode_tensor(tensor).ravel())))
        raise StructureError(
            f"A {type(origin).__name__} in {self.source.key} is no part of a call."
        )

    def _invocation(self, call: Call) -> Invocation:
        """That of a call, after those of the calls whose results it takes."""
        pending = [call]
        while pending:
            last = pending[-1]
            if id(last) in self._invocations:
                pending.pop()
                continue
            below = filter(None, map(_call_below, last.operands))
            if missing := [found for found in below if id(found) not in self._invocations]:
                pending.extend(reversed(missing))
            else:
                self._invocations[id(last)] = self._read_invocation(last)
        return self._invocations[id(call)]

    def _read_invocation(self, call: Call) -> Invocation:
        chain = self.source.chain(call)
        padded = [read_padded(operand) for operand in call.operands]
        sources = [
            operand if found is None else found.source
            for operand, found in zip(call.operands, padded, strict=True)
        ]
        operands = tuple(map(self.value, sources))
        if len(operands) != len(chain[0].operands):
            raise FormatError(
                f"Node {call.node.name} has {len(operands)} inputs, and takes "
                f"{len(chain[0].operands)}."
            )
        gradient = None
        if not chain[0].exported:
            chain, gradient = chain[:1], _read_gradient(call, chain[0], self.source)
        buckets = None
        if any(padded):
            buckets, self._counts[id(call)] = read_buckets(chain[0], padded)
        return Invocation(chain, operands, gradient, buckets)


def _read_gradient(call: Call, primal: CallModule, source: Source) -> Gradient | None:
    """The gradient of a call that does not describe itself; None where it is anything else."""
    function = source.gradients.find(call)
    if function is None or function.name not in source.functions:
        return None
    try:
        origins = trace(function.name, source.functions, allowance=source.steps)
        return _Pullback.of(call, primal, source, function).read(origins)
    except (InteropError, LookupError, ValueError):
        return None  # it is of another form


@dataclass(frozen=True, slots=True)
class _Pullback:
    """A gradient function, which takes a gradient for each input of an IdentityN.

    Attributes:
        call: whose gradient it is.
        primal: what is called.
        passed: what the IdentityN takes.
        described: what the object graph says of the function.
        shown: what nodes that only show a sharding pass on.
        places: for each tensor that the call takes its first place there.
    """

    call: Call
    primal: CallModule
    passed: tuple[str, ...]
    described: Described
    shown: Mapping[str, str]
    places: Mapping[tuple[str, int], int]

    @classmethod
    def of(
        cls, call: Call, primal: CallModule, source: Source, function: dataflow.GradientFunction
    ) -> _Pullback:
        shown, described = source.gradients.shown(call.function), source.described(function.name)
        source.steps.spend(len(described.captured) + len(described.returned))
        places: dict[tuple[str, int], int] = {}
        for position, reference in enumerate(_data(call.node)):
            places.setdefault(_split(shown.get(_split(reference)[0], reference)), position)
        return cls(
            call=call,
            primal=primal,
            passed=_data(function.identity),
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
            found = self._operand(origin)
            if found is None and spec.dtype.name == "bool" and _is_zero(origin):
                # The cotangent of an integer, which is made on the spot.
                found = ("zero", next(zeros))
            if found is None:
                return None
            operands.append(found)
        returned = self._returned([result.index for result in results])
        return Gradient(gradient, tuple(operands), returned)

    def _operand(self, origin: Origin) -> tuple[str, int] | None:
        """What an operand of the VJP is in terms of the call."""
        if isinstance(origin, Argument) and origin.index < len(self.passed):
            return self._place(self.passed[origin.index])
        if isinstance(origin, Argument):
            found = self._place(self.described.captured[origin.index - len(self.passed)])
            return found if found and found[0] == "operand" else None
        return None

    def _place(self, reference: str) -> tuple[str, int] | None:
        """Which result or operand of the call a tensor is."""
        node, index = _split(self.shown.get(_split(reference)[0], reference))
        if node == self.call.node.name:
            return ("result", index)
        place = self.places.get((node, index))
        return None if place is None else ("operand", place)

    def _returned(self, indices: Sequence[int]) -> tuple[int | None, ...]:
        """For each operand of the call which result of the VJP is its cotangent."""
        present = zip(self.passed, self.described.returned, strict=True)
        tensors = [reference for reference, is_tensor in present if is_tensor]
        found: list[int | None] = [None] * len(self.primal.operands)
        for reference, index in zip(tensors, indices, strict=True):
            place = self._place(reference)
            if place is not None and place[0] == "operand":
                found[place[1]] = index
        return tuple(found)


def _is_zero(origin: Origin) -> bool:
    """Whether something is all zeros, as far as its operation tells."""
    if isinstance(origin, dataflow.Constant):
        return not decode_tensor(origin.tensor).any()
    if not isinstance(origin, Unknown):
        return False
    place = {"BroadcastTo": 0, "Fill": 1}.get(origin.op)
    return origin.op == "ZerosLike" or (
        place is not None and len(origin.sources) == 2 and _is_zero(origin.sources[place])
    )


def _data(node: Proto) -> tuple[str, ...]:
    """What a node takes, but for what only runs before it."""
    return tuple(reference for reference in node.input if not reference.startswith("^"))


def _split(reference: str) -> tuple[str, int]:
    """Node and number of `node`, `node:0` or `node:output:0`."""
    node, _, rest = reference.partition(":")
    number = rest.rpartition(":")[2]
    return node, int(number) if number.isascii() and number.isdigit() else 0
