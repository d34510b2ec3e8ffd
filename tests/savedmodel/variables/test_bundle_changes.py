"""New values in a bundle: after any changes each tensor has the value that it was last given."""

from __future__ import annotations

import os

import numpy as np
import pytest
import tensorflow as tf

from savedmodel.variables import bundle_changes
from savedmodel.variables.bundle_changes import lay_out_changes
from savedmodel.variables.bundle_layout import BundleSlice, BundleStrings, BundleTensor
from savedmodel.variables.bundle_reader import read_strings, read_tensor
from savedmodel.variables.bundle_writer import write_data_files, write_index
from savedmodel.variables.tensor_bundle import read_index, shard_path
from tests.savedmodel.variables.bundles import write_bundle
from xla_call_module.errors import DtypeError

FLOAT = 1
WORDS = (b"a", b"", b"ccc" * 100)
SHAPES = {"empty": (0, 3), "scalar": (), "rows": (6, 4), "b/c": (5,), "long": (3000,)}


def tensor(key, value, *, is_sliced):
    """A tensor as it is to be written, in two slices where it can be."""
    if not is_sliced or not value.size or not value.shape or value.shape[0] < 2:
        return BundleTensor(key, FLOAT, value.shape, lambda: [np.ascontiguousarray(value)])
    cut = value.shape[0] // 3 + 1
    rest = ((0, None),) * (value.ndim - 1)
    parts = (((0, cut), *rest), ((cut, value.shape[0] - cut), *rest))
    chunks = (value[:cut], value[cut:])
    slices = tuple(BundleSlice(p, lambda c=c: [c]) for p, c in zip(parts, chunks, strict=True))
    return BundleTensor(key, FLOAT, value.shape, None, slices)


def check(prefix, values):
    index = read_index(prefix)
    reader = tf.train.load_checkpoint(str(prefix))
    for key, value in values.items():
        found = read_tensor(index, key).view(np.float32).reshape(value.shape)
        np.testing.assert_array_equal(found, value)
        np.testing.assert_array_equal(reader.get_tensor(key), value)
    assert read_strings(index, "words") == WORDS
    assert {path.name for path in prefix.parent.iterdir()} == {
        "v.index", *(shard_path(prefix, i, index.num_shards).name for i in range(index.num_shards))
    }  # fmt: skip
    return index


@pytest.mark.parametrize("few_bytes", [0, 1 << 20])
@pytest.mark.parametrize("seed", range(4))
def test_any_changes(tmp_path, monkeypatch, seed, few_bytes):
    monkeypatch.setattr(bundle_changes, "_FEW_BYTES", few_bytes)
    monkeypatch.setattr(bundle_changes, "MAX_KEPT_FILES", 4)
    rng = np.random.default_rng(seed)
    draw = lambda shape: np.asarray(rng.normal(size=shape), np.float32)  # noqa: E731
    values = {key: draw(shape) for key, shape in SHAPES.items()}
    prefix = tmp_path / "0" / "v"
    prefix.parent.mkdir()
    tensors = [tensor(key, value, is_sliced=rng.random() < 0.5) for key, value in values.items()]
    strings = BundleStrings("words", (3,), WORDS)
    write_bundle(prefix, [*tensors, strings], num_shards=int(rng.integers(1, 5)))
    check(prefix, values)
    for step in range(1, 8):
        old, prefix = read_index(prefix), tmp_path / str(step) / "v"
        prefix.parent.mkdir()
        changed = [key for key in SHAPES if rng.random() < 0.4] or ["rows"]
        values |= {key: draw(SHAPES[key]) for key in changed}
        new = [tensor(key, values[key], is_sliced=rng.random() < 0.5) for key in changed]
        layout = lay_out_changes(old, new)
        entries = write_data_files(prefix, layout)
        for number, shard_id in enumerate(layout.kept, len(layout.files)):
            file = shard_path(prefix, number, layout.num_files)
            os.link(old.files.path(shard_id), file)
        write_index(prefix, {**entries, **layout.known}, layout.num_files)
        index = check(prefix, values)
        assert index.num_shards <= 4 + 2


def test_a_dtype_that_jax_lacks_can_stay_and_is_not_copied(tmp_path):
    def save(name, **tensors):
        prefix = str(tmp_path / name)
        tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=[*tensors],
            shape_and_slices=[""] * len(tensors),
            tensors=[*tensors.values()],
        )
        return prefix

    quantized, number = tf.quantization.quantize([1.0], 0, 2, tf.qint8).output, tf.constant(1.0)
    new = [BundleTensor("a", FLOAT, (), lambda: [np.float32(2).tobytes()])]
    with pytest.raises(DtypeError, match="Tensor q"):
        lay_out_changes(read_index(save("both", q=quantized, a=number)), new)
    alone = [save("1", q=quantized), save("2", a=number)]
    merged = str(tmp_path / "merged")
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=alone, destination_prefix=merged)
    layout = lay_out_changes(read_index(merged), new)
    assert (len(layout.kept), layout.known["q"].shard_id) == (1, 1)
