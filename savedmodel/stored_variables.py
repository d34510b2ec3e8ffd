"""The variables of an object graph, with their values in the checkpoint beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from savedmodel.model import Variable
from savedmodel.objects import OBJECT_GRAPH_KEY
from savedmodel.schema import Proto, TrackableObjectGraph
from savedmodel.tensor_bundle import BundleIndex, find_tensor, read_index, read_strings, read_tensor
from savedmodel.tensor_map import TensorMap
from xla_call_module.dtypes import DType, dtype_from_tensorflow
from xla_call_module.errors import FormatError

__all__ = ["StoredVariables"]


class StoredVariables:
    """A checkpoint, read as far as its table of contents."""

    __slots__ = ("_graph", "_keys", "_tensors")

    def __init__(self, prefix: Path, graph: Proto) -> None:
        """Read the table of contents.

        Args:
            prefix: the path of the checkpoint's files, up to `.index` and `.data-…`.
            graph: the SavedObjectGraph.

        Raises:
            FormatError: the checkpoint is damaged, or has no object graph.
        """
        index = read_index(prefix)
        self._graph = graph
        self._keys = _checkpoint_keys(index, graph)
        self._tensors = TensorMap(index)

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
        if proto.shape.unknown_rank or min(shape, default=0) < 0:
            raise FormatError(f"The variable {proto.name} has no static shape.")
        index, key, name = self._tensors.index, self._keys.get(node), str(proto.name)
        if key is not None:
            _check_entry(index, key, name, dtype, shape)
        source = None if key is None else self._tensors.tensor(key)

        def chunks() -> Iterator[Any]:
            if key is None:
                raise FormatError(f"The variable {name} has no value in the checkpoint.")
            yield read_tensor(index, key)

        return Variable(
            name,
            dtype,
            shape,
            trainable=proto.trainable,
            constant=constant,
            chunks=chunks,
            source=source,
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
    values = read_strings(index, OBJECT_GRAPH_KEY)
    if len(values) != 1:
        raise FormatError(f"{index.path} has {len(values)} object graphs, where there is one.")
    try:
        return TrackableObjectGraph.FromString(values[0])
    except DecodeError as error:
        raise FormatError(f"The object graph in {index.path} is damaged: {error}") from error
