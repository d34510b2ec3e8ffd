"""Signatures have the names asked for, results of their own, and constants that they share."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import bridge
from bridge.litert.runtime import Runtime
from tests.bridge.litert.signatures import as_model, run_as_jax, run_compiled
from xla_call_module.errors import StructureError

F32 = np.float32
VECTOR = np.array([1.5, -2.0, 3.0], F32)
MATRIX = np.arange(6, dtype=F32).reshape(2, 3) / 4 - 0.5
WEIGHTS = np.random.default_rng(0).normal(size=(64, 64)).astype(F32) / 8


def _with_negated(x: Any, y: Any) -> Any:
    return x, -y, y, x


@pytest.mark.parametrize(
    ("function", "arrays"),
    [
        pytest.param(lambda x, y: 2 * x, (VECTOR, MATRIX), id="unused"),
        pytest.param(_with_negated, (VECTOR, MATRIX), id="inputs"),
        pytest.param(_with_negated, (F32(2.5), np.int32(3)), id="scalars"),
        pytest.param(_with_negated, (np.zeros((0, 3), F32), np.int32([])), id="empty"),
        pytest.param(
            lambda x: [jnp.ones((2, 0), kind) for kind in (F32, "float16", "uint8", "int32", "?")],
            (VECTOR,),
            id="constants without elements",
        ),
        pytest.param(lambda x: (~x, x), (VECTOR > 0,), id="booleans"),
        pytest.param(lambda x: (x, x), (np.ones((2, 1, 3, 1, 2), np.uint8),), id="rank 5"),
        pytest.param(lambda x: (jnp.arange(3.0),) * 2 + (-x,), (VECTOR,), id="constants"),
        pytest.param(lambda x: (lambda y: (y, y))(x + x), (VECTOR,), id="twice"),
        pytest.param(lambda: jnp.arange(3.0) * 2, (), id="no inputs"),
        pytest.param(lambda x: x * jnp.inf, (VECTOR,), id="infinities"),
        pytest.param(lambda x: x / jnp.inf, (F32([np.inf, np.nan, 2]),), id="by infinity"),
    ],
)
def test_every_input_and_result_has_its_name(litert_process, function, arrays):
    run_as_jax(litert_process, function, *arrays)


def test_results_are_tensors_of_their_own(litert_process, tmp_path):
    def several(x: Any, y: Any) -> Any:
        numbers = lax.iota(F32, 1 << 17)  # more than are constants of the file
        return x, -y, jnp.arange(3.0), -y, x, jnp.arange(3.0), numbers

    model = as_model(several, VECTOR, VECTOR)
    path = tmp_path / "model.tflite"
    path.write_bytes(model)
    x, minus, constant = [1.0, 2.0, 3.0], [-1.0, -2.0, -3.0], [0.0, 1.0, 2.0]
    expected = [x, minus, constant, minus, x, constant, constant]
    named = {f"y{number}": values for number, values in enumerate(expected)}
    given = np.arange(1, 4, dtype=F32)
    found = run_compiled(
        path, {"x0": given, "x1": given}, dict.fromkeys(named, 3), ["serving_default"]
    )
    assert found == [named]


@pytest.mark.parametrize(
    "names",
    [("b", "a"), ("x_0", "x"), ("Model", "constant"), ("x" * 300, "x" * 301), ("None", "class")],
)
def test_names_are_kept(litert_process, names):
    outputs = [f"of_{name}" for name in names]
    model = bridge.to_litert(
        lambda x, y: (lax.cond(x[0] > 0, jnp.subtract, jnp.add, x, y), x),
        args="f32[3], f32[3]",
        signatures="sign_it",
        inputs=list(names),
        outputs=outputs,
        verify=False,
    )
    with Runtime(model, process=litert_process) as runtime:
        (signature,) = runtime.contents.signatures
        found = runtime.run({names[1]: 3 * VECTOR, names[0]: VECTOR})
    assert signature.name == "sign_it"
    assert [one.name for one in signature.inputs] == [*names]
    assert [*found] == outputs
    np.testing.assert_array_equal(found[outputs[0]], -2 * VECTOR)
    np.testing.assert_array_equal(found[outputs[1]], VECTOR)


@pytest.mark.parametrize("option", ["inputs", "outputs"])
def test_names_that_are_twice_are_refused(option):
    with pytest.raises(StructureError, match=r"'y'.*To do: "):
        bridge.to_litert(lambda x, y: (x, y), args="f32[3], f32[3]", **{option: ["y", "y"]})


def test_signatures_share_their_constants(litert_process):
    def one(x: Any) -> Any:
        return x @ WEIGHTS

    def several(x: Any) -> Any:
        return lax.fori_loop(0, 3, lambda _, y: jnp.tanh(y @ WEIGHTS), x)

    row = np.ones((1, 64), F32)
    model = bridge.to_litert(
        {"one": one, "several": several}, args="f32[1,64]", outputs=["y"], verify=False
    )
    assert WEIGHTS.nbytes < len(model) < 1.5 * WEIGHTS.nbytes
    with Runtime(model, process=litert_process) as runtime:
        for function in (one, several):
            found = runtime.run({"x": row}, signature=function.__name__)["y"]
            np.testing.assert_allclose(found, function(row), rtol=1e-5, atol=1e-6)
