"""The object graph of a file -> its variables, params and signatures.

Two protos describe the same objects; `savedmodel.encode.objects` writes them. The values of the
variables are in the checkpoint.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from google.protobuf.message import DecodeError

from savedmodel.decode.dataflow import (
    CallNode,
    Operation,
    changing_functions,
    index_functions,
    steps_allowance,
    trace_with_assignments,
)
from savedmodel.decode.functions import SignatureSource, read_signature
from savedmodel.decode.gradients import Described, Gradients
from savedmodel.decode.graph_functions import read_operations
from savedmodel.encode.objects import OBJECT_GRAPH_KEY
from savedmodel.files.folder import VARIABLES
from savedmodel.files.model_folder import ModelFolder
from savedmodel.model import DEFAULT_SIGNATURE, Parameter, Signature, Variable
from savedmodel.protos.schema import Proto, TrackableObjectGraph
from savedmodel.protos.structures import NONE, Branch, Leaf, Structure
from savedmodel.protos.wire_format import check_wire
from savedmodel.tensorflow_graph import TensorFlowGraph
from savedmodel.variables.bundle_reader import SharedTensor, read_strings, stream_tensor
from savedmodel.variables.tensor_bundle import MAX_RANK, BundleIndex, find_tensor, read_index
from savedmodel.variables.tensor_parts import TensorParts
from xla_call_module.allowance import Allowance
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.dtypes import DType, dtype_from_tensorflow
from xla_call_module.errors import FormatError
from xla_call_module.node import decode_node, description_allowance

VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_MAX_DEPTH = 200


@dataclass(frozen=True, slots=True)
class SignatureEntry:
    """A function of the file that becomes a signature.

    Attributes:
        inputs: names for its arguments but for what it captures.
    """

    key: str
    function: str
    inputs: Sequence[str]
    outputs: Sequence[str]


class SavedObjects:
    """The object graph of a file: its variables, its params, and the functions of its signatures.

    Attributes:
        variables: the variables in the order of `root.variables`, then in that of their nodes.
        params: the pytree of the variables; the leaves are indices into `variables`.
    """

    def __init__(self, folder: ModelFolder, meta_graph: Proto) -> None:
        """Read the variables and the params."""
        self._graph = meta_graph.object_graph_def
        library = meta_graph.graph_def.library
        self._functions, self._steps = index_functions(library), steps_allowance()
        self._changing = changing_functions(self._functions)
        self._descriptions = description_allowance()
        self._gradients = Gradients.of(
            library, self._functions, self._describe_gradient, allowance=self._steps
        )
        self._constants = {
            node.name: node for node in meta_graph.graph_def.node if node.op == "Const"
        }
        nodes = [i for i, node in enumerate(self._graph.nodes) if node.HasField("variable")]
        self._indices = {node: index for index, node in enumerate(self._ordered(nodes))}
        index = open_checkpoint(folder) if nodes else None
        keys = {} if index is None else checkpoint_keys(index, self._graph)
        constants = frozenset(self._listed("constants"))
        self.variables = tuple(
            _to_variable(
                self._graph.nodes[node].variable, index, keys.get(node), constant=node in constants
            )
            for node in self._indices
            if index is not None
        )
        root = self._children(0)
        # An object that is there many times is shared; without a limit, 200 pairs make 2^200.
        self._visits = Allowance(1000 + 4 * len(self._graph.nodes), what="objects in its params")
        self.params = self._structure(root["params"], 0) if "params" in root else NONE

    def entries(self) -> list[SignatureEntry]:
        """Return the signatures; of a file that has none the functions that its root has."""
        return [*self._signatures()] or [*self._root_functions()]

    def signature(self, entry: SignatureEntry, input_paths: Mapping[str, str]) -> Signature:
        """Return a signature with its calls."""
        captures = self._concrete(entry.function).bound_inputs
        origins, assignments = trace_with_assignments(
            entry.function, self._functions, changing=self._changing, allowance=self._steps
        )
        return read_signature(
            SignatureSource(
                key=entry.key,
                inputs=_input_specs(entry.inputs, self._functions[entry.function]),
                outputs=dict(zip(entry.outputs, origins, strict=True)),
                capture=lambda position: self._capture(captures[position]),
                gradients=self._gradients,
                chain=self._chain,
                input_paths=input_paths,
                assignments=assignments,
            )
        )

    def _signatures(self) -> Iterator[SignatureEntry]:
        """Yield the functions under `signatures`, whose arguments and results have names."""
        node = self._children(0).get("signatures")
        for key, child in ({} if node is None else self._children(node)).items():
            if not self._node(child).HasField("bare_concrete_function"):
                continue
            name = self._node(child).bare_concrete_function.concrete_function_name
            concrete = self._concrete(name)
            # The flat arguments and results of a wrapper are in the order of their sorted names.
            arguments = concrete.canonicalized_input_signature.tuple_value.values
            inputs = sorted(arguments[1].dict_value.fields) if len(arguments) > 1 else []
            outputs = sorted(concrete.output_signature.dict_value.fields)
            yield SignatureEntry(key, name, inputs, outputs)

    def _root_functions(self) -> Iterator[SignatureEntry]:
        """Yield the functions that are attributes of the root, first traced, `__call__` first."""
        children = sorted(self._children(0).items(), key=lambda item: item[0] != "__call__")
        for key, child in children:
            names = self._node(child).function.concrete_functions
            if not names:
                continue
            signature = self._functions[names[0]].signature
            captured = len(self._concrete(names[0]).bound_inputs)
            inputs = [a.name for a in signature.input_arg][: len(signature.input_arg) - captured]
            outputs = [f"output_{index}" for index in range(len(signature.output_arg))]
            key = DEFAULT_SIGNATURE if key == "__call__" else key
            yield SignatureEntry(key, names[0], inputs, outputs)

    def _concrete(self, name: str) -> Proto:
        """Return the SavedConcreteFunction of a name."""
        concrete = self._graph.concrete_functions
        if name not in concrete or name not in self._functions:
            raise FormatError(f"The file has a signature for the function {name!r}, and lacks it.")
        return concrete[name]  # type: ignore[no-any-return]

    def _chain(self, call: CallNode) -> tuple[tuple[CallModule, ...], tuple[TensorFlowGraph, ...]]:
        """Return a call and its gradients, and the functions that they run."""
        nodes = [call.node, *self._gradients.nodes(call)]
        calls = tuple(decode_node(node, allowance=self._descriptions) for node in nodes)
        return calls, read_operations(nodes, self._functions, self._steps)

    def _capture(self, node: int) -> Parameter | Operation:
        """Return the variable, or the constant of the graph, that a function captures."""
        if node in self._indices:
            return Parameter(self._indices[node])
        name = self._node(node).constant.operation
        if name not in self._constants:
            raise FormatError(f"Object {node} is bound to a call, and is not a variable.")
        return Operation("Const", name, (), self._constants[name])

    def _describe_gradient(self, name: str) -> Described:
        """Return the captures and the results of a gradient function."""
        concrete = self._concrete(name)
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
        """Return the nodes in one of the root's lists of variables."""
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


def _input_specs(names: Sequence[str], function: Proto) -> dict[str, TensorSpec]:
    """Return the specs of the first arguments of a FunctionDef."""
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


def open_checkpoint(folder: ModelFolder) -> BundleIndex:
    """Return the table of contents of a model's checkpoint; its data files are opened."""
    if folder.find(f"{VARIABLES}.index", links=True) is None:
        raise FormatError(
            f"{folder.path} has no {VARIABLES}.index, where the values of its variables would be. "
            "To do: copy the folder again, as a whole."
        )
    index = read_index(VARIABLES, within=folder)
    for shard_id in {entry.shard_id for entry in index.entries.values()}:
        index.files.stamp(shard_id)
    return index


def _to_variable(proto: Proto, index: BundleIndex, key: str | None, *, constant: bool) -> Variable:
    """Return the variable that a SavedVariable is, whose value is under a key of the checkpoint."""
    dtype = dtype_from_tensorflow(proto.dtype, where=f"The variable {proto.name}")
    shape = tuple(dim.size for dim in proto.shape.dim)
    if proto.shape.unknown_rank or min(shape, default=0) < 0 or len(shape) > MAX_RANK:
        raise FormatError(f"The variable {proto.name} has no static shape.")
    name = str(proto.name)
    if key is None:
        variable = Variable(name, dtype, shape, chunks=functools.partial(_without_value, name))
    else:
        _check_entry(index, key, name, dtype, shape)
        variable = stored_variable(index, key, name)
    return dataclasses.replace(variable, trainable=proto.trainable, constant=constant)


def stored_variable(index: BundleIndex, key: str, name: str) -> Variable:
    """Return the variable of a name whose value is in a checkpoint."""
    entry, dtype = find_tensor(index, key)
    return Variable(
        name,
        dtype,
        entry.shape,
        key=key.removesuffix(VALUE),
        chunks=functools.partial(stream_tensor, index, key),
        source=SharedTensor(index, key),
        parts=TensorParts(index, key),
    )


def _without_value(name: str) -> Iterator[Any]:
    raise FormatError(f"The variable {name} has no value in the checkpoint.")


def _check_entry(
    index: BundleIndex, key: str, name: str, dtype: DType, shape: tuple[int, ...]
) -> None:
    """Refuse a difference: TensorFlow restores what the checkpoint has, so it is damage."""
    entry, stored = find_tensor(index, key)
    if (stored, entry.shape) != (dtype, shape):
        raise FormatError(
            f"The variable {name} is {dtype.name}{list(shape)} in the object graph, and "
            f"{stored.name}{list(entry.shape)} under {key!r} in {index.path}. The files are of two "
            "models. To do: copy the folder again, as a whole."
        )


def checkpoint_keys(index: BundleIndex, graph: Proto) -> dict[int, str]:
    """Return each variable's checkpoint key; both object graphs are walked by the same names."""
    trackable = _read_trackable(index)
    # Each object of the one graph is one of the other, so each is visited once.
    partners = {0: 0}
    pending = [0]
    names: dict[int, dict[str, int]] = {}
    keys: dict[int, str] = {}
    while pending:
        ours = pending.pop()
        theirs = partners[ours]
        if not (0 <= ours < len(graph.nodes) and 0 <= theirs < len(trackable.nodes)):
            continue
        for attribute in trackable.nodes[theirs].attributes:
            keys.setdefault(ours, attribute.checkpoint_key)
        if theirs not in names:
            children = trackable.nodes[theirs].children
            names[theirs] = {child.local_name: child.node_id for child in children}
        for child in graph.nodes[ours].children:
            if child.local_name in names[theirs] and child.node_id not in partners:
                partners[child.node_id] = names[theirs][child.local_name]
                pending.append(child.node_id)
    return keys


def _read_trackable(index: BundleIndex) -> Proto:
    entry = index.entries.get(OBJECT_GRAPH_KEY)
    if entry is None or entry.shape != ():
        raise FormatError(
            f"{index.path} has no object graph, so it is not a checkpoint of TensorFlow 2. To do: "
            "save the model again with TensorFlow 2."
        )
    (data,) = read_strings(index, OBJECT_GRAPH_KEY)
    check_wire(index.files.path(entry.shard_id), data, TrackableObjectGraph)
    try:
        return TrackableObjectGraph.FromString(data)
    except DecodeError as error:
        raise FormatError(f"The object graph in {index.path} is damaged: {error}") from error
