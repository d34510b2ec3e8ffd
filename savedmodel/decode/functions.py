"""FunctionDefs -> the `Signature`s that they compute, or a refusal.

A signature is followed from its results to its arguments; `savedmodel.encode.functions` writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from savedmodel.decode.dataflow import Argument, CallNode, Operation, Origin, Result
from savedmodel.decode.gradients import Gradients, read_gradient
from savedmodel.decode.padding import check_cut, read_buckets, read_cut, read_padded
from savedmodel.model import (
    Cast,
    Constant,
    Function,
    Input,
    Labels,
    Output,
    Parameter,
    Reshape,
    Signature,
    Value,
    label_output,
)
from savedmodel.protos.schema import Proto
from savedmodel.protos.structures import Leaf, as_dict, as_tuple
from savedmodel.protos.tensor_values import decode_tensor
from savedmodel.tensorflow_graph import STRING, TensorFlowGraph
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.dtypes import dtype_from_tensorflow
from xla_call_module.errors import THROUGH_TENSORFLOW, FormatError, StructureError, shown_as_base

_MAX_SHOWN = 8


@shown_as_base
class NoModuleError(FormatError):
    """A signature, or a file, is not damaged, and calls no StableHLO module."""


@dataclass(frozen=True, slots=True)
class SignatureSource:
    """A signature as the file has it.

    Attributes:
        inputs: for each input what TensorFlow says of it, by name, in the order of the arguments of
            its function.
        outputs: for each output name where it comes from.
        capture: returns what a further argument of the function is.
        chain: decodes a call and those of its gradients that describe themselves, and the functions
            of plain operations that they run.
        input_paths: for the names of inputs the pytree paths that the metadata has for them.
        assignments: the variables that the signature assigns, with what it assigns to them.
    """

    key: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, Origin]
    capture: Callable[[int], Parameter | Operation]
    gradients: Gradients
    chain: Callable[[CallNode], tuple[tuple[CallModule, ...], tuple[TensorFlowGraph, ...]]]
    input_paths: Mapping[str, str] = field(default_factory=dict)
    assignments: Sequence[tuple[Origin, Origin]] = ()


def read_signature(source: SignatureSource) -> Signature:
    """Return the signature."""
    assigned = [value for _, value in source.assignments]
    labels = read_labels(source.outputs)
    results = {name: origin for name, origin in source.outputs.items() if name not in labels}
    unknown = dict.fromkeys(_unknown([*results.values(), *assigned]))
    if unknown:
        shown = [*unknown][:_MAX_SHOWN] + (["..."] if len(unknown) > _MAX_SHOWN else [])
        raise StructureError(
            f"The signature {source.key} computes something besides calls of JAX functions: "
            f"{', '.join(shown)}. To do: {THROUGH_TENSORFLOW}."
        )
    reader = _Reader(source, tuple(source.inputs))
    outputs = {name: reader.value(origin) for name, origin in results.items()}
    reader.read_assignments()
    if not reader.functions:
        raise NoModuleError(
            f"The signature {source.key} calls no StableHLO module. To do: use the file through "
            "TensorFlow."
        )
    first, *others = reader.functions
    first = replace(first, passed=_with_unused(first, source))
    signature = Signature(source.key, first, source.inputs, outputs, tuple(others), labels=labels)
    keywords, returned = (
        as_dict({name: Leaf(index) for name, index in indices.items()})
        for indices in (signature.inputs, signature.outputs)
    )
    first = replace(first, arguments=as_tuple([as_tuple([]), keywords]), results=returned)
    return replace(signature, function=first)


def _with_unused(function: Function, source: SignatureSource) -> dict[int, Value]:
    """Inputs that the module does not take are known by their paths in the metadata."""
    indices = {spec.path: index for index, spec in enumerate(function.call.args)}
    taken = {value.name for value in function.passed.values() if isinstance(value, Input)}
    paths = {name: source.input_paths.get(name) for name in source.inputs if name not in taken}
    unused = {indices[path]: Input(name) for name, path in paths.items() if path in indices}
    return {**unused, **function.passed}


def _unknown(origins: Iterable[Origin]) -> Iterator[str]:
    """Yield the operations that are not understood, `Add (node add_1)`, in chains of any length."""
    seen: set[int] = set()
    pending = [*origins][::-1]
    while pending:
        origin = pending.pop()
        if id(origin) in seen:
            continue
        seen.add(id(origin))
        below: Sequence[Origin] = ()
        if isinstance(origin, Result) and id(origin.call) not in seen:
            # All results of a call lead to the same operands.
            seen.add(id(origin.call))
            below = origin.call.operands
        elif isinstance(origin, Operation) and origin.tensor is None:
            source = _source_of(origin)
            below = origin.sources if source is None else (source,)
            if source is None:
                yield f"{origin.op} ({origin.node})"
            elif origin.op == "Reshape" and _tensor_of(origin.sources[1]) is None:
                yield "Reshape to a computed shape"
        pending.extend(reversed(below))


def _source_of(origin: Origin) -> Origin | None:
    """Return what is cast, reshaped, padded or cut; None where it is nothing of these."""
    match origin:
        case Operation("Cast", _, (source, *_)) | Operation("Reshape", _, (source, _, *_)):
            return source
    inside = read_padded(origin) or read_cut(origin)
    return None if inside is None else inside.source


def _tensor_of(origin: Origin) -> Proto | None:
    return origin.tensor if isinstance(origin, Operation) else None


def _call_below(origin: Origin) -> CallNode | None:
    """Return the call whose result an operand is, as it is or cast, reshaped, padded and cut."""
    below: Origin | None = origin
    while below is not None:
        if isinstance(below, Result):
            return below.call
        below = _source_of(below)
    return None


@dataclass(slots=True)
class _Reader:
    source: SignatureSource
    names: tuple[str, ...]
    functions: list[Function] = field(default_factory=list)
    # For each call that was read the index of its function.
    _numbers: dict[int, int] = field(default_factory=dict)
    # For each call with a padded batch what its results are cut by.
    _counts: dict[int, Origin] = field(default_factory=dict)

    def value(self, origin: Origin) -> Value:
        cut = read_cut(origin)
        if isinstance(result := origin if cut is None else cut.source, Result):
            number = self._function(result.call)
            count = self._counts.get(id(result.call))
            is_cut = cut is not None and cut.count is count
            check_cut(self.functions[number], result.index, is_cut=is_cut)
            return Output(number, result.index)
        match origin:
            case Argument(index) if index < len(self.names):
                return Input(self.names[index])
            case Argument(index):
                captured = self.source.capture(index - len(self.names))
                return captured if isinstance(captured, Parameter) else self.value(captured)
            case Operation() if (tensor := origin.tensor) is not None:
                return Constant(decode_tensor(tensor))
            case Operation("Cast", _, (below, *_), node):
                dtype = dtype_from_tensorflow(node.attr["DstT"].type, where=self.source.key)
                return Cast(self.value(below), dtype)
            case Operation("Reshape", _, (below, shape, *_)):
                sizes = self.value(shape)
                assert isinstance(sizes, Constant), "another one is refused before"
                return Reshape(self.value(below), tuple(map(int, sizes.value.ravel())))
        raise StructureError(
            f"{', '.join(_unknown([origin]))} in {self.source.key} is not part of a call of a JAX "
            "function. To do: call that signature in TensorFlow."
        )

    def read_assignments(self) -> None:
        """Have the functions whose results are assigned say so."""
        variables: set[int] = set()
        for handle, origin in self.source.assignments:
            place, value = self.value(handle), self.value(origin)
            if (
                not isinstance(place, Parameter)
                or not isinstance(value, Output)
                or place.variable in variables
            ):
                raise StructureError(
                    f"The signature {self.source.key} assigns a variable twice, or something else "
                    f"than a result of a JAX function. To do: {THROUGH_TENSORFLOW}."
                )
            variables.add(place.variable)
            function = self.functions[value.function]
            assigned = {**function.assigned, value.index: place.variable}
            self.functions[value.function] = replace(function, assigned=assigned)

    def _function(self, call: CallNode) -> int:
        """Return the index of the function of a call, after those whose results it takes."""
        pending = [call]
        while pending:
            last = pending[-1]
            if id(last) in self._numbers:
                pending.pop()
                continue
            below = filter(None, map(_call_below, last.operands))
            if missing := [called for called in below if id(called) not in self._numbers]:
                pending.extend(reversed(missing))
            else:
                function = self._read_function(last)
                self._numbers[id(last)] = len(self.functions)
                self.functions.append(function)
        return self._numbers[id(call)]

    def _read_function(self, call: CallNode) -> Function:
        chain, operations = self.source.chain(call)
        primal = chain[0]
        padded = [read_padded(operand) for operand in call.operands]
        sources = [
            operand if padding is None else padding.source
            for operand, padding in zip(call.operands, padded, strict=True)
        ]
        operands = tuple(map(self.value, sources))
        if len(operands) != len(primal.operands):
            raise FormatError(
                f"Node {call.node.name} has {len(operands)} inputs, and takes "
                f"{len(primal.operands)}."
            )
        gradient = None
        if not primal.exported:
            chain, gradient = chain[:1], read_gradient(call, primal, self.source.gradients)
        buckets = None
        if any(padded):
            buckets, self._counts[id(call)] = read_buckets(primal, padded)
        passed = dict(zip(primal.kept, operands, strict=True))
        return Function(
            name=self.source.key,
            chain=chain,
            passed=passed,
            constants={
                key: value.variable
                for index, key in primal.constants.items()
                if isinstance(value := passed.get(index), Parameter)
            },
            batch_buckets=buckets,
            gradient=gradient,
            operations=operations,
        )


def read_labels(outputs: Mapping[str, Origin]) -> dict[str, Labels]:
    """Return the outputs that are the labels of other ones, by their names."""
    found = {
        label_output(name): Labels(name, texts)
        for name, origin in outputs.items()
        for texts in _texts(outputs.get(label_output(name)), origin)
    }
    return {name: labels for name, labels in found.items() if labels.output not in found}


def _texts(labels: Origin | None, output: Origin) -> Iterator[tuple[str, ...]]:
    """Yield the texts that labels of an output are looked up in; nothing where they are others."""
    match labels:
        case Operation("GatherV2", _, (table, index, axis), node) if (
            isinstance(table, Operation)
            and table.tensor is not None
            and table.tensor.dtype == STRING.enum
            and len(table.tensor.tensor_shape.dim) == 1
            and _is_constant(axis, 0)
            and not node.attr["batch_dims"].i
            and (index == output or _is_index_of(index, output))
        ):
            yield tuple(decode_tensor(table.tensor).tolist())


def _is_index_of(index: Origin, output: Origin) -> bool:
    match index:
        case Operation("ArgMax", _, (source, dimension)):
            return source == output and _is_constant(dimension, -1)
        case Operation("Cast", _, (source,)):
            return source == output
    return False


def _is_constant(origin: Origin, value: int) -> bool:
    if not isinstance(origin, Operation) or (tensor := origin.tensor) is None:
        return False
    return bool(tensor.dtype != STRING.enum and decode_tensor(tensor).tolist() == value)
