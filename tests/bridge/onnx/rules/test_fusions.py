"""Functions that are one operation of ONNX, and functions that only look like one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bridge
from tests.bridge.onnx.checking import check, evaluate, operations, run

X = np.random.default_rng(0).standard_normal((4, 6), np.float32) * 3


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    ("function", "operation"),
    [(jax.nn.softmax, "Softmax"), (jax.nn.log_softmax, "LogSoftmax"), (jnp.mean, "ReduceMean")],
)
def test_along_a_dimension(function, operation, axis):
    model = check(lambda x: function(x, axis=axis), X, shapes=["b, 6"] if axis else None, rtol=2e-5)
    assert operations(model) == [operation]


def test_softmax_of_more_dimensions():
    cube = np.stack([X, -X])
    model = check(lambda x: [jax.nn.softmax(x, axis=a) for a in (0, 1, 2)], cube, rtol=2e-5)
    assert operations(model) == ["Softmax"] * 3


def test_gelu():
    assert operations(check(jax.nn.gelu, X, atol=1e-6)) == ["Gelu"]
    assert "Gelu" not in operations(check(jax.nn.gelu, X, atol=1e-6, opset=19))


def test_mean_with_its_dimension():
    model = check(lambda x: x - x.mean(1, keepdims=True), X, atol=1e-6)
    assert operations(model) == ["ReduceMean", "Sub"]


def test_mean_of_a_constant():
    check(lambda x: x + jnp.mean(jnp.full((2, 1), -3, x.dtype)), X)
    check(lambda x: x + jnp.mean(jnp.full((2, 3), 2, x.dtype), axis=0).sum(), X)


def test_what_is_not_softmax():
    def function(x):
        power = jnp.exp(x - x.max(1, keepdims=True))
        other = jnp.exp(x - x.max(0, keepdims=True))
        return [
            power / power.sum(0, keepdims=True),
            other / other.sum(1, keepdims=True),
            power / (power * power).sum(1, keepdims=True),
            power / power.sum(1, keepdims=True).T.sum(),
            jnp.exp(x) / jnp.exp(x).sum(1, keepdims=True),
        ]

    assert "Softmax" not in operations(check(function, X, rtol=2e-5))


def test_a_square_is_not_mixed_up():
    square = X[:4, :4]

    def function(x):
        power = jnp.exp(x - x.max(1)[:, None])
        return power / power.sum(1), power / power.sum(0)[:, None], x.sum(0) / 4, x.sum(0) / 5

    assert "Softmax" not in operations(check(function, square, rtol=2e-5))


def test_what_is_not_gelu():
    def function(x):
        inner = jnp.sqrt(2 / np.pi).astype(np.float32) * (x + np.float32(0.044715) * x**3)
        return [
            x * (0.5 * (2 + jnp.tanh(inner))),
            x * (0.5 * (1 + jnp.tanh(inner * 2))),
            x * (0.5 * (1 + jnp.tanh(x + np.float32(0.044715) * x * x))),
        ]

    assert "Gelu" not in operations(check(function, X, rtol=2e-5, atol=1e-6))


@pytest.mark.parametrize("function", [jax.nn.softmax, jax.nn.log_softmax, jax.nn.gelu])
def test_gradients(function):
    check(jax.grad(lambda x: (function(x) ** 2).sum()), X, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mean", [50.0, 1e4])
def test_a_batch_norm_subtracts_the_mean_first(mean):
    def norm(x, center, variance, scale, shift):
        return (x - center) * (scale * jax.lax.rsqrt(variance + 1e-5)) + shift

    def function(x, kernel, *rows):
        image = jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return norm(abs(image), *rows)  # what is between keeps the runtime from one convolution

    x = np.float32(mean) + np.resize(X, (2, 5, 5, 6))
    kernel = np.eye(6, dtype=np.float32).reshape(1, 1, 6, 6)
    rows = [np.full(6, number, np.float32) for number in (mean, 0.01, 3, 1)]
    model = check(function, x, kernel, *rows, atol=1e-4)
    assert operations(model).count("BatchNormalization") == 1


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@pytest.mark.parametrize("function", [jax.nn.softmax, jax.nn.log_softmax, jax.nn.gelu])
def test_steps_of_16_bits_stay_steps(function, name):
    model = bridge.to_onnx(jax.export.export(jax.jit(function))(X.astype(name)))
    assert not {"Softmax", "LogSoftmax", "Gelu"} & set(operations(model))


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_sums_of_16_bits_are_added_in_float32(name):
    """Of 5,000 numbers near 1 a sum of 16 bits stays at 256 or 2,048, which the next leave."""
    x = np.full(5000, 1.01).astype(name)
    zero, one = np.zeros((), x.dtype), np.ones((), x.dtype)

    def sums(x):
        total = jax.lax.reduce(x, zero, jax.lax.add, (0,))
        windows = jax.lax.reduce_window(x, zero, jax.lax.add, (4900,), (1,), "VALID")
        product = jax.lax.reduce(x[:400], one, jax.lax.mul, (0,))
        results = [
            total,
            total / jnp.asarray(4096, x.dtype),
            jnp.cumsum(x)[-1],
            windows[0],
            product,
        ]
        return [result.astype("float32") for result in results]

    model = bridge.to_onnx(
        jax.export.export(jax.jit(lambda x: sums(x.astype(name))))(x.astype("float32"))
    )
    number = float(x[0])
    exact = [5000 * number, 5000 * number / 4096, 5000 * number, 4900 * number, number**400]
    for results in (run(model, [x.astype("float32")]), evaluate(model, [x.astype("float32")])):
        np.testing.assert_allclose(results, exact, rtol=1e-2)
