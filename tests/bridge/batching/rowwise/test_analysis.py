"""The analysis that decides from modules whether each row of a batch is computed for itself."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import export

from bridge.batching.rowwise.analysis import results_in_batches
from tests.bridge.batching.rowwise.row_functions import (
    ACROSS_ROWS,
    MIXING_STEPS,
    ROW_BY_ROW,
    ROW_STEPS,
    specs_of,
)
from xla_call_module.exported import from_exported

# A batch and what it is padded to, no size of which is another dimension of a function here.
ROWS, PADDED = 11, 13
SIZES = {"t": 6, "h": 9, "w": 10}
# What XLA compiles for seconds.
SLOW = ("flax_lstm", "flax_network", "flax_transformer", "rejection_for_each")


def verdicts(function, specs, batch="b", **options):
    exported = export.export(jax.jit(function), **options)(*specs)
    leading = [i for i, spec in enumerate(specs) if spec.shape and str(spec.shape[0]) == str(batch)]
    return results_in_batches(from_exported(exported), batch, leading)


def draw(spec, random):
    if spec.dtype == "float32":
        return random.normal(size=spec.shape).astype("float32") * 3
    return random.integers(0, 4, spec.shape).astype(spec.dtype)


def is_changed_by_padding(function, arguments, *, seed=0):
    """Return whether rows of the results are others when rows are added, for random values."""
    random = np.random.default_rng(seed)
    specs = specs_of(arguments, b=PADDED, **SIZES)
    leaves = [draw(spec, random) for spec in specs]
    others = [draw(spec, random) for spec in specs]
    leads = [spec.shape[:1] == (PADDED,) for spec in specs]
    padded = [
        np.concatenate([x[:ROWS], y[ROWS:]]) if lead else x
        for x, y, lead in zip(leaves, others, leads, strict=True)
    ]
    alone = [x[:ROWS] if lead else x for x, lead in zip(leaves, leads, strict=True)]
    call = jax.jit(function)
    one, other, fewer = (
        map(np.asarray, jax.tree.leaves(call(*x))) for x in (leaves, padded, alone)
    )
    return any(
        not np.allclose(x[: len(z)] if z.ndim else x, y[: len(z)] if z.ndim else y, equal_nan=True)
        or not np.allclose(x[: len(z)] if z.ndim else x, z, rtol=1e-3, atol=1e-4, equal_nan=True)
        for x, y, z in zip(one, other, fewer, strict=True)
    )


@pytest.mark.parametrize("name", ROW_BY_ROW)
def test_row_by_row(name):
    function, *arguments = ROW_BY_ROW[name]
    found = verdicts(function, specs_of(arguments))
    assert [value.mixing for value in found] == [None] * len(found)
    if name not in SLOW:
        assert not is_changed_by_padding(function, arguments)


@pytest.mark.parametrize("name", ACROSS_ROWS)
def test_across_rows(name):
    function, *arguments = ACROSS_ROWS[name]
    (found,) = verdicts(function, specs_of(arguments))
    assert found.mixing is not None
    assert ".py:" in found.mixing.text


# What a fixed batch makes numbers of: its size, and what is counted from its end.
OF_THE_SIZE = {
    *(name for name in ACROSS_ROWS if name.startswith("size")),
    "count_of_rows", "from_the_end", "keys_of_one", "linspace", "noise_in_another_order",
    "random_bits",
}  # fmt: skip


def test_a_fixed_batch():
    """The size is the same in all batches, so that only what is in other rows counts."""
    cases = ROW_BY_ROW | ACROSS_ROWS
    found = {}
    for name, (function, *arguments) in cases.items():
        values = verdicts(function, specs_of(arguments, b=PADDED, **SIZES), PADDED)
        found[name] = all(value.mixing is None for value in values)
    assert found == {name: name in ROW_BY_ROW or name in OF_THE_SIZE for name in cases}


@settings(max_examples=20, deadline=None)
@given(
    names=st.lists(st.sampled_from([*ROW_STEPS, *MIXING_STEPS]), min_size=1, max_size=4),
    seed=st.integers(0, 99),
)
def test_what_is_put_together(names, seed):
    """Whatever is said to be computed row by row stays the same when rows are added."""
    steps = [(ROW_STEPS | MIXING_STEPS)[name] for name in names]

    def function(x):
        for step in steps:
            x = step(x)
        return x

    (found,) = verdicts(function, specs_of(["b, 4"]))
    assert (found.mixing is None) == (set(names) <= set(ROW_STEPS))
    if found.mixing is None:
        assert not is_changed_by_padding(function, ["b, 4"], seed=seed)


@pytest.mark.parametrize("name", ["inverse", "eigenvalues", "svd", "qr", "cumulative", "top_k"])
def test_several_platforms(name):
    """Each of them has its own way to compute these."""
    function, *arguments = ROW_BY_ROW[name]
    found = verdicts(function, specs_of(arguments), platforms=["cuda", "cpu", "tpu", "rocm"])
    assert [value.mixing for value in found] == [None] * len(found)


def test_a_platform_in_which_rows_count():
    def function(x):
        return jax.lax.platform_dependent(x, cpu=lambda x: x - x.mean(0), default=jnp.sin)

    (found,) = verdicts(function, specs_of(["b, 4"]), platforms=["tpu", "cpu"])
    assert "reduce_sum" in found.mixing.text


def test_what_the_batch_is_called():
    specs = specs_of(["3*b, 4"])
    (found,) = verdicts(lambda x: x.reshape(-1, 2, 2).sum(1), specs, "3*b")
    (mixed,) = verdicts(lambda x: x.reshape(-1, 3, 4).sum(1), specs, "3*b")
    assert (found.mixing, found.rows.axis) == (None, 0)
    assert mixed.mixing is not None


def test_what_all_rows_share_may_have_one_for_each():
    """An argument that is not of the elements, but of their places."""
    specs = specs_of(["b, 4", "b"])
    exported = export.export(jax.jit(lambda x, y: x + y[:, None]))(*specs)
    (found,) = results_in_batches(from_exported(exported), "b", [0])
    assert found.mixing is None


def test_an_argument_with_the_batch_elsewhere():
    specs = specs_of(["b, 4", "4, b"])
    exported = export.export(jax.jit(lambda x, y: x + y.T))(*specs)
    (found,) = results_in_batches(from_exported(exported), "b", [0])
    assert "the argument args[1] has the batch in another dimension" in found.mixing.text
