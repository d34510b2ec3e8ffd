"""Parts of variables: the right bytes, only the bytes that are needed, and no damaged one."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor

import google_crc32c
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import savedmodel
from savedmodel.files.sstable import decode_table, encode_table
from savedmodel.protos.schema import BundleEntryProto
from savedmodel.variables import bundle_writer, extents, piece_checksums, tensor_parts
from savedmodel.variables.bundle_layout import BundleTensor
from savedmodel.variables.data_files import DataFiles
from savedmodel.variables.piece_checksums import PieceChecksums, encode_pieces, whole_checksum
from savedmodel.variables.tensor_bundle import read_index
from savedmodel.variables.tensor_parts import TensorParts
from tests.savedmodel.variables.bundles import write_bundle
from xla_call_module.dtypes import DTYPES
from xla_call_module.errors import FormatError, StructureError

SHARD = "v.data-00000-of-00001"
SHAPE = (6, 70, 500)
ARRAY = np.random.default_rng(0).integers(0, 1 << 30, SHAPE, np.int32)
INT32, BOOL = 3, 10


@pytest.fixture(scope="module")
def small_pieces():
    """Pieces of 4096 bytes, so that small tensors have many."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (bundle_writer, extents, piece_checksums, tensor_parts):
            patch.setattr(module, "PIECE_SIZE", 4096)
        yield


@pytest.fixture(scope="module")
def ours(small_pieces, tmp_path_factory):
    """A tensor with checksums of its pieces."""
    prefix = tmp_path_factory.mktemp("ours") / "v"
    write_bundle(prefix, [BundleTensor("w", INT32, SHAPE, lambda: [ARRAY[:1], ARRAY[1:]])])
    return prefix


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """As TensorFlow writes it: one checksum."""
    prefix = tmp_path_factory.mktemp("whole") / "v"
    _save(prefix, {"": ARRAY})
    return prefix


@pytest.fixture(scope="module")
def sliced(tmp_path_factory):
    """As TensorFlow writes parts of a variable."""
    prefix = tmp_path_factory.mktemp("sliced") / "v"
    shape = " ".join(map(str, SHAPE))
    parts = {
        f"{shape} 0,2:-:-": ARRAY[:2],
        f"{shape} 2,4:0,30:-": ARRAY[2:, :30],
        f"{shape} 2,4:30,40:0,1": ARRAY[2:, 30:, :1],
        f"{shape} 2,4:30,40:1,499": ARRAY[2:, 30:, 1:],
    }
    _save(prefix, parts)
    return prefix


def _save(prefix, parts):
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=["w"] * len(parts),
        shape_and_slices=list(parts),
        tensors=list(parts.values()),
    )


def _part(tensor, extent):
    shape = [stop - start for start, stop in extent]
    return tensor(extent).view(np.int32).reshape(shape)


EXTENTS = st.tuples(
    *(
        st.tuples(st.integers(0, size), st.integers(0, size)).map(lambda pair: tuple(sorted(pair)))
        for size in SHAPE
    )
)


@pytest.mark.parametrize("bundle", ["ours", "whole", "sliced"])
def test_any_part(bundle, request):
    index = read_index(request.getfixturevalue(bundle))

    @given(extent=EXTENTS)
    @settings(deadline=None, max_examples=60)
    def check(extent):
        expected = ARRAY[tuple(slice(*bounds) for bounds in extent)]
        np.testing.assert_array_equal(_part(TensorParts(index, "w"), extent), expected)

    check()


def test_only_a_large_tensor_has_checksums_of_pieces(ours, whole):
    pieces = read_index(ours).entries["w"].pieces
    data = ARRAY.tobytes()
    assert pieces.crcs == tuple(
        google_crc32c.value(data[i : i + 4096]) for i in range(0, len(data), 4096)
    )
    assert read_index(whole).entries["w"].pieces is None
    assert read_index(ours).entries["w"].crc32c == read_index(whole).entries["w"].crc32c
    write_bundle(ours.with_name("s"), [BundleTensor("w", 4, (4096,), lambda: [bytes(4096)])])
    assert read_index(ours.with_name("s")).entries["w"].pieces is None


def test_tensorflow_reads_past_them(ours, tmp_path):
    value = tf.train.load_checkpoint(str(ours)).get_tensor("w")
    np.testing.assert_array_equal(value, ARRAY)
    part = tf.raw_ops.RestoreV2(
        prefix=str(ours),
        tensor_names=["w"],
        shape_and_slices=["6 70 500 1,4:-:3,7"],
        dtypes=[tf.int32],
    )
    np.testing.assert_array_equal(part[0], ARRAY[1:5, :, 3:10])
    for file in (ours.with_name("v.index"), ours.with_name(SHARD)):
        shutil.copy(file, tmp_path)
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=[str(tmp_path / "v")],
        destination_prefix=str(tmp_path / "again"),
    )
    entry = read_index(tmp_path / "again").entries["w"]
    assert entry == dataclasses.replace(read_index(ours).entries["w"], pieces=entry.pieces)
    np.testing.assert_array_equal(
        _part(TensorParts(read_index(tmp_path / "again"), "w"), ((1, 2),) * 3),
        ARRAY[1:2, 1:2, 1:2],
    )


class _Counting:
    """The count of bytes of a data file that a checksum was taken of."""

    def __init__(self, monkeypatch):
        self.sizes = []
        extend = google_crc32c.extend

        def count(crc, data):
            self.sizes.append(len(data))
            return extend(crc, data)

        monkeypatch.setattr(tensor_parts.google_crc32c, "extend", count)


def test_only_the_pieces_of_a_part_are_checked_and_only_once(ours, monkeypatch):
    counting = _Counting(monkeypatch)
    tensor = TensorParts(read_index(ours), "w")
    row = 70 * 500 * 4
    first = ((1, 2), (0, 70), (0, 500))
    pieces = -(-2 * row // 4096) - row // 4096
    for _ in range(2):
        np.testing.assert_array_equal(_part(tensor, first), ARRAY[1:2])
        assert sum(counting.sizes) == 4096 * pieces
    with ThreadPoolExecutor(4) as pool:
        columns = [((0, 6), (0, 70), (start, start + 125)) for start in range(0, 500, 125)]
        parts = list(pool.map(lambda extent: _part(tensor, extent), columns * 2))
    np.testing.assert_array_equal(np.concatenate(parts[:4], axis=2), ARRAY)
    assert sum(counting.sizes) == ARRAY.nbytes


def test_of_slices_only_those_that_meet_the_part_are_read(sliced, monkeypatch):
    counting = _Counting(monkeypatch)
    tensor = TensorParts(read_index(sliced), "w")
    np.testing.assert_array_equal(_part(tensor, ((3, 5), (40, 41), (0, 1))), ARRAY[3:5, 40:41, :1])
    assert sum(counting.sizes) == 4 * 40 * 4
    np.testing.assert_array_equal(_part(tensor, ((1, 3), (0, 1), (0, 1))), ARRAY[1:3, :1, :1])
    assert sum(counting.sizes) == 4 * (4 * 40 + 2 * 70 * 500 + 4 * 30 * 500)


def test_a_whole_tensor_of_another_program_is_checked_once(whole, monkeypatch):
    counting = _Counting(monkeypatch)
    tensor = TensorParts(read_index(whole), "w")
    for start in range(3):
        extent = ((start, start + 1), (0, 2), (0, 2))
        np.testing.assert_array_equal(_part(tensor, extent), ARRAY[start : start + 1, :2, :2])
    assert sum(counting.sizes) == ARRAY.nbytes


@pytest.mark.parametrize("bundle", ["ours", "whole", "sliced"])
def test_a_damaged_byte(bundle, request, tmp_path):
    prefix = request.getfixturevalue(bundle)
    for file in (prefix.with_name("v.index"), prefix.with_name(SHARD)):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    data = bytearray((tmp_path / SHARD).read_bytes())
    data[-500 * 4 - 2] ^= 4
    (tmp_path / SHARD).write_bytes(data)
    tensor = TensorParts(read_index(tmp_path / "v"), "w")
    first, last = ((0, 1), (0, 70), (0, 500)), ((5, 6), (68, 69), (499, 500))
    message = (
        rf"{SHARD}, byte \d+: the checksum of the \d+ bytes from \d+ on of (a slice of )?'w' is"
    )
    if bundle == "whole":
        with pytest.raises(FormatError, match=message):
            tensor(first)
    else:
        np.testing.assert_array_equal(_part(tensor, first), ARRAY[:1])
    for _ in range(2):
        with pytest.raises(FormatError, match=message):
            tensor(last)


def _with_pieces(prefix, target, pieces):
    """The bundle with other checksums of pieces."""
    path = prefix.with_name("v.index")
    records = {record.key: record.value for record in decode_table(path, path.read_bytes())}
    entry = BundleEntryProto.FromString(records[b"w"])
    entry.DiscardUnknownFields()
    records[b"w"] = entry.SerializeToString() + pieces
    target.with_name("v.index").write_bytes(encode_table(sorted(records.items())))
    target.with_name(SHARD).write_bytes(prefix.with_name(SHARD).read_bytes())
    return target


def _encode(piece, count):
    return encode_pieces(PieceChecksums(piece, (0,) * count))


WRONG = {
    "too few": (_encode(4096, 204), "checksums of 204 pieces of 4096 bytes, and 840000 bytes in"),
    "too many": (_encode(1 << 20, 2), "checksums of 2 pieces of 1048576 bytes"),
    "of nothing": (_encode(0, 0), "checksums of pieces of 0 bytes"),
    "of little": (_encode(2048, 411), "checksums of pieces of 2048 bytes"),
    "no numbers": (_encode(4096, 206)[:5] + b"\x03abc", "3 bytes of checksums of pieces"),
}


@pytest.mark.parametrize(("pieces", "message"), WRONG.values(), ids=WRONG)
def test_checksums_that_cannot_be(ours, tmp_path, pieces, message):
    prefix = _with_pieces(ours, tmp_path / "v", pieces)
    with pytest.raises(FormatError, match=rf"v\.index, byte \d+: the entry of b'w' has {message}"):
        read_index(prefix)


def test_checksums_that_are_not_those_of_the_whole(ours, tmp_path):
    crcs = list(read_index(ours).entries["w"].pieces.crcs)
    crcs[3] ^= 1
    encoded = encode_pieces(PieceChecksums(4096, tuple(crcs)))
    prefix = _with_pieces(ours, tmp_path / "v", encoded)
    tensor = TensorParts(read_index(prefix), "w")
    with pytest.raises(FormatError, match="the checksums of the pieces of 'w' are not those of"):
        tensor(((0, 1), (0, 1), (0, 1)))


@given(data=st.binary(min_size=1, max_size=60_000), piece=st.integers(4096, 20_000))
@settings(deadline=None)
def test_the_pieces_give_the_whole(data, piece):
    crcs = [google_crc32c.value(data[i : i + piece]) for i in range(0, len(data), piece)]
    pieces = PieceChecksums(piece, tuple(crcs))
    assert whole_checksum(pieces, len(data)) == google_crc32c.value(data)


def test_no_more_than_a_few_megabytes_are_read_at_a_time(tmp_path, monkeypatch):
    sizes = []
    read = DataFiles.read
    monkeypatch.setattr(
        DataFiles,
        "read",
        lambda self, shard_id, offset, out: (
            sizes.append(out.nbytes),
            read(self, shard_id, offset, out),
        ),
    )
    array = np.arange(20 << 20, dtype=np.uint8).reshape(20, 1 << 20)
    write_bundle(tmp_path / "v", [BundleTensor("k", 4, array.shape, lambda: [array])])
    tensor = TensorParts(read_index(tmp_path / "v"), "k")
    extent = ((3, 17), (5, 1 << 20))
    assert np.array_equal(tensor(extent).reshape(14, -1), array[3:17, 5:])
    assert max(sizes) <= tensor_parts.PIECE_SIZE


def test_a_file_that_is_written_to_meanwhile(ours, tmp_path):
    for file in (ours.with_name("v.index"), ours.with_name(SHARD)):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensor = TensorParts(read_index(tmp_path / "v"), "w")
    first = ((0, 1), (0, 70), (0, 500))
    np.testing.assert_array_equal(_part(tensor, first), ARRAY[:1])
    data = (tmp_path / SHARD).read_bytes()
    (tmp_path / SHARD).write_bytes(bytes(len(data)))
    os.utime(tmp_path / SHARD, (1, 1))
    with pytest.raises(FormatError, match=rf"{SHARD}, byte \d+: the checksum of the"):
        tensor(first)
    (tmp_path / SHARD).write_bytes(data)
    np.testing.assert_array_equal(_part(tensor, first), ARRAY[:1])
    os.truncate(tmp_path / SHARD, 100)
    with pytest.raises(FormatError, match=rf"{SHARD}, byte \d+: the file became shorter"):
        tensor(first)


class TestVariable:
    """What `Variable.part` makes of an index."""

    DTYPE = next(dtype for dtype in DTYPES if dtype.name == "bfloat16")
    VALUE = np.arange(12).reshape(3, 4).astype(DTYPE.numpy)

    def _variable(self):
        return savedmodel.Variable("w", self.DTYPE, (3, 4), chunks=lambda: iter([self.VALUE]))

    def test_of_a_value_that_comes_from_no_file(self):
        part = self._variable().part((slice(1, None), slice(None, -1)))
        np.testing.assert_array_equal(part, self.VALUE[1:, :-1])
        assert not part.flags.writeable
        assert part.base is None, "it holds the memory of the whole"

    @pytest.mark.parametrize(
        "index",
        [
            (slice(0, 1),),
            (slice(None), slice(0, 4, 2)),
            (slice(None),) * 3,
            (1, slice(None)),
            ("a", "b"),
            slice(0, 1),
        ],
    )
    def test_no_part(self, index):
        with pytest.raises(StructureError, match=re.escape(f"{index} is not part of w")):
            self._variable().part(index)

    @pytest.mark.parametrize("by", ["tensorflow", "us"])
    def test_every_dtype_of_a_file(self, tmp_path, by):
        import jax

        import bridge

        params = {
            dtype.name: (np.arange(12).reshape(3, 4) % 2).astype(dtype.numpy)
            for dtype in DTYPES
            if dtype.name not in ("float64", "int64", "uint64", "complex128")
        } | {"scalar": np.float32(3)}
        exported = jax.export.export(jax.jit(lambda params, x: x + params["float32"][0]))(
            params, jax.ShapeDtypeStruct((4,), np.float32)
        )
        bridge.save(exported, tmp_path / "m", params=params)
        folder = tmp_path / "m"
        if by == "tensorflow":
            loaded = tf.saved_model.load(folder)
            folder = tmp_path / "again"
            tf.saved_model.save(loaded, folder, signatures=loaded.signatures)
        for variable in savedmodel.read(folder).variables:
            expected = params[variable.name]
            index = (slice(1, 3), slice(1, None)) if variable.shape else ()
            part = variable.part(index)
            assert (part.dtype, part.tobytes()) == (expected.dtype, expected[index].tobytes())
            assert not part.flags.writeable
