"""The assignment of tensors to the data files of a bundle, before anything is written.

It follows from the tensors alone, so that processes that write a bundle together agree on it, and
the same tensors give the same files whatever runs first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypeAlias

import numpy.typing as npt

from savedmodel.variables.tensor_bundle import BundleEntry
from savedmodel.variables.tensor_slices import Slice, flaw_of_slices, shape_of_slice, slice_key
from xla_call_module.dtypes import dtype_from_tensorflow
from xla_call_module.errors import StructureError

Piece: TypeAlias = "bytes | bytearray | memoryview | npt.NDArray[Any]"
Chunks: TypeAlias = Callable[[], Iterable[Piece]]

# One file is read and written at the speed of one; so many are no burden for any store.
_BYTES_PER_FILE = 1 << 30
MAX_FILES = 8


@dataclass(frozen=True, slots=True)
class BundleSlice:
    """A part of a tensor that is stored in slices.

    Attributes:
        part: the (start, length) in each dimension, with None for all of a dimension.
        chunks: a function of its bytes as `BundleTensor.chunks`; None where another process has
            them.
        holder: the number of the process that writes the slice.
    """

    part: Slice
    chunks: Chunks | None
    holder: int = 0


@dataclass(frozen=True, slots=True)
class BundleTensor:
    """A tensor to be written.

    Attributes:
        key: the name in the bundle.
        dtype: the number of the dtype in TensorFlow's `DataType` enum.
        shape: the shape; `()` for a scalar.
        chunks: a function of the bytes, in C order and little-endian, as C-contiguous buffers in
            sequence. It is called once, when the tensor's turn comes, so that no more than a chunk
            need be in memory, and in whatever thread writes the data file. A buffer must not change
            before the next one is asked for. None where another process has the bytes, or where
            there are slices.
        slices: the parts that it is stored in, which make up the whole; none where it is in one.
        holder: the number of the process that writes the tensor.
    """

    key: str
    dtype: int
    shape: tuple[int, ...]
    chunks: Chunks | None
    slices: tuple[BundleSlice, ...] = ()
    holder: int = 0


@dataclass(frozen=True, slots=True)
class BundleStrings:
    """A tensor of strings to be written, by process 0.

    Attributes:
        key: the name in the bundle.
        shape: the shape; `()` for one string.
        values: the elements, in C order.
    """

    key: str
    shape: tuple[int, ...]
    values: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class DataFile:
    """One data file.

    Attributes:
        holder: the number of the process that writes it.
        tensors: the tensors in it, in the order of the keys; slices are tensors under keys of their
            own.
    """

    shard_id: int
    holder: int
    tensors: tuple[BundleTensor | BundleStrings, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """All data files.

    Attributes:
        files: the data files to be written, in the order of their numbers.
        known: the entries that need no writing: of tensors that are stored in slices, and of those
            in data files that stay.
        kept: for each data file of another bundle that stays as it is, its number there; they come
            after `files`.
    """

    files: tuple[DataFile, ...]
    known: Mapping[str, BundleEntry]
    kept: tuple[int, ...] = ()

    @property
    def num_files(self) -> int:
        """The number of data files, those that stay included."""
        return len(self.files) + len(self.kept)

    def size_of(self, holder: int) -> int:
        """Return the number of bytes that a process writes."""
        files = (file for file in self.files if file.holder == holder)
        return sum(_size_of(tensor) for file in files for tensor in file.tensors)


def lay_out(tensors: Iterable[BundleTensor | BundleStrings], num_shards: int | None = 1) -> Layout:
    """Return the data files for these tensors, in whatever order they come.

    Each process fills its own: the largest tensor or slice first, into the file that has the fewest
    bytes. No file is empty but the only one.
    """
    if num_shards is not None and not _is_count(num_shards):
        raise StructureError(
            f"num_shards is {num_shards!r}. To do: take 1 or more, or None for as many as fit the "
            "size."
        )
    ordered = _sort_by_key(tensors)
    by_holder: dict[int, list[BundleTensor | BundleStrings]] = {0: []}
    for part in (part for tensor in ordered for part in _parts_of(tensor)):
        holder = part.holder if isinstance(part, BundleTensor) else 0
        by_holder.setdefault(holder, []).append(part)
    files: list[DataFile] = []
    for holder, parts in sorted(by_holder.items()):
        # An only process has a file even for nothing, as TensorFlow has.
        if parts or len(by_holder) == 1:
            for content in _distribute(parts, num_shards):
                files.append(DataFile(len(files), holder, content))
    sliced = {
        tensor.key: _entry_of_slices(tensor)
        for tensor in ordered
        if isinstance(tensor, BundleTensor) and tensor.slices
    }
    return Layout(tuple(files), sliced)


def _is_count(number: Any) -> bool:
    return not isinstance(number, bool) and isinstance(number, Integral) and int(number) >= 1


def _distribute(
    tensors: Sequence[BundleTensor | BundleStrings], num_shards: int | None
) -> list[tuple[BundleTensor | BundleStrings, ...]]:
    sizes = [*map(_size_of, tensors)]
    if num_shards is None:
        num_shards = min(MAX_FILES, -(-sum(sizes) // _BYTES_PER_FILE))
    count = max(1, min(num_shards, len(tensors)))
    filled = [0] * count
    files: list[list[int]] = [[] for _ in range(count)]
    for number in sorted(range(len(tensors)), key=lambda number: -sizes[number]):
        emptiest = filled.index(min(filled))
        files[emptiest].append(number)
        # An empty tensor counts, too, so that no file stays empty.
        filled[emptiest] += max(1, sizes[number])
    return [tuple(tensors[number] for number in sorted(file)) for file in files]


def _size_of(tensor: BundleTensor | BundleStrings) -> int:
    if isinstance(tensor, BundleStrings):
        return sum(map(len, tensor.values))
    dtype = dtype_from_tensorflow(tensor.dtype, where=f"Tensor {tensor.key}")
    return math.prod(tensor.shape) * dtype.itemsize


def _sort_by_key(
    tensors: Iterable[BundleTensor | BundleStrings],
) -> list[BundleTensor | BundleStrings]:
    by_key: dict[bytes, BundleTensor | BundleStrings] = {}
    for tensor in tensors:
        key = tensor.key.encode("utf-8", "surrogateescape")
        if not key:
            raise StructureError(
                f"A tensor of shape {tensor.shape} has an empty key, which is that of the bundle's "
                "header. To do: name it."
            )
        if key in by_key:
            raise StructureError(
                f"Two tensors have the key {tensor.key!r}, where each needs its own. To do: "
                "rename one of them."
            )
        by_key[key] = tensor
    return [by_key[key] for key in sorted(by_key)]


def _parts_of(tensor: BundleTensor | BundleStrings) -> Iterable[BundleTensor | BundleStrings]:
    """Return the tensor itself, or its slices under their keys."""
    if isinstance(tensor, BundleStrings) or not tensor.slices:
        return [tensor]
    parts = [piece.part for piece in tensor.slices]
    if flaw := flaw_of_slices(parts, tensor.shape):
        raise StructureError(
            f"Tensor {tensor.key} has {flaw}. To do: give slices that make up the whole, each "
            "element once."
        )
    return [
        BundleTensor(
            slice_key(tensor.key, piece.part),
            tensor.dtype,
            shape_of_slice(piece.part, tensor.shape),
            piece.chunks,
            holder=piece.holder,
        )
        for piece in tensor.slices
    ]


def _entry_of_slices(tensor: BundleTensor) -> BundleEntry:
    slices = tuple(piece.part for piece in tensor.slices)
    return BundleEntry(tensor.dtype, tensor.shape, 0, 0, 0, 0, slices)
