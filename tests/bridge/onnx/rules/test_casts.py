"""Conversions between all dtypes, and the bits of one read as another."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import bridge
from tests.bridge.onnx.checking import check, evaluate, operations, run
from tests.bridge.onnx.edges import NUMBERS, edges
from xla_call_module.errors import UnsupportedError

DTYPES = [*NUMBERS, "bool"]
SAME_SIZE = {
    "float16": "uint16", "bfloat16": "int16", "float32": "uint32", "float64": "uint64",
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_conversions(dtype):
    extremes = [1e5, -1e5, 3e9, -3e9, 1e19, -1e19, 9.3e18, 2.0**63, 127.9, -128.9, 255.5, 65535.5]
    numbers = edges(dtype)
    if "float" in dtype:
        with np.errstate(over="ignore"):
            numbers = np.concatenate([numbers, np.array(extremes).astype(numbers.dtype)])
    wide = dtype in ("int64", "uint64", "float64")
    targets = [name for name in DTYPES if wide or not name.endswith("64")]
    check(lambda x: [lax.convert_element_type(x, jnp.dtype(name)) for name in targets], numbers,
          rtol=1e-7)  # fmt: skip


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_float8(dtype):
    numbers = np.float32([0, 1, -1.5, 0.3, 100, 448, 1e-3, np.nan])
    check(lambda x: x.astype(dtype).astype(jnp.float32), numbers)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_float8_is_rounded_to_the_nearest(dtype):
    values = np.arange(256).astype(np.uint8).view(jnp.dtype(dtype)).astype(np.float32)
    values = np.unique(values[np.isfinite(values)])
    middles = (values[1:] + values[:-1]) / 2
    beyond = np.float32([464, 465, 479, 480, 500, 1e5, 61439, 61440, 65535, 65536, 1e10, np.inf])
    points = np.concatenate([values, middles, beyond])
    near = [np.nextafter(points, np.float32(to)) for to in (np.inf, -np.inf)]
    numbers = np.concatenate([points, *near])
    numbers = np.concatenate([numbers, -numbers])
    model = bridge.to_onnx(
        jax.export.export(jax.jit(lambda x: x.astype(dtype).astype(jnp.float32)))(numbers)
    )
    with np.errstate(over="ignore"):
        expected = numbers.astype(jnp.dtype(dtype)).astype(np.float32)
    for how in (run, evaluate):
        found = how(model, [numbers])[0]
        np.testing.assert_array_equal(found, expected)
        zero = expected == 0
        np.testing.assert_array_equal(np.signbit(found[zero]), np.signbit(expected[zero]))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_float8_of_all_pairs(dtype):
    """Beyond the greatest number is NaN or infinity, not the greatest number."""
    values = np.arange(256).astype(np.uint8).view(jnp.dtype(dtype)).astype(np.float32)
    pair = [x.reshape(-1) for x in np.meshgrid(values, values, indexing="ij")]

    def function(a, b):
        return [a + b, a - b, a * b, lax.max(a, b)]

    def widened(*pair):  # what ONNX Runtime takes and returns
        return [x.astype(jnp.float32) for x in function(*(x.astype(dtype) for x in pair))]

    model = bridge.to_onnx(jax.export.export(jax.jit(widened))(*pair))
    # XLA would leave out roundings that a conversion follows.
    expected = jax.jit(function)(*(x.astype(jnp.dtype(dtype)) for x in pair))
    for found, wanted in zip(run(model, pair), expected, strict=True):
        np.testing.assert_array_equal(found, np.asarray(wanted).astype(np.float32))


def _numbers(name):
    """Floats of every exponent, the smallest ones and the special ones too."""
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    random = np.random.default_rng(0)
    unsigned = f"uint{8 * dtype.itemsize}"
    bits = random.integers(0, np.iinfo(unsigned).max, 500, unsigned, endpoint=True)
    floats = bits.view(dtype)
    return np.concatenate([floats, edges(name)])


@pytest.mark.parametrize(("dtype", "bits"), SAME_SIZE.items())
def test_bits_of_floats(dtype, bits):
    numbers = np.concatenate([_numbers(dtype), -edges(dtype)])
    if dtype == "bfloat16":  # which ONNX Runtime takes no arrays of
        with np.errstate(invalid="ignore"):  # which signalling NaNs are
            numbers = numbers[~np.isnan(numbers)].astype(np.float32)
        check(lambda x: lax.bitcast_convert_type(x.astype(dtype), jnp.int16),
              np.concatenate([numbers, np.float32([np.nan, -np.nan])]))  # fmt: skip
    else:
        check(lambda x: lax.bitcast_convert_type(x, jnp.dtype(bits)), numbers)


@pytest.mark.parametrize(("dtype", "bits"), SAME_SIZE.items())
def test_floats_of_bits(dtype, bits):
    numbers = _numbers(dtype).view(bits)
    check(lambda x: lax.bitcast_convert_type(x, jnp.dtype(dtype)).astype(
        "float64" if dtype == "float64" else "float32"), numbers)  # fmt: skip


def test_bits_are_read_from_version_26_on():
    x = np.float32([np.nan, -np.nan])
    with pytest.raises(UnsupportedError, match=r"sign of a NaN.*leave opset out, or pass 26"):
        check(jnp.signbit, x, opset=25)
    check(lambda x: lax.bitcast_convert_type(x, jnp.float32), np.int32([1, 2, -1]), opset=18)


def test_bits_of_known_numbers():
    number = np.float32(1.5)
    model = check(lambda x: x + lax.bitcast_convert_type(number, jnp.int32), np.int32(1))
    assert operations(model) == ["Add"]
    check(lambda x: jnp.nextafter(x, 2.0), np.float32([1, 2, 3, -np.nan]), shapes=["b"])


def test_bits_of_other_sizes():
    words = np.arange(24, dtype=np.uint32).reshape(3, 4, 2) * np.uint32(0x12345679)
    check(lambda x: [
        lax.bitcast_convert_type(x, jnp.uint8),
        lax.bitcast_convert_type(x, jnp.int16),
        lax.bitcast_convert_type(lax.bitcast_convert_type(x, jnp.uint8), jnp.float32),
    ], words)  # fmt: skip


@pytest.mark.parametrize(
    ("exponent", "mantissa"), [(8, 7), (5, 10), (8, 23), (11, 52), (4, 3), (3, 20)]
)
def test_reduced_precision(exponent, mantissa):
    numbers = np.float32([1 / 3, 1e-3, 70000, 1.0009765, 1e-6, -1e-7, 65519, -0.0, np.inf, np.nan])
    check(lambda x: lax.reduce_precision(x, exponent, mantissa), numbers)
    check(lambda x: lax.reduce_precision(x, exponent, mantissa), numbers.astype(np.float64))


@pytest.mark.parametrize("direction", ["to", "from"])
def test_floats_of_8_bits_need_an_opset_that_has_them(direction):
    def function(x):
        return x.astype(jnp.float8_e5m2).astype(x.dtype) if direction == "to" else x.astype("f")

    x = np.ones(3, np.float32) if direction == "to" else np.ones(3, jnp.float8_e5m2)
    exported = jax.export.export(jax.jit(function))(x)
    with pytest.raises(bridge.InteropError, match=r"test_casts\.py:\d+.*from opset 19 on"):
        bridge.to_onnx(exported, opset=18)
    bridge.to_onnx(exported, opset=19)
