"""Complex numbers and Fourier transforms: pairs of floats, and DFT where the runtime has it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import enable_x64, lax

import bridge
from tests.bridge.onnx.checking import assert_same, evaluate, operations, run

Z = (np.sin(np.arange(32) ** 1.3) + 1j * np.cos(np.arange(32) ** 1.7)).reshape(4, 8)


def as_pairs(array):
    array = np.asarray(array)
    return np.stack([array.real, array.imag], -1) if array.dtype.kind == "c" else array


def check_pairs(function, *arrays, rtol=1e-5, dtype="complex64", reference=True, **options):
    """Assert that a function of complex numbers is that of pairs, and return its model."""
    arrays = [array.astype(dtype) if array.dtype.kind == "c" else array for array in arrays]
    with enable_x64(dtype == "complex128"):
        exported = jax.export.export(jax.jit(function))(*arrays)
        results = jax.tree.leaves(jax.jit(function)(*arrays))
    model = bridge.to_onnx(exported, **options)
    given, expected = list(map(as_pairs, arrays)), list(map(as_pairs, results))
    for compute in (run, evaluate) if reference else (run,):
        assert_same(compute(model, given), expected, rtol=rtol, atol=rtol)
    return model


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_functions(dtype):
    def function(z):
        return z * z - z / (z + 3), jnp.exp(z), jnp.log(z), jnp.sqrt(z), z**1.5, jnp.abs(z)

    check_pairs(function, Z, dtype=dtype, rtol=1e-5 if dtype == "complex64" else 1e-12)


def test_matrices():
    def function(z):
        square = z @ z.conj().T + 4 * jnp.eye(4)
        return square, jnp.linalg.inv(square), jnp.linalg.cholesky(square), jnp.trace(square)

    check_pairs(function, Z)


def test_arrays():
    def function(z):
        return jnp.sum(z, 0), jnp.cumsum(z, 1), jnp.sort(z, 1), z.at[0].add(1j), z[::2].T, z == z

    check_pairs(function, Z)


def test_loops():
    check_pairs(lambda z: lax.fori_loop(0, 3, lambda _, w: w * z / 4, z), Z)


@pytest.mark.parametrize("opset", [18, 21])
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_transforms_of_powers_of_two_are_one_operation(dtype, opset):
    def function(z):
        return jnp.fft.fft(z), jnp.fft.ifft(z[:, :4], axis=0), jnp.fft.rfft(z.real[0])

    rtol = 1e-5 if dtype == "complex64" else 1e-12
    model = check_pairs(function, Z, dtype=dtype, rtol=rtol, opset=opset)
    assert operations(model).count("DFT") == 3
    assert "MatMul" not in operations(model)


def test_transforms_of_other_lengths_are_products():
    def function(z):
        return jnp.fft.fft(z, n=7), jnp.fft.irfft(z, n=6), jnp.fft.fft2(z[:3, :5])

    assert "DFT" not in operations(check_pairs(function, Z))


def test_a_transform_of_a_thousand_elements_is_exact():
    x = np.sin(np.arange(1000) ** 1.3).astype(np.float32)
    check_pairs(jnp.fft.rfft, x, rtol=1e-4, reference=False)


def test_inputs_are_pairs_of_symbolic_sizes():
    model = bridge.to_onnx(jnp.fft.fft, args="c64[batch,8]")
    (signal,) = model.graph.input
    shape = [dim.dim_param or dim.dim_value for dim in signal.type.tensor_type.shape.dim]
    assert shape == ["batch", 8, 2]
    z = Z.astype(np.complex64)
    for rows in (1, 4):
        expected = as_pairs(np.fft.fft(z[:rows]).astype(np.complex64))
        assert_same(run(model, [as_pairs(z[:rows])]), [expected], rtol=1e-5, atol=1e-5)


def test_parameters_are_pairs(tmp_path):
    def function(params, x):
        return params["w"] @ x

    params, x = {"w": Z.astype(np.complex64)}, np.ones(8, np.float32)
    written = bridge.save_onnx(function, tmp_path / "m.onnx", params=params, args="f32[8]")
    assert str(written.signatures[0].outputs[0].dtype) == "float32"
    model = bridge.to_onnx(function, params=params, args="f32[8]")
    assert [(one.name, list(one.dims)) for one in model.graph.initializer][:1] == [("w", [4, 8, 2])]
    assert_same(run(model, [x]), [as_pairs(params["w"] @ x)], rtol=1e-5, atol=1e-5)


def test_names_in_the_source_are_kept():
    def function(z):
        with jax.named_scope("block"):
            return jnp.abs(z * z)

    model = bridge.to_onnx(function, args="c64[3]")
    assert all("block" in node.name for node in model.graph.node if node.op_type == "Mul")
