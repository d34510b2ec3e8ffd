"""Functions of batches that are exported as those of their rows, and compared with them."""

from __future__ import annotations

import os
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import export, lax

import bridge
from bridge.batching.row_export import export_rows
from bridge.batching.trial import Candidate, try_rows
from tests.bridge.batching.row_functions import (
    ACROSS_ROWS,
    MIXING_STEPS,
    ROW_BY_ROW,
    ROW_STEPS,
    specs_of,
)
from xla_call_module.errors import StructureError

# By how much the module of the function of rows may be larger.
LARGEST = 4 / 3
# A batch of one size shows nothing of what depends on the size.
OF_THE_SIZE = {
    *(name for name in ACROSS_ROWS if name.startswith("size")),
    "count_of_rows",
}  # fmt: skip


def difference(function, specs, *, form="exported", batch="b", **options):
    """Return where a function differs from that of its rows, and why that was not tried.

    It is written from the function, from an `Exported`, or called itself.
    """
    exported = export.export(jax.jit(function), **options)(*specs)
    of_function = function if form == "function" else None
    rows = None if form == "called" else export_rows(exported, of_function, batch)
    leading = [str(spec.shape[0]) if spec.shape else "" for spec in specs]
    batches = tuple(index for index, dim in enumerate(leading) if dim == batch)
    return try_rows(Candidate(exported, rows, batch, batches))


@pytest.mark.parametrize("name", ROW_BY_ROW)
def test_row_by_row(name):
    function, *arguments = ROW_BY_ROW[name]
    assert difference(function, specs_of(arguments)) == (None, "")


@pytest.mark.parametrize("form", ["function", "called"])
@pytest.mark.parametrize(
    "name",
    ["mlp", "recurrent", "a_loop_for_each", "own_index_set", "svd", "convolution_of_any_size"],
)
def test_other_forms(form, name):
    function, *arguments = ROW_BY_ROW[name]
    assert difference(function, specs_of(arguments), form=form) == (None, "")


@pytest.mark.parametrize("name", [name for name in ACROSS_ROWS if name != "woken"])
def test_across_rows(name):
    function, *arguments = ACROSS_ROWS[name]
    for form in ("exported", "called"):
        found, reason = difference(function, specs_of(arguments), form=form)
        assert reason == ""
        assert re.match("depends on the (other rows|number of rows)", found.consequence)
        assert found.remedy


def test_a_loop_over_the_batch_that_does_not_end():
    """Each row alone does."""
    function, *arguments = ACROSS_ROWS["woken"]
    found, reason = difference(function, specs_of(arguments))
    assert reason == ""
    assert found.consequence.startswith("comes to no end for rows together")


@pytest.mark.parametrize("name", ["mean", "place", "sorted_rows", *sorted(OF_THE_SIZE)])
def test_a_batch_of_one_size(name):
    function, *arguments = ACROSS_ROWS[name]
    found, reason = difference(function, specs_of(arguments, b=13), form="called", batch="13")
    assert reason == ""
    assert (found is None) == (name in OF_THE_SIZE)


@settings(max_examples=10, deadline=None)
@given(
    names=st.lists(st.sampled_from([*ROW_STEPS, *MIXING_STEPS]), min_size=1, max_size=4),
    seed=st.integers(0, 99),
)
def test_what_is_put_together(names, seed):
    """What treats rows alone is accepted, and else only what has the results of its rows."""
    steps = [(ROW_STEPS | MIXING_STEPS)[name] for name in names]

    def function(x):
        for step in steps:
            x = step(x)
        return x

    (spec,) = specs_of(["b, 4"])
    found, reason = difference(function, [spec])
    assert reason == ""
    if set(names) <= set(ROW_STEPS):
        assert found is None
    elif found is None:  # such as a threshold that a sine never has
        x = np.random.default_rng(seed).normal(size=(7, 4)).astype("float32") * 3
        rows = export_rows(export.export(jax.jit(function))(spec), None, "b")
        np.testing.assert_allclose(rows.call(x), jax.jit(function)(x), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["inverse", "eigenvalues", "svd", "qr", "cumulative", "top_k"])
def test_several_platforms(name):
    """Each of them has its own way to compute these."""
    function, *arguments = ROW_BY_ROW[name]
    platforms = ["cuda", "cpu", "tpu", "rocm"]
    assert difference(function, specs_of(arguments), platforms=platforms) == (None, "")


def test_a_platform_in_which_rows_count():
    def function(x):
        return lax.platform_dependent(x, cpu=lambda x: x - x.mean(0), default=jnp.sin)

    found, _ = difference(function, specs_of(["b, 4"]), platforms=["tpu", "cpu"])
    assert found.consequence == "depends on the other rows of the batch"


def test_a_multiple_of_a_dimension_variable():
    specs = specs_of(["3*b, 4"])
    for function, is_mixing in (
        (lambda x: x.reshape(-1, 2, 2).sum(1), False),
        (lambda x: jnp.repeat(x.reshape(-1, 3, 4).sum(1), 3, 0), True),
        (lambda x: x + jnp.arange(x.shape[0])[:, None], True),
        (lambda x: x + x.shape[0], True),
    ):  # fmt: skip
        found, reason = difference(function, specs, form="called", batch="3*b")
        assert (found is not None, reason) == (is_mixing, "")


@pytest.mark.parametrize("form", ["function", "exported"])
@pytest.mark.parametrize(
    "name", ["mlp", "attention", "flax_network", "flax_transformer", "flax_lstm", "sorted"]
)
def test_the_module_is_hardly_larger(form, name):
    function, *arguments = ROW_BY_ROW[name]
    exported = export.export(jax.jit(function))(*specs_of(arguments))
    rows = export_rows(exported, function if form == "function" else None, "b")
    for ours, theirs in ((rows, exported), (rows.vjp(), exported.vjp())):
        assert len(ours.mlir_module_serialized) <= LARGEST * len(theirs.mlir_module_serialized)
    assert os.path.dirname(bridge.__file__).encode() not in rows.mlir_module_serialized


@pytest.mark.parametrize(
    "name",
    ["a_loop_for_each", "a_loop_with_masks", "steps_for_each", "one_after_another_with_a_loop"],
)
def test_the_module_of_a_single_loop_is_hardly_larger(name):
    function, *arguments = ROW_BY_ROW[name]
    exported = export.export(jax.jit(function))(*specs_of(arguments))
    rows = export_rows(exported, None, "b")
    sizes = [len(one.mlir_module_serialized) for one in (rows, exported)]
    assert sizes[0] <= LARGEST * sizes[1]


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


def test_a_function_has_the_gradients_of_its_rows(tmp_path, preloaded):
    """They cannot depend on the batch, so that they are not tried."""
    tf = pytest.importorskip("tensorflow")
    bridge.save(shared, tmp_path / "m", args="f32[b,3]", batch_buckets=(4,))
    x = tf.constant(np.ones((3, 3), "float32"))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.saved_model.load(tmp_path / "m")(x)
    np.testing.assert_array_equal(tape.gradient(y, x), np.ones((3, 3)))
