"""Gathers and scatters: their nodes, sizes that only a run knows, and a run of several threads."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime
from jax import export

import bridge
from tests.bridge.onnx.checking import check, feed, operations


def _counted(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) % 100


def test_a_gather_of_rows_is_one_gather():
    beyond = np.array([-100, -3, -1, 0, 1, 2, 3, 4, 100], np.int32)
    model = check(lambda x, i: jnp.take(x, i, axis=0, mode="clip"), _counted(3, 2), beyond)
    assert operations(model).count("Gather") == 1
    assert "GatherND" not in operations(model)
    exported = export.export(jax.jit(lambda x: x[jnp.array([2, 0])]))(_counted(3, 2))
    assert operations(bridge.to_onnx(exported)) == ["Gather"]  # without bounds to keep


def test_unique_indices_are_written_by_rows():
    write = lambda x, i, u: x.at[i].set(u, unique_indices=True)  # noqa: E731
    model = check(write, _counted(3, 2), np.array([2, 0], np.int32), _counted(2, 2))
    assert "ScatterND" in operations(model)


def test_any_function_of_what_is_there():
    def apply(x, i, *, unique=False):
        return x.at[i].apply(lambda y: y * y + 1, unique_indices=unique), x.at[1].apply(
            jnp.negative
        )

    indices = np.array([2, 0, 7], np.int32)
    check(lambda x, i: apply(x, i, unique=True), _counted(3, 2), indices)
    again = np.array([2, 0, 7, 2, 2], np.int32)
    assert "Loop" in operations(check(apply, _counted(3, 2), again))


def test_several_updates_of_one_element_from_several_threads():
    indices = np.random.default_rng(0).integers(0, 3, 20000).astype(np.int32)
    given = [np.zeros((3, 64), np.float32), indices, np.ones((20000, 64), np.float32)]
    model = bridge.to_onnx(export.export(jax.jit(lambda x, i, u: x.at[i].add(u)))(*given))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    expected = np.repeat(np.bincount(indices)[:, None], 64, axis=1)
    for _ in range(8):
        np.testing.assert_array_equal(session.run(None, feed(model, given))[0], expected)
