"""One FunctionDef in the making, and the library of those that are made."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from savedmodel.encode.graph_functions import encode_graph
from savedmodel.model import Variable
from savedmodel.protos.schema import FunctionDef, Proto
from savedmodel.protos.structures import fill_shape
from savedmodel.protos.tensor_values import fill_tensor, value_field
from savedmodel.tensorflow_graph import TensorFlowGraph
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.dtypes import Array, DType, dtype_from_name
from xla_call_module.errors import StructureError
from xla_call_module.node import (
    SHARDING_OP,
    encode_sharding_node,
    shown_sharding,
    to_function_call,
)
from xla_call_module.stablehlo.unique_names import UniqueNames

RESOURCE = 20
_BOOL = dtype_from_name("bool", where="bool")
_FLOAT32 = dtype_from_name("float32", where="float32")
_INT32 = dtype_from_name("int32", where="int32")


@dataclass(frozen=True, slots=True)
class Capture:
    """A capture of a concrete function: a variable, or a tensor of another function.

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
    """The part of a FunctionDef that the object graph has: its captures and structured types."""

    name: str
    captures: tuple[Capture, ...]
    input_signature: Proto
    output_signature: Proto


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in a FunctionDef's body, whose inputs and node outputs are named differently."""

    node: str
    output: str = ""
    index: int = 0

    @property
    def in_function(self) -> str:
        """The name by which nodes of the FunctionDef refer to it."""
        return f"{self.node}:{self.output}:{self.index}" if self.output else self.node

    @property
    def in_graph(self) -> str:
        """Its name once the FunctionDef is a graph again."""
        return f"{self.node}:{self.index}"


@dataclass(slots=True)
class Library:
    """The FunctionDefs written so far, with the concrete functions that they are.

    Attributes:
        operations: for the calls that are written as functions of plain operations their graphs.
        concrete: the functions that the object graph knows.
        mutex: the name of what functions of plain operations hold while they change variables.
        for_converters: whether converters are to read them, which know nothing that refuses shapes
            or gradients.
    """

    proto: Proto
    operations: Mapping[CallModule, TensorFlowGraph] = field(default_factory=dict)
    concrete: list[ConcreteFunction] = field(default_factory=list)
    mutex: str = ""
    for_converters: bool = False
    _added: dict[str, Proto] = field(default_factory=dict)
    _graphs: dict[CallModule, str] = field(default_factory=dict)

    @classmethod
    def of(cls, proto: Proto) -> Library:
        """Return the library of a file that is there, for more functions."""
        return cls(proto, _added={str(f.signature.name): f for f in proto.function})

    def new_function(self, base: str) -> Proto:
        """Return a new FunctionDef; its name is unique, and one of a traced function's."""
        text = re.sub(r"[^A-Za-z0-9_]", "_", base)
        numbers = itertools.count(len(self.proto.function))
        names = map(f"__inference_{text}_{{}}".format, numbers)
        name = next(name for name in names if name not in self._added)
        self._added[name] = self.proto.function.add()
        self._added[name].signature.name = name
        return self._added[name]

    def write_call(self, node: Proto, call: CallModule) -> None:
        """Let the node of a call run a function of plain operations, where there is one."""
        if call not in self.operations:
            return
        if call not in self._graphs:
            main, *_ = encode_graph(self.operations[call], self.new_function)
            self._graphs[call] = main.signature.name
        is_opaque, exact = not self.operations[call].for_converters, self.operations[call].exact
        to_function_call(node, self._graphs[call], is_opaque=is_opaque, exact=exact)

    def add_functions(self, definitions: Sequence[bytes]) -> None:
        """Add functions that somebody else wrote, and that modules call by their names."""
        for definition in definitions:
            function = FunctionDef.FromString(definition)
            name = function.signature.name
            if name not in self._added:
                self.proto.function.append(function)
                self._added[name] = function
            elif self._added[name] != function:
                raise StructureError(
                    f"Two TensorFlow functions have the name {name}; they come from different "
                    "processes, or have the name of one that is written here. To do: export them "
                    "in one process, under other names."
                )


class Body:
    """One FunctionDef in the making."""

    def __init__(self, library: Library, base: str) -> None:
        self.library = library
        self.base = base
        self.proto = library.new_function(base)
        self.name: str = self.proto.signature.name
        self.proto.signature.is_stateful = True
        self._inputs: list[Sequence[int | None] | None] = []
        self._names = UniqueNames(ignore_case=True)
        self._captures: list[Capture] = []
        self._made: dict[str, Tensor] = {}

    def add_input(self, name: str, spec: TensorSpec) -> Tensor:
        """Add an argument; all of them come before the captures."""
        argument = self._add_argument(name, spec.dtype.enum, spec.static_shape)
        return Tensor(argument.name)

    def add_variable(self, index: int, variable: Variable) -> Tensor:
        """Add the handle of a variable, as a capture."""
        argument = self._add_argument(f"{variable.name}_resource", RESOURCE, ())
        handle = argument.handle_data.add(dtype=variable.dtype.enum)
        fill_shape(handle.shape, variable.shape)
        self._captures.append(Capture(variable=index))
        return Tensor(argument.name)

    def read_variable(self, index: int, variable: Variable) -> Tensor:
        """Return the value of a variable, read once."""
        key = f"variable {index}"
        if key not in self._made:
            handle = self.handle(index, variable)
            node = self.add_operation(
                "ReadVariableOp", f"{handle.node}_read", [handle], {"dtype": variable.dtype.enum}
            )
            fill_shape(node.attr["_output_shapes"].list.shape.add(), variable.shape)
            self._made[key] = Tensor(node.name, "value")
        return self._made[key]

    def assign_variable(self, index: int, variable: Variable, value: Tensor) -> None:
        """Give a variable a new value, whether the function returns anything or not."""
        handle = self.handle(index, variable)
        types = {"dtype": variable.dtype.enum}
        name = f"{handle.node}_assign"
        self.add_effect(self.add_operation("AssignVariableOp", name, [handle, value], types).name)

    def handle(self, index: int, variable: Variable) -> Tensor:
        """Return the handle of a variable, captured once."""
        key = f"handle {index}"
        if key not in self._made:
            self._made[key] = self.add_variable(index, variable)
        return self._made[key]

    def capture(self, below: Body, tensor: Tensor, spec: TensorSpec) -> Tensor:
        """Return a tensor of the function that this is the gradient of, captured once."""
        if tensor.in_graph not in self._made:
            name = f"captured_{tensor.node}"
            argument = self._add_argument(name, spec.dtype.enum, spec.static_shape)
            self._captures.append(Capture(tensor=tensor.in_graph, function=below.name))
            self._made[tensor.in_graph] = Tensor(argument.name)
        return self._made[tensor.in_graph]

    def add_constant(self, name: str, value: int | Sequence[int], dtype: DType) -> Tensor:
        """Add a Const: a scalar, or a vector of several numbers."""
        node = self.add_node("Const", name)
        tensor = node.attr["value"].tensor
        node.attr["dtype"].type = tensor.dtype = dtype.enum
        tensor.tensor_shape.SetInParent()
        values = [value] if isinstance(value, int) else value
        if not isinstance(value, int):
            tensor.tensor_shape.dim.add(size=len(values))
        getattr(tensor, value_field(dtype)).extend(values)
        return Tensor(node.name, "output")

    def add_array(self, name: str, value: Array, *, after: str) -> Tensor:
        """Add a Const of an array, which is there once another node has run."""
        node = self.add_node("Const", name)
        node.input.append(f"^{after}")
        fill_tensor(node.attr["value"].tensor, value)
        node.attr["dtype"].type = node.attr["value"].tensor.dtype
        return Tensor(node.name, "output")

    def add_zeros(
        self, name: str, source: Tensor, spec: TensorSpec, cotangent: TensorSpec
    ) -> Tensor:
        """Add the cotangent of `source`, all zeros or false.

        It has the same shape; but the cotangent of a typed PRNG key lacks the dimension for the
        numbers of which TensorFlow's key is made.
        """
        dtype, shape = cotangent.dtype, self.add_shape(f"{name}_shape", source, spec)
        own, wanted = spec.static_shape, cotangent.static_shape
        if own is not None and wanted is not None and len(wanted) < len(own):
            begin = self.add_constant(f"{name}_begin", [0], _INT32)
            size = self.add_constant(f"{name}_size", [len(wanted)], _INT32)
            types = {"T": _INT32.enum, "Index": _INT32.enum}
            cut = self.add_operation("Slice", f"{name}_cut", [shape, begin, size], types)
            shape = Tensor(cut.name, "output")
        filled = _BOOL if dtype == _BOOL else _FLOAT32  # of float8 TensorFlow casts these alone
        value = self.add_constant(f"{name}_value", 0, filled)
        types = {"T": filled.enum, "index_type": _INT32.enum}
        zeros = Tensor(self.add_operation("Fill", name, [shape, value], types).name, "output")
        return zeros if filled == dtype else self.cast(f"{name}_cast", zeros, filled, dtype)

    def add_shape(self, name: str, tensor: Tensor, spec: TensorSpec) -> Tensor:
        """Return the shape of a tensor, as int32."""
        types = {"T": spec.dtype.enum, "out_type": _INT32.enum}
        return Tensor(self.add_operation("Shape", name, [tensor], types).name, "output")

    def cast(self, name: str, tensor: Tensor, source: DType, target: DType) -> Tensor:
        """Return a tensor in another dtype."""
        types = {"SrcT": source.enum, "DstT": target.enum}
        node = self.add_operation("Cast", name, [tensor], types)
        node.attr["Truncate"].b = False
        return Tensor(node.name, "y")

    def conjugate(self, tensor: Tensor, spec: TensorSpec) -> Tensor:
        """Return the conjugate of a complex tensor, any other as it is.

        TensorFlow's gradient of a complex value is the conjugate of JAX's cotangent.
        """
        if not spec.dtype.is_complex:
            return tensor
        name = f"{tensor.node}_{tensor.index}_conj"
        return Tensor(self._of_one("Conj", name, tensor, spec).name, "output")

    def ensure_shape(self, tensor: Tensor, spec: TensorSpec) -> Tensor:
        """Return the tensor, which TensorFlow refuses by name where rank or static sizes differ."""
        if spec.shape is None or self.library.for_converters:
            return tensor
        node = self._of_one("EnsureShape", f"{tensor.node}_shape", tensor, spec)
        fill_shape(node.attr["shape"].shape, spec.static_shape)
        fill_shape(node.attr["_output_shapes"].list.shape.add(), spec.static_shape)
        return Tensor(node.name, "output")

    def show_sharding(self, tensor: Tensor, call: CallModule, spec: TensorSpec) -> Tensor:
        """Return the same tensor, with a node that says how it lies on the devices of a call."""
        if shown_sharding(call, spec) is None:
            return tensor
        node = encode_sharding_node(
            call,
            spec,
            name=self.reserve(SHARDING_OP),
            input=tensor.in_function,
            new_node=self.new_node,
        )
        assert node is not None
        fill_shape(node.attr["_output_shapes"].list.shape.add(), spec.static_shape)
        return Tensor(node.name, "output")

    def stop_gradient(self, tensor: Tensor, spec: TensorSpec) -> Tensor:
        """Return a tensor on which TensorFlow takes nothing to depend."""
        return Tensor(self._of_one("StopGradient", "StopGradient", tensor, spec).name, "output")

    def prevent_gradient(self, tensor: Tensor, spec: TensorSpec, message: str) -> Tensor:
        """Return the tensor, whose gradient TensorFlow refuses with a LookupError that says why."""
        if not message or not spec.dtype.differentiable or self.library.for_converters:
            return tensor
        node = self._of_one("PreventGradient", "PreventGradient", tensor, spec)
        node.attr["message"].s = message.encode()
        return Tensor(node.name, "output")

    def add_output(self, name: str, spec: TensorSpec, tensor: Tensor) -> None:
        """Add a result, after those that are there."""
        node = self._of_one("Identity", "Identity", tensor, spec)
        fill_shape(node.attr["_output_shapes"].list.shape.add(), spec.static_shape)
        argument = self.proto.signature.output_arg.add(
            name=self.reserve(name), type=spec.dtype.enum
        )
        self.proto.ret[argument.name] = f"{node.name}:output:0"

    def add_effect(self, node: str) -> None:
        """Let a node run although nothing takes what it returns."""
        name = f"effect_{len(self.proto.control_ret)}"
        self.proto.signature.control_output.append(name)
        self.proto.control_ret[name] = node

    def add_operation(
        self, op: str, name: str, inputs: Iterable[Tensor], types: Mapping[str, int]
    ) -> Proto:
        """Return a new node with its inputs, and with the attributes that are dtypes."""
        node = self.add_node(op, name)
        node.input.extend(tensor.in_function for tensor in inputs)
        for key, enum in types.items():
            node.attr[key].type = enum
        return node

    def _of_one(self, op: str, name: str, tensor: Tensor, spec: TensorSpec) -> Proto:
        return self.add_operation(op, name, [tensor], {"T": spec.dtype.enum})

    def add_node(self, op: str, name: str) -> Proto:
        """Return a new node; its name is the given one, or one like it."""
        return self.proto.node_def.add(name=self.reserve(name), op=op)  # type: ignore[no-any-return]

    def new_node(self) -> Proto:
        """Return an empty node in the body."""
        return self.proto.node_def.add()  # type: ignore[no-any-return]

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
            fill_shape(self.proto.attr["_input_shapes"].list.shape.add(), shape)
        self.proto.attr["_input_shapes"].list.SetInParent()

    def _add_argument(self, name: str, enum: int, shape: Sequence[int | None] | None) -> Proto:
        unique = self.reserve(name)
        argument = self.proto.signature.input_arg.add(name=unique, type=enum)
        attributes = self.proto.arg_attr[len(self._inputs)].attr
        attributes["_user_specified_name"].s = name.encode()
        if enum != RESOURCE:
            fill_shape(attributes["_output_shapes"].list.shape.add(), shape)
        self._inputs.append(shape)
        return argument  # type: ignore[no-any-return]

    def reserve(self, name: str) -> str:
        """Return a unique name for a node or an argument; both share the namespace of the graph."""
        base = re.sub(r"[^A-Za-z0-9_]", "_", name).lstrip("_") or "arg"
        return self._names.take(base if base[0].isalpha() else f"arg_{base}")


def set_function_call(
    node: Proto, name: str, types_in: Iterable[int], types_out: Iterable[int]
) -> None:
    """Set the attributes of a StatefulPartitionedCall."""
    node.attr["f"].func.name = name
    node.attr["Tin"].list.type.extend(types_in)
    node.attr["Tin"].list.SetInParent()
    node.attr["Tout"].list.type.extend(types_out)
    node.attr["Tout"].list.SetInParent()
