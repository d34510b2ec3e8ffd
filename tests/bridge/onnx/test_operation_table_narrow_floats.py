"""Floats of 4, 6 and 8 bits that ONNX Runtime does not compute with: all of their values."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import export, lax

import bridge
from tests.bridge.onnx.checking import check, check_narrow, check_whole, evaluate, run, to_storage
from tests.bridge.onnx.written import check_written, exported, type_of
from xla_call_module.errors import UnsupportedError

ALL = {
    "float8_e4m3": 8, "float8_e4m3fnuz": 8, "float8_e4m3b11fnuz": 8, "float8_e5m2fnuz": 8,
    "float8_e3m4": 8, "float8_e8m0fnu": 8, "float4_e2m1fn": 4, "float6_e2m3fn": 6,
    "float6_e3m2fn": 6,
}  # fmt: skip
NAMES = [name for name in ALL if hasattr(ml_dtypes, name) and hasattr(jnp, name)]
# XLA computes with these; with the others nobody does.
COMPUTED = [name for name in NAMES if "e8m0" not in name and "float6" not in name]
each = pytest.mark.parametrize("name", NAMES)
each_computed = pytest.mark.parametrize("name", COMPUTED)


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name))


def every(name):
    """All values, in the order of their bits."""
    return np.arange(1 << ALL[name]).astype(np.uint8).view(dtype_of(name))


def dense(name):
    """Numbers of float32 on, half way between, and next to those of a dtype, and all kinds."""
    values = every(name).astype(np.float64)
    values = np.unique(values[np.isfinite(values)])
    middles = (values[1:] + values[:-1]) / 2
    beyond = values[-1] * np.array([1.01, 1.03, 1.0625, 1.1, 1.125, 1.2, 1.25, 1.5, 2, 4, 1e10])
    with np.errstate(over="ignore"):
        points = np.concatenate([values, middles, beyond]).astype(np.float32)
    random = np.random.default_rng(0)
    with np.errstate(all="ignore"):
        return np.concatenate([
            *(sign * np.nextafter(points, np.float32(to)) for sign in (1, -1)
              for to in (np.inf, -np.inf)),
            points, -points,
            random.integers(0, 2**32, 2000, np.uint32).view(np.float32),
            random.normal(size=2000).astype(np.float32) * np.float32(min(values[-1], 1e9)),
            np.float32([0, -0.0, np.inf, -np.inf, np.nan]),
        ])  # fmt: skip


def same_zeros(found, expected):
    """Return whether zeros have the same sign."""
    zero = expected == 0
    return np.array_equal(np.signbit(found[zero]), np.signbit(expected[zero]))


@each
@pytest.mark.parametrize("source", ["float32", "float16", "bfloat16"])
def test_floats_are_rounded(name, source):
    """To the nearest, of two to the even one; the overflow, NaN and zeros that the dtype has."""
    with np.errstate(all="ignore"):
        numbers = dense(name).astype(jnp.dtype(source))
        expected = numbers.astype(dtype_of(name)).astype(np.float32)
    # A model takes float32 for bfloat16.
    given = numbers if source == "float16" else numbers.astype(np.float32)
    program = export.export(jax.jit(lambda x: x.astype(source).astype(dtype_of(name))))(given)
    model = bridge.to_onnx(program)
    check_whole(model)
    for how in (run, evaluate):
        (found,) = how(model, [given])
        np.testing.assert_array_equal(found, expected)
        numbered = ~np.isnan(given)
        assert same_zeros(found[numbered], expected[numbered])


@each_computed
def test_float64_is_not_rounded_twice(name):
    """As by XLA: what is next to the middle of two numbers in float64 is no tie."""
    values = np.unique(every(name).astype(np.float64))
    values = values[np.isfinite(values)]
    middles = (values[1:] + values[:-1]) / 2
    near = [np.nextafter(middles, to) for to in (np.inf, -np.inf)]
    with jax.enable_x64(True):
        program = export.export(jax.jit(lambda x: x.astype(dtype_of(name))))(middles)
    model = bridge.to_onnx(program)
    for points, expected in zip(near, (values[1:], values[:-1]), strict=True):
        for how in (run, evaluate):
            np.testing.assert_array_equal(how(model, [points])[0], expected.astype(np.float32))


@each
def test_conversions_to_other_dtypes(name):
    numbers = every(name)
    expected = [numbers.astype(np.float32), numbers.astype(np.float32) != 0]
    check_narrow(lambda x: [x.astype(jnp.float32), x.astype(bool)], [numbers], expected)
    few = numbers[np.abs(numbers.astype(np.float32)) < 100]
    expected = [few.astype(np.float32).astype(np.int32), few.astype(np.float16)]
    check_narrow(lambda x: [x.astype(jnp.int32), x.astype(jnp.float16)], [few], expected)
    whole = np.int32([0, 1, -1, 3, 6, -7, 100, -1000, 70000, 2**31 - 1])
    with np.errstate(all="ignore"):
        expected = whole.astype(np.float32).astype(dtype_of(name))
    check_narrow(lambda x: x.astype(dtype_of(name)), [whole], [expected])


@pytest.mark.parametrize("name", [name for name in NAMES if ALL[name] == 8])
def test_bits(name):
    bits = np.arange(256).astype(np.uint8)
    check_narrow(lambda x: lax.bitcast_convert_type(x, dtype_of(name)), [bits], [every(name)])
    words = np.arange(0, 65536, 37).astype(np.uint16)
    check_narrow(lambda x: lax.bitcast_convert_type(x, dtype_of(name)), [words],
               [words.view(np.uint8).reshape(-1, 2).view(dtype_of(name))])  # fmt: skip
    if np.isnan(every(name).astype(np.float32)).sum() > 1:
        program = export.export(jax.jit(lambda x: lax.bitcast_convert_type(x, jnp.uint8)))(
            every(name)
        )
        with pytest.raises(UnsupportedError, match=rf"bits of a NaN of {name} cannot be read"):
            bridge.to_onnx(program)
    else:
        check_narrow(lambda x: lax.bitcast_convert_type(x, jnp.uint8), [every(name)], [bits])


@pytest.mark.skipif("float4_e2m1fn" not in NAMES, reason="JAX has no floats of 4 bits")
def test_bits_of_4():
    name = "float4_e2m1fn"
    bits = np.arange(16).astype(ml_dtypes.uint4)
    for element, numbers in (("ui4", bits), ("f4E2M1FN", every(name))):
        other = every(name) if element == "ui4" else bits
        body = f"%r0 = stablehlo.bitcast_convert %a : ({type_of(numbers)}) -> {type_of(other)}"
        check_written(body, [numbers], other, in_jax=False)
    bytes_ = np.arange(256).astype(np.uint8)
    parts = np.stack([bytes_ & 15, bytes_ >> 4], axis=-1).view(dtype_of(name))
    body = f"%r0 = stablehlo.bitcast_convert %a : ({type_of(bytes_)}) -> {type_of(parts)}"
    check_written(body, [bytes_], parts, in_jax=False)


def pairs(name):
    left, right = np.meshgrid(every(name), every(name), indexing="ij")
    return left.reshape(-1), right.reshape(-1)


@each_computed
def test_arithmetic_of_all_pairs(name):
    """What JAX computes; each result is the nearest one."""

    def function(a, b):
        return [a + b, a - b, a * b, lax.max(a, b), lax.min(a, b), -a, lax.abs(a)]

    left, right = pairs(name)
    expected = [np.asarray(x).astype(np.float32) for x in jax.jit(function)(left, right)]
    program = export.export(jax.jit(function))(left, right)
    model = bridge.to_onnx(program)
    check_whole(model)
    for found, wanted in zip(
        run(model, [to_storage(left), to_storage(right)]), expected, strict=True
    ):
        np.testing.assert_array_equal(found, wanted)


@each
def test_comparisons_of_all_pairs(name):
    left, right = pairs(name)
    wide = left.astype(np.float32), right.astype(np.float32)
    functions = [lax.eq, lax.ne, lax.lt, lax.le, lax.gt, lax.ge]
    expected = [np.asarray(do(*wide)) for do in functions]
    check_narrow(lambda a, b: [do(a, b) for do in functions], [left, right], expected)


@each
def test_what_only_moves_values(name):
    x = np.resize(every(name)[1 : len(every(name)) // 2 - 1], (4, 6))

    def function(x):
        return [
            jnp.concatenate([x, x], 1), x[1:, ::2], x.T,
            lax.pad(x, x[0, 1], [(1, 0, 0), (0, 0, 1)]), x[np.int32([0, 3])],
            jnp.where(x > x[0], x, x[1]), lax.clamp(x[0, 0], x, x[0, 5]),
            jnp.sort(x, 1), lax.reduce(x, x[0, 0], lax.max, (0,)),
            lax.fori_loop(0, 3, lambda _, c: lax.max(c, x), x), np.ones((2, 2), x.dtype),
        ]  # fmt: skip

    expected = jax.jit(function)(x.astype(np.float32))
    check_narrow(function, [x], [np.asarray(y).astype(x.dtype) for y in expected])


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "bfloat16"])
@pytest.mark.parametrize("shapes", [None, ["b, 2"]], ids=["static", "symbolic"])
def test_what_only_moves_those_that_onnx_has(name, shapes):
    check(
        lambda x: [
            jnp.repeat(x, 2, axis=-1), x[None], jnp.squeeze(x[:1], 0), x.ravel(), jnp.pad(x, 1),
            jnp.concatenate([x, x]), x.T[::-1], jnp.tile(x, 2), x[jnp.array([1, 0])],
            jnp.where(x.astype(jnp.float32) > 2, x, x[::-1]), x.at[0].set(x[1]),
            jax.lax.dynamic_slice_in_dim(x, 1, 1),
        ],
        np.array([[1.5, -2], [3, 4]], "float32").astype(name),
        shapes=shapes,
    )  # fmt: skip


@pytest.mark.parametrize("name", [name for name in COMPUTED if ALL[name] == 8])
def test_order(name):
    """NaNs too: with a sign they are the least, as is the only one that some types have."""
    x = np.random.default_rng(0).permutation(every(name)).reshape(4, 64)
    wide = x.astype(np.float32)  # XLA takes the least numbers of some of these for 0 in a sort
    if np.isnan(every(name).astype(np.float32)).sum() == 1:  # and there is no infinity
        wide = np.where(np.isnan(wide), np.float32(-np.inf), wide)

    def function(x):
        return [jnp.argsort(x, 1), *lax.top_k(x, 5), jnp.sort(x, 1)]

    model = bridge.to_onnx(export.export(jax.jit(function))(x))
    for found, wanted in zip(run(model, [to_storage(x)]), jax.jit(function)(wide), strict=True):
        numbers = np.where(wanted == -np.inf, np.nan, wanted) if "fnuz" in name else wanted
        np.testing.assert_array_equal(found, numbers)
    model = bridge.to_onnx(export.export(jax.jit(lambda x: jnp.argmax(x, 1)))(x))
    expected = np.argmax(x.astype(np.float32), 1)  # of which NaN is
    np.testing.assert_array_equal(run(model, [to_storage(x)])[0], expected)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in COMPUTED])
def test_arithmetic_that_nobody_has_is_refused(name):
    x = every(name)[:4]
    program = exported(f"%r0 = stablehlo.add %a, %a : {type_of(x)}", [x], [x])
    with pytest.raises(
        UnsupportedError, match=rf"does not compute with {name}.*convert it to floa"
    ):
        bridge.to_onnx(program)


@each_computed
def test_products_of_matrices(name):
    random = np.random.default_rng(0)
    a, b = (random.integers(-2, 3, shape).astype(dtype_of(name)) for shape in ((3, 4), (4, 2)))
    exact = a.astype(np.float32) @ b.astype(np.float32)
    expected = [exact, exact.astype(dtype_of(name))]
    check_narrow(lambda a, b: [lax.dot(a, b, preferred_element_type=jnp.float32), lax.dot(a, b)],
               [a, b], expected)  # fmt: skip


def test_gradients():
    """Of small floats as well, in float32 and rounded; with old operations too."""
    x, w = np.float32([1.1, 1, -3]), np.arange(3).astype(ml_dtypes.float8_e4m3fnuz)
    program = export.export(jax.jit(lambda w, x: x * w.astype(jnp.float32)))(w, x)
    model = bridge.to_onnx(program.vjp(), opset=18)
    of_w, of_x = run(model, [to_storage(w), x, np.ones(3, np.float32)])
    np.testing.assert_array_equal(of_w, to_storage(x.astype(w.dtype)))
    np.testing.assert_array_equal(of_x, to_storage(w))
