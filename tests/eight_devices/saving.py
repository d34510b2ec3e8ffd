"""`bridge.save` of arrays that are spread over devices: what TensorFlow reads of them."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import tensorflow as tf
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import bridge
import savedmodel
from savedmodel.variables.tensor_bundle import read_index
from savedmodel.variables.tensor_slices import is_readable_in_slices
from tests.x64 import enable_x64
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
