"""Models are run in a process of their own, which may refuse them or die."""

from __future__ import annotations

import os
import signal

import jax.numpy as jnp
import numpy as np
import pytest

import bridge
from bridge.litert.runtime import Runtime, describe
from bridge.litert.worker_process import LiteRTProcess
from xla_call_module.errors import FormatError, InteropError, StructureError

F32 = np.float32
X, Y = np.array([1.5, -2.0, 3.0], F32), np.array([2, 3, 4], np.int32)


@pytest.fixture(scope="module")
def model():
    """Return a model with two signatures."""
    return bridge.to_litert(
        {"minus": lambda x0, x1: (x0 - x1, x1), "sum": lambda x0: jnp.tanh(x0).sum()},
        args={"minus": "f32[3], i32[3]", "sum": "f32[3]"},
        outputs={"minus": ["y0", "y1"], "sum": ["y0"]},
        verify=False,
    )


def test_a_model_is_described(litert_process, model, tmp_path):
    path = tmp_path / "model.tflite"
    path.write_bytes(model)
    found = describe(path)
    assert [one.name for one in found.signatures] == ["minus", "sum"]
    given = [(one.name, one.dtype, one.shape) for one in found.signatures[0].inputs]
    assert given == [("x0", "float32", (3,)), ("x1", "int32", (3,))]
    assert [one.dtype for one in found.signatures[0].outputs] == ["float32", "int32"]
    assert found.operators["SUB"] == 1
    assert found == describe(model, process=litert_process)


@pytest.mark.parametrize("kernels", ["delegate", "builtin", "reference"])
def test_several_runs_of_a_file(model, tmp_path, kernels):
    path = tmp_path / "model.tflite"
    path.write_bytes(model)
    with Runtime(path, kernels=kernels, threads=2) as runtime:
        for factor in (1, 2):
            found = runtime.run({"x1": Y, "x0": factor * X}, signature="minus")
            np.testing.assert_allclose(found["y0"], factor * X - Y)
            np.testing.assert_array_equal(found["y1"], Y)
        total = runtime.run({"x0": X}, signature="sum")["y0"]
    np.testing.assert_allclose(total, np.tanh(X).sum(), rtol=1e-6)
    assert total.shape == ()


def test_what_does_not_fit_is_refused(litert_process, model):
    with Runtime(model, process=litert_process) as runtime:
        with pytest.raises(StructureError, match=r"no signature None.*\['minus', 'sum'\]"):
            runtime.run({"x0": X})
        with pytest.raises(StructureError, match=r"takes \['x0', 'x1'\] and was given \['x0'\]"):
            runtime.run({"x0": X}, signature="minus")
        with pytest.raises(StructureError, match=r"float32\[3\] and was given float64\[3\]"):
            runtime.run({"x0": X.astype(float)}, signature="sum")
        with pytest.raises(StructureError, match=r"float32\[3\] and was given float32\[2\]"):
            runtime.run({"x0": X[:2]}, signature="sum")


@pytest.mark.parametrize("size", [3, 40, 0.5, 0.9])
def test_damaged_models_are_refused(litert_process, model, size):
    damaged = model[: size if size > 1 else int(size * len(model))]
    with (
        pytest.raises(InteropError, match=r"cannot be read|does not run|does not survive"),
        Runtime(damaged, process=litert_process) as runtime,
    ):
        runtime.run({"x0": X}, signature="sum")


def test_another_file_is_no_model(litert_process):
    with pytest.raises(FormatError, match="It does not begin as a LiteRT model does"):
        describe(b"PK\x03\x04 and more", process=litert_process)


def test_a_run_after_a_death_starts_another_process(model):
    with LiteRTProcess() as process, Runtime(model, process=process) as runtime:
        expected = runtime.run({"x0": X}, signature="sum")["y0"]
        process.start()
        os.kill(process._process.pid, signal.SIGSEGV)
        with pytest.raises(InteropError, match=r"does not survive.*SIGSEGV"):
            runtime.run({"x0": X}, signature="sum")
        assert runtime.run({"x0": X}, signature="sum")["y0"] == expected
        assert process.starts == 2


def test_models_are_let_go(litert_process, model):
    with Runtime(model, process=litert_process) as runtime:
        runtime.run({"x0": X}, signature="sum")
    runtime.close()
    runtime.run({"x0": X}, signature="sum")
    runtime.close()
