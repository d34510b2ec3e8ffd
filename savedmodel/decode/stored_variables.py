"""The variables of an object graph, with their values in the checkpoint beside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.message import DecodeError

from savedmodel.encode.objects import OBJECT_GRAPH_KEY
from savedmodel.files.model_folder import ModelFolder
from savedmodel.model import Variable
from savedmodel.protos.schema import Proto, TrackableObjectGraph
from savedmodel.protos.wire_format import check_wire
from savedmodel.variables.bundle_reader import SharedTensor, read_strings, stream_tensor
from savedmodel.variables.tensor_bundle import (
    MAX_RANK,
    BundleIndex,
    find_tensor,
    read_index,
)
from savedmodel.variables.tensor_parts import TensorParts
from xla_call_module.dtypes import DType, dtype_from_tensorflow
from xla_call_module.errors import FormatError

__all__ = ["StoredVariables", "open_checkpoint"]

_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


def open_checkpoint(folder: ModelFolder, name: str) -> BundleIndex:
    """The table of contents of a model's checkpoint, and its data files, which are opened.

    Args:
        folder: where the model is.
        name: the path of the checkpoint's files below it, up to `.index` and `.data-…`.

    Raises:
        FormatError: the table is not there or damaged; a data file is not there, or is no file.
        OSError: a file cannot be opened.
    """
    if folder.find(f"{name}.index", links=True) is None:
        raise FormatError(
            f"{folder.path} has no {name}.index, where the values of its variables would be. To "
            "do: copy the folder again, as a whole."
        )
    index = read_index(name, within=folder)
    for shard_id in {entry.shard_id for entry in index.entries.values()}:
        index.files.stamp(shard_id)
    return index


class StoredVariables:
    """A checkpoint, read as far as its table of contents."""

    __slots__ = ("_graph", "_index", "_keys")

    def __init__(self, folder: ModelFolder, name: str, graph: Proto) -> None:
        """Read the table of contents.

        Args:
            folder: where the model is.
            name: the path of the checkpoint's files below it, up to `.index` and `.data-…`.
            graph: the SavedObjectGraph.

        Raises:
            FormatError: the checkpoint is damaged, or has no object graph.
        """
        index = open_checkpoint(folder, name)
        self._graph = graph
        self._keys = _checkpoint_keys(index, graph)
        self._index = index

    def variable(self, node: int, *, constant: bool) -> Variable:
        """The variable that an object is.

        Args:
            node: the object's number in the graph.
            constant: whether it is no parameter of the model.

        Raises:
            DtypeError: JAX does not have its dtype.
            FormatError: the object and the checkpoint differ, or the data file is too short.
        """
        proto = self._graph.nodes[node].variable
        dtype = dtype_from_tensorflow(proto.dtype, where=f"The variable {proto.name}")
        shape = tuple(dim.size for dim in proto.shape.dim)
        if proto.shape.unknown_rank or min(shape, default=0) < 0 or len(shape) > MAX_RANK:
            raise FormatError(f"The variable {proto.name} has no static shape.")
        index, key, name = self._index, self._keys.get(node), str(proto.name)
        if key is not None:
            _check_entry(index, key, name, dtype, shape)
        source = None if key is None else SharedTensor(index, key)

        def chunks() -> Iterator[Any]:
            if key is None:
                raise FormatError(f"The variable {name} has no value in the checkpoint.")
            yield from stream_tensor(index, key)

        return Variable(
            name,
            dtype,
            shape,
            trainable=proto.trainable,
            constant=constant,
            key=(key or "").removesuffix(_VALUE),
            chunks=chunks,
            source=source,
            parts=None if key is None else TensorParts(index, key),
        )


def _check_entry(
    index: BundleIndex, key: str, name: str, dtype: DType, shape: tuple[int, ...]
) -> None:
    """TensorFlow restores what the checkpoint has, so a difference is damage."""
    entry, stored = find_tensor(index, key)
    if (stored, entry.shape) != (dtype, shape):
        raise FormatError(
            f"The variable {name} is {dtype.name}{list(shape)} in the object graph, and "
            f"{stored.name}{list(entry.shape)} under {key!r} in {index.path}. The files are of two "
            "models. To do: copy the folder again, as a whole."
        )


def _checkpoint_keys(index: BundleIndex, graph: Proto) -> dict[int, str]:
    """For each variable's node its key: both object graphs are walked by the same names."""
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
            f"{index.path} has no object graph, so it is no checkpoint of TensorFlow 2. To do: "
            "save the model again with TensorFlow 2."
        )
    (data,) = read_strings(index, OBJECT_GRAPH_KEY)
    check_wire(index.shard_path(entry.shard_id), data, TrackableObjectGraph)
    try:
        return TrackableObjectGraph.FromString(data)
    except DecodeError as error:
        raise FormatError(f"The object graph in {index.path} is damaged: {error}") from error
