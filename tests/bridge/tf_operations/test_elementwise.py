"""Operations of one element at a time, on edge values of every dtype."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import enable_x64, lax

from tests.bridge.onnx.edges import FLOATS, INTEGERS, SIGNED, edges, pairs
from tests.bridge.tf_operations.checking import check, operations

_TO_EVEN = lax.RoundingMethod.TO_NEAREST_EVEN


@pytest.fixture(autouse=True)
def _wide():
    with enable_x64(True):
        yield


@pytest.mark.parametrize("name", FLOATS)
def test_functions_of_floats(name):
    check(
        lambda x: [
            lax.abs(x), lax.neg(x), lax.sign(x), lax.ceil(x), lax.floor(x), lax.round(x),
            lax.round(x, _TO_EVEN), lax.is_finite(x), lax.sqrt(x), lax.rsqrt(x), lax.square(x),
            ~(x < 1), ~(x >= 1), 0 - x,
        ],
        edges(name),
    )  # fmt: skip


@pytest.mark.parametrize("name", FLOATS)
def test_elementary_functions_of_floats(name):
    check(
        lambda x: [
            lax.exp(x), lax.expm1(x), lax.log(x), lax.log1p(x), lax.cbrt(x), lax.logistic(x),
            lax.tanh(x), lax.sin(x), lax.cos(x), lax.tan(x), lax.erf(x), lax.erfc(x), lax.asin(x),
            lax.acos(x), lax.atan(x), lax.sinh(x), lax.cosh(x), lax.asinh(x), lax.acosh(x),
            lax.atanh(x),
        ],
        edges(name),
    )  # fmt: skip


@pytest.mark.parametrize("name", FLOATS)
def test_arithmetic_of_floats(name):
    check(
        lambda x, y: [
            lax.add(x, y), lax.sub(x, y), lax.mul(x, y), lax.div(x, y), lax.rem(x, y),
            lax.pow(x, y), lax.atan2(x, y), lax.lt(x, y), lax.le(x, y), lax.gt(x, y), lax.ge(x, y),
            lax.eq(x, y), lax.ne(x, y), jnp.floor_divide(x, y),
        ],
        *pairs(name),
    )  # fmt: skip


@pytest.mark.parametrize("name", FLOATS)
def test_extremes_of_floats(name):
    def extremes(x, y):
        bounds = (jnp.asarray(-1, x.dtype), jnp.asarray(2, x.dtype))
        return [lax.max(x, y), lax.min(x, y), lax.clamp(bounds[0], x, bounds[1]), jax.nn.relu(x)]

    check(extremes, *pairs(name), zeros=False)


@pytest.mark.parametrize("name", INTEGERS)
def test_arithmetic_of_integers(name):
    def arithmetic(x, y):
        results = [
            lax.add(x, y), lax.sub(x, y), lax.mul(x, y), lax.div(x, y), lax.rem(x, y),
            lax.max(x, y), lax.min(x, y), lax.lt(x, y), lax.ge(x, y), lax.eq(x, y), lax.ne(x, y),
            lax.neg(x), lax.sign(x), lax.square(x), jnp.power(x, abs(y) % 5),
        ]  # fmt: skip
        return [*results, lax.abs(x)] if x.dtype.kind == "i" else results

    check(arithmetic, *pairs(name))


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("number", [0, 1, 3, -1])
def test_integers_are_divided_by_a_constant(name, number):
    if number < 0 and name not in SIGNED:
        return

    def divide(x):
        divisor = jnp.asarray(number, x.dtype)
        return [lax.div(x, divisor), lax.rem(x, divisor)]

    check(divide, edges(name))


@pytest.mark.parametrize("name", FLOATS)
def test_constants_stay_what_they_are(name):
    check(lambda x: [x / 3, x * 0, x * -1, x**0.5, x**-0.5, x**3, x**-1, x**0], edges(name))


@pytest.mark.parametrize("name", FLOATS)
def test_quotients_by_a_constant_have_the_same_bits(name):
    """XLA multiplies by the reciprocal."""
    x = np.random.default_rng(0).normal(size=4000).astype(name)
    check(lambda x: [x / 3, x / 7, x / 0.1, x / 4, x / 2048], x, rtol=0.0)


@pytest.mark.parametrize("number", [3e38, -3e38, 1e-38, 2e-39, np.inf, 0.0, -0.0, np.nan])
@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_reciprocals_that_are_no_normal_numbers(number, name):
    x = np.float32([3e38, -3e38, 0, -0.0, np.inf, -np.inf, np.nan, 1e-38, 1e10, 5]).astype(name)
    check(lambda x: x / np.asarray(number, name), x)


@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS, "bool"])
def test_conversions(name):
    targets = [*FLOATS, *INTEGERS, "bool", "float8_e4m3fn", "float8_e5m2", "complex64"]
    check(lambda x: [x.astype(target) for target in targets], edges(name))


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_conversions_of_all_bytes(name):
    numbers = np.arange(256).astype(np.uint8).view(jnp.dtype(name))
    targets = [*FLOATS, *INTEGERS, "bool"]
    check(lambda x: [x.astype(target) for target in targets], numbers)


def test_truth_values():
    check(
        lambda x, y: [x & y, x | y, x ^ y, ~x, lax.lt(x, y), lax.max(x, y), jnp.where(x, y, ~y)],
        *pairs("bool"),
    )


def test_softmax_and_relu_are_one_node():
    x = np.ones((2, 3), np.float32)
    assert operations(jax.nn.log_softmax, x) == ["LogSoftmax"]
    assert operations(jax.nn.relu, x) == ["Relu"]
    assert operations(jax.nn.softmax, x).count("Softmax") == 1


@pytest.mark.parametrize("name", FLOATS)
def test_softmax_of_rows_with_nan_and_infinities(name):
    rows = np.array([[1, 2, 3], [1, np.nan, 2], [1, np.inf, 2], [1, -np.inf, 2]])
    x = np.concatenate([rows, np.full((1, 3), -np.inf)]).astype(jnp.dtype(name))
    check(lambda x: [jax.nn.softmax(x), jax.nn.log_softmax(x), jax.nn.softmax(x, 0)], x)


@pytest.mark.parametrize("name", FLOATS)
def test_what_is_subtracted_is_subtracted_first(name):
    """A product with the mean would be beyond float16, and lose what is left of the difference."""

    def norm(x, mean, scale, shift):
        return (x - mean) * scale + shift

    x = (1000.5 + np.arange(16).reshape(1, 2, 2, 4)).astype(jnp.dtype(name))
    rows = [np.full(4, number).astype(x.dtype) for number in (1000, 100, 1)]
    check(norm, x, *rows)
    check(jax.grad(lambda *args: norm(*args).astype("float32").sum(), (0, 1, 2)), x, *rows)
