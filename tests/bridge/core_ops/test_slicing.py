"""Slices, padding, and other arrangements of the same elements."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.bridge.onnx.checking import check, operations
from tests.bridge.onnx.edges import NUMBERS

DTYPES = [*NUMBERS, "bool"]


def _numbers(dtype, shape=(3, 4, 5)):
    return np.arange(np.prod(shape)).reshape(shape).astype(getattr(jnp, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrangements(dtype):
    def function(x):
        zero = np.zeros((), x.dtype)
        return [
            lax.slice(x, (1, 0, 1), (3, 4, 5), (1, 2, 3)),
            lax.rev(x, (0, 2)),
            lax.pad(x, zero, [(1, 2, 0), (0, 0, 0), (0, 1, 0)]),
            lax.pad(x, zero, [(-1, 2, 0), (1, -2, 1), (0, 0, 2)]),
            lax.concatenate([x, x[:, :1]], 1),
            x.transpose(2, 0, 1),
            x.reshape(4, 15),
            jnp.broadcast_to(x[:, :1], (2, 3, 6, 5)),
            jnp.tile(x, (1, 2, 1)),
            x[:, None, ..., None],
        ]

    check(function, _numbers(dtype))


def test_padding_with_what_is_computed():
    check(lambda x, y: lax.pad(x, y * 2, [(1, 1, 1)]), np.float32([1, 2, 3]), np.float32(4))


def test_every_other_column_of_rows_that_only_a_run_knows():
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    check(lambda x: (x[:, ::2], x[:, ::-3], x[::2, 1::2], x[:, 1:4:2]), x, shapes=["b, 5"])


@pytest.mark.parametrize("size", [0, 1, 4])
def test_space_between_elements(size):
    check(lambda x: lax.pad(x, np.float32(7), [(1, 2, 3)]), np.ones(size, np.float32))


def test_symbolic_sizes():
    def function(x):
        zero = np.float32(0)
        return [
            x[::-1],
            x.reshape(-1),
            x.reshape(x.shape[1], -1),
            lax.pad(x, zero, [(1, 1, 1), (0, 2, 0)]),
            jnp.concatenate([x, x]),
            jnp.broadcast_to(x.sum(), x.shape),
            jnp.arange(x.shape[0]) * jnp.ones((x.shape[1], 1), jnp.int32),
            jnp.stack([x, x], 1),
        ]

    for shape in [(4, 6), (2, 2)]:
        check(function, _numbers("float32", shape), shapes=["b, t"])


def test_sizes_are_numbers_too():
    def function(x):
        batch, time = x.shape
        return [
            x.sum() / jnp.float32(batch),
            jnp.full((), batch * time + 1),
            jnp.arange(time) % batch + jnp.max(jnp.arange(batch)),
        ]

    check(function, _numbers("float32", (3, 4)), shapes=["b, t"])


def test_a_view_is_one_node():
    model = check(lambda x: x.reshape(-1, 3, 5, 2), _numbers("float32", (4, 30)), shapes=["b, 30"])
    assert operations(model) == ["Reshape"]
    model = check(lambda x: x.reshape(4, 5, 6).reshape(20, 6), _numbers("float32", (4, 30)))
    assert operations(model) == ["Reshape"]


def test_blocks_written_into_constants():
    def function(x):
        zeros, ones = np.zeros((3, 4), np.float32), np.ones((2, 2), np.float32)
        written = lax.dynamic_update_slice(zeros, ones, (1, 2))
        row = lax.dynamic_update_slice(zeros, ones[:1], (7, 1))
        return x + written, x + lax.dynamic_update_slice(written, row[1:, 1:], (0, 1))

    check(function, np.arange(12, dtype=np.float32).reshape(3, 4))


@pytest.mark.parametrize("size", [2, 4, 6])
def test_a_padding_that_may_cut_off(size):
    x = np.arange(size, dtype=np.float32)
    check(lambda x: lax.pad(x, np.float32(9), [(x.shape[0] - 4, 7, 0)]), x, shapes=["b"])
    check(lambda x: lax.pad(x, np.float32(9), [(7, x.shape[0] - 4, 1)]), x, shapes=["b"])
