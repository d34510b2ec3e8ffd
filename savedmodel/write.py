"""`write`: a `SavedModel` value becomes a folder that every TensorFlow loader reads."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from google.protobuf.message import EncodeError

from savedmodel.encode.functions import write_functions
from savedmodel.encode.graph import INIT_OP, write_graph
from savedmodel.encode.objects import OBJECT_GRAPH_KEY, ObjectGraph, write_objects
from savedmodel.files import checksum
from savedmodel.files.folder import PROTO_FILE, VARIABLES
from savedmodel.files.staging import new_place
from savedmodel.model import SavedModel, Signature, VariablePart
from savedmodel.protos.schema import Proto
from savedmodel.protos.schema import SavedModel as SavedModelProto
from savedmodel.variables.bundle_layout import (
    BundleSlice,
    BundleStrings,
    BundleTensor,
    Layout,
    lay_out,
)
from savedmodel.variables.bundle_writer import write_data_files, write_index
from xla_call_module.errors import StructureError

__all__ = ["counting", "encode", "layout_of", "serialize_proto", "write", "write_proto"]

METADATA_COLLECTION = "jax_tf_bridge"
# protobuf's limit for one message, https://protobuf.dev/programming-guides/proto-limits/.
MAX_PROTO_BYTES = 2**31 - 1
_SERVE_TAG = "serve"
_Tensor = BundleTensor | BundleStrings
_INIT_SIGNATURE = "__saved_model_init_op"


def write(
    model: SavedModel,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    num_shards: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write a SavedModel; the folder appears whole or not at all.

    The same model gives the same bytes. Variables are streamed from `Variable.chunks`.
    saved_model.pb gets a checksum, which `read` checks and other loaders ignore.

    Args:
        model: what to write.
        path: the folder, which is made with its parents; or an address such as
            `gs://bucket/model` where etils is installed, whose saved_model.pb comes last.
        overwrite: whether a SavedModel that is there is replaced.
        num_shards: the number of files that the variables are in, which are written at the same
            time; None for one for each GiB, and 8 at most.
        progress: is told of the bytes of variables that are written, and of how many there are in
            all, in whatever thread; what it raises ends the writing.

    Raises:
        StructureError: the folder exists, or saved_model.pb would be larger than 2 GiB.
        FormatError: what would be replaced is not a SavedModel alone.
        OSError: a file cannot be written; an older folder is untouched.

    Example:
        >>> import bridge, jax, savedmodel
        >>> exported = jax.export.export(jax.jit(jax.numpy.sin))(1.0)
        >>> bridge.save(exported, "my_model")
        >>> savedmodel.write(savedmodel.read("my_model"), "a_copy")
    """
    proto, objects = encode(model)
    data = serialize_proto(proto)
    del proto
    layout = layout_of(model, objects, num_shards)
    for variable in model.variables:
        if variable.chunks is None and not variable.spread:
            raise StructureError(f"The variable {variable.name} has no value to write.")
    with new_place(path, overwrite=overwrite) as folder:
        _fill(folder, data, layout, progress)


def serialize_proto(proto: Proto) -> bytes:
    """The bytes of saved_model.pb.

    Raises:
        StructureError: there are too many.
    """
    try:
        data: bytes = proto.SerializeToString(deterministic=True)
    except EncodeError as error:
        raise _too_large("more") from error
    if (size := len(data) + checksum.HEADER_SIZE) > MAX_PROTO_BYTES:
        raise _too_large(f"{size:,}")
    return data


def _too_large(size: str) -> StructureError:
    return StructureError(
        f"saved_model.pb would have {size} bytes, and it can hold {MAX_PROTO_BYTES:,}. To do: pass "
        "large arrays as parameters instead of closing over them, so that they become variables."
    )


def _fill(
    folder: Path, data: bytes, layout: Layout, progress: Callable[[int, int], None] | None
) -> None:
    prefix = folder / VARIABLES
    prefix.parent.mkdir()
    written = None if progress is None else counting(progress, layout.size_of(0))
    entries = write_data_files(prefix, layout, written=written)
    write_index(prefix, {**entries, **layout.sliced}, len(layout.files))
    write_proto(folder, data)


def counting(progress: Callable[[int, int], None], total: int) -> Callable[[int], None]:
    """What is told of each piece that is written, and tells how many bytes there are so far."""
    lock = threading.Lock()
    sizes = [0]

    def written(size: int) -> None:
        with lock:
            sizes[0] += size
            progress(sizes[0], total)

    return written


def write_proto(folder: Path, data: bytes) -> None:
    """Write saved_model.pb: the bytes of a message, and their checksum in front."""
    with (folder / PROTO_FILE).open("wb") as file:
        file.write(checksum.header(data))
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def encode(model: SavedModel) -> tuple[Proto, ObjectGraph]:
    """The saved_model.pb of a model, and its object graph.

    Raises:
        StructureError: it would be too large for a protobuf message, or has signatures that are not
            calls of modules.
    """
    _check_size(model)
    others = [*model.others, *(s.key for s in model.signatures if not _can_be_written(s))]
    if others:
        raise StructureError(
            f"The signature {others[0]} computes something besides calls of modules, and cannot be "
            "written. To do: copy the folder that it was read from."
        )
    proto: Any = SavedModelProto(saved_model_schema_version=1)
    meta_graph = proto.meta_graphs.add()
    library, signatures = write_functions(model, meta_graph.graph_def.library)
    objects = write_objects(model, signatures, library.concrete)
    graph = write_graph(model.variables, objects.keys, signatures)
    meta_graph.meta_info_def.tags.append(_SERVE_TAG)
    meta_graph.meta_info_def.tensorflow_version = str(model.metadata.get("tensorflow", ""))
    meta_graph.graph_def.MergeFrom(graph.proto)
    meta_graph.saver_def.CopyFrom(graph.saver)
    for key, definition in graph.signatures.items():
        meta_graph.signature_def[key].CopyFrom(definition)
    init = meta_graph.signature_def[_INIT_SIGNATURE].outputs[_INIT_SIGNATURE]
    init.name = INIT_OP
    init.tensor_shape.unknown_rank = True
    meta_graph.collection_def["saved_model_main_op"].node_list.value.append(INIT_OP)
    metadata = json.dumps(dict(model.metadata), sort_keys=True).encode()
    meta_graph.collection_def[METADATA_COLLECTION].bytes_list.value.append(metadata)
    meta_graph.object_graph_def.CopyFrom(objects.saved)
    return proto, objects


def _can_be_written(signature: Signature) -> bool:
    """Whether a signature is one function, whose gradients describe themselves."""
    return signature.is_one_function and signature.function.gradient is None


def layout_of(model: SavedModel, objects: ObjectGraph, num_shards: int | None) -> Layout:
    """Where the variables of a model go."""
    graph = objects.trackable.SerializeToString(deterministic=True)
    tensors: list[_Tensor] = [BundleStrings(OBJECT_GRAPH_KEY, (), (graph,))]
    for variable, key in zip(model.variables, objects.keys, strict=True):
        tensors.append(
            BundleTensor(
                key,
                variable.dtype.enum,
                variable.shape,
                variable.chunks,
                slices=tuple(_slice_of(part, variable.shape) for part in variable.spread),
                holder=variable.holder,
            )
        )
    return lay_out(tensors, num_shards)


def _slice_of(part: VariablePart, shape: Sequence[int]) -> BundleSlice:
    """The part as TensorFlow says it, which has no numbers for all of a dimension."""
    pairs = zip(part.extent, shape, strict=True)
    extent = tuple(
        (0, None) if (start, stop) == (0, size) else (start, stop - start)
        for (start, stop), size in pairs
    )
    return BundleSlice(extent, part.chunks, part.holder)


def _check_size(model: SavedModel) -> None:
    if model.module_bytes > MAX_PROTO_BYTES:
        raise _too_large(f"more than {model.module_bytes:,}")
