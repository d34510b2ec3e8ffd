"""Variables on disk: TensorFlow's TensorBundle, the second checkpoint format.

A bundle with the prefix `p` is the table `p.index` and the data files `p.data-00000-of-00001` and
so on. The table has a `BundleHeaderProto` under the empty key and a `BundleEntryProto` under the
key of each tensor, which says where the tensor's bytes are, and their masked CRC32C. A tensor of
strings is the lengths as varints, a masked CRC32C of these, and the strings.

Source: tensorflow/core/util/tensor_bundle/tensor_bundle.cc.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import os
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeAlias

import google_crc32c
import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from savedmodel.schema import BundleEntryProto, BundleHeaderProto, Proto, TensorShapeProto
from savedmodel.sstable import (
    Cursor,
    Record,
    damage,
    decode_table,
    encode_table,
    encode_varint,
    mask_crc,
    unmask_crc,
)
from savedmodel.tensor_slices import (
    MAX_SLICES,
    Slice,
    extents,
    flaw_of_slices,
    is_within,
    shape_of_slice,
    slice_key,
)
from savedmodel.wire import check_wire
from xla_call_module.dtypes import DTYPES, DType, dtype_from_tensorflow
from xla_call_module.errors import DtypeError, FormatError, StructureError

__all__ = [
    "BundleEntry",
    "BundleIndex",
    "BundleStrings",
    "BundleTensor",
    "assemble_slices",
    "check_bounds",
    "check_tensor",
    "find_tensor",
    "read_index",
    "read_strings",
    "read_tensor",
    "stream_tensor",
    "write_bundle",
]

Piece: TypeAlias = "bytes | bytearray | memoryview | npt.NDArray[Any]"
_Bytes: TypeAlias = npt.NDArray[np.uint8]

_VERSION = 1  # kTensorBundleVersion in tensor_bundle.cc
_BOOL, _STRING = 10, 7  # DT_STRING in tensorflow/core/framework/types.proto
_ITEMSIZE = {dtype.enum: dtype.itemsize for dtype in DTYPES}
MAX_RANK = 254  # MaxDimensions in tensorflow/core/framework/tensor_shape.h
_LENGTHS_CRC_SIZE = 4
_MAX_INDEX_SIZE = 1 << 26
_MAX_TENSORS = 200_000  # each is some 400 bytes in memory, and as few as 4 in the file
_ALIGNMENT = 64  # kAllocatorAlignment in xla/tsl/framework/allocator.h, for who maps the file
_PIECE_SIZE = 1 << 23


@dataclass(frozen=True, slots=True)
class BundleTensor:
    """A tensor to be written.

    Attributes:
        key: its name in the bundle.
        dtype: its number in TensorFlow's `DataType` enum.
        shape: its shape; `()` for a scalar.
        chunks: gives the tensor's bytes, in C order and little-endian, as C-contiguous buffers in
            sequence. It is called once, when the tensor's turn comes, so that no more than a chunk
            need be in memory. A buffer must not change before the next one is asked for.
    """

    key: str
    dtype: int
    shape: tuple[int, ...]
    chunks: Callable[[], Iterable[Piece]]


@dataclass(frozen=True, slots=True)
class BundleStrings:
    """A tensor of strings to be written.

    Attributes:
        key: its name in the bundle.
        shape: its shape; `()` for one string.
        values: its elements, in C order.
    """

    key: str
    shape: tuple[int, ...]
    values: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class BundleEntry:
    """Where a tensor is.

    Attributes:
        dtype: its number in TensorFlow's `DataType` enum.
        shape: its shape.
        shard_id: which data file has it.
        offset: its first byte in that file.
        size: the number of its bytes.
        crc32c: the checksum of its bytes, not masked. For strings, see `_encode_lengths`.
        slices: where it is stored in parts, the (start, length) of each part in each dimension,
            with None for all of a dimension. Such an entry has no bytes of its own.
    """

    dtype: int
    shape: tuple[int, ...]
    shard_id: int
    offset: int
    size: int
    crc32c: int
    slices: tuple[Slice, ...] = ()


@dataclass(frozen=True, slots=True)
class BundleIndex:
    """The table of contents of a bundle.

    Attributes:
        prefix: the path of the bundle's files, up to `.index` and `.data-…`.
        num_shards: the number of its data files.
        entries: where each tensor is, in the order of their keys. Keys that are not UTF-8, as those
            of slices, have surrogate escapes.
    """

    prefix: Path
    num_shards: int
    entries: Mapping[str, BundleEntry]

    @property
    def path(self) -> Path:
        """The file that this was read from."""
        return _index_path(self.prefix)

    def shard_path(self, shard_id: int) -> Path:
        """One of the data files."""
        return _shard_path(self.prefix, shard_id, self.num_shards)


def _index_path(prefix: Path) -> Path:
    return prefix.with_name(f"{prefix.name}.index")


def _shard_path(prefix: Path, shard_id: int, num_shards: int) -> Path:
    return prefix.with_name(f"{prefix.name}.data-{shard_id:05}-of-{num_shards:05}")


def write_bundle(
    prefix: str | os.PathLike[str], tensors: Iterable[BundleTensor | BundleStrings]
) -> None:
    """Writes the tensors as a bundle with one data file; both files are on the disk at the end.

    The tensors are laid out in the order of their keys, each at a multiple of 64 bytes: the same
    tensors in any order give the same bytes. The index comes last, so a bundle that was cut off
    has none; what a failed call leaves behind is for the caller to remove.

    Args:
        prefix: the path of the files to be made, up to `.index` and `.data-…`, in a folder that is
            there.
        tensors: what to write. Their bytes are asked for one chunk at a time, and not copied.

    Raises:
        DtypeError: the dtype of a tensor is not one that JAX has, too.
        StructureError: a key is empty or there twice, or a tensor's bytes do not fit its shape.
        OSError: a file is there already, or cannot be written.

    >>> import tempfile
    >>> weights = np.arange(6, dtype=np.float32).reshape(2, 3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_bundle(f"{folder}/v", [BundleTensor("w", 1, (2, 3), lambda: [weights])])
    ...     index = read_index(f"{folder}/v")
    ...     read_tensor(index, "w").view(np.float32).reshape(index.entries["w"].shape)
    array([[0., 1., 2.],
           [3., 4., 5.]], dtype=float32)
    """
    prefix = Path(prefix)
    ordered = _sort_by_key(tensors)
    header = BundleHeaderProto(num_shards=1)
    header.version.producer = _VERSION
    records = [(b"", header.SerializeToString())]
    with _NewFile(_shard_path(prefix, 0, 1)) as shard:
        for key, tensor in ordered:
            shard.align()
            if isinstance(tensor, BundleStrings):
                entry = _write_strings(shard, tensor)
            else:
                entry = _write_tensor(shard, tensor)
            records.append((key, _encode_entry(entry)))
    with _NewFile(_index_path(prefix)) as index:
        index.append(np.frombuffer(encode_table(records), np.uint8))


def _sort_by_key(
    tensors: Iterable[BundleTensor | BundleStrings],
) -> list[tuple[bytes, BundleTensor | BundleStrings]]:
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
    return sorted(by_key.items())


class _NewFile:
    """A file that is written from its beginning, and is on the disk when it is closed."""

    __slots__ = ("_file", "_path", "_submitted", "offset")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115 - closed by __exit__
        self._submitted = 0
        self.offset = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        with self._naming_errors(), self._file:
            if error is None:
                os.fsync(self._file.fileno())

    def append(self, data: _Bytes) -> None:
        """Writes all of the bytes, however many the system takes at a time."""
        rest = data.data
        while rest.nbytes:
            with self._naming_errors():
                written = self._file.write(rest)
            rest = rest[written:]
        self.offset += data.nbytes
        if self.offset - self._submitted >= _PIECE_SIZE:
            self._start_writeback()

    def align(self) -> None:
        """Writes zeros up to where a tensor may begin."""
        self.append(np.zeros(-self.offset % _ALIGNMENT, np.uint8))

    def _start_writeback(self) -> None:
        # Linux begins to write pages out when it hears that they are not needed, and keeps those
        # that it is writing (mm/fadvise.c). The disk then works while we do, and less is left for
        # fsync: 400 MB take two thirds of the time. Where there is no such call, it is not needed.
        if hasattr(os, "posix_fadvise"):
            length = self.offset - self._submitted
            with contextlib.suppress(OSError):
                os.posix_fadvise(
                    self._file.fileno(), self._submitted, length, os.POSIX_FADV_DONTNEED
                )
        self._submitted = self.offset

    @contextlib.contextmanager
    def _naming_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, os.fspath(self._path)) from error


def _write_tensor(shard: _NewFile, tensor: BundleTensor) -> BundleEntry:
    dtype = dtype_from_tensorflow(tensor.dtype, where=f"Tensor {tensor.key}")
    start, crc = shard.offset, 0
    for chunk in tensor.chunks():
        for piece in _pieces(_bytes_of(chunk, tensor.key)):
            crc = google_crc32c.extend(crc, piece)
            shard.append(piece)
    size = shard.offset - start
    if size != (expected := math.prod(tensor.shape) * dtype.itemsize):
        raise StructureError(
            f"The chunks of tensor {tensor.key} have {size} bytes in all; {dtype.name} of shape "
            f"{tensor.shape} has {expected}. To do: give its bytes once, and all of them."
        )
    return BundleEntry(tensor.dtype, tensor.shape, 0, start, size, crc)


def _bytes_of(chunk: Piece, key: str) -> _Bytes:
    """The same memory as bytes; the checksum takes an array, and no view with a release."""
    if not isinstance(chunk, np.ndarray):
        chunk = np.asarray(memoryview(chunk))
    if not chunk.flags.c_contiguous or not chunk.dtype.isnative:
        raise StructureError(
            f"A chunk of tensor {key} has strides {chunk.strides} and dtype {chunk.dtype.str}, "
            "where C order and native bytes are needed. To do: np.ascontiguousarray, astype."
        )
    return np.asarray(chunk).reshape(-1).view(np.uint8)


def _pieces(data: _Bytes) -> Iterator[_Bytes]:
    for start in range(0, data.nbytes, _PIECE_SIZE):
        yield data[start : start + _PIECE_SIZE]


def _write_strings(shard: _NewFile, tensor: BundleStrings) -> BundleEntry:
    if len(tensor.values) != math.prod(tensor.shape):
        raise StructureError(
            f"Tensor {tensor.key} has {len(tensor.values)} strings; shape {tensor.shape} has "
            f"{math.prod(tensor.shape)}. To do: give one string for each element."
        )
    start = shard.offset
    lengths = [len(value) for value in tensor.values]
    crc = google_crc32c.value(_encode_lengths(lengths))
    checksum = mask_crc(crc).to_bytes(4, "little")
    crc = google_crc32c.extend(crc, checksum)
    shard.append(np.frombuffer(b"".join(map(encode_varint, lengths)) + checksum, np.uint8))
    for value in tensor.values:
        for piece in _pieces(np.frombuffer(value, np.uint8)):
            crc = google_crc32c.extend(crc, piece)
            shard.append(piece)
    return BundleEntry(_STRING, tensor.shape, 0, start, shard.offset - start, crc)


def _encode_lengths(lengths: Iterable[int]) -> bytes:
    """What the checksum of a string tensor covers in place of the varints of its lengths.

    After it come, as they are in the file, the masked checksum of the lengths and the strings
    (`WriteStringTensor` in tensor_bundle.cc).
    """
    return b"".join(n.to_bytes(4 if n < 1 << 32 else 8, "little") for n in lengths)


def _encode_entry(entry: BundleEntry) -> bytes:
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=size) for size in entry.shape])
    return BundleEntryProto(
        dtype=entry.dtype,
        shape=shape,
        shard_id=entry.shard_id,
        offset=entry.offset,
        size=entry.size,
        crc32c=mask_crc(entry.crc32c),
    ).SerializeToString()


def read_index(prefix: str | os.PathLike[str]) -> BundleIndex:
    """The table of contents of a bundle that any program wrote.

    Every checksum and every bound of the index file is checked; the data files are not opened.

    Args:
        prefix: the path of the files up to `.index` and `.data-…`.

    Raises:
        FormatError: the index file is damaged, or of a kind that cannot be read here.
        OSError: it is not there, or cannot be read.
    """
    prefix = Path(prefix)
    path = _index_path(prefix)
    records = decode_table(path, _read_index_file(path))
    num_shards = _decode_header(path, next(records, None))
    entries: dict[str, BundleEntry] = {}
    for record in records:
        key = record.key.decode("utf-8", "surrogateescape")
        entries[key] = _decode_entry(path, record, num_shards)
        if len(entries) > _MAX_TENSORS:
            raise damage(path, record.offset, f"over {_MAX_TENSORS} tensors are listed")
    _check_overlaps(path, entries)
    return BundleIndex(prefix, num_shards, MappingProxyType(entries))


def _read_index_file(path: Path) -> bytes:
    if path.exists() and not path.is_file():
        raise damage(path, 0, "it is no regular file")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > _MAX_INDEX_SIZE:
            raise damage(path, 0, f"{size} bytes are more than any index has")
        return file.read(size)  # a larger number would be allocated


def _decode_header(path: Path, record: Record | None) -> int:
    """The number of data files."""
    if record is None or record.key:
        raise damage(path, 0, "the first record is not the header of a bundle")
    header = _parse(path, record, BundleHeaderProto)
    if header.endianness != 0:
        raise damage(path, record.offset, "the tensors are big-endian, which is not supported")
    if header.version.min_consumer > _VERSION or _VERSION in header.version.bad_consumers:
        needed = header.version.min_consumer
        raise damage(path, record.offset, f"version {needed} is needed, this is {_VERSION}")
    if header.num_shards < 1:
        raise damage(path, record.offset, f"the bundle has {header.num_shards} data files")
    return int(header.num_shards)


def _parse(path: Path, record: Record, message_class: type[Proto]) -> Proto:
    try:
        return message_class.FromString(record.value)
    except DecodeError as error:
        name = message_class.DESCRIPTOR.name
        raise damage(
            path, record.offset, f"the value of {reprlib.repr(record.key)} is no {name}"
        ) from error


def _decode_entry(path: Path, record: Record, num_shards: int) -> BundleEntry:
    check_wire(path, record.value, BundleEntryProto)
    proto = _parse(path, record, BundleEntryProto)
    if len(proto.slices) > MAX_SLICES:
        raise damage(path, record.offset, f"a tensor has {len(proto.slices)} slices")
    entry = BundleEntry(
        dtype=proto.dtype,
        shape=tuple(dim.size for dim in proto.shape.dim),
        shard_id=proto.shard_id,
        offset=proto.offset,
        size=proto.size,
        crc32c=unmask_crc(proto.crc32c),
        slices=tuple(
            tuple((e.start, e.length if e.HasField("length") else None) for e in part.extent)
            for part in proto.slices
        ),
    )
    if flaw := "no known rank" if proto.shape.unknown_rank else _flaw_of(entry, num_shards):
        raise damage(path, record.offset, f"the entry of {reprlib.repr(record.key)} has {flaw}")
    return entry


def _flaw_of(entry: BundleEntry, num_shards: int) -> str:
    """What cannot be right in an entry, or nothing."""
    if len(entry.shape) > MAX_RANK or min(entry.shape, default=0) < 0:
        return f"shape {reprlib.repr(entry.shape)}"
    if (elements := math.prod(entry.shape)) >= 1 << 63:
        return f"shape {reprlib.repr(entry.shape)}"
    if not 0 <= entry.shard_id < num_shards:
        return f"data file {entry.shard_id} of {num_shards}"
    if entry.offset < 0 or entry.size < 0:
        return f"{entry.size} bytes at {entry.offset}"
    if entry.slices:
        fit = all(is_within(part, entry.shape) for part in entry.slices)
        return "" if fit else f"slices that are not within shape {entry.shape}"
    if entry.dtype == _STRING:
        fit = entry.size >= elements + _LENGTHS_CRC_SIZE or entry.size == elements == 0
    else:
        itemsize = _ITEMSIZE.get(entry.dtype)
        fit = itemsize is None or entry.size == elements * itemsize
    return "" if fit else f"{entry.size} bytes for dtype {entry.dtype} and shape {entry.shape}"


def _check_overlaps(path: Path, entries: Mapping[str, BundleEntry]) -> None:
    """No writer puts two tensors in one place; then the data files bound what they hold in all."""
    filled = [(e.shard_id, e.offset, e.size, key) for key, e in entries.items() if e.size]
    filled.sort()
    for (shard, offset, size, key), (other, start, _, second) in itertools.pairwise(filled):
        if shard == other and offset + size > start:
            raise FormatError(
                f"{path}: {reprlib.repr(key)} has {size} bytes at {offset} of data file {shard}, "
                f"and {reprlib.repr(second)} begins at {start}. The file is damaged. To do: copy "
                "it again, or write it again."
            )


def read_tensor(index: BundleIndex, key: str) -> _Bytes:
    """The bytes of a tensor, in a new array; `view` and `reshape` make the tensor of them.

    A tensor that is stored in slices is put together.

    Args:
        index: what `read_index` gave.
        key: one of its keys.

    Raises:
        DtypeError: it holds strings or another dtype that JAX has not.
        FormatError: the data file is not there, is too short, or is damaged.
        StructureError: the bundle has no such tensor.
    """
    entry, _ = find_tensor(index, key)
    if entry.slices:
        return assemble_slices(index, key, partial(read_tensor, index))
    data = _read_data(index, entry)
    check_tensor(index, key, data)
    return data


def stream_tensor(index: BundleIndex, key: str) -> Iterator[_Bytes]:
    """The bytes of a tensor in pieces of a few megabytes, which the caller may keep.

    Whether they are those that were written shows after the last one. A tensor that is stored in
    slices comes in one piece.

    Raises:
        DtypeError, FormatError, StructureError: as `read_tensor`.
    """
    entry, _ = find_tensor(index, key)
    if entry.slices:
        yield read_tensor(index, key)
        return
    check_bounds(index, entry)
    crc, largest = 0, 0
    with open(index.shard_path(entry.shard_id), "rb", buffering=0) as file:
        file.seek(entry.offset)
        for start in range(0, entry.size, _PIECE_SIZE):
            piece = np.empty(min(_PIECE_SIZE, entry.size - start), np.uint8)
            _fill(index, entry, file, piece, start)
            crc = google_crc32c.extend(crc, piece)
            largest = max(largest, int(piece.max())) if entry.dtype == _BOOL else 0
            yield piece
    _check_crc(index, key, crc)
    _check_bool(index, key, largest)


def find_tensor(index: BundleIndex, key: str) -> tuple[BundleEntry, DType]:
    """The entry of a tensor of numbers, and its dtype.

    Raises:
        DtypeError: it holds strings or another dtype that JAX has not.
        StructureError: the bundle has no such tensor.
    """
    entry = _find(index, key)
    if entry.dtype == _STRING:
        raise DtypeError(f"Tensor {key} of {index.path} holds strings. To do: use read_strings.")
    return entry, dtype_from_tensorflow(entry.dtype, where=f"Tensor {key} of {index.path}")


def check_tensor(index: BundleIndex, key: str, data: _Bytes) -> None:
    """Refuse bytes that are not those that were written.

    Args:
        index: what `read_index` gave.
        key: a tensor that is not stored in slices.
        data: what its data file has at its place. The bytes are not copied.

    Raises:
        FormatError: the checksum differs, or a bool is neither 0 nor 1.
    """
    crc, largest = 0, 0
    is_bool = index.entries[key].dtype == _BOOL
    for piece in _pieces(data):
        crc = google_crc32c.extend(crc, piece)
        largest = max(largest, int(piece.max())) if is_bool else 0
    _check_crc(index, key, crc)
    _check_bool(index, key, largest)


def _check_bool(index: BundleIndex, key: str, largest: int) -> None:
    if largest > 1:
        entry = index.entries[key]
        path = index.shard_path(entry.shard_id)
        raise damage(path, entry.offset, f"{key!r} is bool, and has a byte {largest}")


def assemble_slices(index: BundleIndex, key: str, read: Callable[[str], _Bytes]) -> _Bytes:
    """The bytes of a tensor that is stored in slices, in a new array.

    Args:
        index: what `read_index` gave.
        key: a tensor whose entry has slices.
        read: gives the bytes of a slice by its key.

    Raises:
        FormatError: the slices are not all there, or are not what the tensor is made of.
    """
    entry, dtype = find_tensor(index, key)
    if flaw := flaw_of_slices(entry.slices, entry.shape):
        raise FormatError(f"{index.path}: the tensor {key!r} has {flaw}. To do: write it again.")
    parts = [(slice_key(key, part), part) for part in entry.slices]
    for part_key, part in parts:
        _check_slice(index, key, part, index.entries.get(part_key))
    whole = np.empty(entry.shape, f"V{dtype.itemsize}")
    for part_key, part in parts:
        data = read(part_key).view(whole.dtype)
        whole[extents(part, entry.shape)] = data.reshape(shape_of_slice(part, entry.shape))
    return whole.reshape(-1).view(np.uint8)


def _check_slice(index: BundleIndex, key: str, part: Slice, found: BundleEntry | None) -> None:
    """Refuse a slice before memory is set aside for the whole."""
    whole = index.entries[key]
    shape = shape_of_slice(part, whole.shape)
    if found is None or found.slices or (found.dtype, found.shape) != (whole.dtype, shape):
        stored = "none" if found is None else f"dtype {found.dtype}, shape {found.shape}"
        raise FormatError(
            f"{index.path}: the slice {part} of {key!r} should have an entry of dtype "
            f"{whole.dtype}, shape {shape}; found {stored}. To do: write it again."
        )
    check_bounds(index, found)


def read_strings(index: BundleIndex, key: str) -> tuple[bytes, ...]:
    """The elements of a tensor of strings, in C order.

    Args:
        index: what `read_index` gave.
        key: one of its keys.

    Raises:
        DtypeError: it does not hold strings.
        FormatError: the data file is not there, is too short, or is damaged.
        StructureError: the bundle has no such tensor, or has it in slices only.
    """
    entry = _find(index, key)
    if entry.slices:
        raise StructureError(
            f"{index.path} has the strings {key!r} in {len(entry.slices)} slices, which is not "
            "supported. To do: load the checkpoint in TensorFlow and save it unpartitioned."
        )
    if entry.dtype != _STRING:
        raise DtypeError(f"Tensor {key} of {index.path} holds no strings. To do: use read_tensor.")
    if not entry.size:
        return ()
    data = _read_data(index, entry).tobytes()
    cursor = Cursor(index.shard_path(entry.shard_id), data, origin=entry.offset)
    lengths = [cursor.read_varint() for _ in range(math.prod(entry.shape))]
    crc = google_crc32c.value(_encode_lengths(lengths))
    checksum = cursor.take(_LENGTHS_CRC_SIZE)
    if unmask_crc(int.from_bytes(checksum, "little")) != crc:
        raise cursor.damage(f"the checksum of the lengths of {key!r} is {crc:#010x}, not as stored")
    values = tuple(cursor.take(length) for length in lengths)
    if cursor.remaining:
        raise cursor.damage(f"{cursor.remaining} bytes follow the last string of {key!r}")
    _check_crc(index, key, google_crc32c.extend(crc, checksum + b"".join(values)))
    return values


def _find(index: BundleIndex, key: str) -> BundleEntry:
    entry = index.entries.get(key)
    if entry is None:
        # The search takes long among many.
        close = get_close_matches(key, itertools.islice(index.entries, 1000), n=3)
        raise StructureError(
            f"{index.path} has no tensor {key!r} among its {len(index.entries)}. To do: use one of "
            f"its keys{', such as ' if close else ''}{', '.join(close)}."
        )
    return entry


def check_bounds(index: BundleIndex, entry: BundleEntry) -> None:
    """Refuse an entry whose data file is not there, or ends before the tensor does.

    Raises:
        FormatError: it is so.
    """
    path = index.shard_path(entry.shard_id)
    if not path.is_file():
        raise damage(path, 0, f"no file is there, but {index.path} refers to one")
    size, end = path.stat().st_size, entry.offset + entry.size
    if end > size:
        raise damage(path, size, f"the file ends, where a tensor reaches to byte {end}")


def _read_data(index: BundleIndex, entry: BundleEntry) -> _Bytes:
    check_bounds(index, entry)
    path = index.shard_path(entry.shard_id)
    with open(path, "rb", buffering=0) as file:
        data = np.empty(entry.size, np.uint8)
        file.seek(entry.offset)
        _fill(index, entry, file, data, 0)
    return data


def _fill(
    index: BundleIndex, entry: BundleEntry, file: io.FileIO, data: _Bytes, start: int
) -> None:
    """Read what comes next in a data file, which is at byte `start` of a tensor."""
    rest = data.data
    while rest.nbytes and (count := file.readinto(rest)):
        rest = rest[count:]
    if rest.nbytes:
        end = entry.offset + start + data.nbytes - rest.nbytes
        path = index.shard_path(entry.shard_id)
        raise damage(path, end, "the file became shorter while it was read")


def _check_crc(index: BundleIndex, key: str, computed: int) -> None:
    entry = index.entries[key]
    if computed != entry.crc32c:
        raise damage(
            index.shard_path(entry.shard_id),
            entry.offset,
            f"the checksum of the {entry.size} bytes of {key!r} is {computed:#010x}, where "
            f"{index.path} has {entry.crc32c:#010x}",
        )
