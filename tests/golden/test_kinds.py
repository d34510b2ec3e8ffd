"""A file of each kind from each JAX that was ever supported works, in JAX and in TensorFlow."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.golden.reading import GOLDEN, check_in_jax, check_leaves, folders_of, numbers_of
from tests.golden.tensorflow_arguments import for_tensorflow
from tests.golden.write_kinds import KINDS

FOLDERS = folders_of(several_devices=False)


@pytest.fixture(params=FOLDERS, ids=lambda path: "-".join(path.parts[-3:]))
def folder(request):
    return request.param


def test_each_kind_is_there_for_each_minor_version_of_jax():
    writers = list(GOLDEN.glob("*/jax-*"))
    minors = {path.name.removeprefix("jax-").split(".")[1] for path in writers}
    assert minors >= {"7", "8", "9", "10", "11", "12"}
    for writer in writers:
        assert {path.name for path in writer.iterdir()} == set(KINDS)


def test_loaded_by_jax(folder):
    check_in_jax(folder, KINDS[folder.name])


def test_loaded_by_tensorflow(folder):
    loaded = tf.saved_model.load(folder / "model")
    for key, (_, _, arguments) in KINDS[folder.name].make().items():
        results = getattr(loaded, key)(*map(for_tensorflow, arguments))
        leaves = [leaf for leaf in tf.nest.flatten(results) if leaf is not None]
        check_leaves(leaves, numbers_of(folder), f"{key}/result")
