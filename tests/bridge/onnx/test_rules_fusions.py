"""Functions that are one operation of ONNX, and functions that only look like one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import bridge
from tests.bridge import networks
from tests.bridge.onnx.checking import check, operations

X = np.random.default_rng(0).standard_normal((4, 6), np.float32) * 3
EDGES = np.float32([-np.inf, -20, -5, -1, -0.0, 0, 0.3, 1, 5, 20, np.inf, np.nan])
ROOT = np.float32(np.sqrt(0.5))


def _converted(model):
    scope = export.SymbolicScope()
    specs = [
        jax.ShapeDtypeStruct(export.symbolic_shape(text, scope=scope), array.dtype)
        for text, array in zip(model.shapes, model.inputs(1), strict=True)
    ]
    exported = export.export(jax.jit(model.function))(model.params, *specs)
    return bridge.to_onnx(exported, params=model.params)


def test_a_transformer_block_is_what_is_in_its_figure():
    params = networks.block_params(networks.Draw(), 16)
    model = networks.Model(
        lambda params, x: networks.transformer_block(params, x, heads=4, causal=False),
        params,
        networks.draws(6, 16),
        ("batch, 6, 16",),
    )
    assert operations(_converted(model)) == [
        "LayerNormalization", "MatMul", "Add", "Split", *["Reshape"] * 3,
        "Transpose", "Transpose", "MatMul", "Div", "Softmax",
        "Transpose", "MatMul", "Transpose", "Reshape", "MatMul", "Add", "Add",
        "LayerNormalization", "MatMul", "Add", "Gelu", "MatMul", "Add", "Add",
    ]  # fmt: skip


def test_a_residual_block_turns_images_once():
    proto = _converted(networks.resnet((1,), width=4, size=16))
    found = operations(proto)
    assert [found.count(name) for name in ("Conv", "BatchNormalization", "Relu")] == [5, 5, 4]
    assert found.count("Transpose") <= 3
    assert not {"Expand", "Sub", "Mul", "Sqrt", "Reciprocal"} & set(found)
    weights = {tensor.name: list(tensor.dims) for tensor in proto.graph.initializer}
    assert weights["blocks/0/c2"] == [4, 4, 3, 3]


def test_a_bias_is_in_its_convolution():
    proto = _converted(networks.mobilenet())
    convolutions = [node for node in proto.graph.node if node.op_type == "Conv"]
    assert [len(node.input) for node in convolutions] == [3, 3, 2, 3, 3]
    assert "stem/b" in convolutions[0].input


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    ("function", "operation"),
    [(jax.nn.softmax, "Softmax"), (jax.nn.log_softmax, "LogSoftmax"), (jnp.mean, "ReduceMean")],
)
def test_along_a_dimension(function, operation, axis):
    model = check(lambda x: function(x, axis=axis), X, shapes=["b, 6"] if axis else None, rtol=2e-5)
    assert operations(model) == [operation]
    cube = np.stack([X, -X])
    model = check(lambda x: [function(x, axis=a) for a in (0, 1, 2)], cube, rtol=2e-5, atol=1e-6)
    assert operations(model) == [operation] * 3


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@pytest.mark.parametrize("function", [jax.nn.softmax, jax.nn.log_softmax, jax.nn.gelu])
def test_steps_of_16_bits_stay_steps(function, name):
    model = bridge.to_onnx(export.export(jax.jit(function))(X.astype(name)))
    assert not {"Softmax", "LogSoftmax", "Gelu"} & set(operations(model))


def test_means():
    model = check(lambda x: x - x.mean(1, keepdims=True), X, atol=1e-6)
    assert operations(model) == ["ReduceMean", "Sub"]


def _no_softmax(x):
    power = jnp.exp(x - x.max(1, keepdims=True))
    other = jnp.exp(x - x.max(0, keepdims=True))
    square = jnp.exp(x[:4, :4] - x[:4, :4].max(1)[:, None])
    return [
        power / power.sum(0, keepdims=True),
        other / other.sum(1, keepdims=True),
        power / (power * power).sum(1, keepdims=True),
        power / power.sum(1, keepdims=True).T.sum(),
        jnp.exp(x) / jnp.exp(x).sum(1, keepdims=True),
        square / square.sum(1),
        square / square.sum(0)[:, None],
        x.sum(0) / 5,
    ]


def _no_gelu(x):
    inner = jnp.sqrt(2 / np.pi).astype(np.float32) * (x + np.float32(0.044715) * x**3)
    return [
        x * (0.5 * (2 + jnp.tanh(inner))),
        x * (0.5 * (1 + jnp.tanh(inner * 2))),
        x * (0.5 * (1 + jnp.tanh(x + np.float32(0.044715) * x * x))),
        x * jax.lax.erfc(x),
        0.5 * x * jax.lax.erfc(-x * 0.7),
        0.5 * x[::-1] * jax.lax.erfc(-x * ROOT),
    ]


@pytest.mark.parametrize(
    ("function", "others"),
    [(_no_softmax, {"Softmax", "ReduceMean"}), (_no_gelu, {"Gelu"})],
)
def test_what_only_looks_like_one(function, others):
    assert not others & set(operations(check(function, X, rtol=1e-4, atol=1e-6)))


@pytest.mark.parametrize("approximate", [True, False])
@pytest.mark.parametrize("opset", [18, 21])
def test_gelu(approximate, opset):
    model = check(
        lambda x: jax.nn.gelu(x, approximate=approximate), EDGES, opset=opset, rtol=1e-6, atol=1e-6
    )
    assert (operations(model) == ["Gelu"]) == (opset == 21)


def test_gelu_of_the_error_function():
    x = np.linspace(-6, 6, 31, dtype=np.float32)
    model = check(lambda x: x * 0.5 * (1 + jax.scipy.special.erf(x * ROOT)), x, atol=1e-6)
    assert operations(model) == ["Gelu"]


@pytest.mark.parametrize("mean", [50.0, 1e4])
def test_a_batch_norm_subtracts_the_mean_first(mean):
    def norm(x, center, variance, scale, shift):
        return (x - center) * (scale * jax.lax.rsqrt(variance + 1e-5)) + shift

    def function(x, kernel, *rows):
        # What is between keeps the runtime from one convolution.
        return norm(abs(networks.convolve(kernel, x)), *rows)

    x = np.float32(mean) + np.resize(X, (2, 5, 5, 6))
    kernel = np.eye(6, dtype=np.float32).reshape(1, 1, 6, 6)
    rows = [np.full(6, number, np.float32) for number in (mean, 0.01, 3, 1)]
    model = check(function, x, kernel, *rows, atol=1e-4)
    assert operations(model).count("BatchNormalization") == 1


def _normalized(x, epsilon=1e-5, axis=-1):
    variance = jnp.var(x, axis, keepdims=True)
    return (x - jnp.mean(x, axis, keepdims=True)) * jax.lax.rsqrt(variance + epsilon)


@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_layer_normalization(offset):
    x = networks.Draw().numbers(3, 5, 32) + np.float32(offset)
    scale, shift = networks.Draw().numbers(2, 32)
    model = check(
        lambda x, scale, shift: _normalized(x) * scale + shift, x, scale, shift, atol=1e-4
    )
    assert operations(model) == ["LayerNormalization"]


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (lambda x: _normalized(x, axis=1), 0),
        (lambda x: (x - jnp.mean(x, -1, keepdims=True)) * jax.lax.rsqrt(x[..., :1] ** 2 + 1), 0),
        (lambda x: (x - x[..., :1]) * jax.lax.rsqrt(jnp.var(x, -1, keepdims=True) + 1e-5), 0),
        (lambda x: _normalized(x) * x[0, :, :1], 1),
    ],
)
def test_what_is_like_a_layer_normalization(function, count):
    model = check(function, networks.Draw().numbers(3, 5, 8), atol=1e-5)
    assert operations(model).count("LayerNormalization") == count
