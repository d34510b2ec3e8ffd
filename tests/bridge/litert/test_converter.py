"""Portable artifacts become models that have the names asked for, each constant once."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import bridge
from bridge.litert import converter, worker_process
from bridge.litert.converter import SignatureModule, convert
from bridge.litert.runtime import Runtime, describe
from bridge.litert.worker_process import LiteRTProcess
from tests.bridge.litert.signatures import as_module, run_as_jax
from xla_call_module.errors import MissingDependencyError, UnsupportedError

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
            lambda x: [jnp.ones((2, 0), kind) for kind in (F32, "float16", "uint8", "int64", "?")],
            (VECTOR,),
            id="constants without elements",
        ),
        pytest.param(lambda x: (~x, x), (VECTOR > 0,), id="booleans"),
        pytest.param(lambda x: (x, x), (np.ones((2, 1, 3, 1, 2), np.uint8),), id="rank 5"),
        pytest.param(lambda x: (jnp.arange(3.0),) * 2 + (-x,), (VECTOR,), id="constants"),
        pytest.param(lambda x: (lambda y: (y, y))(x + x), (VECTOR,), id="twice"),
        pytest.param(lambda: jnp.arange(3.0) * 2, (), id="no inputs"),
        pytest.param(lambda x: (), (VECTOR,), id="no results"),
        pytest.param(lambda x: x * jnp.inf, (VECTOR,), id="infinities"),
        pytest.param(lambda x: x / jnp.inf, (F32([np.inf, np.nan, 2]),), id="by infinity"),
        pytest.param(lambda x: x + x, (np.array([1 << 40, -3], np.int64),), id="int64"),
    ],
)
def test_every_input_and_result_has_its_name(litert_process, function, arrays):
    with jax.enable_x64(True):
        run_as_jax(litert_process, function, *arrays)


# The runtime for devices writes each result to a buffer of its own.
_COMPILED = """
import json, sys
import numpy as np
from ai_edge_litert.compiled_model import CompiledModel
model = CompiledModel.from_file(sys.argv[1])
given, results = model.create_input_buffers(0), model.create_output_buffers(0)
for buffer in given:
    buffer.write(np.arange(1, 4, dtype=np.float32))
model.run_by_index(0, given, results)
names = model.get_signature_by_index(0)["outputs"]
read = {name: buffer.read(3, np.float32).tolist() for name, buffer in zip(names, results)}
print(json.dumps(read), flush=True)
"""


def test_results_are_tensors_of_their_own(litert_process, tmp_path):
    module = as_module(
        lambda x, y: (x, -y, jnp.arange(3.0), -y, x, jnp.arange(3.0)), VECTOR, VECTOR
    )
    path = tmp_path / "model.tflite"
    path.write_bytes(convert([module], process=litert_process))
    command = [sys.executable, "-c", _COMPILED, str(path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    x, minus, constant = [1.0, 2.0, 3.0], [-1.0, -2.0, -3.0], [0.0, 1.0, 2.0]
    expected = [x, minus, constant, minus, x, constant]
    assert json.loads(run.stdout.splitlines()[-1]) == dict(
        zip(module.outputs, expected, strict=True)
    )


def _late(y: Any) -> Any:
    """Return a matrix whose transposition the converter sees late."""
    return jnp.cos(y).reshape(3, 1, 2).transpose(2, 0, 1)[:, :, 0]


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x, y: jnp.sin(x).T @ _late(y), id="matrices"),
        pytest.param(lambda x, y: jnp.maximum(-jnp.sin(x).T, 0) @ _late(y), id="elements"),
    ],
)
def test_transposed_matrices_are_multiplied(litert_process, function):
    run_as_jax(litert_process, function, MATRIX, MATRIX.T * 3)


def _rows_of_a_sum(x: Any) -> Any:
    total = jnp.cumsum(x) + 5
    return jnp.cumsum(total.reshape(3, 4) + jnp.arange(4, dtype=x.dtype), 1), jnp.cumsum(total)


def _reshaped_twice(x: Any) -> Any:
    rows = jnp.cumsum(x).reshape(3, 4)
    return jnp.cumsum(1 - rows.reshape(4, 3), 0), jnp.cumsum(rows, 0)


def _updated(x: Any) -> Any:
    total = jnp.cumsum(x) * 5
    rows = lax.dynamic_update_slice(total.reshape(3, 4), x[:4].reshape(2, 2), (1, x[1].astype(int)))
    return jnp.cumsum(rows, 1), jnp.cumsum(total)


def _overwritten_thrice(x: Any) -> Any:
    total = jnp.cumsum(x) - 5
    rows = total.reshape(4, 3) * jnp.arange(3, dtype=x.dtype)
    others = rows.reshape(2, 6) - jnp.arange(6, dtype=x.dtype)
    return jnp.cumsum(others, 1), jnp.cumsum(rows, 0), jnp.cumsum(total)


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.parametrize("kernels", ["delegate", "builtin", "reference"])
def test_nothing_is_overwritten_that_is_read(litert_process, kernels, dtype):
    array = np.arange(12).astype(dtype)
    for function in (_rows_of_a_sum, _reshaped_twice, _updated, _overwritten_thrice):
        model = convert([as_module(function, array)], process=litert_process)
        with Runtime(model, process=litert_process, kernels=kernels) as runtime:
            found = runtime.run({"x0": array}).values()
        for got, expected in zip(found, function(array), strict=True):
            np.testing.assert_array_equal(got, expected, str(function))


def test_what_nothing_else_reads_is_not_copied(litert_process):
    def steps(x: Any) -> Any:
        total = jnp.cumsum(x) + 5
        return jnp.cumsum((total.reshape(3, 4) + x[:4]).reshape(-1) * x)

    model = convert([as_module(steps, np.arange(12, dtype=F32))], process=litert_process)
    assert "TILE" not in describe(model, process=litert_process).operators


@pytest.mark.parametrize(
    "names",
    [("b", "a"), ("a,b", "a_b"), ("params/Dense_0.kernel:0", "λ"), ("a b", "x" * 300), ("1", "")],
)
def test_names_are_kept(litert_process, names):
    module = as_module(
        lambda x, y: (lax.cond(x[0] > 0, jnp.subtract, jnp.add, x, y), x), VECTOR, VECTOR
    )
    outputs = tuple(f"of {name}" for name in names)
    model = convert(
        [SignatureModule("sign, it", module.artifact, names, outputs)], process=litert_process
    )
    with Runtime(model, process=litert_process) as runtime:
        found = runtime.run({names[1]: 3 * VECTOR, names[0]: VECTOR})
    assert [*found] == [*outputs]
    np.testing.assert_array_equal(found[outputs[0]], -2 * VECTOR)
    np.testing.assert_array_equal(found[outputs[1]], VECTOR)


def test_signatures_share_their_constants(litert_process):
    def one(x: Any) -> Any:
        return x @ WEIGHTS

    def several(x: Any) -> Any:
        return lax.fori_loop(0, 3, lambda _, y: jnp.tanh(y @ WEIGHTS), x)

    row = np.ones((1, 64), F32)
    modules = [as_module(f, row, signature=f.__name__) for f in (one, several)]
    model = convert(modules, process=litert_process)
    assert WEIGHTS.nbytes < len(model) < 1.5 * WEIGHTS.nbytes
    with Runtime(model, process=litert_process) as runtime:
        for function in (one, several):
            (found,) = runtime.run({"x0": row}, signature=function.__name__).values()
            np.testing.assert_allclose(found, function(row), rtol=1e-5, atol=1e-6)


def test_a_loop_has_its_weights_once(litert_process):
    def scanned(x: Any, weights: Any) -> Any:
        return lax.scan(lambda c, row: (jnp.tanh(c @ weights + row), c.sum()), x[0], x)

    x = np.ones((4, 64), F32) / 8
    model = run_as_jax(litert_process, lambda x: scanned(x, WEIGHTS), x)
    assert WEIGHTS.nbytes < len(model) < 1.5 * WEIGHTS.nbytes


def test_constants_are_not_carried(litert_process):
    def carried(x: Any) -> Any:
        step = lambda v: (v[0] + jnp.abs(v[1]).sum(), v[1])  # noqa: E731
        total, weights = lax.while_loop(lambda v: v[0].sum() < 100, step, (x, WEIGHTS))
        return total, weights[0]

    model = run_as_jax(litert_process, carried, VECTOR)
    assert len(model) < 1.5 * WEIGHTS.nbytes
    assert describe(model, process=litert_process).operators["WHILE"] == 1


@pytest.mark.parametrize(
    ("function", "sizes", "message"),
    [
        (lambda x: jnp.fft.fft(x).real, "", r"stablehlo\.fft at .*test_converter\.py:\d+: LiteRT"),
        (lambda x: lax.population_count(x.astype(int)), "",
         r"tf\.PopulationCount at .*py:\d+: tf\.Pop"),
        (lambda x: jnp.sort(x), "", r"stablehlo\.sort at .*: the runtime has no kernel for it"),
        (lambda x: x.argmax(1), "b, 3", r"stablehlo\.reduce at .*test_converter\.py:\d+: fail"),
    ],
)  # fmt: skip
def test_refusals_name_the_operation_and_its_line(litert_process, function, sizes, message):
    with pytest.raises(UnsupportedError, match=rf"(?s){message}.*To do: "):
        convert([as_module(function, MATRIX, sizes=sizes)], process=litert_process)


def test_slices_of_many_dimensions_of_symbolic_sizes_are_refused():
    with pytest.raises(UnsupportedError, match=r"test_converter\.py:\d+.*To do: "):
        bridge.to_litert(
            lambda x: jnp.tile(x[:, :, None, None, None, None], 2)[:, 1:], args="f32[b,4]"
        )


def test_damaged_artifacts_are_refused(litert_process):
    module = as_module(jnp.tanh, VECTOR)
    damaged = SignatureModule("f", module.artifact[:200], module.inputs, module.outputs)
    with pytest.raises(UnsupportedError, match="failed to deserialize"):
        convert([damaged], process=litert_process)


def test_names_that_are_twice_are_refused(litert_process):
    module = as_module(lambda x: (x, -x), VECTOR)
    twice = SignatureModule("f", module.artifact, module.inputs, ("y", "y"))
    with pytest.raises(UnsupportedError, match=r"'f' takes and returns .*'y', 'y'"):
        convert([twice], process=litert_process)


def test_the_process_may_die(monkeypatch):
    monkeypatch.setattr(
        converter, "LiteRTProcess", partial(LiteRTProcess, seconds=0.001), raising=True
    )
    with pytest.raises(UnsupportedError, match=r"not answer within 0\.001 seconds"):
        convert([as_module(jnp.tanh, VECTOR)])


def test_the_wheels_are_named(monkeypatch):
    monkeypatch.setattr(worker_process, "_WHEELS", {"no_such_module": "no-such-wheel"})
    with pytest.raises(MissingDependencyError, match=r"needs no-such-wheel.*\[litert\]"):
        convert([])
