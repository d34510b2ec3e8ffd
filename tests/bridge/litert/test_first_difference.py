"""The first operation that differs is named, with its line."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bridge.litert.first_difference import first_difference
from bridge.litert.litert_model import bind_signatures
from bridge.verifying.bound_trials import make_trials
from bridge.verifying.comparison import Tolerance
from bridge.verifying.verification import VerifyRow, refuse_differences
from xla_call_module.errors import UnsupportedError

pytest.importorskip("ai_edge_litert")
EXACT = Tolerance(rtol=0.0, atol=0.0)


@jax.jit
def inner(x):
    y = x * 2 + 1
    return jnp.exp(y)  # rounds elsewhere in LiteRT


def network(params, x):
    moved = (x - 1).T.reshape(-1)
    return inner(moved) * 4 + params["b"]


def bind(function, args, params=None):
    """The only bound signature of a function, and its first trial."""
    bound = bind_signatures(
        function, signatures=None, params=params, args=args, platform="cpu", order=0, inputs=None,
        outputs=None,
    )  # fmt: skip
    return *bound.values(), next(make_trials(bound))


def test_the_operation_is_found(litert_process):
    one, trial = bind(network, "f32[40,30]", {"b": np.float32(2)})
    found = first_difference(one, trial, process=litert_process, tolerance=EXACT)
    line = inner.__wrapped__.__code__.co_firstlineno + 3
    assert found.startswith("stablehlo.exponential at ")
    assert f"test_first_difference.py:{line}" in found
    assert first_difference(one, trial, process=litert_process) == ""


def test_the_operation_is_found_where_inputs_are_complex(litert_process):
    def turned(z):
        return jnp.exp((z * (2 + 1j)).real + 1)

    one, trial = bind(turned, "c64[40,30]")
    assert trial.inputs["z"].dtype == np.complex64
    assert "stablehlo." in first_difference(one, trial, process=litert_process, tolerance=EXACT)


def test_the_refusal_names_it():
    rows = [
        VerifyRow("f", "zeros", 0, 0.0, ""),
        VerifyRow("f", "random", 0, 1.0, "y differs."),
        VerifyRow("f", "huge", 0, 1.0, "y differs."),
    ]
    asked = []
    with pytest.raises(UnsupportedError, match=r"y differs\. The first .* is that\. 2 of 3 probes"):
        refuse_differences(
            rows,
            [{}] * 3,
            runtime="LiteRT",
            first_difference=lambda number: asked.append(number) or "that",
        )
    assert asked == [1]
    with pytest.raises(UnsupportedError, match=r"y differs\. 2 of 3 probes"):
        refuse_differences(rows, [{}] * 3, runtime="LiteRT")
    with pytest.warns(UserWarning, match="where inputs are huge"):
        refuse_differences([rows[0], rows[2]], [{}] * 2, runtime="LiteRT")
