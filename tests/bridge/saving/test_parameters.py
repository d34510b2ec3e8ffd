"""Keys of parameters that mean something in TensorFlow's checkpoints, and names of folders."""

from __future__ import annotations

import os

import jax
import numpy as np
import onnx
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import bridge
import bridge.serving
import savedmodel
from savedmodel.files.folder import hidden_folder
from xla_call_module.errors import StructureError

# Parts of keys, of which a checkpoint has some itself.
PARTS = [
    "", ".", "..", "/", ".S", "a", "A", "é", "日本", " ", "\0", "\n", "\\", "0", ":0", "%s", "{}",
    "x" * 300,
    "ATTRIBUTES", ".ATTRIBUTES", "/.ATTRIBUTES/", "VARIABLE_VALUE", "OBJECT_CONFIG_JSON",
    ".OPTIMIZER_SLOT", "_CHECKPOINTABLE_OBJECT_GRAPH", "params", "variables", "__call__",
    "_self_saveable_object_factories", "_x", "-", "init", "saver_filename", "restore/all",
    "save/prefix", "serving_default_x", "a_b", "a b",
]  # fmt: skip
keys = st.lists(st.sampled_from(PARTS), min_size=1, max_size=3).map("".join)
trees = st.recursive(
    st.just(0),
    lambda children: st.dictionaries(keys, children, min_size=1, max_size=4),
    max_leaves=12,
).filter(lambda tree: tree != 0)


def _number(tree, count):
    """The same with an array of its own for each leaf."""
    if not isinstance(tree, dict):
        return np.float32(next(count))
    return {key: _number(child, count) for key, child in tree.items()}


def _reserved(tree):
    return isinstance(tree, dict) and any(
        key.endswith(".ATTRIBUTES") or _reserved(child) for key, child in tree.items()
    )


def _check(folder, params):
    leaves = jax.tree.leaves(params)
    loaded = tf.saved_model.load(folder)
    found = tf.nest.flatten(loaded(tf.constant(2.0)))
    assert sorted(float(value) for value in found) == [2 * value for value in sorted(leaves)]
    names = [variable.name for variable in loaded.variables]
    assert len(set(names)) == len(names) == len(leaves)
    model = bridge.load(folder)
    assert jax.tree.map(float, model.params) == params
    assert jax.tree.map(float, model(np.float32(2))) == jax.tree.map(lambda p: 2 * p, params)
    return loaded


@given(tree=trees)
@settings(deadline=None, max_examples=5)
def test_any_keys(tree, tmp_path_factory):
    params = _number(tree, iter(range(1, 100)))
    exported = jax.export.export(jax.jit(lambda p, x: jax.tree.map(lambda w: w * x, p)))(
        params, jax.ShapeDtypeStruct((), "float32")
    )
    folder = tmp_path_factory.mktemp("keys")
    if _reserved(tree):
        with pytest.raises(StructureError, match=r"ends in \.ATTRIBUTES\. To do: rename the key"):
            bridge.save(exported, folder / "m", params=params)
        assert not (folder / "m").exists()
        return
    bridge.save(exported, folder / "m", params=params)
    loaded = _check(folder / "m", params)
    tf.saved_model.save(loaded, folder / "again", signatures=loaded.signatures)
    _check(folder / "again", params)


def test_all_of_them(tmp_path):
    params = {key: np.float32(number) for number, key in enumerate(PARTS) if key != ".ATTRIBUTES"}
    exported = jax.export.export(jax.jit(lambda p, x: jax.tree.map(lambda w: w * x, p)))(
        params, jax.ShapeDtypeStruct((), "float32")
    )
    bridge.save(exported, tmp_path / "m", params=params)
    loaded = _check(tmp_path / "m", params)
    tf.saved_model.save(loaded, tmp_path / "again", signatures=loaded.signatures)
    again = _check(tmp_path / "again", params)
    assert {key: value.numpy() for key, value in again.params.items()} == params


@pytest.mark.parametrize("key", [".ATTRIBUTES", "a.ATTRIBUTES", "a/.ATTRIBUTES"])
@pytest.mark.parametrize("below", [False, True])
def test_a_key_that_tensorflow_cannot_load(tmp_path, key, below):
    params = {key: {"w": np.float32(1)} if below else np.float32(1)}
    exported = jax.export.export(jax.jit(lambda p, x: jax.tree.leaves(p)[0] * x))(
        params, jax.ShapeDtypeStruct((), "float32")
    )
    with pytest.raises(StructureError, match=r"has the key '.*ATTRIBUTES' in its path"):
        bridge.save(exported, tmp_path / "m", params=params)


@pytest.fixture(scope="module")
def exported():
    params = {"w": np.ones(2000, np.float32)}
    x = jax.ShapeDtypeStruct((2000,), "float32")
    return jax.export.export(jax.jit(lambda p, x: p["w"] * x))(params, x)


@pytest.mark.parametrize("name", ["n" * 250, "n" * 255, "é" * 127, "n" * 219, "n" * 220])
def test_the_longest_names(tmp_path, exported, name):
    params = {"w": np.ones(2000, np.float32)}
    for _ in range(2):
        bridge.save(exported, tmp_path / name, params=params, overwrite=True, manifest=True)
        bridge.load(tmp_path / name)
        bridge.retarget(tmp_path / name, "2.20", to=tmp_path / name, overwrite=True)
        savedmodel.write(savedmodel.read(tmp_path / name), tmp_path / name, overwrite=True)
    bridge.serving.publish(tmp_path / name, tmp_path / "base")
    bridge.serving.publish(exported, tmp_path / "base" / name, params=params)
    bridge.serving.rollback(tmp_path / "base" / name, to=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "base"])
    assert sorted(path.name for path in (tmp_path / "base").iterdir()) == sorted([name, "1"])


@pytest.mark.parametrize("name", ["n" * 245 + ".onnx", "n" * 250 + ".onnx"])
@pytest.mark.parametrize("external_data", [True, False])
def test_the_longest_names_in_onnx(tmp_path, exported, name, external_data):
    params = {"w": np.ones(2000, np.float32)}
    for _ in range(2):
        bridge.save_onnx(
            exported, tmp_path / name, params=params, external_data=external_data, overwrite=True
        )
        onnx.checker.check_model(str(tmp_path / name))
    assert len(list(tmp_path.iterdir())) == 1 + external_data


def test_long_names_do_not_meet(tmp_path):
    with hidden_folder(tmp_path, "n" * 255) as one, hidden_folder(tmp_path, "n" * 254) as other:
        assert one.name[:-16] != other.name[:-16]
        os.utime(other, (0, 0))
        with hidden_folder(tmp_path, "n" * 255):
            assert other.is_dir()
