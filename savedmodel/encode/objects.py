"""The object graph: what `tf.saved_model.load` makes of a file.

Two protos describe the same objects (tensorflow/core/protobuf/saved_object_graph.proto and
trackable_object_graph.proto): the first, in saved_model.pb, says what they are; the second, in the
checkpoint, under which key their values lie. Nodes have the same numbers in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from savedmodel.encode.body import Capture, ConcreteFunction
from savedmodel.encode.functions import WrittenSignature
from savedmodel.model import Function, SavedModel, Variable
from savedmodel.protos.schema import (
    FunctionSpec,
    Proto,
    SavedObjectGraph,
    StructuredValue,
    TrackableObjectGraph,
)
from savedmodel.protos.structures import Branch, Leaf, Structure, fill_shape
from xla_call_module.errors import StructureError
from xla_call_module.stablehlo.unique_names import scope_names

OBJECT_GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"

_ATTRIBUTES = ".ATTRIBUTES"
_VARIABLE_VALUE = "VARIABLE_VALUE"
_USER_OBJECT = "_generic_user_object"
# Identifiers under which TensorFlow registers its own containers
# (tensorflow/python/trackable/data_structures.py).
_CONTAINERS = {
    "dict": "trackable_dict_wrapper",
    "list": "trackable_list_wrapper",
    "tuple": "trackable_tuple_wrapper",
    "namedtuple": _USER_OBJECT,
    "none": _USER_OBJECT,
}


@dataclass(frozen=True, slots=True)
class ObjectGraph:
    """Both protos, and the checkpoint keys.

    Attributes:
        saved: for saved_model.pb.
        trackable: for the checkpoint.
        keys: for each variable its key in the checkpoint.
    """

    saved: Proto
    trackable: Proto
    keys: tuple[str, ...]


def write_objects(
    model: SavedModel,
    signatures: Sequence[WrittenSignature],
    concrete: Sequence[ConcreteFunction],
) -> ObjectGraph:
    """Return the object graph of a file.

    The root has the attributes `params` (the pytree of variables), `variables`,
    `trainable_variables`, `constants` where the file has any, a function for each signature under
    its key, and is itself callable as the default one.
    """
    writer = _Writer(model.variables)
    root = writer.add_user_object(_USER_OBJECT)
    parameters = [i for i, variable in enumerate(model.variables) if not variable.constant]
    if parameters:
        writer.link(root, "params", writer.add_tree(model.params, ("params",)))
    constants = [i for i, variable in enumerate(model.variables) if variable.constant]
    lists = {
        "variables": parameters,
        "trainable_variables": [i for i in parameters if model.variables[i].trainable],
    }
    for name, chosen in (lists | ({"constants": constants} if constants else {})).items():
        container = writer.add_user_object(_CONTAINERS["list"])
        for position, index in enumerate(chosen):
            writer.link(
                container, str(position), writer.variable_node(index, (name, str(position)))
            )
        writer.link(root, name, container)
    signature_map = writer.add_user_object("signature_map")
    default = model.default if signatures else None
    for written in signatures:
        function = writer.add_function(written.structured, written.signature.function)
        writer.link(root, written.signature.key, function)
        if written.signature is default:
            writer.link(root, "__call__", function)
        writer.link(signature_map, written.signature.key, writer.add_wrapper(written))
    writer.link(root, "signatures", signature_map)
    for item in concrete:
        writer.add_concrete(item)
    return ObjectGraph(writer.saved, writer.trackable, tuple(writer.keys))


class _Writer:
    """Both graphs in the making."""

    def __init__(self, variables: Sequence[Variable]) -> None:
        self.saved = SavedObjectGraph()
        self.trackable = TrackableObjectGraph()
        self.keys = [""] * len(variables)
        self._variables = variables
        self._variable_names = scope_names(variable.name for variable in variables)
        self._variable_nodes: dict[int, int] = {}
        self._captured_nodes: dict[Capture, int] = {}

    def link(self, parent: int, name: str, child: int) -> None:
        for graph in (self.saved, self.trackable):
            graph.nodes[parent].children.add(node_id=child, local_name=name)

    def add_user_object(self, identifier: str) -> int:
        node = self.saved.nodes.add().user_object
        node.identifier = identifier
        node.version.producer = node.version.min_consumer = 1
        return self._new_index()

    def add_tree(self, structure: Structure, path: tuple[str, ...]) -> int:
        """Add the containers of a pytree of variables; return the node of the outermost."""
        if isinstance(structure, Leaf):
            return self.variable_node(structure.index, path)
        node = self.add_user_object(_CONTAINERS[structure.kind])
        for key, child in structure.children:
            if child != Branch("none"):
                self.link(node, key, self.add_tree(child, (*path, key)))
        return node

    def variable_node(self, index: int, path: tuple[str, ...]) -> int:
        """Return the node of a variable; the first path to it names its value in the checkpoint."""
        if index in self._variable_nodes:
            return self._variable_nodes[index]
        variable = self._variables[index]
        _check_path(path, variable.name)
        node = self.saved.nodes.add().variable
        node.dtype, node.trainable, node.name = (
            variable.dtype.enum,
            variable.trainable,
            self._variable_names[index],
        )
        fill_shape(node.shape, variable.shape)
        self.keys[index] = "/".join(map(_escape, path)) + f"/{_ATTRIBUTES}/{_VARIABLE_VALUE}"
        self._variable_nodes[index] = self._new_index()
        attribute = self.trackable.nodes[-1].attributes.add(name=_VARIABLE_VALUE)
        attribute.full_name, attribute.checkpoint_key = node.name, self.keys[index]
        self.trackable.nodes[-1].has_checkpoint_values.value = True
        return self._variable_nodes[index]

    def add_function(self, concrete: ConcreteFunction, function: Function) -> int:
        node = self.saved.nodes.add().function
        node.concrete_functions.append(concrete.name)
        keywords = _keyword_names(function.arguments)
        node.function_spec.CopyFrom(_function_spec(function.parameters, keywords))
        return self._new_index()

    def add_wrapper(self, written: WrittenSignature) -> int:
        node = self.saved.nodes.add().bare_concrete_function
        node.concrete_function_name = written.wrapper.name
        node.argument_keywords.extend(written.inputs)
        node.function_spec.CopyFrom(_function_spec((), written.inputs))
        return self._new_index()

    def add_concrete(self, function: ConcreteFunction) -> None:
        proto = self.saved.concrete_functions[function.name]
        proto.bound_inputs.extend(self._capture_node(capture) for capture in function.captures)
        proto.canonicalized_input_signature.CopyFrom(function.input_signature)
        proto.output_signature.CopyFrom(function.output_signature)

    def _capture_node(self, capture: Capture) -> int:
        if capture.variable is not None:
            return self._variable_nodes[capture.variable]
        if capture not in self._captured_nodes:
            node = self.saved.nodes.add().captured_tensor
            node.name, node.concrete_function = capture.tensor, capture.function
            self._captured_nodes[capture] = len(self.saved.nodes) - 1
        return self._captured_nodes[capture]

    def _new_index(self) -> int:
        """Return the number of the node just added, in both graphs."""
        self.trackable.nodes.add()
        return len(self.trackable.nodes) - 1


def _check_path(path: Sequence[str], name: str) -> None:
    """Refuse what TensorFlow saves and cannot load.

    It takes the first `.ATTRIBUTES/` in a checkpoint key for the one that ends the path, and a dot
    in a name is two there (`extract_saveable_name` in tensorflow/python/checkpoint/restore.py).
    """
    if reserved := [part for part in path if part.endswith(_ATTRIBUTES)]:
        raise StructureError(
            f"The parameter {name} has the key {reserved[0]!r} in its path, and TensorFlow cannot "
            f"load a variable below a key that ends in {_ATTRIBUTES}. To do: rename the key."
        )


def _escape(name: str) -> str:
    """Return a part of a checkpoint key (tensorflow/python/checkpoint/trackable_view.py)."""
    return name.replace(".", "..").replace("/", ".S")


def _keyword_names(arguments: Structure) -> tuple[str, ...]:
    assert isinstance(arguments, Branch)
    keywords = arguments.children[1][1]
    assert isinstance(keywords, Branch)
    return tuple(name for name, _ in keywords.children)


def _function_spec(parameters: Sequence[str], keywords: Sequence[str]) -> Proto:
    """Return the Python signature, as an `inspect.FullArgSpec`.

    TensorFlow takes a function whose first parameter is called `self` for a method and drops it
    (tensorflow/python/saved_model/function_deserialization.py).
    """
    parameters = [name if name != "self" else "self_" for name in parameters]
    spec = FunctionSpec()
    fullargspec = spec.fullargspec.named_tuple_value
    fullargspec.name = "FullArgSpec"
    for key in (
        "args",
        "varargs",
        "varkw",
        "defaults",
        "kwonlyargs",
        "kwonlydefaults",
        "annotations",
    ):
        value = fullargspec.values.add(key=key).value
        if key in ("args", "kwonlyargs"):
            value.CopyFrom(_string_list(parameters if key == "args" else keywords))
        elif key == "annotations":
            value.dict_value.SetInParent()
        else:
            value.none_value.SetInParent()
    spec.input_signature.none_value.SetInParent()
    return spec


def _string_list(names: Sequence[str]) -> Proto:
    value = StructuredValue()
    value.list_value.SetInParent()
    for name in names:
        value.list_value.values.add(string_value=name)
    return value
