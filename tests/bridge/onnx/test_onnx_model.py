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
from tests.bridge.onnx.checking import check, check_whole, operations


def _mlp(params, x):
    hidden = jnp.tanh(x @ params["first"]["w"] + params["first"]["b"])
    return hidden @ params["last"]["w"] + params["last"]["b"]


@pytest.fixture(scope="module")
def params():
    sizes = {"first": (3, 8), "last": (8, 2)}
    return {
        name: {"w": np.ones(size, np.float32), "b": np.ones(size[1:], np.float32)}
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


def test_the_gradient_of_an_mlp_is_twenty_nodes(params):
    spec = jax.ShapeDtypeStruct(export.symbolic_shape("batch, 3"), "float32")
    model = bridge.to_onnx(export.export(jax.jit(_mlp))(params, spec).vjp())
    check_whole(model)
    assert len(model.graph.node) <= 20


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
    assert shapes == [["c + b", 6], ["2*c + b"], ["2*c + 2*b", 3]]


def test_the_record_of_the_runtime_names_operations_and_modules():
    operations = {name for entry in DEVIATIONS for name in entry.operations.split()} | {*KERNELS}
    assert [name for name in operations if not onnx.defs.has(name)] == []
    modules = {name for entry in DEVIATIONS for name in entry.avoided_in.split()}
    assert [name for name in modules if find_spec(f"bridge.{name}") is None] == []


SMALL, SMALLER = np.array([[3, 1, 2]], np.int8), np.array([[1, 2, 2]], np.int8)


@pytest.mark.parametrize(
    ("function", "arrays", "op_type"),
    [
        (jnp.maximum, [SMALL, SMALLER], "Max"),
        (jnp.minimum, [SMALL.astype("uint8"), SMALLER.astype("uint8")], "Min"),
        (lambda x: jax.lax.top_k(x, 2), [SMALL], "TopK"),
        (lambda x: jax.lax.top_k(x, 2), [SMALL.astype("int16")], "TopK"),
        (lambda x: jax.lax.top_k(x, 2), [SMALL.astype("uint8")], "TopK"),
        (lambda x, y: jnp.where(x > 1, x, y), [SMALL, SMALLER], "Where"),
        (lambda x, y: jnp.where(x > 1, x, y), [SMALL.astype("uint32")] * 2, "Where"),
    ],
)
def test_kernels_of_later_releases_are_not_used(function, arrays, op_type):
    model = onnx.shape_inference.infer_shapes(check(function, *arrays))
    kinds = {info.name: info.type.tensor_type.elem_type for info in model.graph.value_info}
    numbers = {"TopK": 0}.get(op_type, -1)
    computed = {kinds[n.input[numbers]] for n in model.graph.node if n.op_type == op_type}
    assert computed
    assert computed.isdisjoint([onnx.helper.np_dtype_to_tensor_dtype(arrays[0].dtype)])
