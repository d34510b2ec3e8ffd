"""`bridge.load` on a mesh of files that TensorFlow has written, or has saved again."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import bridge
from bridge.meshes import mesh_of
from tests.policy.source import ROOT
from xla_call_module.errors import ShardingError

P = PartitionSpec
PARAMS = {
    "b": np.arange(16, dtype="float32"),
    "w": np.arange(8 * 16, dtype="float32").reshape(8, 16) / 100,
}
CHANGED = {name: value + 1 for name, value in PARAMS.items()}
X = np.linspace(-1, 1, 32 * 8, dtype="float32").reshape(32, 8)


def function(params, x):
    return {"y": jnp.tanh(x @ params["w"]) + params["b"]}


def make(sizes, names=("data", "model")):
    return jax.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * len(sizes))


def assert_gradients(model, params):
    call = jax.jit(lambda p: jax.grad(lambda p: jnp.sum(model.default.exported.call(p, X)["y"]))(p))
    expected = jax.grad(lambda p: jnp.sum(function(p, X)["y"]))(params)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        call(model.params),
        expected,
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    mesh = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    rows, columns, whole, both = (
        NamedSharding(mesh, spec) for spec in (P("data"), P(None, "model"), P(), P("data", "model"))
    )
    jitted = jax.jit(
        function, in_shardings=({"b": whole, "w": columns}, rows), out_shardings={"y": both}
    )
    folder = tmp_path_factory.mktemp("saved") / "m"
    bridge.save(jax.export.export(jitted)(PARAMS, X), folder, params=PARAMS)
    return folder


@pytest.fixture(scope="module", params=["as it was", "in a function", "as an object"])
def saved_again(saved, request, tmp_path_factory):
    """With other weights."""
    folder = tmp_path_factory.mktemp("again") / "m"
    loaded = tf.saved_model.load(saved)
    for name, value in CHANGED.items():
        loaded.params[name].assign(value)
    if request.param == "as it was":
        tf.saved_model.save(loaded, folder, signatures=loaded.signatures)
        return folder
    module = tf.Module()
    module.inner = loaded
    module.f = tf.function(
        lambda x: loaded.signatures["serving_default"](x=x),
        autograph=False,
        input_signature=[tf.TensorSpec(X.shape, tf.float32, name="x")],
    )
    given = {"signatures": module.f} if request.param == "in a function" else {}
    tf.saved_model.save(module, folder, **given)
    return folder


@pytest.fixture(scope="module")
def with_a_function(saved, tmp_path_factory):
    """Another name and dtype of the input, and another name of the output."""
    folder = tmp_path_factory.mktemp("around") / "m"
    loaded = tf.saved_model.load(saved)
    module = tf.Module()
    module.inner = loaded
    module.f = tf.function(
        lambda z: {"out": loaded.signatures["serving_default"](x=tf.cast(z, tf.float32))["y"]},
        autograph=False,
        input_signature=[tf.TensorSpec(X.shape, tf.float16, name="z")],
    )
    tf.saved_model.save(module, folder, signatures=module.f)
    return folder, function(PARAMS, X.astype(np.float16).astype(np.float32))["y"]


def test_a_function_around_it(with_a_function):
    folder, expected = with_a_function
    found = bridge.load(folder)(X.astype(np.float16))["out"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sizes", [(4, 2), (2, 4), (2, 2), (1, 1)])
def test_a_function_around_it_on_a_mesh(with_a_function, sizes):
    folder, expected = with_a_function
    mesh = make(sizes)
    model = bridge.load(folder, mesh=mesh)
    assert model.default.exported.nr_devices == math.prod(sizes)
    found = model(X.astype(np.float16))["out"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert found.sharding.is_equivalent_to(NamedSharding(mesh, P("data", "model")), 2)
    weights = model.params["inner/params/w"]
    assert weights.addressable_shards[0].data.shape == (8, 16 // mesh.shape["model"])
    _, *of_x = model.default.exported.in_shardings_jax(mesh)[1:]
    assert [one.spec for one in of_x] == [P("data")]


def test_shard_map_in_a_function(tmp_path):
    mesh = make((4, 2))
    spec = P("data", "model")
    inner = jax.shard_map(lambda x: x - x.max(), mesh=mesh, in_specs=spec, out_specs=spec)
    exported = jax.export.export(jax.jit(inner, in_shardings=NamedSharding(mesh, spec)))(X)
    with pytest.warns(UserWarning, match="cannot run on one device"):
        bridge.save(exported, tmp_path / "m")
    loaded = tf.saved_model.load(tmp_path / "m")
    module = tf.Module()
    module.inner = loaded
    module.f = tf.function(
        lambda z: {
            "out": loaded.signatures["serving_default"](x=tf.cast(z, tf.float32))["output_0"]
        },
        autograph=False,
        input_signature=[tf.TensorSpec(X.shape, tf.float16, name="z")],
    )
    tf.saved_model.save(module, tmp_path / "again", signatures=module.f)
    with pytest.raises(
        ShardingError, match=r"operations of TensorFlow around it are for one device.*bridge\.save"
    ):
        bridge.load(tmp_path / "again", mesh=mesh)(X.astype(np.float16))


@pytest.mark.parametrize("sizes", [(4, 2), (2, 4), (2, 2), (1, 2), (1, 1)])
def test_saved_again(saved_again, sizes):
    mesh = make(sizes)
    model = bridge.load(saved_again, mesh=mesh)
    assert dict(mesh_of(saved_again).shape) == {"data": 4, "model": 2}
    w = model.params["w"]
    assert w.sharding.is_equivalent_to(NamedSharding(mesh, P(None, "model")), 2)
    assert w.addressable_shards[0].data.shape == (8, 16 // sizes[1])
    found = model(X)["y"]
    assert found.sharding.is_equivalent_to(NamedSharding(mesh, P("data", "model")), 2)
    np.testing.assert_allclose(found, function(CHANGED, X)["y"], rtol=1e-5, atol=1e-6)
    assert_gradients(model, CHANGED)


@pytest.fixture(scope="module", params=["shardy", "gspmd"])
def of_jax2tf(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("foreign")
    script = ROOT / "tests" / "foreign" / "write_jax2tf_sharded.py"
    command = [sys.executable, script, folder, request.param]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    with np.load(folder / "values.npz") as values:
        return request.param, folder / "model", dict(values)


@pytest.mark.parametrize("sizes", [(4, 2), (2, 4), (2, 2)])
def test_a_file_of_jax2tf(of_jax2tf, sizes):
    partitioner, folder, values = of_jax2tf
    mesh = make(sizes)
    model = bridge.load(folder, mesh=mesh)
    if partitioner == "gspmd" and sizes != (4, 2):
        with pytest.raises(ShardingError, match="exported for 8 devices, without names for the ax"):
            model.params  # noqa: B018
        return
    assert model.params["w"].addressable_shards[0].data.shape == (16, 8 // sizes[1])
    x = np.arange(128, dtype="float32").reshape(8, 16) / 32 - 1
    found = model(x)
    assert found["y"].sharding.is_equivalent_to(NamedSharding(mesh, P("data", "model")), 2)
    for name in ("y", "n"):
        np.testing.assert_allclose(found[name], values[name], rtol=1e-5)
    call = model.default.exported.call
    of_w = jax.jit(jax.grad(lambda params: call(params, x)["y"].sum()))(model.params)["w"]
    np.testing.assert_allclose(of_w, values["w"], rtol=1e-5)
    assert of_w.sharding.is_equivalent_to(NamedSharding(mesh, P(None, "model")), 2)


def test_a_file_of_jax2tf_with_other_names(of_jax2tf):
    partitioner, folder, values = of_jax2tf
    model = bridge.load(folder, mesh=make((4, 2), ("x", "y")))
    x = np.arange(128, dtype="float32").reshape(8, 16) / 32 - 1
    if partitioner == "gspmd":  # it has none
        np.testing.assert_allclose(model(x)["y"], values["y"], rtol=1e-5)
        return
    with pytest.raises(ShardingError, match="whose axes have other names: data, model missing"):
        model(x)
