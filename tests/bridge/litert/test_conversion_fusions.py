"""Operations that become one kernel, in models that the conversion has compared with JAX."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import bridge
from bridge.litert.runtime import Runtime
from bridge.litert.worker.model_execution import describe_model

pytest.importorskip("ai_edge_litert")
NAMES = ("NHWC", "HWIO", "NHWC")
RANDOM = np.random.default_rng(0)
LOWEST, HIGHEST = np.float32(-np.inf), np.float32(np.inf)
FILTERS = np.linspace(-1, 1, 108, dtype=np.float32).reshape(3, 3, 3, 4)
WEIGHTS = RANDOM.normal(size=(4, 3)).astype(np.float32)


def operators_of(function, args, **options):
    return describe_model(bridge.to_litert(function, args=args, **options))["operators"]


@pytest.mark.parametrize("size", [1, 3, 4, 7, 8, 17, 33])
def test_softmax_of_all_kernels(size, litert_process):
    """With NaN and infinities at each place of a row."""
    rows = RANDOM.normal(scale=10, size=(3 * size + 4, size)).astype(np.float32)
    for number, value in enumerate((np.nan, np.inf, -np.inf)):
        rows[number * size + np.arange(size), np.arange(size)] = value
    rows[-2], rows[-1] = -np.inf, 3e38
    model = bridge.to_litert(jax.nn.softmax, args=f"f32[{len(rows)},{size}]", verify=False)
    assert describe_model(model)["operators"] == {"SOFTMAX": 1}
    for kernels in ("delegate", "builtin", "reference"):
        with Runtime(model, kernels=kernels, process=litert_process) as runtime:
            (got,) = runtime.run({"x": rows}).values()
        np.testing.assert_allclose(got, jax.nn.softmax(rows), atol=2e-6, rtol=0)


def by_hand(x):
    powers = jnp.exp(x - lax.reduce_max(x, (1,))[:, None])
    return powers / powers.sum(1, keepdims=True)


def attention(x):
    heads = x[:4, :4].reshape(1, 4, 1, 4)
    return jax.nn.dot_product_attention(heads, heads, heads)


SOFTMAX = {
    "by hand": (by_hand, 1),
    "of a row": (lambda x: jax.nn.softmax(x[0]), 1),
    "in a loop": (lambda x: lax.fori_loop(0, 3, lambda _, v: jax.nn.softmax(3 * v), x), 1),
    "in a branch": (lambda x: lax.cond(x.sum() > 0, jax.nn.softmax, jnp.negative, x), 1),
    "twice": (lambda x: jax.nn.softmax(jax.nn.softmax(x) * 5), 2),
    "attention": (attention, 1),
}


@pytest.mark.parametrize(
    ("name", "rows"),
    [(name, rows) for name in SOFTMAX for rows in "4b" if (name, rows) != ("attention", "b")],
)
def test_forms_of_softmax(name, rows):
    function, count = SOFTMAX[name]
    found = operators_of(function, f"f32[{rows},6]")
    assert found["SOFTMAX"] == count
    assert "EXP" not in found


def test_softmax_of_known_sizes_beside_unknown_ones():
    found = operators_of(lambda x, y: (x + 1, jax.nn.softmax(y)), ("f32[b]", "f32[4,6]"))
    assert found["SOFTMAX"] == 1


def of_columns(x):
    powers = jnp.exp(x - x.max(1, keepdims=True))
    return powers / powers.sum(0, keepdims=True)


def of_maxima_of_columns(x):
    powers = jnp.exp(x - x.max(0, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def of_a_square(x):
    powers = jnp.exp(x - x.max(1)[None])
    return powers / powers.sum(1)[None]


def from_one(x):
    powers = jnp.exp(x - x.max(1, keepdims=True, initial=100.0))
    return powers / powers.sum(1, keepdims=True, initial=1.0)


@pytest.mark.parametrize("function", [of_columns, of_maxima_of_columns, of_a_square, from_one])
def test_quotients_that_are_no_softmax(function):
    assert "SOFTMAX" not in operators_of(function, "f32[4,4]", tolerance=1e-5)


def normalized(x):
    scale = np.arange(1, 5, dtype=np.float32)
    y = lax.conv_general_dilated(x, FILTERS, (1, 1), "SAME", dimension_numbers=NAMES)
    return jax.nn.relu((y - scale) * lax.rsqrt(jnp.asarray(scale) + 1e-5) * scale + 1)


def dense(x):
    return jax.nn.softmax(x @ WEIGHTS + jnp.arange(3.0))


FUSED = {
    "relu": (jax.nn.relu, "f32[b,4]", {"RELU": 1}),
    "relu6": (jax.nn.relu6, "f32[4,4]", {"RELU6": 1}),
    "relu6 by bounds": (lambda x: jnp.clip(x, 0, 6), "f32[b,4]", {"RELU6": 1}),
    "relu6 by clamp": (lambda x: lax.clamp(0.0, x, 6.0), "f32[7]", {"RELU6": 1}),
    "relu by bounds": (lambda x: jnp.clip(x, 0, jnp.inf), "f32[7]", {"RELU": 1}),
    "relu by maximum": (lambda x: jnp.maximum(x, 0), "f32[7]", {"RELU": 1}),
    "bounds of nothing": (lambda x: jnp.maximum(x, -jnp.inf) + 1, "f32[7]", {"ADD": 1}),
    "constants of a convolution": (normalized, "f32[1,4,4,3]", {"CONV_2D": 1}),
    "dense": (dense, "f32[b,4]", {"FULLY_CONNECTED": 1, "SOFTMAX": 1}),
}


@pytest.mark.parametrize("name", FUSED)
def test_what_is_one_kernel(name):
    function, args, operators = FUSED[name]
    assert operators_of(function, args) == operators


def convolution(x):
    image = jnp.reshape(x, (x.shape[0], 2, 2, 1))
    filters = jnp.asarray(np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 2, 1, 2))
    made = lax.conv_general_dilated(image, filters, (1, 1), "SAME", dimension_numbers=NAMES)
    return jnp.clip(made + jnp.array([1.0, 2.0]), 0, 6)


@pytest.mark.parametrize(
    ("function", "absent"),
    [(convolution, {"ADD", "BROADCAST_TO", "RELU6"}), (lambda x: jax.nn.relu(x @ x.T), {"SELECT"}),
     (lambda x: x * 2 + x[:, :1] > 1, {"BROADCAST_TO"})],
)  # fmt: skip
def test_what_is_no_kernel_of_its_own(function, absent):
    # A kernel's own activation makes 0 of NaN, which huge inputs have in some programs of XLA.
    assert not absent & operators_of(function, "f32[b,4]", verify=False).keys()


POOLS = [((3, 3), (2, 2), "SAME"), ((2, 2), (2, 2), "VALID"), ((1, 3), (1, 1), "SAME"),
         ((5, 2), (1, 2), ((0, 0), (1, 3), (0, 1), (0, 0)))]  # fmt: skip


@pytest.mark.parametrize(("start", "function"), [(LOWEST, lax.max), (HIGHEST, lax.min)])
def test_images_are_pooled_by_the_kernel(start, function, litert_process):
    def over(x, size, stride, padding):
        over_all = partial(lax.reduce_window, x, start, function)
        return over_all((1, *size, 1), (1, *stride, 1), padding)

    def pooled(x):
        return [over(x, *pool) for pool in POOLS]

    model = bridge.to_litert(pooled, args="f32[2,6,6,3]")
    operators = describe_model(model)["operators"]
    assert operators["MAX_POOL_2D"] == 2 * len(POOLS)
    assert "STRIDED_SLICE" not in operators
    x = np.full((2, 6, 6, 3), -0.0, np.float32)
    x[1, 2:, 2:], x[1, :, :, 1], x[1, :, :, 2] = start, np.finfo(np.float32).min, np.nan
    with Runtime(model, process=litert_process) as runtime:
        for got, wanted in zip(runtime.run({"x": x}).values(), pooled(x), strict=True):
            np.testing.assert_array_equal(got, wanted)
            assert np.signbit(got[0]).all()
    # Windows in a loop are XNNPACK's, too.
    bridge.to_litert(
        lambda x: lax.fori_loop(0, 2, lambda _, x: over(x, *POOLS[2]), x), args="f32[2,6,6,3]"
    )


COMMON = (jnp.add, jnp.subtract, jnp.multiply, jnp.maximum, jnp.minimum, jnp.equal, jnp.not_equal,
          jnp.less, jnp.less_equal, jnp.greater, jnp.greater_equal)  # fmt: skip
BROADCASTING = {"f32": (*COMMON, jnp.divide), "i32": (*COMMON, jnp.right_shift)}


@pytest.mark.parametrize("dtype", BROADCASTING)
def test_kernels_broadcast_their_operands(dtype):
    row = np.array([1, 4, 2, 3], jnp.float32 if dtype == "f32" else jnp.int32)

    def computed(x):
        column = x[:, :1]
        pairs = [(x, row), (row, x), (x, column), (column, x), (x, row[:1]), (column, row)]
        made = [function(*pair) for function in BROADCASTING[dtype] for pair in pairs]
        return [*made, jnp.where(x > 2, row, column), jnp.where(column > 2, x, row)]

    # Those are left that several operations share.
    assert operators_of(computed, f"{dtype}[b,4]", verify=False).get("BROADCAST_TO", 0) <= 5


def test_five_dimensions_are_broadcast_before():
    def computed(x):
        return x[:, :, None, None, None] + jnp.arange(6.0).reshape(1, 1, 1, 2, 3)

    assert operators_of(computed, "f32[b,4]")["BROADCAST_TO"]
