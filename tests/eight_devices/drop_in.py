"""`bridge.jax2tf` of functions that run on several devices: what its graphs say of shardings."""

from __future__ import annotations

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax.sharding import AxisType, NamedSharding, PartitionSpec

X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4)
W = np.linspace(0, 1, 32, dtype=np.float32).reshape(4, 8)


@pytest.fixture(params=["bridge.jax2tf", "jax.experimental.jax2tf"])
def convert(request):
    return importlib.import_module(request.param).convert


@pytest.fixture(scope="module")
def function():
    """A matrix product, its rows and columns on a mesh of 4 by 2 devices."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    rows, columns = (NamedSharding(mesh, PartitionSpec(*p)) for p in (("data",), (None, "model")))
    return jax.jit(
        lambda x, w: jnp.sin(x) @ w,
        in_shardings=(rows, columns),
        out_shardings=NamedSharding(mesh, PartitionSpec("data", "model")),
    )


def _tilings(graph):
    """The tiles of the shardings in a graph and in its functions, in their order."""
    from tensorflow.compiler.xla import xla_data_pb2 as xla

    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    found = []
    for node in nodes:
        if node.op == "XlaSharding":
            sharding = xla.OpSharding.FromString(node.attr["_XlaSharding"].s)
            found.append(tuple(sharding.tile_assignment_dimensions))
    return found


def _trace(run):
    specs = [tf.TensorSpec(X.shape), tf.TensorSpec(W.shape)]
    return tf.function(run, autograph=False).get_concrete_function(*specs)


def test_arguments_and_results(convert, function):
    graph = _trace(convert(function))
    tilings = _tilings(graph.graph.as_graph_def())
    # The last dimension repeats the parts over the devices of the other axis.
    assert tilings[:3] == [(4, 1, 2), (1, 2, 4), (4, 2)]
    np.testing.assert_allclose(graph(X, W), np.sin(X) @ W, rtol=1e-5, atol=1e-6)


def test_what_is_said_to_be_whole_on_every_device_is_annotated(convert):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    whole, rows = (NamedSharding(mesh, PartitionSpec(*p)) for p in ((), ("data",)))
    product = jax.jit(jnp.matmul, in_shardings=(rows, whole), out_shardings=whole)
    graph = _trace(convert(product))
    assert _tilings(graph.graph.as_graph_def())[:3] == [(8, 1), (), ()]
    left_open = jax.jit(jnp.matmul, in_shardings=(rows, None))
    assert set(_tilings(_trace(convert(left_open)).graph.as_graph_def())) == {(8, 1)}


def test_gradients(convert, function):
    converted = convert(function)

    def pull_back(x, w):
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            result = converted(x, w)
        return tape.gradient(result, [x, w])

    graph = _trace(pull_back)
    tilings = _tilings(graph.graph.as_graph_def())
    assert tilings.count((4, 1, 2)) >= 3  # x twice, and its gradient
    assert tilings.count((1, 2, 4)) >= 3
    assert (4, 2) in tilings[3:] or tilings.count((4, 2)) >= 2  # the cotangent
    of_x, of_w = graph(X, W)
    ones = np.ones((8, 8), np.float32)
    np.testing.assert_allclose(of_x, np.cos(X) * (ones @ W.T), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(of_w, np.sin(X).T @ ones, rtol=1e-5, atol=1e-6)


def test_eager_calls_run_on_one_device(convert, function):
    """With JAX's own converter there are none."""
    if convert.__module__ == "bridge.jax2tf":
        np.testing.assert_allclose(convert(function)(X, W), np.sin(X) @ W, rtol=1e-5, atol=1e-6)
    else:
        with pytest.raises(ValueError, match=r"must be used under"):
            convert(function)(X, W)


def test_one_device_needs_no_annotations(convert):
    graph = _trace(convert(lambda x, w: x @ w))
    assert "XlaSharding" not in {node.op for node in graph.graph.as_graph_def().node}
