"""Quantized models: size, error on calibration data, and what they are verified with."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bridge
from bridge.inspecting.written_file import Quantization
from xla_call_module.errors import StructureError

interpreter = pytest.importorskip("ai_edge_litert.interpreter")
pytest.importorskip("ai_edge_quantizer")
_RANDOM = np.random.default_rng(0)
PARAMS = {
    "a": _RANDOM.normal(size=(64, 128)).astype(np.float32) / 8,
    "b": _RANDOM.normal(size=(128, 10)).astype(np.float32) / 12,
}
DATA = _RANDOM.normal(size=(6, 4, 64)).astype(np.float32)


def network(params, x):
    return jnp.tanh(jax.nn.relu(x @ params["a"]) @ params["b"])


OPTIONS = {"params": PARAMS, "args": "f32[4,64]"}


@pytest.mark.parametrize(
    ("quantize", "size", "error"),
    [("dynamic_int8", 0.5, 0.05), ("float16", 0.65, 0.002), ("int8", 0.5, 0.3)],
)
def test_kinds(quantize, size, error, tmp_path):
    path = tmp_path / "model.tflite"
    written = bridge.save_litert(
        network, path, quantize=quantize, calibration=list(DATA), **OPTIONS
    )
    report = written.quantization
    assert isinstance(report, Quantization)
    assert report.is_calibrated
    assert report.bytes < size * report.bytes_before
    found = interpreter.Interpreter(str(path)).get_signature_runner()
    errors = []
    for x in DATA:
        wanted = np.asarray(jax.jit(network)(PARAMS, x))
        errors.append(np.abs(found(x=x)["output_0"] - wanted).max() / np.abs(wanted).max())
    assert 0 < report.error < error
    np.testing.assert_allclose(report.error, max(errors), rtol=1e-2)
    assert f"quantized to {quantize}: {report.bytes_before:,} -> {report.bytes:,} b" in str(written)
    saved, record = tmp_path / "saved", tmp_path / "truth.npz"
    bridge.save(network, saved, **OPTIONS)
    bridge.verify(saved, record=record, inputs={"x": DATA[0]})
    allowed = report.error * np.abs(np.asarray(jax.jit(network)(PARAMS, DATA[0]))).max()
    assert bridge.verify(path, against=record, tolerance=(0.0, 1.1 * allowed)).passed
    assert not bridge.verify(path, against=record).passed


def test_calibration_of_a_file(tmp_path):
    np.savez(tmp_path / "calls.npz", **{"serving_default/x": DATA})
    model = bridge.to_litert(
        network, quantize="int8", calibration=tmp_path / "calls.npz", **OPTIONS
    )
    by_name = [{"x": x} for x in DATA]
    assert model == bridge.to_litert(network, quantize="int8", calibration=by_name, **OPTIONS)
    np.savez(tmp_path / "other.npz", y=DATA)
    with pytest.raises(StructureError, match="no array for some input of each signature"):
        bridge.to_litert(network, quantize="int8", calibration=tmp_path / "other.npz", **OPTIONS)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"quantize": "int4"}, "expected one of dynamic_int8, float16, int8"),
        ({"quantize": "int8"}, "needs calibration data"),
        ({"calibration": [DATA[0]]}, "calibration= is for quantize="),
        ({"quantize": "int8", "calibration": []}, "has no calls"),
        ({"quantize": "int8", "calibration": [DATA[0, 0]]}, r"has the shape \(64,\)"),
        (
            {"quantize": "float16", "calibration": [{"y": DATA[0]}]},
            "does not fit 'serving_default'",
        ),
    ],
)
def test_wrong_options(options, match):
    with pytest.raises(StructureError, match=match):
        bridge.to_litert(network, **options, **OPTIONS)


def test_several_signatures_have_calls_each():
    both = {"one": network, "two": lambda p, x: x @ p["a"]}
    with pytest.raises(StructureError, match="signatures one, two"):
        bridge.to_litert(both, quantize="int8", calibration=list(DATA), **OPTIONS)
