"""Operations on each element over the values at which LiteRT's kernels or the converter err."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from bridge.litert.worker.model_execution import describe_model

FLOATS = np.array(
    [0, 1, -1, 0.5, -0.5, 1.5, -2.5, 3, -7, 1e-3, -1e-3, 1e-10, 0.9999999, 1.0000001, 20.5, -20.25,
     33.3, 88, -80, 12345.678, 1e5, -1e10, 2**23 + 1, 3e38, -3e38, np.inf, -np.inf, np.nan],
    np.float32,
)  # fmt: skip
INTEGERS = np.array(
    [0, 1, -1, 2, -3, 7, -7, 31, 32, 127, 128, -128, -129, 255, 256, -32768, 65535, 2**24 + 1,
     2**31 - 1, -(2**31), 123456789, -987654321, 46341, 2**31, 2**53 + 1, -(2**62), 2**63 - 1,
     -(2**63)],
    np.int64,
)  # fmt: skip
_COUNTS = np.array([0, 1, 5, 7, 8, 15, 16, 31, 32, 33, 63, 64, 65, 100])
_DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


def pairs(values):
    return np.repeat(values, len(values)), np.tile(values, len(values))


def assert_near(check, function, *arrays):
    """Compare each element by its own size."""
    expected = jax.tree.leaves(jax.jit(function)(*map(jnp.asarray, arrays)))
    for got, wanted in zip(check.run(function, *arrays), expected, strict=True):
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, rtol=4e-6, atol=1e-37)


@pytest.mark.parametrize(
    "name",
    ["ceil", "cos", "erf", "exp", "expm1", "floor", "is_finite", "log", "log1p", "logistic", "neg",
     "round", "rsqrt", "sign", "sin", "sqrt", "tan", "tanh", "sinh", "asinh", "atanh", "cbrt"],
)  # fmt: skip
def test_functions_of_edges(check, name):
    assert_near(check, getattr(lax, name), FLOATS)


def test_functions_of_two_floats(check):
    functions = [lax.add, lax.sub, lax.mul, lax.div, lax.rem, lax.max, lax.min, lax.pow, lax.atan2]
    functions += [lax.lt, lax.le, lax.eq, lax.ne, lax.gt, lax.ge, lax.nextafter]
    assert_near(check, lambda x, y: [function(x, y) for function in functions], *pairs(FLOATS))


@pytest.mark.parametrize("function", [jax.nn.relu, jax.nn.relu6])
def test_activations_are_one_operation(check, function):
    check(function, FLOATS)
    model = check.model(lambda x: function(x @ x), np.eye(3, dtype=np.float32))
    assert b"select" not in model.lower()


def test_what_is_computed_of_constants_becomes_part_of_a_convolution(check):
    filters = np.linspace(-1, 1, 3 * 3 * 3 * 4, dtype=np.float32).reshape(3, 3, 3, 4)
    scale = np.arange(1, 5, dtype=np.float32)

    def normalized(x):
        names = ("NHWC", "HWIO", "NHWC")
        y = lax.conv_general_dilated(x, filters, (1, 1), "SAME", dimension_numbers=names)
        inverse = lax.rsqrt(jnp.asarray(scale) + 1e-5)
        return jax.nn.relu((y - scale) * inverse * scale + 1)

    x = np.linspace(-9, 9, 48, dtype=np.float32).reshape(1, 4, 4, 3)
    check(normalized, x)
    operators = describe_model(check.model(normalized, x))["operators"]
    assert operators == {"CONV_2D": 1}


@pytest.mark.parametrize("sizes", [(5, 10), (8, 7), (4, 3), (5, 2), (8, 10), (3, 4), (2, 23)])
def test_reduced_precision(check, sizes):
    values = np.concatenate([FLOATS, np.linspace(-300, 300, 99), np.exp2(np.linspace(-20, 20, 99))])
    (got,) = check.run(lambda x: lax.reduce_precision(x, *sizes), values.astype(np.float32))
    expected = lax.reduce_precision(values.astype(np.float32), *sizes)
    np.testing.assert_array_equal(got, expected)


def integers_of(dtype):
    with np.errstate(all="ignore"):
        return np.unique(INTEGERS.astype(dtype))


@pytest.mark.parametrize("dtype", _DTYPES)
def test_integers(check, dtype):
    with jax.enable_x64(True):
        left, right = pairs(integers_of(dtype))
        counts = np.resize(_COUNTS, left.shape).astype(dtype)

        def compute(x, y, n):
            arithmetic = [x + y, x - y, x * y, lax.div(x, y), lax.rem(x, y), x & y, x | y, x ^ y]
            ordered = [lax.max(x, y), lax.min(x, y), x < y, x <= y, x == y]
            shifts = [lax.shift_left, lax.shift_right_logical, lax.shift_right_arithmetic]
            known = [x << 3, x >> 2, x // 7, x % 5, x & 12, ~x, -x, lax.sign(x)]
            counted = [lax.population_count(x), lax.clz(x)]
            return [*arithmetic, *ordered, *(shift(x, n) for shift in shifts), *known, *counted]

        given = [left, right, counts]
        if dtype == "uint64":  # which no model takes
            given = [array.view(np.int64) for array in given]
            wide = compute

            def compute(*words):
                results = wide(*(lax.bitcast_convert_type(word, np.uint64) for word in words))
                return [one.astype(np.int64) if one.dtype == np.uint64 else one for one in results]

        expected = jax.jit(compute)(*map(jnp.asarray, given))
        for got, wanted in zip(check.run(compute, *given), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)
