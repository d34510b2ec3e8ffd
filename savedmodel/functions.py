"""`Function` and `Signature` -> FunctionDefs, the gradients of every order included.

Three kinds of FunctionDef are written, each as TensorFlow's own SavedModels have them:

- the structured function, which reads the variables and makes the call;
- the signature wrapper around it, with flat named inputs and outputs;
- one gradient function for each order, found through the attribute `_gradient_op_type` of an
  IdentityN that all results of the call below pass through
  (tensorflow/python/ops/custom_gradient.py, `_graph_mode_decorator`;
  tensorflow/python/saved_model/function_deserialization.py, `load_function_def_library`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from savedmodel.model import Function, SavedModel, Signature, Variable
from savedmodel.schema import Proto, StructuredValue
from savedmodel.structures import (
    encode_structure,
    encode_tensor_spec,
    fill_shape,
    leaves,
)
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.dtypes import dtype_from_name
from xla_call_module.node import OP, encode_node

__all__ = [
    "RESOURCE",
    "Capture",
    "ConcreteFunction",
    "Library",
    "WrittenSignature",
    "set_function_call",
    "write_functions",
]

RESOURCE = 20
_BOOL = dtype_from_name("bool", where="bool")
_INT32 = dtype_from_name("int32", where="int32")


@dataclass(frozen=True, slots=True)
class Capture:
    """What a concrete function gets besides its arguments: a variable, or another's tensor.

    Attributes:
        variable: the index of a variable, or None.
        tensor: a tensor's name in the graph of `function`, as in `x:0`.
        function: the concrete function that has the tensor.
    """

    variable: int | None = None
    tensor: str = ""
    function: str = ""


@dataclass(frozen=True, slots=True)
class ConcreteFunction:
    """What the object graph says of a FunctionDef: its captures, and its structured types."""

    name: str
    captures: tuple[Capture, ...]
    input_signature: Proto
    output_signature: Proto


@dataclass(frozen=True, slots=True)
class WrittenSignature:
    """The concrete functions of a signature, and the flat order of the wrapper's names."""

    signature: Signature
    structured: ConcreteFunction
    wrapper: ConcreteFunction
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    variables: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor in a FunctionDef's body, whose inputs and node outputs are named differently."""

    node: str
    output: str = ""
    index: int = 0

    @property
    def in_function(self) -> str:
        """How nodes of the FunctionDef refer to it."""
        return f"{self.node}:{self.output}:{self.index}" if self.output else self.node

    @property
    def in_graph(self) -> str:
        """Its name once the FunctionDef is a graph again."""
        return f"{self.node}:{self.index}"


@dataclass(slots=True)
class Library:
    """The FunctionDefs written so far, with the concrete functions that they are."""

    proto: Proto
    concrete: list[ConcreteFunction] = field(default_factory=list)

    def new_name(self, base: str) -> str:
        """A name that TensorFlow recognizes as a traced function's, unique in the file."""
        return f"__inference_{re.sub(r'[^A-Za-z0-9_]', '_', base)}_{len(self.proto.function)}"


def write_functions(model: SavedModel, proto: Proto) -> tuple[Library, list[WrittenSignature]]:
    """The function library of a file, and its signatures.

    Args:
        model: the file.
        proto: the FunctionDefLibrary to write into; modules are large, so it is not copied.
    """
    library = Library(proto)
    written = [
        _write_signature(library, signature, model.variables) for signature in model.signatures
    ]
    return library, written


def _write_signature(
    library: Library, signature: Signature, variables: Sequence[Variable]
) -> WrittenSignature:
    function = signature.function
    structured, arguments = _write_structured(library, function, variables)
    used = tuple(
        capture.variable for capture in structured.captures if capture.variable is not None
    )
    inputs, outputs = sorted(signature.inputs), sorted(signature.outputs)
    builder = _Builder(library, f"signature_wrapper_{signature.key}")
    by_argument = {
        signature.inputs[name]: builder.add_input(name, function.call.args[signature.inputs[name]])
        for name in inputs
    }
    resources = [builder.add_variable(index, variables[index]) for index in used]
    results = tuple(leaves(function.results))
    call = builder.add_node("StatefulPartitionedCall", "StatefulPartitionedCall")
    call.input.extend(by_argument[index].in_function for index in arguments)
    call.input.extend(resource.in_function for resource in resources)
    types = [function.call.args[index].dtype.enum for index in arguments] + [RESOURCE] * len(used)
    set_function_call(
        call, structured.name, types, [function.call.results[index].dtype.enum for index in results]
    )
    for name in outputs:
        index = signature.outputs[name]
        tensor = _Tensor(call.name, "output", results.index(index))
        builder.add_output(name, function.call.results[index], tensor)
    wrapper = builder.finish(
        input_signature=_named_signature(inputs, signature.inputs, function.call.args),
        output_signature=_named_values(outputs, signature.outputs, function.call.results),
    )
    return WrittenSignature(signature, structured, wrapper, tuple(inputs), tuple(outputs), used)


def _write_structured(
    library: Library, function: Function, variables: Sequence[Variable]
) -> tuple[ConcreteFunction, tuple[int, ...]]:
    """The structured function, and the arguments of the call in its flat order."""
    call = function.call
    builder = _Builder(library, function.name)
    arguments, results = tuple(leaves(function.arguments)), tuple(leaves(function.results))
    names = {
        index: re.sub(r"\W+", "_", call.args[index].name or call.args[index].path).strip("_")
        for index in arguments
    }
    inputs = {index: builder.add_input(names[index], call.args[index]) for index in arguments}

    def argument(index: int) -> _Tensor:
        if index in inputs:
            return inputs[index]
        return builder.read_variable(function.bound[index], variables[function.bound[index]])

    outputs = _write_call(builder, function.chain, argument, function.no_gradient)
    for position, index in enumerate(results):
        builder.add_output(f"output_{position}", call.results[index], outputs[index])
    concrete = builder.finish(
        input_signature=encode_structure(
            function.arguments, lambda i: encode_tensor_spec(names[i], call.args[i])
        ),
        output_signature=encode_structure(
            function.results, lambda i: encode_tensor_spec("", call.results[i])
        ),
    )
    return concrete, arguments


def _write_call(
    builder: _Builder,
    chain: Sequence[CallModule],
    argument: Callable[[int], _Tensor],
    no_gradient: str,
) -> list[_Tensor]:
    """The call with its gradients; the tensors of its results.

    Args:
        builder: the body that makes the call.
        chain: the call and those of its gradients that are written.
        argument: makes an argument of the call available in the body.
        no_gradient: what TensorFlow says when a gradient beyond the chain is asked for.
    """
    call = chain[0]
    operands = [argument(index) for index in call.kept]
    encode_node(
        call,
        name=builder.reserve(OP),
        inputs=[tensor.in_function for tensor in operands],
        new_node=builder.new_node,
    )
    results = [_Tensor(OP, "output", index) for index in range(len(call.results))]
    if len(chain) == 1:
        return [
            builder.prevent_gradient(result, spec, no_gradient)
            for result, spec in zip(results, call.results, strict=True)
        ]
    identity = builder.add_node("IdentityN", "IdentityN")
    identity.input.extend(tensor.in_function for tensor in [*results, *operands])
    specs = [*call.results, *call.operands]
    identity.attr["T"].list.type.extend(spec.dtype.enum for spec in specs)
    outputs = [_Tensor("IdentityN", "output", index) for index in range(len(results))]
    gradient = _write_gradient(builder, chain, argument, outputs, no_gradient)
    op_type = f"CustomGradient-{gradient}"
    identity.attr["_gradient_op_type"].s = op_type.encode()
    builder.library.proto.registered_gradients.add(
        gradient_func=gradient, registered_op_type=op_type
    )
    return outputs


def _write_gradient(
    below: _Builder,
    chain: Sequence[CallModule],
    argument_below: Callable[[int], _Tensor],
    outputs: Sequence[_Tensor],
    no_gradient: str,
) -> str:
    """The gradient function of an IdentityN around `chain[0]`; its name.

    TensorFlow calls it with a gradient for each output of the IdentityN: the results, then the
    operands. It returns one for each, None for the results.
    """
    primal, vjp = chain[0], chain[1]
    builder = _Builder(below.library, f"gradient_{below.base}")
    upstream = [
        builder.add_input(f"result_grads_{index}", spec)
        for index, spec in enumerate([*primal.results, *primal.operands])
    ]

    def argument(index: int) -> _Tensor:
        position = index - len(primal.args)
        if position < 0:
            return builder.capture(below, argument_below(index), primal.args[index])
        if vjp.args[index].element != "float0":
            return builder.conjugate(upstream[position], vjp.args[index])
        # For an integer's missing gradient TensorFlow passes zeros with ones for unknown sizes
        # (`none_to_zero`), so the shape is taken from the result itself.
        source = builder.capture(below, outputs[position], primal.results[position])
        return builder.add_false(f"float0_{position}", source, primal.results[position])

    results = _write_order(builder, chain[1:], argument, no_gradient)
    returned: list[TensorSpec | None] = [None] * len(primal.results)
    for index in primal.kept:
        spec = primal.args[index]
        # TensorFlow's gradient of what a result does not depend on is None, not zero.
        depends = spec.dtype.differentiable and not vjp.results[index].is_zero
        returned.append(spec if depends else None)
        if depends:
            builder.add_output(f"grad_{index}", spec, builder.conjugate(results[index], spec))
    concrete = builder.finish(
        input_signature=_gradient_signature([*primal.results, *primal.operands]),
        output_signature=_optional_list(returned),
    )
    return concrete.name


def _write_order(
    builder: _Builder,
    chain: Sequence[CallModule],
    argument: Callable[[int], _Tensor],
    no_gradient: str,
) -> list[_Tensor]:
    """The call of a higher order; the tensors of its results.

    Where it has a gradient of its own it is put into a function that takes all it needs as
    arguments. What that gradient captures are then the function's arguments; captures of captures
    get lost when TensorFlow saves the file again (`_get_outer_most_capture` in
    tensorflow/python/saved_model/save.py).
    """
    if len(chain) == 1:
        return _write_call(builder, chain, argument, no_gradient)
    call, needed = chain[0], _needed_arguments(chain)
    inner = _Builder(builder.library, f"order_{builder.base}")
    inputs = {index: inner.add_input(f"arg_{index}", call.args[index]) for index in needed}
    results = _write_call(inner, chain, inputs.__getitem__, no_gradient)
    for index, (result, spec) in enumerate(zip(results, call.results, strict=True)):
        inner.add_output(f"output_{index}", spec, result)
    inner.finish_shapes()
    node = builder.add_node("StatefulPartitionedCall", "StatefulPartitionedCall")
    node.input.extend(argument(index).in_function for index in needed)
    types = [call.args[index].dtype.enum for index in needed]
    set_function_call(node, inner.name, types, [spec.dtype.enum for spec in call.results])
    return [_Tensor(node.name, "output", index) for index in range(len(call.results))]


def _needed_arguments(chain: Sequence[CallModule]) -> list[int]:
    """Arguments of `chain[0]` that it or one of its gradients takes."""
    needed = set(chain[0].kept)
    if len(chain) > 1:
        count = len(chain[0].args)
        needed.update(index for index in _needed_arguments(chain[1:]) if index < count)
    return sorted(needed)


class _Builder:
    """One FunctionDef in the making."""

    def __init__(self, library: Library, base: str) -> None:
        self.library = library
        self.base = base
        self.name = library.new_name(base)
        self._proto = library.proto.function.add()
        self._proto.signature.name = self.name
        self._proto.signature.is_stateful = True
        self._inputs: list[Sequence[int | None] | None] = []
        self._names: set[str] = set()
        self._captures: list[Capture] = []
        self._made: dict[str, _Tensor] = {}

    def add_input(self, name: str, spec: TensorSpec) -> _Tensor:
        argument = self._add_argument(name, spec.dtype.enum, spec.static_shape)
        return _Tensor(argument.name)

    def add_variable(self, index: int, variable: Variable) -> _Tensor:
        """The handle of a variable, as a capture."""
        argument = self._add_argument(f"{variable.name}_resource", RESOURCE, ())
        handle = argument.handle_data.add(dtype=variable.dtype.enum)
        fill_shape(handle.shape, variable.shape)
        self._captures.append(Capture(variable=index))
        return _Tensor(argument.name)

    def read_variable(self, index: int, variable: Variable) -> _Tensor:
        """The value of a variable, read once."""
        key = f"variable {index}"
        if key not in self._made:
            handle = self.add_variable(index, variable)
            node = self.add_node("ReadVariableOp", f"{handle.node}_read")
            node.input.append(handle.in_function)
            node.attr["dtype"].type = variable.dtype.enum
            fill_shape(node.attr["_output_shapes"].list.shape.add(), variable.shape)
            self._made[key] = _Tensor(node.name, "value")
        return self._made[key]

    def capture(self, below: _Builder, tensor: _Tensor, spec: TensorSpec) -> _Tensor:
        """A tensor of the function that this is the gradient of, captured once."""
        if tensor.in_graph not in self._made:
            name = f"captured_{tensor.node}"
            argument = self._add_argument(name, spec.dtype.enum, spec.static_shape)
            self._captures.append(Capture(tensor=tensor.in_graph, function=below.name))
            self._made[tensor.in_graph] = _Tensor(argument.name)
        return self._made[tensor.in_graph]

    def add_false(self, name: str, source: _Tensor, spec: TensorSpec) -> _Tensor:
        """A bool tensor of the shape of `source`, all false."""
        shape = self.add_node("Shape", f"{name}_shape")
        shape.input.append(source.in_function)
        shape.attr["T"].type = spec.dtype.enum
        shape.attr["out_type"].type = _INT32.enum
        value = self.add_node("Const", f"{name}_value")
        value.attr["dtype"].type = _BOOL.enum
        value.attr["value"].tensor.dtype = _BOOL.enum
        value.attr["value"].tensor.tensor_shape.SetInParent()
        value.attr["value"].tensor.bool_val.append(False)
        fill = self.add_node("Fill", name)
        fill.input.extend([f"{shape.name}:output:0", f"{value.name}:output:0"])
        fill.attr["T"].type = _BOOL.enum
        fill.attr["index_type"].type = _INT32.enum
        return _Tensor(fill.name, "output")

    def conjugate(self, tensor: _Tensor, spec: TensorSpec) -> _Tensor:
        """The conjugate of a complex tensor, any other as it is.

        TensorFlow's gradient of a complex value is the conjugate of JAX's cotangent.
        """
        if not spec.dtype.is_complex:
            return tensor
        node = self.add_node("Conj", f"{tensor.node}_{tensor.index}_conj")
        node.input.append(tensor.in_function)
        node.attr["T"].type = spec.dtype.enum
        return _Tensor(node.name, "output")

    def prevent_gradient(self, tensor: _Tensor, spec: TensorSpec, message: str) -> _Tensor:
        """A tensor of which TensorFlow refuses the gradient with a LookupError that says why."""
        if not message or not spec.dtype.differentiable:
            return tensor
        node = self.add_node("PreventGradient", "PreventGradient")
        node.input.append(tensor.in_function)
        node.attr["T"].type = spec.dtype.enum
        node.attr["message"].s = message.encode()
        return _Tensor(node.name, "output")

    def add_output(self, name: str, spec: TensorSpec, tensor: _Tensor) -> None:
        node = self.add_node("Identity", "Identity")
        node.input.append(tensor.in_function)
        node.attr["T"].type = spec.dtype.enum
        fill_shape(node.attr["_output_shapes"].list.shape.add(), spec.static_shape)
        argument = self._proto.signature.output_arg.add(
            name=self.reserve(name), type=spec.dtype.enum
        )
        self._proto.ret[argument.name] = f"{node.name}:output:0"

    def add_node(self, op: str, name: str) -> Proto:
        return self._proto.node_def.add(name=self.reserve(name), op=op)  # type: ignore[no-any-return]

    def new_node(self) -> Proto:
        """An empty node in the body."""
        return self._proto.node_def.add()  # type: ignore[no-any-return]

    def finish(self, *, input_signature: Proto, output_signature: Proto) -> ConcreteFunction:
        """Complete a FunctionDef that the object graph knows."""
        self.finish_shapes()
        concrete = ConcreteFunction(
            self.name, tuple(self._captures), input_signature, output_signature
        )
        self.library.concrete.append(concrete)
        return concrete

    def finish_shapes(self) -> None:
        """Complete the FunctionDef, whose captures follow its arguments."""
        for shape in self._inputs:
            fill_shape(self._proto.attr["_input_shapes"].list.shape.add(), shape)
        self._proto.attr["_input_shapes"].list.SetInParent()

    def _add_argument(self, name: str, enum: int, shape: Sequence[int | None] | None) -> Proto:
        unique = self.reserve(name)
        argument = self._proto.signature.input_arg.add(name=unique, type=enum)
        attributes = self._proto.arg_attr[len(self._inputs)].attr
        attributes["_user_specified_name"].s = name.encode()
        if enum != RESOURCE:
            fill_shape(attributes["_output_shapes"].list.shape.add(), shape)
        self._inputs.append(shape)
        return argument  # type: ignore[no-any-return]

    def reserve(self, name: str) -> str:
        """A name for a node or an argument; both share one namespace once this is a graph."""
        base = re.sub(r"[^A-Za-z0-9_]", "_", name).lstrip("_") or "arg"
        base = base if base[0].isalpha() else f"arg_{base}"
        unique, count = base, 0
        while unique.lower() in self._names:
            count += 1
            unique = f"{base}_{count}"
        self._names.add(unique.lower())
        return unique


def set_function_call(
    node: Proto, name: str, types_in: Iterable[int], types_out: Iterable[int]
) -> None:
    """The attributes of a StatefulPartitionedCall."""
    node.attr["f"].func.name = name
    node.attr["Tin"].list.type.extend(types_in)
    node.attr["Tin"].list.SetInParent()
    node.attr["Tout"].list.type.extend(types_out)
    node.attr["Tout"].list.SetInParent()


def _named_signature(
    names: Sequence[str], indices: Mapping[str, int], specs: Sequence[TensorSpec]
) -> Proto:
    """The canonical signature of a function that takes keyword arguments only."""
    value = StructuredValue()
    value.tuple_value.values.add().tuple_value.SetInParent()
    value.tuple_value.values.append(_named_values(names, indices, specs))
    return value


def _named_values(
    names: Sequence[str], indices: Mapping[str, int], specs: Sequence[TensorSpec]
) -> Proto:
    value = StructuredValue()
    value.dict_value.SetInParent()
    for name in names:
        value.dict_value.fields[name].CopyFrom(encode_tensor_spec(name, specs[indices[name]]))
    return value


def _gradient_signature(specs: Sequence[TensorSpec]) -> Proto:
    """TensorFlow passes the op first, which a loaded gradient function takes as None."""
    value = StructuredValue()
    positional = value.tuple_value.values.add().tuple_value
    positional.values.add().none_value.SetInParent()
    for index, spec in enumerate(specs):
        positional.values.append(encode_tensor_spec(f"result_grads_{index}", spec))
    value.tuple_value.values.add().dict_value.SetInParent()
    return value


def _optional_list(specs: Sequence[TensorSpec | None]) -> Proto:
    value = StructuredValue()
    value.list_value.SetInParent()
    for spec in specs:
        if spec is None:
            value.list_value.values.add().none_value.SetInParent()
        else:
            value.list_value.values.append(encode_tensor_spec("", spec))
    return value
