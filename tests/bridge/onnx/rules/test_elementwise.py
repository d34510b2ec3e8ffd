"""Elementwise operations, over their dtypes and at the numbers where they differ."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.bridge.onnx.checking import check, operations, run
from tests.bridge.onnx.edges import FLOATS, INTEGERS, NUMBERS, SIGNED, edges, pairs

TOLERANCES = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-5, "float64": 1e-12}

OF_NUMBERS = {"abs": jnp.abs, "negative": jnp.negative, "sign": jnp.sign}
OF_FLOATS = {
    "angle": jnp.angle,
    "cbrt": lax.cbrt,
    "ceil": lax.ceil,
    "cos": lax.cos,
    "exp": lax.exp,
    "expm1": lax.expm1,
    "floor": lax.floor,
    "is_finite": lax.is_finite,
    "log": lax.log,
    "log1p": lax.log1p,
    "logistic": lax.logistic,
    "round_away": lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
    "round_even": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    "rsqrt": lax.rsqrt,
    "sin": lax.sin,
    "sqrt": lax.sqrt,
    "tan": lax.tan,
    "tanh": lax.tanh,
}
OF_INTEGERS = {"clz": lax.clz, "popcnt": lax.population_count, "not": jnp.bitwise_not}
OF_PAIRS = {
    "add": lax.add,
    "div": lax.div,
    "max": lax.max,
    "min": lax.min,
    "mul": lax.mul,
    "rem": lax.rem,
    "sub": lax.sub,
}
OF_BITS = {
    "and": lax.bitwise_and,
    "or": lax.bitwise_or,
    "xor": lax.bitwise_xor,
    "left": lax.shift_left,
    "right": lax.shift_right_logical,
    "right_arithmetic": lax.shift_right_arithmetic,
}


def _together(functions):
    """One function that computes all of them, which compiles once."""
    return lambda *args: {name: function(*args) for name, function in functions.items()}


@pytest.mark.parametrize("dtype", FLOATS)
def test_of_floats(dtype):
    check(_together(OF_FLOATS | OF_NUMBERS), edges(dtype), rtol=TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_of_integers(dtype):
    check(_together(OF_INTEGERS | OF_NUMBERS), edges(dtype))


@pytest.mark.parametrize("dtype", NUMBERS)
def test_of_pairs(dtype):
    check(_together(OF_PAIRS), *pairs(dtype), rtol=TOLERANCES.get(dtype, 0))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_of_bits(dtype):
    check(_together(OF_BITS), *pairs(dtype))


def test_of_booleans():
    functions = {"and": lax.bitwise_and, "or": lax.bitwise_or, "xor": lax.bitwise_xor,
                 "max": lax.max, "min": lax.min}  # fmt: skip
    check(_together(functions | {"not": lambda x, y: jnp.logical_not(x)}), *pairs("bool"))


@pytest.mark.parametrize("dtype", FLOATS)
def test_atan2_and_power(dtype):
    check(_together({"atan2": lax.atan2, "pow": lax.pow}), *pairs(dtype), rtol=TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", SIGNED)
def test_power_of_integers(dtype):
    base, exponent = pairs(dtype)
    kept = exponent >= 0
    check(jnp.power, base[kept], exponent[kept])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_cancels_is_precise(dtype):
    small = np.concatenate([np.geomspace(1e-30, 30, 200), -np.geomspace(1e-30, 0.999, 200)])
    functions = {"expm1": lax.expm1, "log1p": lax.log1p, "logistic": lax.logistic, "cbrt": lax.cbrt}
    check(_together(functions), small.astype(dtype), rtol=2e-6 if dtype == "float32" else 1e-13)


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_sign_of_a_zero_is_kept(dtype):
    """A loop that waits for the infinity of one sign would not end with the other."""
    zeros = np.array([-0.0, 0.0], getattr(jnp, dtype))
    check(lambda x: (1 / lax.log1p(x), 1 / lax.expm1(x)), zeros)


@pytest.mark.parametrize("dtype", [*NUMBERS, "bool"])
def test_comparisons(dtype):
    functions = {"eq": lax.eq, "ne": lax.ne, "lt": lax.lt, "le": lax.le, "gt": lax.gt, "ge": lax.ge}
    check(_together(functions), *pairs(dtype))


@pytest.mark.parametrize("dtype", [*NUMBERS, "bool"])
def test_select(dtype):
    left, right = pairs(dtype)
    chosen = np.arange(left.size) % 3 == 0
    check(lambda x, y: jnp.where(chosen, x, y), left, right)


@pytest.mark.parametrize("dtype", NUMBERS)
def test_clamp(dtype):
    value, high = pairs(dtype)
    low = np.ones((), value.dtype)
    check(lambda x, y: (lax.clamp(low, x, y), lax.clamp(low, x, low + low)), value, high)


def test_a_rectifier_is_one_node():
    model = check(lambda x: jnp.maximum(x, 0), np.float32([[-1, 0, 2], [np.nan, np.inf, -np.inf]]))
    assert operations(model) == ["Relu"]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_a_quotient_of_one_that_is_multiplied(dtype):
    """ONNX Runtime would make one Div of both, of integers too."""
    numbers = np.array([1, 2, 3, 5, 100]).astype(dtype)
    one = numbers[0]
    check(lambda x, y: lax.div(one, x) * (y + 3), numbers, numbers)
    check(lambda y: lax.div(one, jnp.array(numbers)) * y, numbers)
    check(lambda x: lax.rem(one, x), numbers)


def test_a_computed_quotient_of_one_that_is_multiplied():
    check(lambda x: (x + 3) * (jnp.exp(jnp.zeros((1, 1))) / x), np.array([1.5, -2], np.float32))


def test_a_quotient_of_one_behind_what_is_left_out():
    x = edges("float32")
    check(lambda x: (jnp.sin(x) / 1.0) * (1 / jnp.sqrt(jnp.abs(x) + 1.5)), x)


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_changes_nothing_is_left_out(dtype):
    model = check(lambda x: -((1 * (x / 1) * 1 - 0.0) + -0.0), edges(dtype))
    assert set(operations(model)) <= {"Cast", "Neg"}


@pytest.mark.parametrize("dtype", INTEGERS)
def test_what_changes_no_integers_is_left_out(dtype):
    assert operations(check(lambda x: (0 + x) * 1 - 0 + 0, edges(dtype))) == ["Identity"]


def test_a_sum_with_zero_makes_zero_of_minus_zero():
    model = check(lambda x: lax.add(x, np.float32(0)), np.array([-0.0, 1], np.float32))
    assert operations(model) == ["Add"]


def test_broadcasts_stay_implicit():
    model = check(lambda x, y: x[:, None] * y + 1.0, np.float32([1, 2]), np.float32([[1, 2, 3]]))
    assert operations(model) == ["Unsqueeze", "Mul", "Add"]


def test_what_is_rounded_to_zero_keeps_its_sign():
    x = np.float32([-0.3, 0.3, -1.5])
    model = check(lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO), x)
    np.testing.assert_array_equal(np.signbit(run(model, [x])[0]), [True, False, True])


def test_extremes_of_wide_integers():
    x = np.array([[1, 2**31, -(2**40)], [2**32 - 1, -1, 2**33]])

    def function(x, low, high):
        return lax.clamp(low, x, high), jnp.maximum(x, 0), jnp.minimum(x, x[::-1]), lax.cummax(x)

    model = check(function, x, np.array(-(2**33)), np.array(2**32 + 1))
    assert not {"Max", "Min"} & set(operations(model))


def test_extremes_of_wide_integers_that_are_narrow():
    def function(x, places):
        limited = jnp.clip(places.astype(np.int64), 0, 5)
        return jnp.maximum(limited[::2], 3), x[places], jnp.maximum(x[0], 2**40)

    model = check(function, np.arange(6) << 32, np.array([4, -2, 7], np.int32))
    assert {"Max", "Min"} <= set(operations(model))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_equal_small_floats_are_equal(dtype):
    """Where one of them went through a kernel that rounds, and the other did not."""
    x = np.array([-2, -1.5, -0.5, -0.1, 0.3, 0.9, 1.3, np.nan]).astype(dtype)

    def function(x):
        y = jnp.tanh(x)
        z = jnp.clip(y, -0.75, 0.75)
        return y == z, y != z, y <= z, y > z, z == 0.75

    check(function, x)
    gradient = jax.grad(lambda x: jnp.sum(jnp.clip(jnp.tanh(x), -0.75, 0.75)))
    check(gradient, x[:-1], rtol=3e-2)
