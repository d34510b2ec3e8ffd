"""The same elements in other shapes: in few nodes, of symbolic sizes that may be 0 or 1 as well."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.bridge.onnx.checking import check, operations


def _numbers(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize(
    ("shape", "symbolic", "new"),
    [
        ((3, 0), "b, 0", lambda x: (0, x.shape[0])),
        ((3, 0), "b, 0", lambda x: (x.shape[0], 0, 2)),
        ((1, 6), "b, 6", lambda x: (x.shape[0], 3, 2)),
        ((3, 6), "b, 6", lambda x: (-1, 2)),
    ],
)
def test_reshape(shape, symbolic, new):
    check(lambda x: (x + 1).reshape(new(x)), np.ones(shape, np.float32), shapes=[symbolic])


@pytest.mark.parametrize("batch", [1, 3])
def test_sizes_that_may_be_zero(batch):
    def function(x):
        rest = x[1:]
        count, time, width = rest.shape
        turned = rest.transpose(1, 0, 2) * 2
        return (
            (rest + 1).reshape(time, count, width),
            turned.reshape(count, time, width),
            rest.reshape(count, time, 2, 2),
        )

    check(function, _numbers(batch, 5, 4), shapes=["b, t, 4"])


@pytest.mark.parametrize("symbolic", [None, "b, 8"])
def test_arrays_without_elements_are_left_out(symbolic):
    """ONNX Runtime drops some of the nodes that would make them, and then fails."""

    def function(x):
        return jnp.pad(x, ((0, 0), (2, 3)), mode="edge"), jnp.repeat(x[:1], 0, axis=0)

    model = check(function, _numbers(3, 8), shapes=symbolic and [symbolic])
    assert symbolic or operations(model).count("Concat") == 1


@pytest.mark.parametrize(
    ("view", "symbolic", "nodes"),
    [
        (lambda x: x.reshape(-1, 3, 5, 2), "b, 30", ["Reshape"]),
        (lambda x: x.reshape(4, 5, 6).reshape(20, 6), None, ["Reshape"]),
        (lambda x: (x + 1).reshape(8, 15).reshape(15, 8).reshape(1, 120), None, ["Add", "Reshape"]),
    ],
)
def test_a_view_is_one_node(view, symbolic, nodes):
    assert operations(check(view, _numbers(4, 30), shapes=symbolic and [symbolic])) == nodes


@pytest.mark.parametrize("shape", [(4, 6), (2, 2), (3, 5)])
def test_symbolic_sizes(shape):
    def function(x):
        batch, time = x.shape
        return [
            x[::-1], x[:, ::2], x[::2], x.reshape(-1), x.reshape(time, -1),
            lax.pad(x, np.float32(0), [(1, 1, 1), (0, 2, 0)]),
            jnp.concatenate([x, x]), jnp.stack([x, x], 1), jnp.broadcast_to(x.sum(), x.shape),
            jnp.arange(batch) * jnp.ones((time, 1), jnp.int32), x.sum() / jnp.float32(batch),
            jnp.full((), batch * time + 1), jnp.arange(time) % batch + jnp.max(jnp.arange(batch)),
        ]  # fmt: skip

    check(function, _numbers(*shape), shapes=["b, t"])


def test_every_other_column_of_rows_that_only_a_run_knows():
    check(lambda x: (x[:, ::2], x[:, ::-3], x[::2, 1::2], x[:, 1:4:2]), _numbers(3, 5),
          shapes=["b, 5"])  # fmt: skip


def test_blocks_written_into_constants():
    def function(x):
        zeros, ones = np.zeros((3, 4), np.float32), np.ones((2, 2), np.float32)
        written = lax.dynamic_update_slice(zeros, ones, (1, 2))
        row = lax.dynamic_update_slice(zeros, ones[:1], (7, 1))
        return x + written, x + lax.dynamic_update_slice(written, row[1:, 1:], (0, 1))

    check(function, _numbers(3, 4))


@pytest.mark.parametrize("size", [2, 4, 6])
def test_a_padding_that_may_cut_off(size):
    x = _numbers(size)
    check(lambda x: lax.pad(x, np.float32(9), [(x.shape[0] - 4, 7, 0)]), x, shapes=["b"])
    check(lambda x: lax.pad(x, np.float32(9), [(7, x.shape[0] - 4, 1)]), x, shapes=["b"])
