"""Products of matrices, vectors and batches, over dtypes."""

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
from tests.bridge.onnx.edges import INTEGERS
from tests.bridge.tf_operations.checking import check as check_in_tensorflow
from xla_call_module.exported import from_exported

DIMENSIONS = {
    "vectors": ((5,), (5,), (((0,), (0,)), ((), ()))),
    "matrix_by_vector": ((3, 5), (5,), (((1,), (0,)), ((), ()))),
    "vector_by_matrix": ((5,), (5, 4), (((0,), (0,)), ((), ()))),
    "transposed": ((5, 3), (4, 5), (((0,), (1,)), ((), ()))),
    "several_rows": ((2, 3, 5), (5, 4), (((2,), (0,)), ((), ()))),
    "several_columns": ((3, 5), (5, 2, 4), (((1,), (0,)), ((), ()))),
    "several_inner": ((3, 5, 2), (2, 5, 4), (((1, 2), (1, 0)), ((), ()))),
    "batch": ((2, 3, 5), (2, 5, 4), (((2,), (1,)), ((0,), (0,)))),
    "batches_elsewhere": ((3, 2, 5, 6), (6, 5, 4, 2), (((2,), (1,)), ((1, 3), (3, 0)))),
    "batch_of_vectors": ((2, 5), (2, 5), (((1,), (1,)), ((0,), (0,)))),
    "batch_and_inner": ((7, 2, 3), (7, 3, 2, 4), (((1,), (2,)), ((0, 2), (0, 1)))),
    "outer": ((3,), (4, 2), (((), ()), ((), ()))),
    "outer_in_a_batch": ((3, 2), (2, 4), (((), ()), ((1,), (0,)))),
    "scalars": ((), (), (((), ()), ((), ()))),
    "nothing_inside": ((3, 0), (0, 4), (((1,), (0,)), ((), ()))),
}


def _all(*arrays):
    pairs = zip(arrays[::2], arrays[1::2], DIMENSIONS.values(), strict=True)
    return [lax.dot_general(a, b, numbers) for a, b, (_, _, numbers) in pairs]


def _operands(dtype):
    random = np.random.default_rng(0)
    shapes = [shape for left, right, _ in DIMENSIONS.values() for shape in (left, right)]
    if "float" in dtype:
        return [random.standard_normal(shape).astype(dtype) for shape in shapes]
    return [random.integers(0, 100, shape).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", *INTEGERS])
def test_dimensions(dtype):
    atol = {"float16": 2e-2, "float32": 1e-5, "float64": 1e-12}.get(dtype, 0)
    check(_all, *_operands(dtype), rtol=1e-5 if dtype != "float16" else 1e-2, atol=atol)


@pytest.mark.parametrize("name", ["outer", "outer_in_a_batch", "vectors", "batch"])
def test_products_of_booleans(name):
    left, right, numbers = DIMENSIONS[name]
    random = np.random.default_rng(0)
    a, b = (random.integers(0, 2, shape).astype(bool) for shape in (left, right))
    check(lambda a, b: lax.dot_general(a, b, numbers), a, b)


def test_wider_results():
    a, b = _operands("int8")[2:4]
    check(lambda a, b: lax.dot(a, b, preferred_element_type=jnp.int32), a, b)
    a, b = (x.astype(jnp.bfloat16) for x in _operands("float32")[2:4])
    check(lambda a, b: lax.dot(a, b, preferred_element_type=jnp.float32), a, b, rtol=1e-5)


def test_a_layer_is_one_node():
    x, w = np.ones((2, 3, 4), np.float32), np.ones((4, 5), np.float32)
    assert operations(check(lambda x, w: x @ w, x, w)) == ["MatMul"]
    assert operations(check(lambda x, w: x @ w, x, w, shapes=["b, t, 4", None])) == ["MatMul"]


def test_a_layer_of_single_rows_is_one_node():
    random = np.random.default_rng(0)
    x, w, b = (random.standard_normal(s, np.float32) for s in ((3, 4), (5, 4), (5,)))
    model = check(jax.vmap(lambda row: w @ row + b), x, shapes=["b, 4"])
    assert operations(model) == ["MatMul", "Add"]
    exported = export.export(jax.jit(lambda w, x: jax.vmap(lambda row: w @ row)(x)))(w, x)
    assert operations(bridge.to_onnx(exported, params=w)) == ["MatMul"]


def test_several_symbolic_sizes():
    q, k = np.ones((2, 3, 4, 5), np.float32), np.ones((2, 3, 4, 5), np.float32)
    check(lambda q, k: jnp.einsum("bthd,bshd->bhts", q, k), q, k, shapes=["b, t, 4, 5"] * 2)


@pytest.mark.parametrize("name", ["BF16_BF16_F32", "BF16_BF16_F32_X3", "BF16_BF16_F32_X6"])
def test_an_algorithm_that_no_cpu_rounds_for(name):
    a = np.random.default_rng(0).normal(size=(5, 5)).astype(np.float32)
    algorithm = lax.DotAlgorithmPreset[name]
    check(lambda a: lax.dot(a, a, precision=algorithm), a, atol=1e-5)
    check_in_tensorflow(lambda a: lax.dot(a, a, precision=algorithm), a, of_largest=True)


def test_an_algorithm_that_rounds_is_refused():
    def product(a):
        return lax.dot(a, a, precision=lax.DotAlgorithmPreset.TF32_TF32_F32)

    exported = export.export(jax.jit(product), platforms=["cuda"])(np.ones((2, 2), np.float32))
    with pytest.raises(InteropError, match="rounds operands of float32 to tf32"):
        lower_call(from_exported(exported))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32"])
def test_sums_of_no_products(dtype):
    """They are 0, which ONNX Runtime's product by a vector of no elements does not write."""
    y = np.full(3, 7).astype(jnp.dtype(dtype))
    check(lambda y, u: y + jnp.zeros((3, 0), y.dtype) @ u, y, y[:0])
    check(lambda y, u: y + jnp.zeros((2, 3, 0), y.dtype) @ u, y, y[:0])


@pytest.mark.parametrize("size", [1, 2, 3])
def test_sums_of_as_many_products_as_a_run_knows(size):
    x = np.arange(3 * size, dtype=np.float32).reshape(3, size)
    model = check(lambda x: x[:, 0] + x[:, 1:] @ x[0, 1:], x, shapes=["3, n"])
    inferred = onnx.shape_inference.infer_shapes(model).graph.value_info
    (product,) = [node for node in model.graph.node if node.op_type == "MatMul"]
    (column,) = [value for value in inferred if value.name == product.input[1]]
    assert len(column.type.tensor_type.shape.dim) == 2  # of a vector it may be as memory was


def test_products_with_numbers_that_no_float32_is():
    """ONNX Runtime has what is around a MatMul as a float32, in its extended optimizations."""
    x = np.random.default_rng(0).standard_normal((3, 3))
    check(lambda x: (x @ x) / 50, x, rtol=1e-14, atol=1e-14)
    check(lambda x: x @ (0.1 * x), x, rtol=1e-14, atol=1e-14)
    check(lambda x: (x / 7) @ x[0] / 3, x, rtol=1e-14, atol=1e-14)
    check(lambda x: (x / 50) @ (x * 0.3).T, x, shapes=["b, 3"], rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: 0.3 * (x @ x.T) / 7,
        lambda x: (x @ x[0]) * 0.3,
        lambda x: (x[0] @ x[1]) * 0.3,
        lambda x: 0.3 * x[:, 0] @ x,
        lambda x: (x @ x.T / 50).T * 1.1,
        lambda x: (x[:1, :1] * 0.3) @ x[:1, :1].T / 7,
    ],
)
@pytest.mark.parametrize("shape", ["b, 3", None])
def test_scaled_products_without_a_known_size(function, shape):
    """There is no dimension to repeat the number along."""
    x = np.random.default_rng(0).standard_normal((3, 3))
    check(function, x, shapes=[shape], rtol=1e-14, atol=1e-14)


def test_a_vector_behind_what_is_turned():
    """Of which ONNX Runtime makes one node that forgets the turn."""
    random = np.random.default_rng(0)
    matrix, cube, vector = (random.random(s, np.float32) for s in ((3, 3), (2, 3, 3), (3,)))
    check(lambda a, b, x: [a.T @ x, b.mT @ x, jnp.einsum("ij,i->j", a, x)], matrix, cube, vector)


_PREFERRED = [
    ("float32", "float32", "int32"), ("float32", "float32", "bfloat16"),
    ("float32", "float32", "bool"), ("float16", "bfloat16", "float16"),
    ("float16", "float16", "int8"), ("int16", "int16", "float16"), ("int32", "float16", "float16"),
    ("int32", "float32", "int32"), ("float8_e4m3fn", "bfloat16", "bfloat16"),
    ("int8", "int8", "float32"), ("bool", "bool", "int32"), ("bool", "bool", "float32"),
]  # fmt: skip


@pytest.mark.parametrize("target", ["onnx", "tensorflow"])
@pytest.mark.parametrize(("left", "right", "preferred"), _PREFERRED)
def test_only_what_has_been_added_is_rounded(left, right, preferred, target):
    random = np.random.default_rng(0)
    numbers = (
        20 * random.normal(size=(4, 3, 5)) if left != "bool" else random.random((4, 3, 5)) > 1 / 3
    )

    def product(a, b):
        return [
            lax.dot_general(a, b, axes, preferred_element_type=jnp.dtype(preferred))
            for axes in ((((1,), (1,)), ((0,), (0,))), (((), ()), ((0, 1, 2), (0, 1, 2))))
        ]

    arrays = [numbers.astype(left), numbers[::-1].astype(right)]
    if target == "onnx":
        check(product, *arrays, rtol=8e-3, atol=1e-3, reference=False)
    else:
        check_in_tensorflow(product, *arrays, rtol=8e-3, of_largest=True)
