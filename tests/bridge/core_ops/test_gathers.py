"""Gathers and slices at computed places, within the array and beyond it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import bridge
from tests.bridge.onnx.checking import check, check_whole, operations
from tests.bridge.onnx.edges import NUMBERS

_BEYOND = np.array([-100, -3, -1, 0, 1, 2, 3, 4, 100], np.int32)


def _counted(*shape, dtype="float32"):
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


@pytest.mark.parametrize("mode", ["clip", "fill", "wrap"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_rows_are_taken_along_an_axis(mode, axis):
    check(lambda x, i: jnp.take(x, i, axis=axis, mode=mode), _counted(3, 4, 3), _BEYOND)


@pytest.mark.parametrize("name", [*NUMBERS, "bool"])
def test_every_dtype_can_be_gathered(name):
    check(lambda x: x[jnp.array([2, 0, 2])], np.arange(6).reshape(3, 2).astype(name))


@pytest.mark.parametrize("name", ["int8", "int16", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_indices_of_every_dtype_are_clamped(name):
    bounds = np.iinfo(name)
    indices = np.array([[0], [1], [2], [bounds.max], [bounds.min]], name)
    numbers = lax.GatherDimensionNumbers((1,), (0,), (0,))

    def gather(x, i):
        return lax.gather(x, i, numbers, (1, 2), mode="clip")

    check(gather, _counted(3, 2), indices)


# offset_dims, collapsed_slice_dims, start_index_map, operand and index batching dims, slice sizes,
# the shape of the indices; of an array of 4 x 5 x 6.
_GATHERS = {
    "elements": ((), (0, 1, 2), (0, 1, 2), (), (), (1, 1, 1), (7, 3)),
    "elements in another order": ((), (0, 1, 2), (2, 0, 1), (), (), (1, 1, 1), (2, 3, 3)),
    "windows": ((1, 2, 3), (), (0, 1, 2), (), (), (2, 3, 4), (7, 3)),
    "windows in front": ((0, 1, 2), (), (2, 1, 0), (), (), (2, 1, 4), (3, 2, 3)),
    "whole along some": ((1, 2), (1,), (1,), (), (), (4, 1, 6), (3, 1)),
    "whole, and an index for it": ((0, 2), (1,), (0, 1), (), (), (4, 1, 6), (3, 2)),
    "a part of each row": ((2, 3), (0,), (0,), (), (), (1, 2, 6), (3, 2, 1)),
    "a row that keeps its dimension": ((0, 1, 2), (), (1,), (), (), (4, 1, 6), (3, 1)),
    "one slice": ((0, 1), (0,), (0, 2), (), (), (1, 5, 2), (2,)),
    "no index": ((1, 2, 3), (), (), (), (), (2, 5, 3), (3, 0)),
    "batches": ((1,), (1,), (1,), (0,), (0,), (1, 1, 6), (4, 1)),
    "batches behind": ((0, 3), (), (2,), (0,), (1,), (1, 2, 3), (3, 4, 1)),
    "two batches": ((1,), (), (2,), (0, 1), (2, 0), (1, 1, 2), (5, 3, 4, 1)),
    "batches and no index": ((2, 0), (), (), (0,), (0,), (1, 5, 2), (4, 0)),
}


@pytest.mark.parametrize("mode", ["clip", "fill"])
@pytest.mark.parametrize("name", _GATHERS)
def test_gathers_of_every_form(name, mode):
    offsets, collapsed, mapped, batching, index_batching, sizes, shape = _GATHERS[name]
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(sorted(offsets)),
        collapsed_slice_dims=collapsed,
        start_index_map=mapped,
        operand_batching_dims=batching,
        start_indices_batching_dims=index_batching,
    )
    indices = np.random.default_rng(0).integers(-2, 8, shape).astype(np.int32)

    def gather(x, i):
        return lax.gather(x, i, numbers, sizes, mode=mode)

    check(gather, _counted(4, 5, 6), indices)


def test_a_gather_of_rows_is_one_gather():
    model = check(lambda x, i: jnp.take(x, i, axis=0, mode="clip"), _counted(3, 2), _BEYOND)
    assert operations(model).count("Gather") == 1
    assert "GatherND" not in operations(model)


@pytest.mark.parametrize("sizes", [(2, 3), (5, 4)])
def test_sizes_that_only_a_run_knows(sizes):
    rows, columns = sizes

    def function(x, i):
        taken = jnp.take_along_axis(x, i[:, None] % x.shape[1], axis=1)
        last = x[-1, jnp.arange(x.shape[1])]
        window = lax.dynamic_slice(x, (i[0], i[1]), (x.shape[0] - 1, 2))
        shifted = jnp.roll(x, i[0], axis=0)
        return taken, last, window, shifted

    indices = np.arange(rows).astype(np.int32) - 1
    shapes = ["r, c + 2", "r"]
    check_whole(check(function, _counted(rows, columns), indices, shapes=shapes))


@pytest.mark.parametrize("starts", [(0, 0, 0), (1, 2, 3), (-1, -2, -3), (9, 9, 9), (-9, 9, -9)])
def test_dynamic_slices_are_moved_into_the_array(starts):
    starts = np.array(starts, np.int32)

    def slices(x, i):
        return (
            lax.dynamic_slice(x, i, (2, 5, 1)),
            lax.dynamic_index_in_dim(x, i[2], axis=2, keepdims=False),
            lax.dynamic_slice(x, i, (4, 5, 6)),
        )

    check(slices, _counted(4, 5, 6), starts)


@pytest.mark.parametrize("name", ["int8", "uint8", "uint32", "uint64"])
def test_starts_of_other_dtypes(name):
    start = np.array(np.iinfo(name).max, name)
    check(lambda x, i: lax.dynamic_slice_in_dim(x, i, 2), _counted(7), start)


@pytest.mark.parametrize("sizes", [(1, 5, 6), (4, 2, 6), (2, 5, 2), (1, 1, 1), (4, 5, 6)])
@pytest.mark.parametrize("starts", [(1, 2, 3), (-1, -2, -3), (9, 9, 9)])
def test_blocks_are_written_within_the_array(sizes, starts):
    def write(x, block, i):
        return lax.dynamic_update_slice(x, block, i)

    check(write, _counted(4, 5, 6), -1 - _counted(*sizes), np.array(starts, np.int32))


def test_a_loop_over_rows_reads_and_writes_slices():
    model = check(lambda x, i: x.at[i].set(x[i + 1] * 2), _counted(5, 3), np.int32(2))
    check_whole(model)


def test_an_embedding_and_its_gradient():
    table = np.random.default_rng(0).standard_normal((11, 4), np.float32)
    tokens = np.array([[1, 2, 1], [10, 0, 1]], np.int32)

    def loss(table, tokens):
        return jnp.sum(jnp.tanh(table[tokens]) ** 2)

    check(lambda t, i: (t[i], jax.grad(loss)(t, i)), table, tokens)


def test_a_gather_with_indices_that_are_known_has_no_bounds_to_keep():
    exported = jax.export.export(jax.jit(lambda x: x[jnp.array([2, 0])]))(
        jax.ShapeDtypeStruct((3, 2), "float32")
    )
    assert operations(bridge.to_onnx(exported)) == ["Gather"]
