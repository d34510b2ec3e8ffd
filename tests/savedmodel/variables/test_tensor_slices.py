"""Tensors that TensorFlow stored in parts, in one data file and in several."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from savedmodel.files.sstable import decode_table, encode_table
from savedmodel.protos.schema import BundleEntryProto
from savedmodel.variables.bundle_reader import SharedTensor, read_tensor
from savedmodel.variables.tensor_bundle import read_index
from savedmodel.variables.tensor_slices import flaw_of_slices, slice_key
from xla_call_module.errors import FormatError

WHOLE = np.arange(700 * 6, dtype=np.float32).reshape(700, 6)
# As tf.raw_ops.SaveV2 has them: rows 70 to 699 are cut once more, at column 1.
SLICES = {
    "0,70:-": WHOLE[:70],
    "70,630:0,1": WHOLE[70:, :1],
    "70,630:1,5": WHOLE[70:, 1:],
}


def _save(prefix, key, parts):
    shape = " ".join(map(str, WHOLE.shape))
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=[key] * len(parts),
        shape_and_slices=[f"{shape} {part}" for part in parts],
        tensors=list(parts.values()),
    )
    return prefix


@pytest.fixture
def sliced(tmp_path):
    return _save(tmp_path / "v", "w", SLICES)


@pytest.fixture
def merged(tmp_path):
    """Each slice in a data file of its own, as workers write them."""
    prefixes = [
        _save(tmp_path / str(number), "w", {part: SLICES[part]})
        for number, part in enumerate(SLICES)
    ]
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=[str(prefix) for prefix in prefixes],
        destination_prefix=str(tmp_path / "v"),
    )
    return tmp_path / "v"


@pytest.mark.parametrize("bundle", ["sliced", "merged"])
def test_slices_are_put_together(bundle, request):
    index = read_index(request.getfixturevalue(bundle))
    assert index.num_shards == (3 if bundle == "merged" else 1)
    np.testing.assert_array_equal(
        read_tensor(index, "w").view(np.float32).reshape(WHOLE.shape), WHOLE
    )
    shared = SharedTensor(index, "w")
    assert not shared().flags.writeable
    np.testing.assert_array_equal(shared().view(np.float32).reshape(WHOLE.shape), WHOLE)


@pytest.mark.parametrize("key", ["a/b", "null\0byte", "ÿþ", "a\0\0b\0", "x" * 300])
@pytest.mark.parametrize("extents", [((0, 1), (0, 5)), ((63, 64), (0, None)), ((64, 636), (1, 3))])
def test_keys_are_those_of_tensorflow(tmp_path, key, extents):
    text = ":".join("-" if n is None else f"{start},{n}" for start, n in extents)
    (rows, (first, count)) = extents
    part = WHOLE[rows[0] : sum(rows), first : None if count is None else first + count]
    _save(tmp_path / "v", key, {text: part})
    assert slice_key(key, extents) in read_index(tmp_path / "v").entries


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0x424242, "f0424242"),
        (63, "bf"),
        (64, "c040"),
        (2**62, "ffc04000000000000000"),
        (2**63 - 1, "ffc07fffffffffffffff"),
    ],
)
def test_numbers_keep_their_order(value, encoded):
    key = slice_key("", ((value, 0),)).encode("utf-8", "surrogateescape")
    assert key == b"\0\0\1\1\1" + bytes.fromhex(encoded) + b"\x80"


@given(st.lists(st.integers(0, 2**63 - 1), min_size=2, max_size=2, unique=True))
def test_larger_starts_have_larger_keys(starts):
    low, high = (
        slice_key("k", ((start, 1),)).encode("utf-8", "surrogateescape") for start in sorted(starts)
    )
    assert low < high


FLAWS = {
    "one is missing": ([((0, 2), (0, None))], "slices with 6 elements for shape (4, 3)"),
    "twice the same": ([((0, 2), (0, None))] * 2, "slices that overlap"),
    "in a corner": ([((0, 3), (0, 2)), ((2, 2), (0, 3))], "slices that overlap"),
    "beyond": ([((3, 2), (0, None))], "slices that are not within shape (4, 3)"),
    "of another rank": ([((0, 4),)], "slices that are not within shape (4, 3)"),
    "too many": ([((0, 0), (0, 0))] * 9000, "9000 slices, more than any writer makes"),
}


@pytest.mark.parametrize(("parts", "flaw"), FLAWS.values(), ids=FLAWS)
def test_slices_that_do_not_make_up_the_whole(parts, flaw):
    assert flaw_of_slices(parts, (4, 3)) == flaw


@pytest.mark.parametrize(
    "parts",
    [
        [((0, None), (0, None))],
        [((0, 1), (0, 3)), ((1, 3), (0, 1)), ((1, 3), (1, 2)), ((2, 0), (0, None))],
    ],
)
def test_slices_that_do(parts):
    assert flaw_of_slices(parts, (4, 3)) == ""


def _change(prefix, change):
    path = prefix.with_name("v.index")
    records = {record.key: record.value for record in decode_table(path, path.read_bytes())}
    change(records)
    path.write_bytes(encode_table(sorted(records.items())))


def _first_part(records):
    return min(key for key in records if key.startswith(b"\0w"))


def test_a_slice_without_an_entry(sliced):
    _change(sliced, lambda records: records.pop(_first_part(records)))
    with pytest.raises(FormatError, match=r"slice .* of 'w' should have .* found none"):
        read_tensor(read_index(sliced), "w")


def test_a_slice_of_another_dtype(sliced):
    def change(records):
        entry = BundleEntryProto.FromString(records[_first_part(records)])
        entry.dtype = 3
        records[_first_part(records)] = entry.SerializeToString()

    _change(sliced, change)
    with pytest.raises(FormatError, match=r"dtype 1, shape \(70, 6\); found dtype 3, shape"):
        read_tensor(read_index(sliced), "w")


def test_a_damaged_slice(merged):
    path = merged.with_name("v.data-00002-of-00003")
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    index = read_index(merged)
    for read in (lambda: read_tensor(index, "w"), SharedTensor(index, "w")):
        with pytest.raises(FormatError, match=re.escape(path.name) + ".* bytes of a slice of '"):
            read()


def test_a_missing_data_file(merged):
    merged.with_name("v.data-00001-of-00003").unlink()
    with pytest.raises(FormatError, match="data-00001-of-00003, byte 0: no file is there"):
        read_tensor(read_index(merged), "w")
