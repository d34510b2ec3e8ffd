"""Functions of batches that are exported as those of their rows, and compared with them."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax import export

import bridge
from bridge.batching.row_export import batch_symbol, export_rows
from bridge.batching.trial import Candidate, try_rows
from tests.bridge.batching.row_functions import ACROSS_ROWS, ROW_BY_ROW, convolution, specs_of
from xla_call_module.errors import StructureError


def difference(function, specs, *, is_function):
    """Return where a function differs from that of its rows, and why that was not tried."""
    exported = export.export(jax.jit(function))(*specs)
    rows = export_rows(exported, function if is_function else None, batch_symbol(exported))
    leading = [str(spec.shape[0]) if spec.shape else "" for spec in specs]
    batches = tuple(index for index, dim in enumerate(leading) if dim == "b")
    return try_rows(Candidate(exported, rows, "b", batches))


@pytest.mark.parametrize("name", ROW_BY_ROW)
def test_row_by_row(name):
    function, *arguments = ROW_BY_ROW[name]
    assert difference(function, specs_of(arguments), is_function=False) == (None, "")


@pytest.mark.parametrize("name", ["mlp", "recurrent", "a_loop_for_each", "own_index_set", "svd"])
def test_the_function_itself(name):
    function, *arguments = ROW_BY_ROW[name]
    assert difference(function, specs_of(arguments), is_function=True) == (None, "")


@pytest.mark.parametrize("name", ACROSS_ROWS)
def test_across_rows(name):
    function, *arguments = ACROSS_ROWS[name]
    found, reason = difference(function, specs_of(arguments), is_function=False)
    assert reason == ""
    assert found.consequence.startswith("depends on the")
    assert found.remedy


def test_a_window_whose_padding_depends_on_a_size():
    """JAX has no rule for mapping it."""
    with pytest.raises(StructureError, match=r"cannot make jax\.vmap of convolution.*padding"):
        difference(convolution, specs_of(["b, h, w, 3"]), is_function=True)


@jax.custom_vjp
def doubled(x):
    return x * 2


doubled.defvjp(lambda x: (x * 2, None), lambda _, given: (given * 5,))


@pytest.mark.parametrize("is_exported", [True, False])
def test_the_gradient_of_the_author(tmp_path, is_exported, preloaded):
    """An `Exported` keeps its chain, and the function of rows has the rules of the function."""
    tf = pytest.importorskip("tensorflow")
    model = doubled
    options = {"args": "f32[b,3]"}
    if is_exported:
        model, options = export.export(jax.jit(doubled))(*specs_of(["b, 3"])), {}
    bridge.save(model, tmp_path / "m", batch_buckets=(4,), **options)
    x = tf.constant(np.ones((3, 3), "float32"))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.saved_model.load(tmp_path / "m")(x)
    np.testing.assert_array_equal(y, 2 * x)
    np.testing.assert_array_equal(tape.gradient(y, x), 5 * x)


@jax.custom_vjp
def shared(x):
    return x * 2


shared.defvjp(lambda x: (x * 2, None), lambda _, given: (given * 0 + given.shape[0],))


def test_a_gradient_that_depends_on_the_batch_is_refused(tmp_path):
    exported = export.export(jax.jit(shared))(*specs_of(["b, 3"]))
    with pytest.raises(StructureError, match=r"The gradient of x .*depends on rows that"):
        bridge.save(exported, tmp_path / "m", batch_buckets=(4,))
