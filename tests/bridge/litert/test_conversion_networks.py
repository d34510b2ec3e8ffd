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
    """Also of any batch, where they have one."""
    network = _NETWORKS[name]()
    is_symbolic = name in ("mlp", "mobilenet", "unet", "lstm")
    (batch,) = export.symbolic_shape("batch") if is_symbolic else (None,)
    specs = _specs(network.inputs(2), batch)
    model = bridge.to_litert(network.function, params=network.params, args=specs, verify=False)
    (signature,) = describe(model, process=litert_process).signatures
    assert (signature.inputs[0].shape[:1] == (-1,)) == is_symbolic
    for count in (1, 3) if is_symbolic else (2,):
        arrays = network.inputs(count)
        expected = jax.tree.leaves(jax.jit(network.function)(network.params, *arrays))
        for got, wanted in zip(_run(model, arrays, litert_process), expected, strict=True):
            np.testing.assert_allclose(got, wanted, atol=2e-5 * float(jnp.abs(wanted).max()))
