"""`write`: a `SavedModel` value becomes a folder that every TensorFlow loader reads.

`write_together` is for several processes, each of which writes what it holds. Process 0 makes the
hidden folder, and the others write their data files into it, each with a table of what is in them
beside it. When all are done, process 0 puts the tables together and lets the folder appear. How the
processes hear of one another is not decided here.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from google.protobuf.message import EncodeError

from savedmodel.encode.functions import write_functions
from savedmodel.encode.graph import INIT_OP, write_graph
from savedmodel.encode.labels import write_labels
from savedmodel.encode.listed_functions import list_functions
from savedmodel.encode.objects import OBJECT_GRAPH_KEY, ObjectGraph, write_objects
from savedmodel.encode.state import write_state_reader
from savedmodel.files import checksum
from savedmodel.files.folder import PROTO_FILE, VARIABLES, bytes_of, new_folder, new_place
from savedmodel.files.model_folder import ModelFolder
from savedmodel.files.remote import is_remote
from savedmodel.model import (
    INTERNAL_SIGNATURE,
    METADATA_COLLECTION,
    SERVE_TAG,
    SavedModel,
    Variable,
    VariablePart,
)
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
from savedmodel.variables.tensor_bundle import BundleEntry, index_path, read_index
from xla_call_module.errors import FormatError, StructureError
from xla_call_module.tracebacks import api_boundary

# protobuf's limit for one message, https://protobuf.dev/programming-guides/proto-limits/.
MAX_PROTO_BYTES = 2**31 - 1
_Tensor = BundleTensor | BundleStrings
_INIT_SIGNATURE = f"{INTERNAL_SIGNATURE}_init_op"


@api_boundary
def write(
    model: SavedModel,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    num_shards: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Write a SavedModel, and return its size; the folder appears whole or not at all.

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

    Returns:
        The number of bytes of all its files.

    Raises:
        StructureError: the folder exists, or saved_model.pb would be larger than 2 GiB.
        FormatError: what would be replaced is not a SavedModel alone.
        OSError: a file cannot be written; an older folder is untouched.

    Example:
        >>> import bridge, jax, savedmodel
        >>> exported = jax.export.export(jax.jit(jax.numpy.sin))(1.0)
        >>> saved = bridge.save(exported, "my_model")
        >>> size = savedmodel.write(savedmodel.read("my_model"), "a_copy")
    """
    layout, data = _prepare(model, num_shards)
    for variable in model.variables:
        if variable.chunks is None and not variable.shards:
            raise StructureError(
                f"The variable {variable.name} has no value to write. To do: give it chunks."
            )
    options: Any = {"overwrite": overwrite, "progress": progress}
    return write_folder(path, layout, lambda folder: write_proto(folder, data), **options)


def write_folder(
    path: str | os.PathLike[str],
    layout: Layout,
    rest: Callable[[Path], None],
    *,
    overwrite: bool = False,
    replaces: ModelFolder | None = None,
    progress: Callable[[int, int], None] | None = None,
    group: Group | None = None,
    agreed: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Write the variables and the rest of a SavedModel; it appears whole or not at all."""
    place: Any = {"overwrite": overwrite, "replaces": replaces}
    if group is None:
        with new_place(path, **place) as folder:
            _fill(folder, layout, rest, progress)
            return bytes_of(folder)
    with telling(group):
        _refuse_address(path)
        size = 0
        together = _Together(
            group, layout, {**_agreed(path, layout, overwrite=overwrite), **agreed}
        )
        if group.rank == 0:
            with new_folder(Path(path), **place) as folder:
                together.lead(folder, rest, progress)
                size = bytes_of(folder)
        else:
            together.follow()
    return group.succeed(size)


def _prepare(model: SavedModel, num_shards: int | None) -> tuple[Layout, bytes]:
    """Return the data files of a model, and the bytes of its saved_model.pb."""
    proto, objects = _encode(model)
    data = serialize_proto(proto)
    return _layout_of(model, objects, num_shards), data


def serialize_proto(proto: Proto) -> bytes:
    """Return the bytes of saved_model.pb."""
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
    folder: Path,
    layout: Layout,
    rest: Callable[[Path], None],
    progress: Callable[[int, int], None] | None,
) -> None:
    prefix = folder / VARIABLES
    prefix.parent.mkdir()
    written = None if progress is None else _counting(progress, layout.size_of(0))
    entries = write_data_files(prefix, layout, written=written)
    write_index(prefix, {**entries, **layout.known}, layout.num_files)
    rest(folder)


def _counting(progress: Callable[[int, int], None], total: int) -> Callable[[int], None]:
    """Return a function that adds up the sizes of pieces, and reports the sum to `progress`."""
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


def _encode(model: SavedModel) -> tuple[Proto, ObjectGraph]:
    """Return the saved_model.pb of a model, and its object graph."""
    if model.module_bytes > MAX_PROTO_BYTES:
        raise _too_large(f"more than {model.module_bytes:,}")
    # A gradient that does not describe itself is that of another program.
    unwritten = (
        s.key for s in model.signatures if not s.is_one_function or s.function.gradient is not None
    )
    others = [*model.others, *unwritten]
    if others:
        raise StructureError(
            f"The signature {others[0]} computes something besides calls of modules, and cannot be "
            "written. To do: copy the folder that it was read from."
        )
    proto: Any = SavedModelProto(saved_model_schema_version=1)
    meta_graph = proto.meta_graphs.add()
    library, signatures = write_functions(model, meta_graph.graph_def.library)
    objects = write_objects(model, signatures, library.concrete)
    trackable = objects.trackable.SerializeToString(deterministic=True) if model.state else None
    reader = write_state_reader(library, model.variables, model.state)
    graph = write_graph(model.variables, objects.keys, signatures, trackable, reader)
    meta_graph.meta_info_def.tags.append(SERVE_TAG)
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
    for signature in model.signatures:
        for labels in signature.labels.values():
            write_labels(meta_graph, signature.key, labels.output, labels.texts)
    list_functions(meta_graph)
    return proto, objects


def _layout_of(model: SavedModel, objects: ObjectGraph, num_shards: int | None) -> Layout:
    """Return the data files that the variables of a model go to."""
    graph = objects.trackable.SerializeToString(deterministic=True)
    tensors: list[_Tensor] = [BundleStrings(OBJECT_GRAPH_KEY, (), (graph,))]
    tensors += map(to_tensor, model.variables, objects.keys)
    return lay_out(tensors, num_shards)


def to_tensor(variable: Variable, key: str) -> BundleTensor:
    """Return what is written of a variable, under a key of the checkpoint."""
    return BundleTensor(
        key,
        variable.dtype.enum,
        variable.shape,
        variable.chunks,
        slices=tuple(_slice_of(part, variable.shape) for part in variable.shards),
        holder=variable.holder,
    )


def _slice_of(part: VariablePart, shape: Sequence[int]) -> BundleSlice:
    """Return the part as TensorFlow says it, which has no numbers for all of a dimension."""
    pairs = zip(part.extent, shape, strict=True)
    extent = tuple(
        (0, None) if (start, stop) == (0, size) else (start, stop - start)
        for (start, stop), size in pairs
    )
    return BundleSlice(extent, part.chunks, part.holder)


class Group(Protocol):
    """The processes that write one folder, as one of them sees them."""

    @property
    def rank(self) -> int:
        """The number of this process."""

    @property
    def size(self) -> int:
        """The number of processes."""

    def begin(self, folder: str, agreed: Mapping[str, str]) -> str:
        """Return the folder that process 0 gives, when all have come and have agreed."""

    def report(self, written: int) -> int:
        """Tell how many bytes are written here; how many are in all, as far as is known.

        Raises what ends the writing when another process has failed.
        """

    def finish(self) -> None:
        """Tell that all is written here; process 0 waits until it is so everywhere."""

    def succeed(self, size: int) -> int:
        """In process 0 tell that the folder has appeared, in another wait until it has.

        Return its number of bytes, which process 0 knows.
        """

    def fail(self, error: BaseException) -> None:
        """Tell the others what has failed here."""


def write_together(
    model: SavedModel,
    path: str | os.PathLike[str],
    *,
    group: Group,
    overwrite: bool = False,
    num_shards: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Write a SavedModel with the other processes; it appears whole or not at all.

    All of them call this with the same model, but for the bytes that are held elsewhere.
    """
    with telling(group):
        _refuse_address(path)
        layout, data = _prepare(model, num_shards)
    return write_folder(
        path,
        layout,
        lambda folder: write_proto(folder, data),
        overwrite=overwrite,
        progress=progress,
        group=group,
        agreed={
            "signatures": ", ".join(
                f"{s.key}({', '.join(s.inputs)}) -> {', '.join(s.outputs)}"
                for s in model.signatures
            )
        },
    )


@contextlib.contextmanager
def telling(group: Group) -> Iterator[None]:
    """A block whose error the other processes hear of."""
    try:
        yield
    except BaseException as error:
        group.fail(error)
        raise


def _refuse_address(path: str | os.PathLike[str]) -> None:
    if is_remote(path):
        raise StructureError(
            f"{os.fspath(path)} is an address, and several processes write to a file system "
            "that they share. To do: save to a folder there, and copy it."
        )


class _Together:
    """The writing of one process: `lead` is for process 0, `follow` for the others."""

    __slots__ = ("_agreed", "_group", "_layout")

    def __init__(self, group: Group, layout: Layout, agreed: Mapping[str, str]) -> None:
        self._group = group
        self._layout = layout
        self._agreed = agreed

    def lead(
        self,
        folder: Path,
        rest: Callable[[Path], None],
        progress: Callable[[int, int], None] | None,
    ) -> None:
        """Process 0: what it holds, then the rest of the file."""
        prefix = folder / VARIABLES
        prefix.parent.mkdir()
        self._group.begin(os.fspath(folder), self._agreed)
        total = sum(map(self._layout.size_of, range(self._group.size)))
        entries = self._write(
            prefix, lambda written: None if progress is None else progress(written, total)
        )
        self._group.finish()
        for rank in self._others():
            entries.update(_take_entries(_part_prefix(prefix, rank), self._layout, rank))
        write_index(prefix, {**entries, **self._layout.known}, self._layout.num_files)
        rest(folder)

    def follow(self) -> None:
        """Another process: what it holds, and a table of it."""
        folder = Path(self._group.begin("", self._agreed))
        prefix = folder / VARIABLES
        if not prefix.parent.is_dir():
            raise StructureError(
                f"Process 0 writes to {folder}, which process {self._group.rank} does not see. To "
                "do: save to a file system that all hosts share."
            )
        entries = self._write(prefix, lambda _: None)
        if self._group.rank in self._others():
            rank = self._group.rank
            write_index(_part_prefix(prefix, rank), entries, self._layout.num_files)
        self._group.finish()

    def _write(self, prefix: Path, progress: Callable[[int], None]) -> dict[str, BundleEntry]:
        rank = self._group.rank

        def written(size: int, _: int) -> None:
            progress(self._group.report(size))

        count = _counting(written, self._layout.size_of(rank))
        return write_data_files(prefix, self._layout, holder=rank, written=count)

    def _others(self) -> list[int]:
        return sorted({file.holder for file in self._layout.files} - {0})


def _part_prefix(prefix: Path, rank: int) -> Path:
    return prefix.with_name(f"{prefix.name}.process-{rank:05}")


def _take_entries(prefix: Path, layout: Layout, rank: int) -> Mapping[str, BundleEntry]:
    """Return the entries of another process's data files; its table of them is removed."""
    entries = read_index(prefix).entries
    index_path(prefix).unlink()
    files = (file for file in layout.files if file.holder == rank)
    expected = {tensor.key: file.shard_id for file in files for tensor in file.tensors}
    if {key: entry.shard_id for key, entry in entries.items()} != expected:
        raise FormatError(
            f"{index_path(prefix)} lists {len(entries)} tensors, and not those {len(expected)} "
            f"that process {rank} holds. To do: save again, and to a folder that no other program "
            "writes to."
        )
    return entries


def _agreed(path: str | os.PathLike[str], layout: Layout, *, overwrite: bool) -> dict[str, str]:
    """Return what must be the same in all processes, by the words of a user."""
    digest = hashlib.sha256()
    for file in layout.files:
        digest.update(f"{file.shard_id} {file.holder}\n".encode())
        for tensor in file.tensors:
            kind = tensor.values if isinstance(tensor, BundleStrings) else tensor.dtype
            digest.update(f"{tensor.key!r} {tensor.shape} {kind!r}\n".encode())
    for key, entry in layout.known.items():
        digest.update(f"{key!r} {entry.shape} {entry.slices}\n".encode())
    return {
        "path": os.path.abspath(path),
        "overwrite": str(overwrite),
        "number of data files": str(layout.num_files),
        "names, shapes, dtypes and shardings of the parameters": digest.hexdigest()[:16],
    }
