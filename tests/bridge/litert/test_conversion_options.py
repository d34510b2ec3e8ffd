"""Options of `to_litert` and `save_litert` together: each kind of model in each mode, once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bridge
from bridge.litert.runtime import Runtime
from xla_call_module.errors import MissingDependencyError, StructureError, UnsupportedError

pytest.importorskip("ai_edge_litert")
pytest.importorskip("ai_edge_litert")

PARAMS = {"w": np.linspace(-1, 1, 32 * 48, dtype=np.float32).reshape(32, 48) / 4}
RANDOM = np.random.default_rng(0)
CALLS = [RANDOM.normal(size=(4, 32)).astype(np.float32) for _ in range(3)]
SIZES = [RANDOM.normal(size=(size, 32)).astype(np.float32) for size in (2, 5, 1)]


def predict(params, x):
    return jnp.tanh(x @ params["w"])


def energy(params, x):
    return {"energy": jax.nn.relu(x @ params["w"]) @ params["w"].T}


BOTH = {"predict": predict, "energy": energy}


def results(path, key, inputs, process):
    with Runtime(path, process=process) as runtime:
        return runtime.run(inputs, signature=key)


@pytest.mark.parametrize("quantize", ["float16", "dynamic_int8", "int8"])
@pytest.mark.parametrize("rows", ["4", "b"])
def test_quantized_renamed_and_verified(quantize, rows, tmp_path, litert_process):
    pytest.importorskip("ai_edge_quantizer")
    path = tmp_path / "missing" / "folder" / "model.tflite"
    calls = SIZES if rows == "b" else CALLS
    written = bridge.save_litert(
        BOTH, path, params=PARAMS, args=f"f32[{rows},32]", quantize=quantize,
        inputs={"predict": ["points"], "energy": {"x": "where"}}, outputs={"predict": ["scores"]},
        calibration={"predict": [{"points": x} for x in calls], "energy": calls},
    )  # fmt: skip
    assert written.quantization is not None
    assert written.quantization.is_calibrated
    found = results(path, "predict", {"points": calls[1]}, litert_process)["scores"]
    wanted = np.asarray(predict(PARAMS, calls[1]))
    assert np.abs(found - wanted).max() <= 1.5 * written.quantization.error * np.abs(wanted).max()
    assert list(results(path, "energy", {"where": calls[1]}, litert_process)) == ["energy"]


CONSTRAINED = {  # shape, constraints, function, a size of c that they leave
    "at least": ("b,c", ["c >= 3"], lambda x: x[:, :3] * 2, 3),
    "at most": ("b,c", ["c <= 5"], jnp.sin, 5),
    "between": ("b,c", ["c <= 64", "c >= 32"], jnp.sin, 32),
    "equal": ("b,c", ["c == 2*b"], lambda x: x.reshape(x.shape[0], 2, -1).sum(1), 4),
    "multiple": ("b,c", ["mod(c, 3) == 0"], lambda x: x.reshape(-1, x.shape[1] // 3, 3), 6),
    "expression": ("b,3*c", [], lambda x: x.reshape(-1, x.shape[1] // 3, 3), 6),
}


@pytest.mark.parametrize("case", CONSTRAINED)
def test_sizes_that_constraints_leave(case, tmp_path, litert_process):
    text, constraints, function, columns = CONSTRAINED[case]
    shape = jax.export.symbolic_shape(text, constraints=constraints)
    exported = jax.export.export(jax.jit(function))(jax.ShapeDtypeStruct(shape, jnp.float32))
    path, gradient = (tmp_path / name for name in ("y.tflite", "dy.tflite"))
    bridge.save_litert(exported, path)
    bridge.save_litert(exported, gradient, gradient_order=1)
    x = RANDOM.normal(size=(2, columns)).astype(np.float32)
    (y,) = results(path, "serving_default", {"x": x}, litert_process).values()
    np.testing.assert_allclose(y, function(x), rtol=1e-6)


def branches(x):
    return jax.lax.platform_dependent(
        x, cpu=lambda x: x + 1, cuda=lambda x: x * x, default=lambda x: jnp.sin(x) * 2
    )


@pytest.mark.parametrize("source", ["function", "exported"])
@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_a_platform_is_verified_by_its_own_branch(source, platform, tmp_path, litert_process):
    path, model, args = tmp_path / "model.tflite", branches, "f32[4,32]"
    if source == "exported":
        every = jax.export.export(jax.jit(branches), platforms=["cpu", "cuda", "tpu"])
        model, args = every(CALLS[0]), None
    bridge.save_litert(model, path, args=args, platform=platform, inputs=["x"], outputs=["y"])
    x = CALLS[1]
    wanted = {"cpu": x + 1, "cuda": x * x, "tpu": np.sin(x) * 2}[platform]
    found = results(path, "serving_default", {"x": x}, litert_process)["y"]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("names", [("predict",), ("predict", "energy")])
def test_options_by_signature(names):
    functions = {name: BOTH[name] for name in names}
    args = {"predict": "f32[4,32]", "energy": "f32[4,32]"}
    inputs = {"predict": ["a"], "energy": ["b"]}
    options = {"params": PARAMS, "verify": False}
    by_key = {
        "args": {name: args[name] for name in names},
        "inputs": {name: inputs[name] for name in names},
    }
    made = bridge.to_litert(functions, **by_key, **options)
    chosen = bridge.to_litert(BOTH, args=args, inputs=inputs, signatures=list(names), **options)
    assert made == chosen
    calls = {"predict": CALLS, "energy": CALLS}
    quantized = bridge.to_litert(
        BOTH, args=args, signatures="energy", quantize="float16", calibration=calls, **options
    )
    assert quantized[4:8] == b"TFL3"
    with pytest.raises(StructureError, match=r"calibration for 'energy' cannot be read.*numbers"):
        bridge.to_litert(
            BOTH, args=args, signatures="energy", quantize="float16", calibration=["x"], **options
        )


def test_typed_keys_are_state():
    def draw(params, x):
        return {"key": jax.random.split(params["key"], 2)[0]}, x + jax.random.uniform(params["key"])

    params = {"key": jax.random.key(3)}
    model = bridge.to_litert(draw, params=params, args="f32[2]", updates=0)
    assert model[4:8] == b"TFL3"


def test_a_model_that_the_least_size_is_too_small_for_names_the_constraint():
    def halves(x):
        half = x[: x.shape[0] // 2]
        return half @ half

    with pytest.raises(UnsupportedError, match=r"constraint such as 't >= 2'"):
        bridge.to_litert(halves, args="f32[t]")


def test_a_quantizer_that_is_partly_installed_is_a_missing_dependency(tmp_path, monkeypatch):
    pytest.importorskip("ai_edge_quantizer")
    package = tmp_path / "ai_edge_quantizer"
    package.mkdir()
    (package / "__init__.py").write_text("import a_part_that_is_not_installed")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(MissingDependencyError, match=r"ai-edge-quantizer.*a_part_that_is_not"):
        bridge.to_litert(lambda x: x * 2, args="f32[2]", quantize="float16")
