"""The look of a model; and models in both directions agree with JAX."""

from __future__ import annotations

from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from jax import export

import bridge
from bridge.onnx.graph.onnx_runtime import DEVIATIONS, KERNELS
from tests.bridge.onnx.checking import assert_same, check, check_whole, evaluate, operations, run


def _mlp(params, x):
    hidden = jnp.tanh(x @ params["first"]["w"] + params["first"]["b"])
    return hidden @ params["last"]["w"] + params["last"]["b"]


@pytest.fixture(scope="module")
def params():
    random = np.random.default_rng(0)
    sizes = {"first": (3, 8), "last": (8, 2)}
    return {
        name: {
            "w": random.standard_normal(size, np.float32),
            "b": random.standard_normal(size[1:], np.float32),
        }
        for name, size in sizes.items()
    }


@pytest.fixture(scope="module")
def mlp(params):
    x = jax.ShapeDtypeStruct(export.symbolic_shape("batch, 3"), "float32")
    return export.export(jax.jit(_mlp), platforms=["cpu", "tpu"])(params, x)


def test_an_mlp_is_five_nodes(mlp, params):
    model = bridge.to_onnx(mlp, params=params)
    check_whole(model)
    assert operations(model) == ["MatMul", "Add", "Tanh", "MatMul", "Add"]
    assert [tensor.name for tensor in model.graph.initializer] == [
        "first/b", "first/w", "last/b", "last/w",
    ]  # fmt: skip
    assert [node.name for node in model.graph.node][:2] == [
        "_mlp/dot_general/MatMul",
        "_mlp/add/Add",
    ]
    (x,) = model.graph.input
    assert x.name == "x"
    assert [dim.dim_param or dim.dim_value for dim in x.type.tensor_type.shape.dim] == ["batch", 3]
    (y,) = model.graph.output
    assert [dim.dim_param or dim.dim_value for dim in y.type.tensor_type.shape.dim] == ["batch", 2]


@pytest.mark.parametrize("batch", [1, 5])
def test_an_mlp_computes_what_jax_does(mlp, params, batch):
    x = np.random.default_rng(batch).standard_normal((batch, 3), np.float32)
    model = bridge.to_onnx(mlp, params=params)
    expected = [np.asarray(_mlp(params, x))]
    assert_same(run(model, [x]), expected, rtol=1e-5, atol=1e-6)
    assert_same(evaluate(model, [x]), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("batch", [1, 5])
def test_the_gradient_of_an_mlp(params, batch):
    spec = jax.ShapeDtypeStruct(export.symbolic_shape("batch, 3"), "float32")
    model = bridge.to_onnx(export.export(jax.jit(_mlp))(params, spec).vjp())
    check_whole(model)
    assert len(model.graph.node) <= 20
    random = np.random.default_rng(batch)
    x, cotangent = (random.standard_normal((batch, n), np.float32) for n in (3, 2))
    arrays = [*jax.tree.leaves((params, x)), cotangent]
    pulled = jax.vjp(_mlp, params, x)[1](cotangent)
    expected = [np.asarray(leaf) for leaf in jax.tree.leaves(pulled)]
    assert_same(run(model, arrays), expected, rtol=1e-4, atol=1e-5)
    assert_same(evaluate(model, arrays), expected, rtol=1e-4, atol=1e-5)


def test_what_is_closed_over_is_a_constant():
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    model = check(lambda x: x @ table + jnp.float32(2), np.ones((2, 3), np.float32))
    assert operations(model) == ["MatMul", "Add"]


def test_results_that_are_no_results_of_nodes():
    def function(x, unused):
        return x, x, jnp.float32(3), jnp.zeros((2, 2), jnp.int32), x + 1

    model = check(function, np.ones(2, np.float32), np.ones(3, np.float32))
    assert len(model.graph.input) == 2


def test_branches_of_platforms_are_folded(mlp, params):
    model = bridge.to_onnx(mlp, params=params, platform="tpu")
    assert operations(model) == ["MatMul", "Add", "Tanh", "MatMul", "Add"]


@pytest.mark.parametrize("index", [-1, 0, 1, 2, 7])
def test_branches(index):
    def function(index, x):
        branches = [lambda x: x + 1, lambda x: x * x, lambda x: x]
        return jax.lax.switch(index, branches, x), jax.lax.cond(index > 0, jnp.sin, jnp.cos, x)

    check(function, np.int32(index), np.float32([1, 2]))


def test_an_unknown_operation_names_its_line():
    with pytest.raises(bridge.InteropError, match=r"stablehlo\.rng at .*test_onnx_model\.py:\d+"):
        check(lambda x: jax.lax.rng_uniform(x[0], x[1], (3,)), np.ones(4, np.float32))


def test_dimension_arithmetic_is_done_where_it_is_needed():
    def function(x, y):
        both = jnp.concatenate([x, y])
        return both / both.shape[0], jnp.zeros((x.shape[0] + 2 * y.shape[0],)), both.reshape(-1, 3)

    model = check(
        function, np.ones((2, 6), np.float32), np.ones((3, 6), np.float32), shapes=["b, 6", "c, 6"]
    )
    shapes = [
        [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in model.graph.output
    ]
    assert shapes == [
        ["c + b", 6],
        [
            "2*c + b",
        ],
        ["2*c + 2*b", 3],
    ]


def test_the_record_of_the_runtime_names_operations_and_modules():
    operations = {name for entry in DEVIATIONS for name in entry.operations.split()} | {*KERNELS}
    assert [name for name in operations if not onnx.defs.has(name)] == []
    modules = {name for entry in DEVIATIONS for name in entry.avoided_in.split()}
    assert [name for name in modules if find_spec(f"bridge.{name}") is None] == []
