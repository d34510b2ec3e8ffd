"""`Function` and `Signature` -> FunctionDefs.

For each signature two are written, as TensorFlow's own SavedModels have them: the structured
function, which reads the variables and makes the call, and the signature wrapper around it, with
flat named inputs and outputs.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from savedmodel.encode.body import (
    RESOURCE,
    Body,
    ConcreteFunction,
    Library,
    Tensor,
    set_function_call,
)
from savedmodel.encode.gradients import Sources, write_call
from savedmodel.encode.mutexes import mutex_name
from savedmodel.encode.padding import Padding
from savedmodel.encode.shape_check_nodes import refusal_graph, write_shape_check
from savedmodel.encode.state import write_atomic_call
from savedmodel.model import Constant, Function, Parameter, SavedModel, Signature, Variable
from savedmodel.protos.schema import Proto
from savedmodel.protos.structures import (
    Leaf,
    Structure,
    as_dict,
    as_tuple,
    encode_structure,
    encode_tensor_spec,
    leaves,
)
from savedmodel.tensorflow_graph import TensorFlowGraph
from xla_call_module.call import CallModule
from xla_call_module.errors import naming


@dataclass(frozen=True, slots=True)
class WrittenSignature:
    """The concrete functions of a signature, and the flat order of the wrapper's names."""

    signature: Signature
    structured: ConcreteFunction
    wrapper: ConcreteFunction
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    variables: tuple[int, ...]


def write_functions(model: SavedModel, proto: Proto) -> tuple[Library, list[WrittenSignature]]:
    """Write the function library of a file; return it and the signatures."""
    functions = [signature.function for signature in model.signatures]
    library = Library(
        proto,
        dict(itertools.chain(*map(_operations, functions))),
        mutex=mutex_name(function.call.module for function in functions),
        for_converters=any(graph.for_converters for f in functions for graph in f.operations),
    )
    state = model.state
    written = []
    for signature in model.signatures:
        with naming(f"Signature {signature.key!r}"):
            written.append(_write_signature(library, signature, model.variables, state))
    return library, written


def _operations(function: Function) -> Iterator[tuple[CallModule, TensorFlowGraph]]:
    """Yield the calls that graphs of plain operations are in the place of, with these."""
    yield from zip(function.chain, function.operations, strict=False)
    if function.operations and function.check is not None:
        yield function.check.call, refusal_graph(function.check.call)


def _write_signature(
    library: Library,
    signature: Signature,
    variables: Sequence[Variable],
    state: frozenset[int],
) -> WrittenSignature:
    function = signature.function
    is_atomic = bool(state) and not state.isdisjoint(
        signature.read_variables | {*function.assigned.values()}
    )
    structured, arguments = _write_structured(library, function, variables, is_atomic=is_atomic)
    used = tuple(
        capture.variable for capture in structured.captures if capture.variable is not None
    )
    inputs, outputs = sorted(signature.inputs), sorted(signature.output_values)
    body = Body(library, f"signature_wrapper_{signature.key}")
    by_argument = {
        signature.inputs[name]: body.add_input(name, function.call.args[signature.inputs[name]])
        for name in inputs
    }
    resources = [body.add_variable(index, variables[index]) for index in used]
    results = tuple(leaves(function.results))
    positions = {index: position for position, index in enumerate(results)}
    call = body.add_node("StatefulPartitionedCall", "StatefulPartitionedCall")
    # The function compares them, too, but by other names.
    fitting = [body.ensure_shape(by_argument[i], function.call.args[i]) for i in arguments]
    call.input.extend(tensor.in_function for tensor in fitting)
    call.input.extend(resource.in_function for resource in resources)
    types = [function.call.args[index].dtype.enum for index in arguments] + [RESOURCE] * len(used)
    set_function_call(
        call, structured.name, types, [function.call.results[index].dtype.enum for index in results]
    )
    if function.assigned:
        body.add_effect(call.name)
    for name in outputs:
        value = signature.output_values[name]
        if isinstance(value, Constant):
            tensor = body.add_array(name, value.value, after=call.name)
        else:
            tensor = Tensor(call.name, "output", positions[signature.outputs[name]])
        body.add_output(name, signature.output_spec(name), tensor)
    wrapper = body.finish(
        input_signature=encode_structure(
            as_tuple([as_tuple([]), _by_name(inputs)]),
            lambda i: encode_tensor_spec(
                inputs[i], function.call.args[signature.inputs[inputs[i]]]
            ),
        ),
        output_signature=encode_structure(
            _by_name(outputs),
            lambda i: encode_tensor_spec(outputs[i], signature.output_spec(outputs[i])),
        ),
    )
    return WrittenSignature(signature, structured, wrapper, tuple(inputs), tuple(outputs), used)


def _write_structured(
    library: Library, function: Function, variables: Sequence[Variable], *, is_atomic: bool
) -> tuple[ConcreteFunction, tuple[int, ...]]:
    """Write the structured function; return it, and the call's arguments in its flat order."""
    call = function.call
    body = Body(library, function.name)
    arguments, results = tuple(leaves(function.arguments)), tuple(leaves(function.results))
    names = {
        index: re.sub(r"\W+", "_", call.args[index].name or call.args[index].path).strip("_")
        for index in arguments
    }
    given = {index: body.add_input(names[index], call.args[index]) for index in arguments}
    # Nobody else compares them with their specification: a SavedModel's functions take any shape,
    # and where rank or a static size differs, the message is MLIR's, or that of another dimension.
    # The module takes no other, whatever checks are disabled. What is split over devices has its
    # sharding there, next to the argument.
    inputs = {
        index: tensor
        if call.args[index].sharding is not None
        else body.ensure_shape(tensor, call.args[index])
        for index, tensor in given.items()
    }

    batches = _Batches(body, function, inputs)

    def argument(index: int) -> Tensor:
        if index in inputs:
            return batches.padded(index)
        value = function.passed[index]
        assert isinstance(value, Parameter)
        return body.read_variable(value.variable, variables[value.variable])

    def constant(key: str) -> Tensor:
        return body.read_variable(function.constants[key], variables[function.constants[key]])

    before = write_shape_check(body, function.check, argument) if function.check else ""
    outputs: Mapping[int, Tensor]
    if is_atomic:
        padded = {index: batches.padded(index) for index in inputs}
        outputs = write_atomic_call(body, function, variables, padded, before=before)
    else:
        sources = Sources(argument, constant)
        returned = write_call(body, function.chain, sources, function.no_gradient, before=before)
        outputs = dict(enumerate(returned))
    for position, index in enumerate(results):
        body.add_output(
            f"output_{position}", call.results[index], batches.cut(index, outputs[index])
        )
    concrete = body.finish(
        input_signature=encode_structure(
            function.arguments, lambda i: encode_tensor_spec(names[i], call.args[i])
        ),
        output_signature=encode_structure(
            function.results, lambda i: encode_tensor_spec("", call.results[i])
        ),
    )
    return concrete, arguments


class _Batches:
    """The arguments and results of a function, its batches padded and cut if it has buckets."""

    def __init__(self, body: Body, function: Function, inputs: Mapping[int, Tensor]) -> None:
        self._call, self._inputs = function.call, inputs
        self._buckets, self._padding = function.batch_buckets, None
        self._padded: dict[int, Tensor] = {}
        if self._buckets is not None:
            # One that the function does not take says nothing of the batch.
            index = next(i for i in self._call.kept if i in inputs and self._leads(i))
            self._padding = Padding(body, self._buckets, inputs[index], self._call.args[index])

    def _leads(self, index: int) -> bool:
        return self._buckets is not None and self._buckets.lead(self._call.args[index])

    def padded(self, index: int) -> Tensor:
        """Return an argument of the call."""
        spec = self._call.args[index]
        if self._padding is None or not self._leads(index):
            return self._inputs[index]
        if index not in self._padded:
            self._padded[index] = self._padding.pad(self._inputs[index], spec)
        return self._padded[index]

    def cut(self, index: int, result: Tensor) -> Tensor:
        """Return a result of the function, of which the call's is given."""
        spec = self._call.results[index]
        if self._padding is None or self._buckets is None or not self._buckets.lead(spec):
            return result
        return self._padding.cut(result, spec)


def _by_name(names: Sequence[str]) -> Structure:
    """Return the dict of as many leaves as there are names."""
    return as_dict({name: Leaf(position) for position, name in enumerate(names)})
