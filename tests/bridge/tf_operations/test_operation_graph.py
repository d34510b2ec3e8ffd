"""What the graph makes of operations that TensorFlow lacks."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax import enable_x64, lax

from tests.bridge.onnx.edges import FLOATS, INTEGERS, edges
from tests.bridge.tf_operations.checking import check, operations


def _normal(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS, "bool", "complex64"])
@pytest.mark.parametrize("mode", ["clip", "fill", "wrap"])
def test_gathers_out_of_range(name, mode):
    with enable_x64(True):
        x = np.resize(edges("float32") if name == "complex64" else edges(name), (3, 4))
        index = np.array([-100, -4, -3, -1, 0, 1, 2, 3, 100])
        check(lambda x, i: jnp.take(x, i, axis=0, mode=mode), x.astype(name), index)


@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS, "bool"])
@pytest.mark.parametrize("start", [-7, 1, 9])
def test_slices_out_of_range(name, start):
    with enable_x64(True):
        x = np.resize(edges(name), (3, 4))
        check(
            lambda x, i: [
                lax.dynamic_slice(x, (i, i), (2, 2)),
                lax.dynamic_update_slice(x, x[:2, :2], (i, i)),
                x[(i % 5, 0), (1, 2)],
            ],
            x,
            np.int64(start),
        )


def test_scatters_out_of_range_and_twice_at_one_place():
    places = np.array([0, 1, 0, 3, 9, -1, -9])
    updates = _normal(7, 2)

    def scatter(x, i, u):
        at = x.at[i]
        return [at.set(u, mode="drop"), at.add(u, mode="drop"), at.max(u, mode="clip"), at.min(u),
                at.mul(u, mode="fill"), at.apply(jnp.sin), at.get(mode="fill")]  # fmt: skip

    check(scatter, _normal(4, 2), places, updates)


def test_gathers_and_scatters_of_batches():
    x, i = _normal(2, 5, 3), np.array([[0, 4], [2, 7]])
    check(lambda x, i: jnp.take_along_axis(x, i[..., None], 1, mode="clip"), x, i)
    check(lambda x, i: x.at[jnp.arange(2)[:, None], i].add(1.0, mode="drop"), x, i)


@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "uint32", "int64", "uint64", "bool"])
def test_products_of_integers_wrap_around(name):
    with enable_x64(True):
        x = np.resize(edges(name), (3, 4))
        check(lambda x: lax.dot(x, x.T, preferred_element_type=x.dtype), x)


def test_products():
    a, b, v = _normal(2, 3, 4), _normal(2, 4, 5), _normal(4)
    check(
        lambda a, b, v: [
            a @ b, a @ v, v @ b, v @ v, jnp.outer(v, v), jnp.einsum("bij,bkj->bik", a, a),
            jnp.einsum("bij,bik->bjk", a, a), jnp.einsum("bij,cjk->bcik", a, b), a @ b[0],
            jnp.tensordot(a, b, ((0, 2), (0, 1))),
        ],
        a,
        b,
        v,
        rtol=1e-5,
    )  # fmt: skip


def test_products_are_one_node_with_flags_for_transposes():
    a, b = _normal(3, 4), _normal(5, 4)
    assert operations(lambda a, b: a @ b.T, a, b) == ["MatMul"]
    stacked = operations(lambda a: jnp.einsum("bij,bkj->bik", a, a), _normal(2, 3, 4))
    assert stacked == ["BatchMatMulV2"]


def test_arrays_of_many_dimensions():
    x = np.arange(2**7, dtype=np.float32).reshape((2,) * 7)
    check(lambda x: [x[::-1, ..., 0], x.transpose(6, 5, 4, 3, 2, 1, 0), x + x[0]], x)
