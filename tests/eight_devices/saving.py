"""`bridge.save` of arrays that are spread over devices: what TensorFlow reads of them."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import tensorflow as tf
from jax import enable_x64
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import bridge
import savedmodel
from savedmodel.variables.tensor_bundle import read_index
from savedmodel.variables.tensor_slices import is_readable_in_slices
from xla_call_module.dtypes import DTYPES

ROWS, COLUMNS = 8, 6


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


@pytest.fixture(scope="module")
def values():
    """An array of every dtype, the wide ones too."""
    numbers = np.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS)
    return {dtype.name: (numbers % 2 * 3).astype(dtype.numpy) for dtype in DTYPES}


@pytest.fixture(scope="module")
def saved(mesh, values, tmp_path_factory):
    folder = tmp_path_factory.mktemp("dtypes") / "m"
    with enable_x64(True):
        split = NamedSharding(mesh, PartitionSpec("data", "model"))
        params = {name: jax.device_put(value, split) for name, value in values.items()}
        given = (jax.tree.map(lambda _: split, params),)
        exported = jax.export.export(jax.jit(lambda params: params, in_shardings=given))(params)
        bridge.save(exported, folder, params=params, gradient_order=0, num_shards=2)
    return folder


def test_tensorflow_has_the_same_bits(saved, values):
    loaded = tf.saved_model.load(saved).params
    for name, value in values.items():
        found = loaded[name].numpy()
        assert found.dtype == value.dtype
        assert found.tobytes() == value.tobytes(), name


def test_only_what_tensorflow_reads_in_slices_is_in_slices(saved):
    entries = read_index(saved / "variables" / "variables").entries
    for dtype in DTYPES:
        entry = entries[f"params/{dtype.name}/.ATTRIBUTES/VARIABLE_VALUE"]
        assert len(entry.slices) == (8 if is_readable_in_slices(dtype) else 0)


def test_parts_are_read_of_both(saved, values):
    part = (slice(2, 5), slice(1, 4))
    for variable in savedmodel.read(saved).variables:
        found = variable.part(part)
        assert found.tobytes() == values[variable.dtype.name][part].tobytes()


def _step(state, x):
    return {"w": state["w"] - 0.5 * x[:, None], "count": state["count"] + 1}, {
        "sum": state["w"].sum()
    }


@pytest.mark.parametrize("devices", [1, 8])
def test_a_sharded_state_is_advanced(mesh, tmp_path, devices):
    """By a function for one device, and by one for all of them, which TensorFlow runs on one."""
    split, whole = (
        NamedSharding(mesh, P) for P in (PartitionSpec("data", "model"), PartitionSpec())
    )
    value = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
    state = {"w": jax.device_put(value, split), "count": jax.device_put(np.int32(0), whole)}
    shardings = {"w": split, "count": whole}
    options = {"in_shardings": (shardings, whole), "out_shardings": (shardings, {"sum": whole})}
    specs = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
    x = np.linspace(0, 1, ROWS, dtype=np.float32)
    jitted = jax.jit(_step, **(options if devices > 1 else {}))
    exported = jax.export.export(jitted)(specs, jax.ShapeDtypeStruct(x.shape, x.dtype))
    assert exported.nr_devices == devices
    bridge.save(exported, tmp_path / "m", params=state, updates=0)
    loaded = tf.saved_model.load(tmp_path / "m")
    for number in range(3):
        want, outputs = _step({"w": value, "count": number}, x)
        np.testing.assert_allclose(loaded.signatures["serving_default"](x=x)["sum"], outputs["sum"])
        value = want["w"]
        np.testing.assert_allclose(loaded.params["w"], value)
        assert loaded.params["count"].numpy() == number + 1
    tf.saved_model.save(loaded, tmp_path / "again", signatures=dict(loaded.signatures))
    model = bridge.load(tmp_path / "again", mesh=mesh if devices > 1 else None)
    new, _ = model.default(x)
    np.testing.assert_allclose(new["w"], _step({"w": value, "count": 3}, x)[0]["w"])
    assert devices == 1 or len(new["w"].addressable_shards) == 8
