"""`read`: a folder becomes a `SavedModel` value again. Nothing in it is run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from savedmodel import checksum
from savedmodel.dataflow import Argument, Call, Result, gradient_nodes, trace
from savedmodel.model import Function, SavedModel, Signature, Variable
from savedmodel.schema import Proto
from savedmodel.schema import SavedModel as SavedModelProto
from savedmodel.stored_variables import StoredVariables
from savedmodel.structures import NONE, Branch, Leaf, Structure, as_dict, as_list, as_tuple
from savedmodel.write import METADATA_COLLECTION, PROTO_FILE, VARIABLES
from xla_call_module.call import CallModule
from xla_call_module.errors import FormatError
from xla_call_module.node import decode_node

__all__ = ["read"]

_SERVE_TAG = "serve"
_MAX_DEPTH = 200


def read(path: str | os.PathLike[str]) -> SavedModel:
    """The SavedModel in a folder: its signatures, their calls and gradients, its variables.

    Variables are not read, but that their files reach as far as they should; `Variable.to_numpy`
    reads one and `Variable.mapped` maps one, and both check its checksum.

    Args:
        path: the folder of a SavedModel whose signatures are calls of StableHLO modules: one of
            ours, also after TensorFlow has loaded and saved it again.

    Raises:
        FormatError: it is damaged, or a signature computes something besides one call.
        OSError: a file cannot be read.

    Example:
        >>> import bridge, jax, savedmodel
        >>> exported = jax.export.export(jax.jit(jax.numpy.sin))(1.0)
        >>> bridge.save(exported, "my_model")
        >>> savedmodel.read("my_model").default.inputs
        {'x': 0}
    """
    folder = Path(path)
    meta_graph = _read_meta_graph(folder)
    objects = _Objects(folder, meta_graph)
    metadata = _read_metadata(meta_graph)
    signatures = tuple(
        _read_signature(key, node, meta_graph, objects, metadata)
        for key, node in objects.signature_nodes()
    )
    if not signatures:
        raise FormatError(f"{folder / PROTO_FILE} has no signatures in its object graph.")
    return SavedModel(signatures, objects.variables, objects.params, metadata)


def _read_meta_graph(folder: Path) -> Proto:
    file = folder / PROTO_FILE
    if not file.is_file():
        raise FormatError(
            f"{folder} has no {PROTO_FILE}, so it is no SavedModel. To do: pass the folder that "
            "holds that file; TensorFlow Serving's versions are folders below the model's."
        )
    data = file.read_bytes()
    checked = checksum.check(file, data)
    proto: Any = SavedModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise FormatError(f"{file} is no SavedModel message: {error}") from error
    for meta_graph in proto.meta_graphs:
        if _SERVE_TAG in meta_graph.meta_info_def.tags and meta_graph.HasField("object_graph_def"):
            ours = METADATA_COLLECTION in meta_graph.collection_def
            if ours and not checked and not checksum.has_known_beginning(data):
                raise FormatError(
                    f"{file}, byte 0: the file begins with {data[:5].hex()}, and neither with a "
                    "checksum nor as a SavedModel. To do: copy it again, or write it again."
                )
            return meta_graph  # type: ignore[no-any-return]
    raise FormatError(f"{file} has no graph with the tag {_SERVE_TAG!r} and an object graph.")


def _read_metadata(meta_graph: Proto) -> Mapping[str, Any]:
    """What `write` put in; empty for other writers, and after TensorFlow saved the file again."""
    values = meta_graph.collection_def[METADATA_COLLECTION].bytes_list.value
    try:
        metadata = json.loads(values[0]) if values else {}
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"The metadata of the SavedModel are damaged: {values[0][:60]!r}"
        ) from error
    return metadata if isinstance(metadata, dict) else {}


def _read_signature(
    key: str, node: Proto, meta_graph: Proto, objects: _Objects, metadata: Mapping[str, Any]
) -> Signature:
    name = node.bare_concrete_function.concrete_function_name
    library = meta_graph.graph_def.library
    functions = {function.signature.name: function for function in library.function}
    captures = meta_graph.object_graph_def.concrete_functions[name].bound_inputs
    origins = trace(name, functions)
    call = _only_call(key, origins)
    operands = [decode_node(call.node), *map(decode_node, gradient_nodes(call, library))]
    main = operands[0]
    wrapper = functions[name].signature
    count = len(wrapper.input_arg) - len(captures)
    # The wrapper's flat arguments and results are in the order of their sorted names.
    concrete = meta_graph.object_graph_def.concrete_functions[name]
    names = sorted(concrete.canonicalized_input_signature.tuple_value.values[1].dict_value.fields)
    by_input, bound = _bind(main, call, count, list(captures), objects)
    inputs = {names[position]: index for position, index in by_input.items()}
    inputs = _with_unused(inputs, names, main, metadata.get("signatures", {}).get(key, {}))
    outputs = dict(
        zip(
            sorted(concrete.output_signature.dict_value.fields),
            [origin.index for origin in origins if isinstance(origin, Result)],
            strict=True,
        )
    )
    return Signature(
        key=key,
        function=Function(
            name=key,
            chain=tuple(operands),
            bound=bound,
            arguments=as_tuple([as_tuple([]), as_dict({n: Leaf(i) for n, i in inputs.items()})]),
            parameters=(),
            results=as_dict({name: Leaf(index) for name, index in outputs.items()}),
            constants={
                key: bound.pop(index) for index, key in main.constants.items() if index in bound
            },
        ),
        inputs=inputs,
        outputs=outputs,
    )


def _only_call(key: str, origins: Sequence[Any]) -> Call:
    calls = {id(origin.call): origin.call for origin in origins if isinstance(origin, Result)}
    others = [origin for origin in origins if not isinstance(origin, Result)]
    if len(calls) != 1 or others:
        raise FormatError(
            f"The signature {key} returns results of {len(calls)} calls and {others[:3]}; expected "
            "the results of one XlaCallModule. To do: use the file through TensorFlow."
        )
    return next(iter(calls.values()))


def _bind(
    main: CallModule, call: Call, count: int, captures: Sequence[int], objects: _Objects
) -> tuple[dict[int, int], dict[int, int]]:
    """Which argument each input of the wrapper is, and which variable is bound to the others."""
    inputs: dict[int, int] = {}
    bound: dict[int, int] = {}
    for index, origin in zip(main.kept, call.operands, strict=True):
        if not isinstance(origin, Argument):
            raise FormatError(f"{main.args[index].path} of {main.name} is computed by {origin}.")
        if origin.index < count:
            inputs[origin.index] = index
        else:
            bound[index] = objects.variable_index(captures[origin.index - count])
    return inputs, bound


def _with_unused(
    inputs: dict[str, int], names: Sequence[str], main: CallModule, described: Mapping[str, Any]
) -> dict[str, int]:
    """Inputs that the module does not take are known by their path in the metadata."""
    paths = {spec.path: index for index, spec in enumerate(main.args)}
    recorded = described.get("inputs", {})
    found = {name: paths[recorded[name]] for name in names if recorded.get(name) in paths}
    return {name: (found | inputs)[name] for name in names if name in found | inputs}


@dataclass(slots=True)
class _Objects:
    """The object graph, with the variables in the order of `root.variables` or of their nodes."""

    variables: tuple[Variable, ...]
    params: Structure
    _graph: Proto
    _indices: dict[int, int]

    def __init__(self, folder: Path, meta_graph: Proto) -> None:
        self._graph = meta_graph.object_graph_def
        nodes = [i for i, node in enumerate(self._graph.nodes) if node.HasField("variable")]
        self._indices = {node: index for index, node in enumerate(self._ordered(nodes))}
        stored = StoredVariables(folder / VARIABLES, self._graph) if nodes else None
        constants = frozenset(self._listed("constants"))
        self.variables = tuple(
            stored.variable(node, constant=node in constants) for node in self._indices if stored
        )
        root = self._children(0)
        self.params = self._structure(root["params"], 0) if "params" in root else NONE

    def signature_nodes(self) -> Iterator[tuple[str, Proto]]:
        """Key and node of each signature."""
        signatures = self._children(0).get("signatures")
        for key, node in ({} if signatures is None else self._children(signatures)).items():
            if self._node(node).HasField("bare_concrete_function"):
                yield key, self._node(node)

    def variable_index(self, node: int) -> int:
        """The index of the variable at a node."""
        if node not in self._indices:
            raise FormatError(f"Object {node} is bound to a call, and is no variable.")
        return self._indices[node]

    def _ordered(self, nodes: Sequence[int]) -> list[int]:
        listed = list(self._listed("variables"))
        first = [node for node in listed if node in nodes]
        return [*dict.fromkeys([*first, *nodes])]

    def _listed(self, name: str) -> tuple[int, ...]:
        """The nodes in one of the root's lists of variables."""
        root = self._children(0)
        return tuple(self._children(root[name]).values()) if name in root else ()

    def _structure(self, index: int, depth: int) -> Structure:
        node = self._node(index)
        if depth > _MAX_DEPTH:
            raise FormatError(f"The object graph is nested more than {_MAX_DEPTH} deep.")
        if node.HasField("variable"):
            return Leaf(self._indices[index])
        children = {
            name: self._structure(child, depth + 1) for name, child in self._children(index).items()
        }
        identifier = node.user_object.identifier
        if "list" in identifier or "tuple" in identifier:
            ordered = [children[name] for name in sorted(children, key=_as_number)]
            return as_list(ordered) if "list" in identifier else as_tuple(ordered)
        return Branch("dict", tuple(children.items()))

    def _children(self, index: int) -> dict[str, int]:
        return {child.local_name: child.node_id for child in self._node(index).children}

    def _node(self, index: int) -> Proto:
        if not 0 <= index < len(self._graph.nodes):
            raise FormatError(f"The object graph has no object {index}.")
        return self._graph.nodes[index]  # type: ignore[no-any-return]


def _as_number(name: str) -> int:
    return int(name) if name.isdigit() else -1
