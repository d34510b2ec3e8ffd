"""Complex numbers in models, which take and return them as pairs of floats."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import enable_x64

import bridge
from bridge.litert.runtime import Runtime
from xla_call_module.errors import DtypeError

pytest.importorskip("ai_edge_litert")
Z = np.complex64([0.5 + 1.5j, -1.2 + 0.3j, 3, -2j, 2e-3 + 1e-4j, -4 + 3j])


def moved(z, x):
    return {"m": jnp.abs(z), "p": z * x, "t": (z.T, z[None])}


def test_pairs_have_symbolic_sizes(tmp_path):
    written = bridge.save_litert(moved, tmp_path / "model.tflite", args="c64[b,3], f32[3]")
    (signature,) = written.signatures
    shapes = {one.name: (one.dtype, one.shape) for one in (*signature.inputs, *signature.outputs)}
    assert shapes == {
        "z": ("float32", ("b", 3, 2)),
        "x": ("float32", (3,)),
        "m": ("float32", ("b", 3)),
        "p": ("float32", ("b", 3, 2)),
        "t_0": ("float32", (3, "b", 2)),
        "t_1": ("float32", (1, "b", 3, 2)),
    }


@pytest.mark.parametrize("quantize", ["float16", "dynamic_int8", "int8"])
def test_pairs_are_calibrated_by_complex_numbers(quantize, tmp_path):
    weights = np.linspace(-1, 1, 600, dtype=np.float32).reshape(3, 200)
    written = bridge.save_litert(
        lambda z: z.real @ weights, tmp_path / "model.tflite", args="c64[2,3]",
        quantize=quantize, calibration=[{"z": Z.reshape(2, 3)}],
    )  # fmt: skip
    assert written.quantization.error < 0.05


def test_a_gradient_of_complex_numbers_is_a_pair(litert_process):
    def size(z):
        return jnp.sum(jnp.abs(z * (1 + 2j)) ** 2)

    model = bridge.to_litert(size, args="c64[6]", gradient_order=1)
    with Runtime(model, process=litert_process) as runtime:
        given = {"z": np.stack([Z.real, Z.imag], -1), "output_0_cotangent": np.float32(1)}
        found = runtime.run(given)["z_gradient"]
    expected = jax.grad(size)(Z)
    np.testing.assert_allclose(found, np.stack([expected.real, expected.imag], -1), rtol=1e-5)


def test_complex_numbers_of_128_bits_are_refused():
    with enable_x64(), pytest.raises(DtypeError, match=r"complex128.*float32 or complex64"):
        bridge.to_litert(jnp.real, args="c128[3]")
