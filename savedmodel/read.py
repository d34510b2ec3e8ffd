"""`read`: a folder becomes a `SavedModel` value again. Nothing in it is run."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.message import DecodeError

from savedmodel.decode.functions import NoModuleError
from savedmodel.decode.graph import read_graph
from savedmodel.decode.objects import SavedObjects, SignatureEntry, checkpoint_keys
from savedmodel.files import checksum
from savedmodel.files.folder import PROTO_FILE
from savedmodel.files.model_folder import ModelFolder, newest_version, read_one_version
from savedmodel.model import METADATA_COLLECTION, SERVE_TAG, SavedModel, Signature
from savedmodel.protos.schema import Proto
from savedmodel.protos.schema import SavedModel as SavedModelProto
from savedmodel.protos.tensor_values import decode_tensor
from savedmodel.protos.wire_format import MAX_MESSAGE_DEPTH, check_wire
from savedmodel.variables.tensor_bundle import BundleIndex
from savedmodel.write import MAX_PROTO_BYTES
from xla_call_module.dtypes import Array
from xla_call_module.errors import (
    DtypeError,
    FormatError,
    InteropError,
    StructureError,
    refusing_damage,
)
from xla_call_module.tracebacks import api_boundary

_CHUNKED_FILE = "saved_model.cpb"
_MAX_METADATA_BYTES = 2**22


@api_boundary
def read(path: str | os.PathLike[str] | ModelFolder) -> SavedModel:
    """Return the SavedModel in a folder: its signatures, their calls and gradients, its variables.

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
        >>> saved = bridge.save(exported, "my_model")
        >>> savedmodel.read("my_model").default.inputs
        {'x': 0}
    """
    return read_one_version(path, _read)


def _read(folder: ModelFolder) -> SavedModel:
    with refusing_damage(str(folder.path / PROTO_FILE)):
        return _read_model(folder)


def _read_model(folder: ModelFolder) -> SavedModel:
    graphs = served_graphs(read_proto(folder))
    if not graphs:
        raise FormatError(f"{folder.path / PROTO_FILE} has no graph with the tag {SERVE_TAG!r}.")
    meta_graph = graphs[0]
    tensorflow = tensorflow_of(meta_graph)
    if not meta_graph.HasField("object_graph_def"):
        signatures, variables = read_graph(folder, meta_graph)
        if not signatures:
            raise NoModuleError(
                f"{folder.path / PROTO_FILE} has no signatures and no object graph."
            )
        return SavedModel(signatures, variables, tensorflow=tensorflow)
    objects = SavedObjects(folder, meta_graph)
    metadata = _read_metadata(meta_graph)
    entries = objects.entries()
    if not entries:
        raise NoModuleError(f"{folder.path / PROTO_FILE} has no signatures and no functions.")
    read: list[Signature] = []
    refused: dict[str, InteropError] = {}
    for entry in entries:
        recorded = metadata.get("signatures", {}).get(entry.key, {})
        try:
            signature = objects.signature(entry, recorded.get("inputs", {}))
        except (StructureError, DtypeError, NoModuleError) as error:
            refused[entry.key] = error
        else:
            defaults = _read_defaults(entry, meta_graph)
            read.append(dataclasses.replace(signature, defaults=defaults))
    if not read:
        raise next(iter(refused.values()))
    return SavedModel(
        signatures=tuple(read),
        variables=objects.variables,
        params=objects.params,
        metadata=metadata,
        others={key: str(error) for key, error in refused.items()},
        tensorflow=tensorflow,
        graph_constants=_read_constants(read, meta_graph.graph_def),
    )


def _read_constants(signatures: Sequence[Signature], graph: Proto) -> tuple[Array, ...]:
    """Return the arrays that may be constants of gradients alone; they are in any function."""
    wanted = {
        (order.args[index].dtype.enum, order.args[index].shape)
        for signature in signatures
        for function in signature.functions
        for order in function.chain
        for index, key in order.constants.items()
        if key not in function.call.constants.values()
    }
    nodes = itertools.chain(graph.node, *(f.node_def for f in graph.library.function))
    tensors = (node.attr["value"].tensor for node in nodes if wanted and node.op == "Const")
    return tuple(
        decode_tensor(tensor)
        for tensor in tensors
        if (tensor.dtype, tuple(dim.size for dim in tensor.tensor_shape.dim)) in wanted
    )


def _read_defaults(entry: SignatureEntry, meta_graph: Proto) -> dict[str, Array]:
    """Return the values of the inputs of a signature that a request may leave out."""
    if entry.key not in meta_graph.signature_def:
        return {}
    defaults = meta_graph.signature_def[entry.key].defaults
    return {
        name: decode_tensor(defaults[name]) for name in sorted(defaults) if name in entry.inputs
    }


def read_proto(folder: str | os.PathLike[str] | ModelFolder) -> Proto:
    """Return the message in a folder's saved_model.pb, without a checksum in front of it."""
    return read_one_version(folder, _read_proto)


def _read_proto(folder: ModelFolder) -> Proto:
    file = folder.path / PROTO_FILE
    if folder.find(PROTO_FILE, links=True) is None:
        raise FormatError(_without_proto(folder))
    data = folder.read(PROTO_FILE, limit=MAX_PROTO_BYTES)
    check_wire(file, data)
    checked = checksum.check(file, data)
    proto: Any = SavedModelProto()
    try:
        proto.ParseFromString(memoryview(data)[checksum.HEADER_SIZE if checked else 0 :])
    except DecodeError as error:
        raise FormatError(
            f"{file} is not a SavedModel message that protobuf parses, or one of more than "
            f"{MAX_MESSAGE_DEPTH} messages in one another: {error}"
        ) from error
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
    newest = newest_version(folder.path)
    return (
        f"{folder.path} has no {PROTO_FILE}, so it is not a SavedModel. To do: pass the folder "
        f"that holds that file{f', such as {newest}, its newest version' if newest else ''}."
    )


def served_graphs(proto: Proto) -> list[Proto]:
    """Return the meta graphs of a file that servers and loaders take: those of the tag `serve`."""
    return [graph for graph in proto.meta_graphs if SERVE_TAG in graph.meta_info_def.tags]


def checkpoint_names(folder: ModelFolder, index: BundleIndex) -> dict[str, tuple[str, bool]]:
    """Return the variables of any writer by their keys in the checkpoint."""
    with refusing_damage(str(folder.path / PROTO_FILE)):
        for meta_graph in served_graphs(read_proto(folder))[:1]:
            if not meta_graph.HasField("object_graph_def"):
                break
            graph = meta_graph.object_graph_def
            functions = graph.concrete_functions.values()
            captured = {node for function in functions for node in function.bound_inputs}
            return {
                key: (graph.nodes[node].variable.name, node in captured)
                for node, key in checkpoint_keys(index, graph).items()
                if graph.nodes[node].HasField("variable")
            }
    return {}


def tensorflow_of(meta_graph: Proto) -> str:
    """Return the version of the TensorFlow that wrote a file; empty where none did.

    `tf.saved_model.save` writes it, and the git revision that it was built from. Other writers,
    ours among them, have no revision to give.
    """
    info = meta_graph.meta_info_def
    return str(info.tensorflow_version) if info.tensorflow_git_version else ""


def _read_metadata(meta_graph: Proto) -> Mapping[str, Any]:
    """Return what `write` put in; empty for other writers, and after TensorFlow saved it again."""
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
