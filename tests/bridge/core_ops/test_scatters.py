"""Scatters: updates within the array and beyond it, several at one place, and NaN."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime
import pytest
from jax import export, lax

import bridge
from tests.bridge.onnx.checking import check, feed, operations
from tests.bridge.onnx.edges import NUMBERS

_SCATTERS = {
    "add": lax.scatter_add,
    "max": lax.scatter_max,
    "min": lax.scatter_min,
    "mul": lax.scatter_mul,
    "set": lax.scatter,
}


def _counted(*shape, dtype="float32"):
    return (np.arange(np.prod(shape)) % 100).reshape(shape).astype(dtype)


# update_window_dims, inserted_window_dims, scatter_dims_to_operand_dims, operand and index batching
# dims, the shapes of the updates and of the indices; of an array of 4 x 5 x 6.
_FORMS = {
    "elements": ((), (0, 1, 2), (0, 1, 2), (), (), (7,), (7, 3)),
    "elements in another order": ((), (0, 1, 2), (2, 0, 1), (), (), (2, 3), (2, 3, 3)),
    "windows": ((1, 2, 3), (), (0, 1, 2), (), (), (3, 2, 3, 4), (3, 3)),
    "windows in front": ((0, 1, 2), (), (2, 1, 0), (), (), (2, 1, 4, 3), (3, 3)),
    "rows": ((1, 2), (0,), (0,), (), (), (3, 5, 6), (3, 1)),
    "rows in the middle": ((0, 2), (1,), (1,), (), (), (4, 3, 6), (3, 1)),
    "parts of rows": ((1, 2), (0,), (0,), (), (), (3, 2, 6), (3, 1)),
    "whole, and an index for it": ((0, 2), (1,), (0, 1), (), (), (4, 3, 6), (3, 2)),
    "one update": ((0, 1), (0,), (0, 2), (), (), (5, 2), (2,)),
    "all of it": ((0, 1, 2), (), (), (), (), (4, 5, 6), (0,)),
    "batches": ((1,), (1,), (1,), (0,), (0,), (4, 6), (4, 1)),
    "batches behind": ((0, 3), (), (2,), (0,), (1,), (2, 3, 4, 3), (3, 4, 1)),
    "two batches": ((1,), (), (2,), (0, 1), (2, 0), (5, 2, 3, 4), (5, 3, 4, 1)),
}


@pytest.mark.parametrize("kind", _SCATTERS)
@pytest.mark.parametrize("name", _FORMS)
def test_scatters_of_every_form(name, kind):
    window, inserted, mapped, batching, index_batching, updates, shape = _FORMS[name]
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=window,
        inserted_window_dims=inserted,
        scatter_dims_to_operand_dims=mapped,
        operand_batching_dims=batching,
        scatter_indices_batching_dims=index_batching,
    )
    random = np.random.default_rng(0)
    indices = random.integers(-1, 6, shape).astype(np.int32)
    values = random.standard_normal(updates).astype(np.float32)

    def scatter(x, i, u):
        return _SCATTERS[kind](x, i, u, numbers, mode="drop")

    check(scatter, _counted(4, 5, 6), indices, values, rtol=1e-5)


@pytest.mark.parametrize("mode", ["clip", "drop"])
def test_what_is_beyond_the_array(mode):
    indices = np.array([-100, -3, -1, 0, 2, 5, 100], np.int32)
    updates = _counted(7, 2) + 100

    def scatter(x, i, u):
        return x.at[i].add(u, mode=mode)

    check(scatter, _counted(3, 2), indices, updates)


@pytest.mark.parametrize("kind", ["add", "max", "min", "multiply", "set"])
@pytest.mark.parametrize("name", [*NUMBERS, "bool"])
def test_every_dtype_can_be_scattered(name, kind):
    if name == "bool" and kind in ("add", "multiply"):
        kind = {"add": "max", "multiply": "min"}[kind]
    x = np.array([1, 0, 1, 0, 1, 1]).astype(name)
    updates = np.array([1, 1, 0, 0, 1]).astype(name)
    indices = np.array([0, 1, 2, 3, 4], np.int32)
    check(lambda x, u, i: getattr(x.at[i], kind)(u), x, updates, indices)


@pytest.mark.parametrize("kind", ["max", "min"])
def test_nan_is_the_greatest_and_the_least(kind):
    x = np.array([0.0, np.nan, 1.0, np.inf, -np.inf, 5.0], np.float32)
    updates = np.array([np.nan, 1.0, np.inf, np.nan, -np.inf, -np.inf, 2.0], np.float32)
    indices = np.array([0, 1, 2, 3, 4, 4, 0], np.int32)
    check(lambda x, u, i: getattr(x.at[i], kind)(u), x, updates, indices)


def test_several_updates_of_one_element_from_several_threads():
    exported = export.export(jax.jit(lambda x, i, u: x.at[i].add(u)))(
        *(jax.ShapeDtypeStruct(*spec) for spec in
          (((3, 64), "float32"), ((20000,), "int32"), ((20000, 64), "float32")))
    )  # fmt: skip
    model = bridge.to_onnx(exported)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    indices = np.random.default_rng(0).integers(0, 3, 20000).astype(np.int32)
    given = [np.zeros((3, 64), np.float32), indices, np.ones((20000, 64), np.float32)]
    expected = np.repeat(np.bincount(indices)[:, None], 64, axis=1)
    for _ in range(8):
        np.testing.assert_array_equal(session.run(None, feed(model, given))[0], expected)


def test_unique_indices_are_written_by_rows():
    indices = np.array([2, 0], np.int32)
    model = check(
        lambda x, i, u: x.at[i].set(u, unique_indices=True), _counted(3, 2), indices, _counted(2, 2)
    )
    assert "ScatterND" in operations(model)


def test_any_function_of_what_is_there():
    indices = np.array([2, 0, 7], np.int32)

    def apply(x, i):
        squared = x.at[i].apply(lambda y: y * y + 1)
        first = x.at[1].apply(jnp.negative)
        return squared, first

    def unique(x, i):
        return x.at[i].apply(lambda y: y * y + 1, unique_indices=True), x.at[1].apply(jnp.negative)

    check(unique, _counted(3, 2), indices)
    again = np.array([2, 0, 7, 2, 2], np.int32)
    assert "Loop" in operations(check(apply, _counted(3, 2), again))


@pytest.mark.parametrize("rows", [2, 5])
def test_scatters_with_sizes_that_only_a_run_knows(rows):
    def function(x, i, u):
        return x.at[i].add(u), jnp.zeros_like(x).at[:, 0].set(u[0, 0]), x.at[-1].set(u[-1])

    arrays = [_counted(rows, 3), np.arange(rows + 1).astype(np.int32) - 1, _counted(rows + 1, 3)]
    check(function, *arrays, shapes=["r, 3", "r + 1", "r + 1, 3"])


def test_segments_and_histograms():
    data = np.random.default_rng(0).standard_normal((9, 2)).astype(np.float32)
    segments = np.array([0, 1, 0, 3, 3, 1, 9, -1, 2], np.int32)

    def function(x, s):
        return (
            jax.ops.segment_sum(x, s, num_segments=4),
            jax.ops.segment_max(x, s, num_segments=4),
            jnp.bincount(s, length=5),
        )

    check(function, data, segments)


@pytest.mark.parametrize("mode", ["promise_in_bounds", "drop"])
def test_one_element_of_one(mode):
    def function(x, y):
        return [
            x.at[0].set(y, mode=mode, unique_indices=True),
            x.at[0].add(y, mode=mode, unique_indices=True),
            x.at[0].max(y, mode=mode, unique_indices=True),
        ]

    check(function, np.array([3.0], np.float32), np.array(4.0, np.float32))
