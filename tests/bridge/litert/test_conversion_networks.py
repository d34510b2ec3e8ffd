"""Networks as LiteRT models: right, of the operators that they are made of, for any batch."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import bridge
from bridge.litert.runtime import Runtime, describe
from tests.bridge import networks as models

_NETWORKS = {
    "mlp": models.mlp,
    "mobilenet": models.mobilenet,
    "mobilenet_v2": lambda: models.mobilenet_v2(stages=3, size=32),
    "unet": models.unet,
    "vit": models.vit,
    "gpt": models.gpt,
    "gpt_step": models.gpt_step,
    "lstm": lambda: models.lstm(steps=20),
    "bigru": models.bigru,
    "resnet": lambda: models.resnet((1, 1, 1, 1), width=8, size=32),
}


def _specs(arrays, batch=None):
    return tuple(
        jax.ShapeDtypeStruct((batch or a.shape[0], *a.shape[1:]) if a.ndim else (), a.dtype)
        for a in arrays
    )


def _run(model, arrays, process):
    with Runtime(model, process=process) as runtime:
        (signature,) = runtime.contents.signatures
        names = [tensor.name for tensor in signature.inputs]
        return list(runtime.run(dict(zip(names, arrays, strict=True))).values())


@pytest.mark.parametrize("name", _NETWORKS)
def test_networks_compute_what_jax_computes(name, litert_process):
    network = _NETWORKS[name]()
    arrays = network.inputs(2)
    model = bridge.to_litert(
        network.function, params=network.params, args=_specs(arrays), verify=False
    )
    expected = jax.tree.leaves(jax.jit(network.function)(network.params, *arrays))
    found = _run(model, arrays, litert_process)
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, wanted, atol=2e-5 * float(jnp.abs(wanted).max()))


@pytest.mark.parametrize("name", ["mlp", "mobilenet", "unet", "lstm"])
def test_a_symbolic_batch_is_any_batch(name, litert_process):
    network = _NETWORKS[name]()
    (batch,) = export.symbolic_shape("batch")
    specs = _specs(network.inputs(1), batch)
    model = bridge.to_litert(network.function, params=network.params, args=specs, verify=False)
    (signature,) = describe(model, process=litert_process).signatures
    assert signature.inputs[0].shape[0] == -1
    for count in (1, 3):
        arrays = network.inputs(count)
        expected = jax.tree.leaves(jax.jit(network.function)(network.params, *arrays))
        for got, wanted in zip(_run(model, arrays, litert_process), expected, strict=True):
            np.testing.assert_allclose(got, wanted, atol=2e-5 * float(jnp.abs(wanted).max()))


def test_a_convolution_keeps_its_activation(litert_process):
    network = _NETWORKS["resnet"]()
    arrays = network.inputs(1)
    model = bridge.to_litert(
        network.function, params=network.params, args=_specs(arrays), verify=False
    )
    operators = describe(model, process=litert_process).operators
    assert not operators.keys() & {"LESS", "MAXIMUM", "RELU"}
    assert operators["CONV_2D"] >= 13


def test_state_is_passed_in_and_out(tmp_path, litert_process):
    def step(state, x):
        return {"count": state["count"] + 1, "mean": 0.9 * state["mean"] + x.mean()}, x + 1

    state = {"count": jnp.int32(0), "mean": jnp.float32(0)}
    bridge.save(step, tmp_path / "model", params=state, updates=0, args="f32[3]")
    written = bridge.save_litert(tmp_path / "model", tmp_path / "model.tflite", state="arguments")
    (signature,) = written.signatures
    assert [one.name for one in signature.inputs] == ["count", "mean", "x"]
    assert [one.name for one in signature.outputs] == ["new_count", "new_mean", "output_0"]
    x = np.array([1, 2, 3], np.float32)
    with Runtime(tmp_path / "model.tflite", process=litert_process) as runtime:
        first = runtime.run({"count": np.int32(0), "mean": np.float32(0), "x": x})
        second = runtime.run(
            {"count": first["new_count"], "mean": first["new_mean"], "x": first["output_0"]}
        )
    assert int(second["new_count"]) == 2
    np.testing.assert_allclose(second["new_mean"], 0.9 * 2.0 + 3.0, rtol=1e-6)
