"""Products: how many nodes they are, of sizes that only a run knows, and what is refused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from jax import export, lax

import bridge
from bridge import InteropError
from bridge.tf_operations.lowering import lower_call
from tests.bridge.onnx.checking import check, operations
from xla_call_module.exported import from_exported


def _drawn(*shape):
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def test_a_layer_is_one_node():
    x, w = _drawn(2, 3, 4), _drawn(4, 5)
    for shapes in (None, ["b, t, 4", None]):
        assert operations(check(lambda x, w: x @ w, x, w, shapes=shapes, atol=1e-6)) == ["MatMul"]
    x, w, b = _drawn(3, 4), _drawn(5, 4), _drawn(5)
    model = check(jax.vmap(lambda row: w @ row + b), x, shapes=["b, 4"], atol=1e-6)
    assert operations(model) == ["MatMul", "Add"]
    exported = export.export(jax.jit(lambda w, x: jax.vmap(lambda row: w @ row)(x)))(w, x)
    assert operations(bridge.to_onnx(exported, params=w)) == ["MatMul"]


def test_an_algorithm_that_rounds_is_refused():
    def product(a):
        return lax.dot(a, a, precision=lax.DotAlgorithmPreset.TF32_TF32_F32)

    exported = export.export(jax.jit(product), platforms=["cuda"])(np.ones((2, 2), np.float32))
    with pytest.raises(InteropError, match="rounds operands of float32 to tf32"):
        lower_call(from_exported(exported))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_sums_of_as_many_products_as_a_run_knows(size):
    """Of a vector of no elements ONNX Runtime's product may leave the memory as it was."""
    x = np.arange(3 * size, dtype=np.float32).reshape(3, size)
    model = check(lambda x: x[:, 0] + x[:, 1:] @ x[0, 1:], x, shapes=["3, n"])
    inferred = onnx.shape_inference.infer_shapes(model).graph.value_info
    (product,) = [node for node in model.graph.node if node.op_type == "MatMul"]
    (column,) = [value for value in inferred if value.name == product.input[1]]
    assert len(column.type.tensor_type.shape.dim) == 2


def test_several_symbolic_sizes():
    q = _drawn(2, 3, 4, 5)
    product = lambda q, k: jnp.einsum("bthd,bshd->bhts", q, k)  # noqa: E731
    check(product, q, q[:, ::-1], shapes=["b, t, 4, 5"] * 2, atol=1e-5)
