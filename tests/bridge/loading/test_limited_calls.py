"""Functions that do not return for some inputs are run where they can be ended."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import bridge
from bridge.loading import limited_calls
from bridge.loading.limited_calls import LimitedCalls, TimeLimitError, may_not_return
from xla_call_module.exported import from_exported


def halve(x):
    """Return the first of the halves of a number below 1, which infinity has none of."""
    return lax.while_loop(lambda v: jnp.max(v) >= 1, lambda v: v / 2, x)


def _call_of(function, *shapes):
    specs = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    return from_exported(export.export(jax.jit(function), platforms=["cpu"])(*specs))


@pytest.fixture
def _soon(monkeypatch):
    monkeypatch.setattr(limited_calls, "MIN_SECONDS", 2.0)
    monkeypatch.setattr(limited_calls, "MAX_RATIO", 2.0)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (halve, True),
        (jnp.linalg.svd, True),
        (jnp.linalg.eigh, True),
        (lambda x: jnp.linalg.qr(x)[0], False),
        (lambda x: lax.fori_loop(0, 3, lambda _, v: v * 2, x), False),
        (jnp.sin, False),
    ],
)
def test_which_functions_may_not_return(function, expected):
    assert may_not_return(_call_of(function, (4, 4))) == expected


@pytest.mark.usefixtures("_soon")
def test_a_call_that_does_not_return_is_ended_and_later_ones_are_run():
    run = LimitedCalls(
        lambda scale, x: {"y": halve(x * scale)}, _call_of(halve, (2,)), static_argnums=(0,)
    )
    x = np.float32([3, 5])
    np.testing.assert_array_equal(run(x, static=(2,))["y"], x / 8)
    began = time.monotonic()
    with pytest.raises(TimeLimitError, match=r"halve with these inputs.* within 2 seconds"):
        run(np.float32([np.inf, 1]), static=(2,))
    assert time.monotonic() - began < 10
    np.testing.assert_array_equal(run(x, static=(2,))["y"], x / 8)


@pytest.mark.usefixtures("_soon")
def test_verification_leaves_out_the_inputs_for_which_jax_does_not_return(tmp_path):
    spec = jax.ShapeDtypeStruct((2,), np.float32)
    bridge.save(halve, tmp_path / "m", args=(spec,), gradient_order=0)
    with pytest.warns(UserWarning, match=r"not compared where inputs are inf.* within 2 seconds"):
        report = bridge.verify(tmp_path / "m", probes=("random", "inf"))
    assert report.passed
    assert report.rows


@pytest.mark.usefixtures("_soon")
def test_litert_models_are_written_though_jax_does_not_return_at_edges():
    pytest.importorskip("ai_edge_litert")
    with pytest.warns(UserWarning, match=r"not compared where inputs are inf.* within 2 seconds"):
        model = bridge.to_litert(halve, args="f32[2]")
    assert model[4:8] == b"TFL3"
