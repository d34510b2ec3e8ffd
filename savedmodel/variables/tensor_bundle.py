"""Variables on disk: TensorFlow's TensorBundle, the second checkpoint format.

A bundle with the prefix `p` is the table `p.index` and the data files `p.data-00000-of-00001` and
so on. The table has a `BundleHeaderProto` under the empty key and a `BundleEntryProto` under the
key of each tensor, which says where the tensor's bytes are, and their masked CRC32C. A tensor of
strings is the lengths as varints, a masked CRC32C of these, and the strings.

The table is here, both ways; `bundle_reader` and `bundle_writer` have the tensors.

Source: tensorflow/core/util/tensor_bundle/tensor_bundle.cc.
"""

from __future__ import annotations

import itertools
import math
import os
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any

from google.protobuf.message import DecodeError

from savedmodel.files.model_folder import ModelFolder, locate
from savedmodel.files.sstable import (
    Record,
    damage,
    decode_table,
    encode_table,
    mask_crc,
    unmask_crc,
)
from savedmodel.protos.schema import BundleEntryProto, BundleHeaderProto, Proto, TensorShapeProto
from savedmodel.protos.wire_format import check_wire
from savedmodel.variables.data_files import DataFiles, shard_name
from savedmodel.variables.piece_checksums import (
    PieceChecksums,
    decode_pieces,
    encode_pieces,
    flaw_of_pieces,
)
from savedmodel.variables.tensor_slices import MAX_SLICES, Slice, is_within
from xla_call_module.dtypes import DTYPES, DType, dtype_from_tensorflow
from xla_call_module.errors import DtypeError, FormatError, StructureError

_VERSION = 1  # kTensorBundleVersion in tensor_bundle.cc
BOOL, STRING = 10, 7  # DT_BOOL and DT_STRING in tensorflow/core/framework/types.proto
_ITEMSIZE = {dtype.enum: dtype.itemsize for dtype in DTYPES}
MAX_RANK = 254  # MaxDimensions in tensorflow/core/framework/tensor_shape.h
LENGTHS_CRC_SIZE = 4
_MAX_INDEX_SIZE = 1 << 28
_MAX_TENSORS = 200_000  # each is some 400 bytes in memory, and as few as 4 in the file
_ENTRY_SIZE = 64  # and more than that where many hosts have written slices of long names


@dataclass(frozen=True, slots=True)
class BundleEntry:
    """The place of a tensor in the data files, and its checksum.

    Attributes:
        dtype: the number of the dtype in TensorFlow's `DataType` enum.
        offset: the offset of the first byte in that file.
        crc32c: the checksum of the bytes, not masked. For strings, see `encode_lengths`.
        slices: where it is stored in parts, the (start, length) of each part in each dimension,
            with None for all of a dimension. Such an entry has no bytes of its own.
        pieces: the checksums of pieces besides, where the writer gave them.
    """

    dtype: int
    shape: tuple[int, ...]
    shard_id: int
    offset: int
    size: int
    crc32c: int
    slices: tuple[Slice, ...] = ()
    pieces: PieceChecksums | None = None


@dataclass(frozen=True, slots=True)
class BundleIndex:
    """The table of contents of a bundle.

    Attributes:
        prefix: the path of the bundle's files, up to `.index` and `.data-…`.
        entries: the entry of each tensor, in the order of the keys. Keys that are not UTF-8, as
            those of slices, have surrogate escapes.
    """

    prefix: Path
    num_shards: int
    entries: Mapping[str, BundleEntry]
    files: DataFiles = field(compare=False, repr=False)

    @property
    def path(self) -> Path:
        """The path of the file that this was read from."""
        return index_path(self.prefix)


def index_path(prefix: Path) -> Path:
    """Return the path of the table."""
    return prefix.with_name(f"{prefix.name}.index")


def shard_path(prefix: Path, shard_id: int, num_shards: int) -> Path:
    """Return the path of a data file."""
    return prefix.with_name(shard_name(prefix.name, shard_id, num_shards))


def encode_lengths(lengths: Iterable[int]) -> bytes:
    """Return the bytes that the checksum of a string tensor covers in place of its length varints.

    After it come, as they are in the file, the masked checksum of the lengths and the strings
    (`WriteStringTensor` in tensor_bundle.cc).
    """
    return b"".join(n.to_bytes(4 if n < 1 << 32 else 8, "little") for n in lengths)


def encode_index(entries: Mapping[str, BundleEntry], num_shards: int) -> bytes:
    """Return the table of contents as a file: the header, then the entries by their keys."""
    header = BundleHeaderProto(num_shards=num_shards)
    header.version.producer = _VERSION
    encoded = {
        key.encode("utf-8", "surrogateescape"): _encode_entry(entry)
        for key, entry in entries.items()
    }
    return encode_table([(b"", header.SerializeToString()), *sorted(encoded.items())])


def _encode_entry(entry: BundleEntry) -> bytes:
    proto: Any = BundleEntryProto(
        dtype=entry.dtype,
        shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=size) for size in entry.shape]),
        shard_id=entry.shard_id,
        offset=entry.offset,
        size=entry.size,
        crc32c=0 if entry.slices else mask_crc(entry.crc32c),
    )
    for part in entry.slices:
        extents = proto.slices.add().extent
        for start, length in part:
            extents.add(start=start, length=length)
    return bytes(proto.SerializeToString()) + encode_pieces(entry.pieces)


def read_index(prefix: str | os.PathLike[str], *, within: ModelFolder | None = None) -> BundleIndex:
    """Return the table of contents of a bundle that any program wrote.

    Every checksum and every bound of the index file is checked; the data files are not opened.
    """
    folder, name = locate(prefix, within)
    path = index_path(folder.path / name)
    data = folder.read(f"{name}.index", limit=_MAX_INDEX_SIZE)
    records = decode_table(path, data)
    num_shards = _decode_header(path, next(records, None))
    entries: dict[str, BundleEntry] = {}
    most = max(_MAX_TENSORS, len(data) // _ENTRY_SIZE)
    for record in records:
        key = record.key.decode("utf-8", "surrogateescape")
        entries[key] = _decode_entry(path, record, num_shards)
        if len(entries) > most:
            raise damage(path, record.offset, f"over {most} tensors are listed")
    _check_overlaps(path, entries)
    files = DataFiles(folder, name, num_shards)
    return BundleIndex(folder.path / name, num_shards, MappingProxyType(entries), files)


def _decode_header(path: Path, record: Record | None) -> int:
    """Return the number of data files."""
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
    try:
        pieces = decode_pieces(proto, record.value)
    except ValueError as error:
        error_text = f"the entry of {reprlib.repr(record.key)} has {error}"
        raise damage(path, record.offset, error_text) from error
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
        pieces=pieces,
    )
    if flaw := "no known rank" if proto.shape.unknown_rank else _flaw_of(entry, num_shards):
        raise damage(path, record.offset, f"the entry of {reprlib.repr(record.key)} has {flaw}")
    return entry


def _flaw_of(entry: BundleEntry, num_shards: int) -> str:
    """Return the flaw of an entry that cannot be right, or nothing."""
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
    if entry.dtype == STRING:
        fit = entry.size >= elements + LENGTHS_CRC_SIZE or entry.size == elements == 0
    else:
        itemsize = _ITEMSIZE.get(entry.dtype)
        fit = itemsize is None or entry.size == elements * itemsize
    if fit and entry.pieces is not None:
        return flaw_of_pieces(entry.pieces, entry.size)
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


def find_tensor(index: BundleIndex, key: str) -> tuple[BundleEntry, DType]:
    """Return the entry of a tensor of numbers, and its dtype."""
    entry = find_tensor_or_strings(index, key)
    if entry.dtype == STRING:
        raise DtypeError(f"Tensor {key} of {index.path} holds strings. To do: use read_strings.")
    return entry, dtype_from_tensorflow(entry.dtype, where=f"Tensor {key} of {index.path}")


def find_tensor_or_strings(index: BundleIndex, key: str) -> BundleEntry:
    """Return the entry of a tensor of any kind."""
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
    """Refuse an entry whose data file is not there, or ends before the tensor does."""
    size, end = index.files.stamp(entry.shard_id)[0], entry.offset + entry.size
    if end > size:
        path = index.files.path(entry.shard_id)
        raise damage(path, size, f"the file ends, where a tensor reaches to byte {end}")
