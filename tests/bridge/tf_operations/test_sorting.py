"""Sorts of every dtype, with ties and NaN."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import enable_x64, lax

from tests.bridge.onnx.edges import FLOATS, INTEGERS, edges
from tests.bridge.tf_operations.checking import check, check_call, export_call, lowered
from xla_call_module.errors import UnsupportedError


@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS, "bool"])
def test_sorts(name):
    with enable_x64(True):
        x = np.resize(edges(name), (4, 9))
        check(
            lambda x: [
                jnp.sort(x, 0), jnp.argsort(x, 1, stable=True), jnp.sort(x, 1, descending=True),
                *lax.sort((x, lax.rev(x, (1,))), dimension=0, num_keys=2),
                jnp.argsort(x, 0, stable=True, descending=True),
            ],
            x,
        )  # fmt: skip


@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS])
def test_the_greatest_elements(name):
    with enable_x64(True):
        check(lambda x: lax.top_k(x, 5), np.resize(edges(name), (3, 9)))


def test_approximate_searches_are_exact():
    x = np.random.default_rng(0).normal(size=(3, 64)).astype(np.float32)
    check(lambda x: [*lax.approx_max_k(x, 4), *lax.approx_min_k(x, 4)], x)


def test_keys_of_several_dtypes_and_any_number_of_rows():
    a = np.array([[2, 1, 2, 1], [3, 3, 3, 3]], np.int32)
    b = np.array([[0.5, np.nan, -0.0, 0.0], [1, 0, -1, 2]], np.float32)
    check(lambda a, b: lax.sort((a, b), num_keys=2), a, b)
    spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 4"), "float32")
    assert export_call(jnp.sort, spec).args[0].shape == ("b", 4)
    assert "TopKV2" in [node.op for node in lowered(jnp.sort, spec).main.nodes]


def test_a_comparator_that_is_no_order_of_keys():
    x = np.array([5, -3, 3, 1, -5, 0], np.int32)

    def by_size(x):
        return lax.sort((abs(x), x), num_keys=1, is_stable=True)

    check(by_size, x)


def test_an_unstable_sort_is_refused_where_the_order_of_equal_keys_shows():
    x, y = np.float32([[3, 1, 3], [0, 2, 2]]), np.float32([[1, 2, 3], [4, 5, 6]])

    def sort(*operands):
        return lax.sort(operands, num_keys=1, is_stable=False)

    numbers = lax.broadcasted_iota(np.int32, (2, 3), 1)
    check(lambda x: [*sort(x), *sort(x, 2 * x + 1, x > 1), *sort(x, numbers)], x)
    with pytest.raises(UnsupportedError, match=r"stablehlo.sort at .*unstable"):
        lowered(lambda x, y: sort(x, y), x, y)
    with pytest.raises(UnsupportedError, match="unstable"):
        lowered(lambda x: sort(x, jnp.cumsum(x, 1)), x)


@pytest.mark.parametrize("function", [jnp.median, jnp.nanmedian, lambda x: jnp.quantile(x, 0.3)])
def test_medians_and_their_gradients(function):
    """The gradient of a sort has the numbers of places as another operand."""
    x = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    exported = jax.export.export(jax.jit(function))(x)
    check_call(exported, x)
    check_call(exported.vjp(), x, np.float32(2))
