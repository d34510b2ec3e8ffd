"""Complex numbers inside of a model, as pairs of arrays."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import enable_x64, lax

import bridge
from bridge.litert.runtime import Runtime
from xla_call_module.errors import DtypeError

REAL, IMAG = (
    part.ravel().astype(np.float32)
    for part in np.meshgrid([0.5, -1.2, 3, 0, 2e-3, -4, 1e-9], [1.5, 0.3, 0, -2, 1e-4, 3])
)
_FUNCTIONS = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "cos", "cosh", "exp", "expm1",
    "log", "log1p", "logistic", "neg", "rsqrt", "sign", "sin", "sinh", "sqrt", "tan", "tanh",
)  # fmt: skip


def parts(z):
    return [z.real, z.imag] if jnp.iscomplexobj(z) else [z]


@pytest.mark.parametrize(
    "function",
    [
        *(getattr(lax, name) for name in _FUNCTIONS),
        jnp.angle,
        jnp.isfinite,
        lambda z: z * z[::-1] - z / (z[::-1] + 5),
        lambda z: z**2.5,
        lambda z: jnp.prod(z.reshape(6, 7), axis=0),
        lambda z: jnp.where(z.real > 0, z, 1j),
        lambda z: jnp.cumsum(z[:7]) + jnp.mean(z),
        lambda z: z.reshape(6, 7) @ z.reshape(7, 6),
        lambda z: lax.fori_loop(0, 3, lambda _, w: w * z / 4, z),
    ],
    ids=[*_FUNCTIONS, *map(str, range(9))],
)
def test_functions(check, function):
    def compute(x, y):
        return jnp.stack(parts(function(lax.complex(x, y))))

    keep = (
        (REAL != 0) | (IMAG != 0) if function in (lax.log, lax.rsqrt) else np.full(len(REAL), True)
    )
    check(compute, REAL[keep], IMAG[keep], relative=2e-5)


def test_gradients_of_complex_numbers(check):
    def loss(x, y):
        z = lax.complex(x, y)
        return jnp.sum(jnp.exp(z).real * jnp.sin(z).imag)

    check(jax.grad(loss, argnums=(0, 1)), REAL, IMAG, relative=2e-5)


def moved(z, x):
    return {"m": jnp.abs(z), "p": z * x, "t": (z.T, z[None])}


def test_complex_inputs_and_results_are_pairs(check):
    check(moved, REAL.reshape(6, 7) + 1j * IMAG.reshape(6, 7), np.float32([1, -2, 3, 4, 5, 6, 7]))


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
    samples = [{"z": (REAL[:6] + 1j * IMAG[:6]).reshape(2, 3).astype(np.complex64)}]
    weights = np.linspace(-1, 1, 600, dtype=np.float32).reshape(3, 200)
    written = bridge.save_litert(
        lambda z: z.real @ weights,
        tmp_path / "model.tflite",
        args="c64[2,3]",
        quantize=quantize,
        calibration=samples,
    )
    assert written.quantization.error < 0.05


def test_a_gradient_of_complex_numbers_is_a_pair(litert_process):
    z = (REAL + 1j * IMAG).astype(np.complex64)[:8]

    def size(z):
        return jnp.sum(jnp.abs(z * (1 + 2j)) ** 2)

    model = bridge.to_litert(size, args="c64[8]", gradient_order=1)
    with Runtime(model, process=litert_process) as runtime:
        given = {"z": np.stack([z.real, z.imag], -1), "output_0_cotangent": np.float32(1)}
        found = runtime.run(given)["z_gradient"]
    expected = jax.grad(size)(z)
    np.testing.assert_allclose(found, np.stack([expected.real, expected.imag], -1), rtol=1e-5)


def test_complex_numbers_of_128_bits_are_refused():
    with enable_x64(), pytest.raises(DtypeError, match=r"complex128.*float32 or complex64"):
        bridge.to_litert(jnp.real, args="c128[3]")
