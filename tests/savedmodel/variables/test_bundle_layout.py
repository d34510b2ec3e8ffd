"""The distribution of tensors over data files, several of which are written at the same time."""

from __future__ import annotations

import errno
import io
import os
import threading

import jax
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import bridge
import savedmodel
from savedmodel.variables import bundle_writer
from savedmodel.variables.bundle_layout import BundleSlice, BundleStrings, BundleTensor, lay_out
from savedmodel.variables.bundle_reader import read_strings, read_tensor
from savedmodel.variables.tensor_bundle import read_index
from savedmodel.variables.tensor_slices import slice_key
from tests.savedmodel.variables.bundles import write_bundle
from xla_call_module.errors import StructureError

UINT8 = 4


def _tensor(key, size, holder=0):
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    return BundleTensor(key, UINT8, (size,), lambda: [data], holder=holder)


TENSORS = st.lists(st.integers(0, 1000), max_size=20)


@given(sizes=TENSORS, count=st.integers(1, 9), holders=st.integers(1, 3))
@settings(deadline=None)
def test_every_tensor_is_in_one_file_of_its_holder(sizes, count, holders):
    tensors = [_tensor(f"k{n}", size, n % holders) for n, size in enumerate(sizes)]
    layout = lay_out(tensors, count)
    assert [file.shard_id for file in layout.files] == list(range(len(layout.files)))
    found = {tensor.key: file.holder for file in layout.files for tensor in file.tensors}
    assert found == {tensor.key: tensor.holder for tensor in tensors}
    assert all(file.tensors for file in layout.files) or not sizes
    for holder in {tensor.holder for tensor in tensors}:
        mine = [file for file in layout.files if file.holder == holder]
        held = [tensor for tensor in tensors if tensor.holder == holder]
        assert len(mine) == min(count, len(held))
        filled = [sum(tensor.shape[0] for tensor in file.tensors) for file in mine]
        assert max(filled) - min(filled) <= max(tensor.shape[0] for tensor in held) + len(held)
        assert layout.size_of(holder) == sum(tensor.shape[0] for tensor in held)
        for file in mine:
            keys = [tensor.key for tensor in file.tensors]
            assert keys == sorted(keys)


@pytest.mark.parametrize(("gibibytes", "files"), [(0.1, 1), (1, 1), (1.5, 2), (7.5, 8), (100, 8)])
def test_the_number_of_files_follows_from_the_size(gibibytes, files):
    size = int(gibibytes * 64) << 20
    tensors = [BundleTensor(f"k{n}", UINT8, (size // 16,), None) for n in range(256)]
    assert len(lay_out(tensors, None).files) == files


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([((0, 2),), ((1, 3),)], "slices with 5 elements"),
        ([((0, 2),), ((1, 2),)], "slices that overlap"),
        ([((0, 2),), ((3, 2),)], "slices that are not within"),
    ],
)
def test_slices_that_do_not_make_up_the_whole(parts, message):
    slices = tuple(BundleSlice(part, None) for part in parts)
    with pytest.raises(StructureError, match=f"Tensor w has {message}"):
        lay_out([BundleTensor("w", UINT8, (4,), None, slices=slices)])


def _chunked(data):
    return lambda: [data[start : start + 1000] for start in range(0, len(data), 1000)]


def test_files_of_threads_are_those_of_one_thread(tmp_path, monkeypatch):
    tensors = [_tensor(f"k{n}", 5_000_000 - 600_000 * n) for n in range(8)]
    tensors.append(BundleStrings("s", (2,), (b"x", b"yz")))
    write_bundle(tmp_path / "v", tensors, num_shards=4)
    monkeypatch.setattr(bundle_writer, "MAX_THREADS", 1)
    write_bundle(tmp_path / "w", tensors[::-1], num_shards=4)
    names = ["index", *(f"data-{n:05}-of-00004" for n in range(4))]
    assert sorted(os.listdir(tmp_path)) == sorted(f"{p}.{name}" for p in "vw" for name in names)
    for name in names:
        assert (tmp_path / f"v.{name}").read_bytes() == (tmp_path / f"w.{name}").read_bytes()
    index = read_index(tmp_path / "v")
    checkpoint = tf.train.load_checkpoint(str(tmp_path / "v"))
    for tensor in tensors[:-1]:
        (data,) = tensor.chunks()
        assert np.array_equal(read_tensor(index, tensor.key), data)
        assert np.array_equal(checkpoint.get_tensor(tensor.key), data)
    assert read_strings(index, "s") == (b"x", b"yz")


def test_slices_are_read_by_tensorflow_as_a_whole_and_in_parts(tmp_path):
    whole = np.arange(60, dtype=np.float32).reshape(6, 10)
    parts = [((0, 2), (0, None)), ((2, 4), (0, 3)), ((2, 4), (3, 7))]
    arrays = [whole[:2], np.ascontiguousarray(whole[2:, :3]), np.ascontiguousarray(whole[2:, 3:])]
    slices = tuple(
        BundleSlice(part, lambda array=array: [array])
        for part, array in zip(parts, arrays, strict=True)
    )
    write_bundle(tmp_path / "v", [BundleTensor("w", 1, (6, 10), None, slices)], num_shards=2)
    index = read_index(tmp_path / "v")
    assert set(index.entries) == {"w", *(slice_key("w", part) for part in parts)}
    assert {index.entries[key].shard_id for key in index.entries} == {0, 1}
    assert np.array_equal(read_tensor(index, "w").view(np.float32).reshape(6, 10), whole)
    restored = tf.raw_ops.RestoreV2(
        prefix=str(tmp_path / "v"),
        tensor_names=["w", "w"],
        shape_and_slices=["", "6 10 1,4:2,5"],
        dtypes=[tf.float32] * 2,
    )
    assert np.array_equal(restored[0], whole)
    assert np.array_equal(restored[1], whole[1:5, 2:7])


def test_all_files_are_written_at_the_same_time(tmp_path):
    meeting = threading.Barrier(4, timeout=20)

    def chunks():
        meeting.wait()
        yield bytes(10)

    tensors = [BundleTensor(f"k{n}", UINT8, (10,), chunks) for n in range(4)]
    write_bundle(tmp_path / "v", tensors, num_shards=4)
    assert meeting.n_waiting == 0


def test_a_file_that_fails_ends_the_others(tmp_path, monkeypatch):
    failed = threading.Event()

    class Full(io.FileIO):
        def __init__(self, path, mode, buffering):
            self._full = "00001-of" in str(path)
            super().__init__(path, mode)

        def write(self, data):
            if self._full:
                failed.set()
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data)

    def endless():
        failed.wait(20)
        while True:
            yield bytes(1000)

    monkeypatch.setattr(bundle_writer, "open", Full, raising=False)
    tensors = [BundleTensor("a", UINT8, (1 << 40,), endless), _tensor("b", 10)]
    with pytest.raises(OSError, match=r"No space left on device: '.*data-00001-of-00002"):
        write_bundle(tmp_path / "v", tensors, num_shards=2)
    assert not (tmp_path / "v.index").exists()


def test_who_is_told_of_the_bytes_can_end_it(tmp_path):
    told = []

    def written(size):
        told.append(size)
        if sum(told) >= 3000:
            raise KeyboardInterrupt

    data = np.zeros(9000, np.uint8)
    tensors = [BundleTensor(f"k{n}", UINT8, (9000,), _chunked(data)) for n in range(3)]
    with pytest.raises(KeyboardInterrupt):
        write_bundle(tmp_path / "v", tensors, num_shards=3, written=written)
    assert 3000 <= sum(told) <= 6000
    assert not (tmp_path / "v.index").exists()


def test_save_takes_a_number_of_files(tmp_path):
    params = {f"w{n}": np.full((n + 1, 3), n, np.float32) for n in range(6)}
    exported = jax.export.export(jax.jit(lambda params, x: x + params["w2"][0]))(
        params, np.zeros(3, np.float32)
    )
    bridge.save(exported, tmp_path / "m", params=params, num_shards=3)
    names = sorted(os.listdir(tmp_path / "m" / "variables"))
    assert names == [*(f"variables.data-{n:05}-of-00003" for n in range(3)), "variables.index"]
    loaded = tf.saved_model.load(tmp_path / "m")
    for variable in savedmodel.read(tmp_path / "m").variables:
        assert np.array_equal(variable.shared(), params[variable.name])
        assert np.array_equal(loaded.params[variable.name], params[variable.name])
    for wrong in (0, -1, 1.5, "3", True):
        with pytest.raises(StructureError, match=f"num_shards is {wrong!r}"):
            bridge.save(exported, tmp_path / "n", params=params, num_shards=wrong)
    assert os.listdir(tmp_path) == ["m"]
