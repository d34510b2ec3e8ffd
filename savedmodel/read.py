"""`read`: a folder becomes a `SavedModel` value again. Nothing in it is run."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from google.protobuf.message import DecodeError

from savedmodel.decode.dataflow import (
    Call,
    Constant,
    Gradients,
    index_functions,
    steps_allowance,
    trace,
)
from savedmodel.decode.read_wiring import Described, Source, read_wiring
from savedmodel.decode.session import read_session
from savedmodel.decode.stored_variables import StoredVariables
from savedmodel.files import checksum
from savedmodel.files.folder import PROTO_FILE
from savedmodel.files.model_folder import ModelFolder, read_one_version
from savedmodel.model import DEFAULT_SIGNATURE, Function, SavedModel, Signature, Variable
from savedmodel.protos.schema import Proto
from savedmodel.protos.schema import SavedModel as SavedModelProto
from savedmodel.protos.structures import NONE, Branch, Leaf, Structure, as_dict, as_tuple
from savedmodel.protos.tensor_values import decode_tensor
from savedmodel.protos.wire_format import check_wire
from savedmodel.wiring import Input, Output, Parameter, Wiring
from savedmodel.write import METADATA_COLLECTION, VARIABLES
from xla_call_module.allowance import Allowance
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.dtypes import dtype_from_tensorflow
from xla_call_module.errors import (
    DtypeError,
    FormatError,
    InteropError,
    StructureError,
    refusing_damage,
)
from xla_call_module.node import decode_node, description_allowance

__all__ = ["read", "read_proto"]

_CHUNKED_FILE = "saved_model.cpb"
_SERVE_TAG = "serve"
_MAX_DEPTH = 200
_MAX_METADATA_BYTES = 2**22
_MAX_PROTO_BYTES = 2**31 - 1  # protobuf's own limit


def read(path: str | os.PathLike[str] | ModelFolder) -> SavedModel:
    """The SavedModel in a folder: its signatures, their calls and gradients, its variables.

    Variables are not read, but that their files reach as far as they should; `Variable.to_numpy`
    and `Variable.shared` read one, and both check its checksum. What is read is of one version,
    also later and where another folder takes the place of this one.

    Args:
        path: the folder of a SavedModel whose signatures are calls of StableHLO modules: one of
            ours, also after TensorFlow has loaded and saved it again.

    Raises:
        StructureError: the path is an address such as `gs://bucket/model`, or every signature
            computes something besides calls of modules.
        FormatError: it is damaged.
        OSError: a file cannot be read.

    Example:
        >>> import bridge, jax, savedmodel
        >>> exported = jax.export.export(jax.jit(jax.numpy.sin))(1.0)
        >>> bridge.save(exported, "my_model")
        >>> savedmodel.read("my_model").default.inputs
        {'x': 0}
    """
    return read_one_version(path, _read)


def _read(folder: ModelFolder) -> SavedModel:
    with refusing_damage(str(folder.path / PROTO_FILE)):
        return _read_model(folder)


def _read_model(folder: ModelFolder) -> SavedModel:
    meta_graph = _read_meta_graph(folder)
    if not meta_graph.HasField("object_graph_def"):
        return _from_session(folder, meta_graph)
    objects = _Objects(folder, meta_graph)
    metadata = _read_metadata(meta_graph)
    functions = _Functions.of(meta_graph)
    entries = [*objects.signatures(functions)] or [*objects.functions(functions)]
    if not entries:
        raise FormatError(f"{folder.path / PROTO_FILE} has no signatures and no functions.")
    found: list[Signature] = []
    refused: dict[str, InteropError] = {}
    for entry in entries:
        try:
            signature = _read_signature(entry, functions, objects, metadata)
        except (StructureError, DtypeError) as error:
            refused[entry.key] = error
        else:
            defaults = _read_defaults(entry, meta_graph)
            found.append(dataclasses.replace(signature, defaults=defaults))
    if not found:
        raise next(iter(refused.values()))
    others = {key: str(error) for key, error in refused.items()}
    constants = _read_constants(found, meta_graph.graph_def)
    return SavedModel(tuple(found), objects.variables, objects.params, metadata, others, constants)


def _read_constants(
    signatures: Sequence[Signature], graph: Proto
) -> tuple[np.ndarray[Any, Any], ...]:
    """What may be constants of gradients alone, which TensorFlow writes into any function."""
    wiring = (signature.wiring for signature in signatures)
    wanted = {
        (order.args[index].dtype.enum, order.args[index].shape)
        for found in filter(None, wiring)
        for invocation in found.invocations()
        for order in invocation.chain
        for index, key in order.constants.items()
        if key not in invocation.call.constants.values()
    }
    nodes = itertools.chain(graph.node, *(f.node_def for f in graph.library.function))
    tensors = (node.attr["value"].tensor for node in nodes if wanted and node.op == "Const")
    return tuple(
        decode_tensor(tensor)
        for tensor in tensors
        if (tensor.dtype, tuple(dim.size for dim in tensor.tensor_shape.dim)) in wanted
    )


def _read_defaults(entry: _Entry, meta_graph: Proto) -> dict[str, np.ndarray[Any, Any]]:
    """What the inputs of a signature are that are left out."""
    if entry.key not in meta_graph.signature_def:
        return {}
    defaults = meta_graph.signature_def[entry.key].defaults
    return {
        name: decode_tensor(defaults[name]) for name in sorted(defaults) if name in entry.inputs
    }


def read_proto(folder: str | os.PathLike[str] | ModelFolder) -> Proto:
    """The message in a folder's saved_model.pb, without the checksum that may be in front of it.

    Raises:
        FormatError: there is no such file, or it is damaged.
        OSError: it cannot be read.
    """
    return read_one_version(folder, _read_proto)


def _read_proto(folder: ModelFolder) -> Proto:
    file = folder.path / PROTO_FILE
    if folder.find(PROTO_FILE, links=True) is None:
        raise FormatError(_without_proto(folder))
    data = folder.read(PROTO_FILE, limit=_MAX_PROTO_BYTES)
    check_wire(file, data)
    checked = checksum.check(file, data)
    proto: Any = SavedModelProto()
    try:
        proto.ParseFromString(memoryview(data)[checksum.HEADER_SIZE if checked else 0 :])
    except DecodeError as error:
        raise FormatError(f"{file} is no SavedModel message: {error}") from error
    ours = any(METADATA_COLLECTION in graph.collection_def for graph in proto.meta_graphs)
    if ours and not checked and not checksum.has_known_beginning(data):
        raise FormatError(
            f"{file}, byte 0: the file begins with {data[:5].hex()}, and neither with a "
            "checksum nor as a SavedModel. To do: copy it again, or write it again."
        )
    return proto  # type: ignore[no-any-return]  # it was made as Any to reach its fields


def _without_proto(folder: ModelFolder) -> str:
    if folder.find(_CHUNKED_FILE, links=True) is not None:
        return (
            f"{folder.path / _CHUNKED_FILE} is a message in parts, which is not understood. To do: "
            "save it without experimental_image_format."
        )
    return (
        f"{folder.path} has no {PROTO_FILE}, so it is no SavedModel. To do: pass the folder that "
        "holds that file; TensorFlow Serving's versions are folders below the model's."
    )


def _read_meta_graph(folder: ModelFolder) -> Proto:
    for meta_graph in read_proto(folder).meta_graphs:
        if _SERVE_TAG in meta_graph.meta_info_def.tags:
            return meta_graph  # type: ignore[no-any-return]
    raise FormatError(f"{folder.path / PROTO_FILE} has no graph with the tag {_SERVE_TAG!r}.")


def _from_session(folder: ModelFolder, meta_graph: Proto) -> SavedModel:
    file = read_session(folder, VARIABLES, meta_graph)
    if not file.signatures:
        raise FormatError(f"{folder.path / PROTO_FILE} has no signatures and no object graph.")
    signatures = tuple(_to_signature(key, wiring, {}) for key, wiring in file.signatures.items())
    return SavedModel(signatures, file.variables)


def _read_metadata(meta_graph: Proto) -> Mapping[str, Any]:
    """What `write` put in; empty for other writers, and after TensorFlow saved the file again."""
    values = meta_graph.collection_def[METADATA_COLLECTION].bytes_list.value
    if values and len(values[0]) > _MAX_METADATA_BYTES:
        raise FormatError(f"The metadata of the SavedModel have {len(values[0]):,} bytes.")
    try:
        metadata = json.loads(values[0]) if values else {}
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"The metadata of the SavedModel are damaged: {values[0][:60]!r}"
        ) from error
    return metadata if isinstance(metadata, dict) else {}


@dataclass(frozen=True, slots=True)
class _Entry:
    """A function of the file that becomes a signature.

    Attributes:
        key: of the signature.
        function: its name.
        inputs: names for its arguments but for what it captures.
        outputs: names for its results.
    """

    key: str
    function: str
    inputs: Sequence[str]
    outputs: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Functions:
    """The functions of a file, and how far they may still be followed."""

    by_name: Mapping[str, Proto]
    gradients: Gradients
    concrete: Mapping[str, Proto]
    steps: Allowance
    descriptions: Allowance

    @classmethod
    def of(cls, meta_graph: Proto) -> _Functions:
        library = meta_graph.graph_def.library
        concrete = dict(meta_graph.object_graph_def.concrete_functions)
        by_name, steps = index_functions(library), steps_allowance()
        return cls(
            by_name=by_name,
            gradients=Gradients.of(library, by_name, allowance=steps),
            concrete=concrete,
            steps=steps,
            descriptions=description_allowance(),
        )

    def find(self, name: str) -> Proto:
        """What the object graph says of a function."""
        if name not in self.concrete or name not in self.by_name:
            raise FormatError(f"The file has a signature for the function {name!r}, and lacks it.")
        return self.concrete[name]

    def chain(self, call: Call) -> tuple[CallModule, ...]:
        """A call and its gradients."""
        nodes = [call.node, *self.gradients.nodes(call)]
        return tuple(decode_node(node, allowance=self.descriptions) for node in nodes)


def _read_signature(
    entry: _Entry, functions: _Functions, objects: _Objects, metadata: Mapping[str, Any]
) -> Signature:
    captures = functions.find(entry.function).bound_inputs
    origins = trace(entry.function, functions.by_name, allowance=functions.steps)
    wiring = read_wiring(
        Source(
            key=entry.key,
            inputs=_input_specs(entry.inputs, functions.by_name[entry.function]),
            outputs=dict(zip(entry.outputs, origins, strict=True)),
            capture=lambda position: objects.capture(captures[position]),
            functions=functions.by_name,
            gradients=functions.gradients,
            described=lambda name: objects.describe_gradient(functions.concrete[name]),
            chain=functions.chain,
            steps=functions.steps,
        )
    )
    return _to_signature(entry.key, wiring, metadata.get("signatures", {}).get(entry.key, {}))


def _to_signature(key: str, wiring: Wiring, recorded: Mapping[str, Any]) -> Signature:
    """The signature around its first call."""
    invocations = wiring.invocations()
    if not invocations:
        raise FormatError(
            f"The signature {key} calls no StableHLO module. To do: use the file through "
            "TensorFlow."
        )
    first, main = invocations[0], invocations[0].call
    inputs: dict[str, int] = {}
    bound: dict[int, int] = {}
    for index, value in zip(main.kept, first.operands, strict=True):
        if isinstance(value, Input):
            inputs[value.name] = index
        elif isinstance(value, Parameter):
            bound[index] = value.variable
    inputs = _with_unused(inputs, tuple(wiring.inputs), main, recorded)
    outputs = {
        name: value.index
        for name, value in wiring.outputs.items()
        if isinstance(value, Output) and value.invocation is first
    }
    constants = {name: bound.pop(index) for index, name in main.constants.items() if index in bound}
    gradients = () if first.gradient is None else (first.gradient.call,)
    return Signature(
        key=key,
        function=Function(
            name=key,
            chain=(*first.chain, *gradients),
            bound=bound,
            arguments=as_tuple([as_tuple([]), as_dict({n: Leaf(i) for n, i in inputs.items()})]),
            parameters=(),
            results=as_dict({name: Leaf(index) for name, index in outputs.items()}),
            constants=constants,
            batch_buckets=first.batch_buckets,
        ),
        inputs=inputs,
        outputs=outputs,
        wiring=wiring,
    )


def _with_unused(
    inputs: dict[str, int], names: Sequence[str], main: CallModule, recorded: Mapping[str, Any]
) -> dict[str, int]:
    """Inputs that the module does not take are known by their path in the metadata."""
    indices = {spec.path: index for index, spec in enumerate(main.args)}
    paths = recorded.get("inputs", {})
    found = {name: indices[paths[name]] for name in names if paths.get(name) in indices}
    return {name: (found | inputs)[name] for name in names if name in found | inputs}


def _input_specs(names: Sequence[str], function: Proto) -> dict[str, TensorSpec]:
    """What a FunctionDef says of its first arguments."""
    specs = {}
    for index, (name, argument) in enumerate(
        zip(names, function.signature.input_arg, strict=False)
    ):
        dtype = dtype_from_tensorflow(argument.type, where=f"The argument {argument.name}")
        shapes = []
        if index in function.arg_attr:
            shapes = list(function.arg_attr[index].attr["_output_shapes"].list.shape)
        shape = None
        if len(shapes) == 1 and not shapes[0].unknown_rank:
            sizes = [dim.size for dim in shapes[0].dim]
            shape = tuple(
                f"{argument.name}_{axis}" if size < 0 else size for axis, size in enumerate(sizes)
            )
        specs[name] = TensorSpec(shape, dtype, name)
    return specs


@dataclass(slots=True)
class _Objects:
    """The object graph, with the variables in the order of `root.variables` or of their nodes."""

    variables: tuple[Variable, ...]
    params: Structure
    _graph: Proto
    _indices: dict[int, int]
    _constants: dict[str, Proto]
    _visits: Allowance

    def __init__(self, folder: ModelFolder, meta_graph: Proto) -> None:
        self._graph = meta_graph.object_graph_def
        self._constants = {
            node.name: node.attr["value"].tensor
            for node in meta_graph.graph_def.node
            if node.op == "Const"
        }
        nodes = [i for i, node in enumerate(self._graph.nodes) if node.HasField("variable")]
        self._indices = {node: index for index, node in enumerate(self._ordered(nodes))}
        stored = StoredVariables(folder, VARIABLES, self._graph) if nodes else None
        constants = frozenset(self._listed("constants"))
        self.variables = tuple(
            stored.variable(node, constant=node in constants) for node in self._indices if stored
        )
        root = self._children(0)
        # An object that is there many times is shared; without a limit, 200 pairs make 2^200.
        self._visits = Allowance(1000 + 4 * len(self._graph.nodes), what="objects in its params")
        self.params = self._structure(root["params"], 0) if "params" in root else NONE

    def signatures(self, functions: _Functions) -> Iterator[_Entry]:
        """The functions under `signatures`, whose arguments and results have names."""
        node = self._children(0).get("signatures")
        for key, child in ({} if node is None else self._children(node)).items():
            if not self._node(child).HasField("bare_concrete_function"):
                continue
            name = self._node(child).bare_concrete_function.concrete_function_name
            concrete = functions.find(name)
            # The flat arguments and results of a wrapper are in the order of their sorted names.
            arguments = concrete.canonicalized_input_signature.tuple_value.values
            inputs = sorted(arguments[1].dict_value.fields) if len(arguments) > 1 else []
            yield _Entry(key, name, inputs, sorted(concrete.output_signature.dict_value.fields))

    def functions(self, functions: _Functions) -> Iterator[_Entry]:
        """The functions that are attributes of the root, as traced first, `__call__` first."""
        children = sorted(self._children(0).items(), key=lambda item: item[0] != "__call__")
        for key, child in children:
            names = self._node(child).function.concrete_functions
            if not names:
                continue
            signature = functions.by_name[names[0]].signature
            captured = len(functions.find(names[0]).bound_inputs)
            inputs = [a.name for a in signature.input_arg][: len(signature.input_arg) - captured]
            outputs = [f"output_{index}" for index in range(len(signature.output_arg))]
            yield _Entry(DEFAULT_SIGNATURE if key == "__call__" else key, names[0], inputs, outputs)

    def capture(self, node: int) -> Parameter | Constant:
        """What a function gets besides its arguments: a variable, or a constant of the graph."""
        if node in self._indices:
            return Parameter(self._indices[node])
        operation = self._node(node).constant.operation
        if operation not in self._constants:
            raise FormatError(f"Object {node} is bound to a call, and is no variable.")
        return Constant(self._constants[operation])

    def describe_gradient(self, concrete: Proto) -> Described:
        """What the object graph says of a gradient function."""
        captured = tuple(self._node(node).captured_tensor.name for node in concrete.bound_inputs)
        returned = concrete.output_signature
        values = [*returned.list_value.values, *returned.tuple_value.values]
        return Described(captured, tuple(not value.HasField("none_value") for value in values))

    def _ordered(self, nodes: Sequence[int]) -> list[int]:
        listed = list(self._listed("variables"))
        known = frozenset(nodes)
        first = [node for node in listed if node in known]
        return [*dict.fromkeys([*first, *nodes])]

    def _listed(self, name: str) -> tuple[int, ...]:
        """The nodes in one of the root's lists of variables."""
        root = self._children(0)
        return tuple(self._children(root[name]).values()) if name in root else ()

    def _structure(self, index: int, depth: int) -> Structure:
        node = self._node(index)
        self._visits.spend()
        if depth > _MAX_DEPTH:
            raise FormatError(f"The object graph is nested more than {_MAX_DEPTH} deep.")
        if node.HasField("variable"):
            return Leaf(self._indices[index])
        children = {
            name: self._structure(child, depth + 1) for name, child in self._children(index).items()
        }
        identifier = node.user_object.identifier
        if "list" in identifier or "tuple" in identifier:
            # A place that holds no variable is not in the file; the others keep their numbers.
            kind: Literal["list", "tuple"] = "list" if "list" in identifier else "tuple"
            return Branch(kind, tuple((n, children[n]) for n in sorted(children, key=_as_number)))
        return Branch("dict", tuple(children.items()))

    def _children(self, index: int) -> dict[str, int]:
        listed = self._node(index).children
        children = {child.local_name: child.node_id for child in listed}
        if len(children) < len(listed):
            raise FormatError(f"Object {index} of the object graph has two children of one name.")
        return children

    def _node(self, index: int) -> Proto:
        if not 0 <= index < len(self._graph.nodes):
            raise FormatError(f"The object graph has no object {index}.")
        return self._graph.nodes[index]  # type: ignore[no-any-return]


def _as_number(name: str) -> int:
    return int(name) if name.isdigit() else -1
