"""Graphs are what somebody would draw: few nodes, and those that the runtimes know best."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import bridge
from tests.bridge.onnx import models
from tests.bridge.onnx.checking import check, operations


def _converted(model):
    scope = export.SymbolicScope()
    specs = [
        jax.ShapeDtypeStruct(export.symbolic_shape(text, scope=scope), array.dtype)
        for text, array in zip(model.shapes, model.inputs(1), strict=True)
    ]
    exported = export.export(jax.jit(model.function))(model.params, *specs)
    return bridge.to_onnx(exported, params=model.params)


def test_a_transformer_block_is_what_is_in_its_figure():
    draw = models.Draw()
    params = models.block_params(draw, 16)
    model = models.Model(
        lambda params, x: models.transformer_block(params, x, heads=4, causal=False),
        params,
        models.draws(6, 16),
        ("batch, 6, 16",),
    )
    assert operations(_converted(model)) == [
        "LayerNormalization", "MatMul", "Add", "Split", *["Reshape"] * 3,
        "Transpose", "Transpose", "MatMul", "Div", "Softmax",
        "Transpose", "MatMul", "Transpose", "Reshape", "MatMul", "Add", "Add",
        "LayerNormalization", "MatMul", "Add", "Gelu", "MatMul", "Add", "Add",
    ]  # fmt: skip


def test_a_residual_block_turns_images_once():
    proto = _converted(models.resnet((1,), width=4, size=16))
    found = operations(proto)
    assert [found.count(name) for name in ("Conv", "BatchNormalization", "Relu")] == [5, 5, 4]
    assert found.count("Transpose") <= 3
    assert not {"Expand", "Sub", "Mul", "Sqrt", "Reciprocal"} & set(found)
    weights = {tensor.name: list(tensor.dims) for tensor in proto.graph.initializer}
    assert weights["blocks/0/c2"] == [4, 4, 3, 3]


def test_a_bias_is_in_its_convolution():
    proto = _converted(models.mobilenet())
    convolutions = [node for node in proto.graph.node if node.op_type == "Conv"]
    assert [len(node.input) for node in convolutions] == [3, 3, 2, 3, 3]
    assert "stem/b" in convolutions[0].input


@pytest.mark.parametrize("approximate", [True, False])
@pytest.mark.parametrize("opset", [18, 21])
def test_gelu(approximate, opset):
    x = np.float32([-np.inf, -20, -5, -1, -0.0, 0, 0.3, 1, 5, 20, np.inf, np.nan])
    model = check(
        lambda x: jax.nn.gelu(x, approximate=approximate), x, opset=opset, rtol=1e-6, atol=1e-6
    )
    assert (operations(model) == ["Gelu"]) == (opset == 21)


def test_gelu_of_the_error_function():
    root = np.float32(np.sqrt(2))
    x = np.linspace(-6, 6, 31, dtype=np.float32)
    model = check(lambda x: x * 0.5 * (1 + jax.scipy.special.erf(x / root)), x, atol=1e-6)
    assert operations(model) == ["Gelu"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * jax.lax.erfc(x),
        lambda x: 0.5 * x * jax.lax.erfc(-x * 0.7),
        lambda x: 0.5 * x[::-1] * jax.lax.erfc(-x * np.float32(np.sqrt(0.5))),
    ],
)
def test_what_is_like_gelu_but_is_not(function):
    x = np.linspace(-4, 4, 21, dtype=np.float32)
    assert "Gelu" not in operations(check(function, x, rtol=1e-4, atol=1e-6))


def _normalized(x, epsilon=1e-5, axis=-1):
    variance = jnp.var(x, axis, keepdims=True)
    return (x - jnp.mean(x, axis, keepdims=True)) * jax.lax.rsqrt(variance + epsilon)


@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_layer_normalization(offset):
    x = models.Draw().numbers(3, 5, 32) + np.float32(offset)
    scale, shift = models.Draw().numbers(2, 32)
    model = check(
        lambda x, scale, shift: _normalized(x) * scale + shift, x, scale, shift, atol=1e-4
    )
    assert operations(model) == ["LayerNormalization"]


def test_what_is_like_a_layer_normalization_but_is_not():
    x = models.Draw().numbers(3, 5, 8)
    others = [
        lambda x: _normalized(x, axis=1),
        lambda x: _normalized(x) * x[0, :, :1],
        lambda x: (x - jnp.mean(x, -1, keepdims=True)) * jax.lax.rsqrt(x[..., :1] ** 2 + 1),
        lambda x: (x - x[..., :1]) * jax.lax.rsqrt(jnp.var(x, -1, keepdims=True) + 1e-5),
    ]
    for function in others[:1] + others[2:]:
        assert "LayerNormalization" not in operations(check(function, x, atol=1e-5))
    assert operations(check(others[1], x, atol=1e-5)).count("LayerNormalization") == 1


def _root(x):
    return jnp.sqrt(x + 1e-3)


def _square(x):
    return jax.lax.pow(x, jnp.full_like(x, 2))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, scale, shift: _normalized(x, 1e-3) * scale + shift,
        lambda x, scale, _: x / _root(jnp.mean(_square(x), -1, keepdims=True)) * scale,
        lambda x, scale, shift: (
            (x - jnp.mean(x, -1, keepdims=True))
            / _root(jnp.mean(_square(x - jnp.mean(x, -1, keepdims=True)), -1, keepdims=True))
            * scale
            + shift
        ),
        lambda x, scale, shift: jnp.moveaxis(
            (jnp.moveaxis(x, 1, 2) - shift) * (scale * jax.lax.rsqrt(scale + 1e-3)) + shift, 2, 1
        ),
    ],
)
def test_normalizations_of_float64(function):
    """Their small number has that precision, whatever ONNX Runtime finds in the graph."""
    random = np.random.default_rng(0)
    scale, shift = np.linspace(1, 2, 8), random.standard_normal(8)
    x = random.standard_normal((3, 8, 8))

    def constants(x):
        return function(x, scale, shift)

    assert "Normalization" not in " ".join(operations(check(constants, x, rtol=0, atol=1e-13)))
    check(constants, x, shapes=["b, 8, 8"], rtol=0, atol=1e-13)


def _centred(x):
    return x - jnp.mean(x, -1, keepdims=True)


def _mean_power(x, exponent):
    return jnp.mean(jax.lax.pow(x, jnp.full_like(x, exponent)), -1, keepdims=True)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, e: _centred(x) / jnp.sqrt(0.1 + _mean_power(_centred(x), 2)),
        lambda x, e: _centred(x) / jnp.sqrt(_mean_power(_centred(x), 2) + e[0]),
        lambda x, e: _centred(x) / jnp.sqrt(_mean_power(_centred(x), 2) + e),
        lambda x, e: _centred(x) / jnp.sqrt(_mean_power(_centred(x), 4) + 0.1),
        lambda x, e: x / jnp.sqrt(_mean_power(x, 2) + e[0]),
        lambda x, e: x / jnp.sqrt(_mean_power(x, 2) + e),
    ],
)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_what_is_like_a_normalization_of_another_epsilon(function, dtype):
    """To ONNX Runtime, around a power."""
    scale, shift = (np.linspace(*ends, 8).astype(dtype) for ends in ((1, 2), (-1, 1)))
    x, e = models.Draw().numbers(3, 8).astype(dtype), np.linspace(0.1, 0.9, 8).astype(dtype)
    atol = {"float16": 2e-2, "float32": 1e-5, "float64": 1e-13}[dtype]
    check(lambda x, e: function(x, e) * scale + shift, x, e, rtol=0, atol=atol)


def test_images_are_turned_where_it_matters():
    kernel = models.Draw().weight(3, 3, 2, 4)
    image = models.Draw().numbers(2, 6, 6, 2)

    def function(x):
        y = models.convolve(kernel, x)
        rows = y * jnp.arange(6, dtype=y.dtype)[:, None]  # along another dimension than features
        return y.sum((1, 2)), y.max((0, 2)), rows + y, jnp.concatenate([y, y], 2), y[0]

    check(function, image, atol=1e-5)
    check(lambda x: models.convolve(kernel, x).transpose(1, 3, 0, 2), image, atol=1e-5)
    check(lambda x: jnp.where(models.convolve(kernel, x) > 0, 1.0, 2.0), image, atol=1e-5)


def test_slices_that_are_not_all_of_a_value_stay():
    x = models.Draw().numbers(2, 9)
    whole = check(lambda x: jnp.split(x, 3, axis=1), x)
    assert operations(whole) == ["Split"]
    uneven = check(lambda x: (x[:, 4:], x[:, :4]), x)
    assert operations(uneven) == ["Split"]
    for function in (
        lambda x: (x[:, :3], x[:, 4:]),
        lambda x: (x[:, :5], x[:, 4:]),
        lambda x: (x[:, :4], jax.lax.slice(x, (0, 4), (2, 9), (1, 2))),
    ):
        assert operations(check(function, x)) == ["Slice", "Slice"]
