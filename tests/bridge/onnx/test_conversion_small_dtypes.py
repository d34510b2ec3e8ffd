"""Integers of 4 and 2 bits, and floats of 4, 6 and 8, which models take and return in wider dtypes.

`tests/operations` has what XLA computes of them; here is what it does not: it ends the process at
some operations of 2 bits, counts the bits of 8 in 4, and has none of some floats.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import onnx
import pytest
from jax import export, lax

import bridge
from tests.bridge.onnx.checking import (
    check_narrow,
    check_whole,
    evaluate,
    operations,
    run,
    to_storage,
)
from xla_call_module.errors import StructureError, UnsupportedError

INTEGERS = ("int4", "uint4", "int2", "uint2")
FLOATS = {
    "float8_e4m3": 8, "float8_e4m3fnuz": 8, "float8_e4m3b11fnuz": 8, "float8_e5m2fnuz": 8,
    "float8_e3m4": 8, "float8_e8m0fnu": 8, "float4_e2m1fn": 4, "float6_e2m3fn": 6,
    "float6_e3m2fn": 6,
}  # fmt: skip
FLOATS = {name: bits for name, bits in FLOATS.items() if hasattr(jnp, name)}
of_integers = pytest.mark.parametrize(
    "name", [name for name in INTEGERS if hasattr(ml_dtypes, name) and hasattr(jnp, name)]
)
of_floats = pytest.mark.parametrize("name", FLOATS)


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name))


def every(name):
    """All values; of floats in the order of their bits."""
    if name in FLOATS:
        return np.arange(1 << FLOATS[name]).astype(np.uint8).view(dtype_of(name))
    bounds = ml_dtypes.iinfo(dtype_of(name))
    return np.arange(int(bounds.min), int(bounds.max) + 1).astype(dtype_of(name))


def pairs(name):
    """All pairs of values, as two arrays."""
    left, right = np.meshgrid(every(name), every(name), indexing="ij")
    return left.reshape(-1), right.reshape(-1)


def wrapped(numbers, name):
    """Integers modulo the size of the dtype, in two's complement."""
    numbers, size = np.asarray(numbers).astype(np.int64), 1 << int(name[-1])
    low = 0 if name.startswith("u") else size // 2
    return ((numbers + low) % size - low).astype(dtype_of(name))


def check_wide(function, *arrays, name, wraps=True):
    """A function of which the result is that of wide integers, wrapped around at the end."""
    wide = [a.astype(np.uint32 if name.startswith("u") else np.int32) for a in arrays]
    results = jax.tree.leaves(jax.jit(function)(*wide))
    expected = [wrapped(x, name) if wraps else np.asarray(x) for x in results]
    return check_narrow(function, arrays, expected)


@of_integers
def test_operations_of_all_pairs(name):
    many = wrapped(np.arange(3000) * 7, name)  # which MLIR writes as bits
    check_wide(
        lambda a, b: [
            jnp.asarray(many, a.dtype),
            *(do(a, b) for do in (lax.add, lax.sub, lax.mul, lax.div, lax.rem, lax.max, lax.min)),
            a & b, a | b, a ^ b, -a, ~a, lax.sign(a), a * 3 + b * b, jnp.where(a > b, a, b),
        ],
        *pairs(name), name=name,
    )  # fmt: skip
    compared = (lax.eq, lax.ne, lax.lt, lax.le, lax.gt, lax.ge)
    check_wide(lambda a, b: [do(a, b) for do in compared], *pairs(name), name=name, wraps=False)


@of_integers
def test_counts_of_bits(name):
    width = int(name[-1])
    texts = [f"{int(n) & (1 << width) - 1:0{width}b}" for n in every(name)]
    counts = [[t.count("1") for t in texts], [width - len(t.lstrip("0")) for t in texts]]
    check_narrow(
        lambda a: [lax.population_count(a), lax.clz(a)],
        [every(name)],
        [wrapped(each, name) for each in counts],
    )


@of_integers
def test_bits_read_as_bytes_and_back(name):
    width, bytes_ = int(name[-1]), np.arange(256).astype(np.uint8)
    words = np.float32([1, -3.5, 1e10, np.pi, -0.0])
    for whole, bits in ((bytes_, bytes_), (words, words.view(np.uint32))):
        count = 8 * whole.dtype.itemsize // width
        parts = wrapped(np.stack([bits >> (width * n) for n in range(count)], axis=-1), name)
        check_narrow(lambda a: lax.bitcast_convert_type(a, dtype_of(name)), [whole], [parts])
        check_narrow(lambda a, to=whole.dtype: lax.bitcast_convert_type(a, to), [parts], [whole])


@of_integers
def test_conversions(name):
    floats = np.float32([-1e4, -8.9, -7.5, -2.5, -0.9, -0.0, 0.9, 3.9, 7.5, 16, np.inf, np.nan])
    whole = np.int32([-(2**31), -17, -9, -3, 0, 7, 15, 16, 2**31 - 1])
    least, greatest = int(every(name)[0]), int(every(name)[-1])
    nearest = np.clip(np.trunc(np.nan_to_num(floats.astype(float), nan=0.0)), least, greatest)
    expected = [nearest.astype(dtype_of(name)), wrapped(whole, name)]
    check_narrow(lambda a, b: [x.astype(dtype_of(name)) for x in (a, b)], [floats, whole], expected)
    kinds = ("bool", "int8", "uint16", "int32", "float16", "float32")
    wide = every(name).astype(np.int64)
    check_narrow(
        lambda a: [a.astype(k) for k in kinds], [every(name)], [wide.astype(k) for k in kinds]
    )


@of_integers
def test_inputs_of_more_bits_wrap_around(name, tmp_path):
    """Of a file of StableHLO."""
    path, kind = tmp_path / "double.mlir", f"tensor<?x{name.replace('int', 'i')}>"
    path.write_text(f"""func.func public @double(%a: {kind}) -> ({kind}, {kind}) {{
      %0 = stablehlo.add %a, %a : {kind}
      return %a, %0 : {kind}, {kind} }}""")
    numbers = [0, 1, 100, 120, 17, 13, 200 - 256 * (name[0] != "u"), 63]
    given = np.array(numbers, to_storage(every(name)).dtype)
    expected = [to_storage(wrapped(given, name)), to_storage(wrapped(2 * given.astype(int), name))]
    for how in (run, evaluate):
        for found, wanted in zip(how(bridge.to_onnx(path), [given]), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


W = wrapped(np.arange(12).reshape(4, 3) * 5, "int4")
X = np.float32([[1, 2, 3, 4], [0.5, -1, 2, 0]])
SCALE = np.array(0.25, np.float32)
PARAMS = {"kernel": W, "scale": SCALE}


def layer(w, x):
    return x @ (w["kernel"].astype(jnp.float32) * w["scale"])


@pytest.fixture(scope="module")
def program():
    """A layer whose weights are integers of 4 bits."""
    batch = jax.ShapeDtypeStruct(export.symbolic_shape("batch, 4"), "float32")
    return export.export(jax.jit(layer))(PARAMS, batch)


def test_parameters_are_held(program):
    model = bridge.to_onnx(program, params=PARAMS)
    check_whole(model)
    kernel = next(t for t in model.graph.initializer if t.name == "kernel")
    assert kernel.data_type == onnx.TensorProto.INT8
    assert operations(model) == ["Cast", "Mul", "MatMul"]  # nothing is to be wrapped around
    for how in (run, evaluate):
        np.testing.assert_allclose(how(model, [X])[0], layer(PARAMS, X), rtol=1e-6)
    params = {"kernel": W.astype(np.int8), "scale": SCALE}
    with pytest.raises(StructureError, match=r"kernel is int8\[4, 3\].*exported for int4\[4,3\]"):
        bridge.to_onnx(program, params=params)
    found = {i.name: i.type.tensor_type for i in bridge.to_onnx(program).graph.input}
    assert found["w_kernel"].elem_type == onnx.TensorProto.INT8
    assert found["x"].shape.dim[0].dim_param == "batch"


def test_gradients(program, tmp_path):
    """Integers have a gradient of no numbers, which is False."""
    bridge.save_onnx(program, tmp_path / "vjp.onnx", gradient_order=1)
    cotangent = np.ones((2, 3), np.float32)
    found = run(onnx.load(tmp_path / "vjp.onnx"), [to_storage(W), SCALE, X, cotangent])
    _, pull_back = jax.vjp(lambda s, x: layer({"kernel": W, "scale": s}, x), SCALE, X)
    np.testing.assert_array_equal(found[0], np.zeros(W.shape, bool))
    for one, other in zip(found[1:], pull_back(cotangent), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_names_stay_where_sizes_are_symbols():
    """And arguments that are handed on, or not used, are wrapped around too."""
    spec = jax.ShapeDtypeStruct(export.symbolic_shape("a"), jnp.int4)
    program = export.export(jax.jit(lambda w, x, unused: (w + x, x)), platforms=("cpu", "tpu"))(
        spec, spec, jax.ShapeDtypeStruct((2,), jnp.uint4)
    )
    model = bridge.to_onnx(program, outputs={"output_0": "total"})
    check_whole(model)
    assert [value.name for value in model.graph.input] == ["w", "x", "unused"]
    assert [value.name for value in model.graph.output] == ["total", "output_1"]
    total, handed_on = run(model, [np.int8([7, 1]), np.int8([1, 9]), np.uint8([1, 2])])
    np.testing.assert_array_equal(total, np.int8([-8, -6]))
    np.testing.assert_array_equal(handed_on, np.int8([1, -7]))


@pytest.mark.parametrize("opset", [18, 26])
def test_versions_of_operations(opset):
    x = every("int4")
    counts = [bin((int(n) >> 1) & 15).count("1") for n in x]
    expected = [wrapped(x.astype(int) ** 2, "int4"), wrapped(counts, "int4")]
    model = check_narrow(
        lambda x: (x * x, lax.population_count(x >> 1)), [x], expected, opset=opset
    )
    check_whole(model)
    assert model.opset_import[0].version == opset


def dense(name):
    """Numbers of float32 on, half way between, and next to those of a dtype, and all kinds."""
    values = every(name).astype(np.float64)
    values = np.unique(values[np.isfinite(values)])
    beyond = values[-1] * np.array([1.01, 1.0625, 1.125, 1.25, 1.5, 2, 4, 1e10])
    with np.errstate(all="ignore"):
        points = np.concatenate([values, (values[1:] + values[:-1]) / 2, beyond])
        points = points.astype(np.float32)
        beside = [np.nextafter(points, np.float32(to)) for to in (np.inf, -np.inf)]
    numbers = np.concatenate([points, *beside])
    return np.concatenate([numbers, -numbers, np.float32([0, np.inf, np.nan])])


@of_floats
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
    for how in (run, evaluate):
        (found,) = how(model, [given])
        np.testing.assert_array_equal(found, expected)
        zero = (expected == 0) & ~np.isnan(given)
        np.testing.assert_array_equal(np.signbit(found[zero]), np.signbit(expected[zero]))


@of_floats
def test_float64_is_not_rounded_twice(name):
    """What is next to the middle of two numbers in float64 is no tie."""
    values = np.unique(every(name).astype(np.float64))
    values = values[np.isfinite(values)]
    middles = (values[1:] + values[:-1]) / 2
    with jax.enable_x64(True):
        program = export.export(jax.jit(lambda x: x.astype(dtype_of(name))))(middles)
    model = bridge.to_onnx(program)
    for to, expected in ((np.inf, values[1:]), (-np.inf, values[:-1])):
        found = run(model, [np.nextafter(middles, to)])[0]
        if "e8m0" not in name:  # which XLA rounds by its exponent
            np.testing.assert_array_equal(found, expected.astype(np.float32))


@of_floats
def test_floats_are_converted_and_compared(name):
    left, right = pairs(name) if FLOATS[name] < 8 else (every(name), every(name)[::-1].copy())
    wide = left.astype(np.float32), right.astype(np.float32)

    def function(a, b):
        flags = [a == b, a != b, a < b, a <= b, a > b, a >= b]
        return [*flags, a.astype(np.float32), a.astype(bool)]

    check_narrow(function, [left, right], function(*wide))


@pytest.mark.parametrize("name", [name for name in FLOATS if FLOATS[name] == 8])
def test_bits_of_floats(name):
    """And their order: NaNs with a sign are the least, as is the only one that some dtypes have."""
    bits = np.arange(256).astype(np.uint8)
    check_narrow(lambda x: lax.bitcast_convert_type(x, dtype_of(name)), [bits], [every(name)])
    back = export.export(jax.jit(lambda x: lax.bitcast_convert_type(x, jnp.uint8)))(every(name))
    is_nan = np.isnan(every(name).astype(np.float32))
    if is_nan.sum() > 1:
        with pytest.raises(UnsupportedError, match=rf"bits of a NaN of {name} cannot be read"):
            bridge.to_onnx(back)
    else:
        np.testing.assert_array_equal(run(bridge.to_onnx(back), [to_storage(every(name))])[0], bits)
    if "e8m0" in name:
        return
    x = np.random.default_rng(0).permutation(every(name))
    numbers = np.nan_to_num(x.astype(np.float32), nan=np.inf, posinf=1e30, neginf=-1e30)
    is_negative = np.signbit(x.astype(np.float32))
    least = is_negative if is_nan.sum() > 1 else True
    keys = np.where(np.isnan(x.astype(np.float32)) & least, -np.inf, numbers)
    order = np.lexsort((~is_negative if is_nan.sum() > 1 else x == x, keys))
    program = export.export(jax.jit(lambda x: lax.top_k(x, 256)[0]))(x)
    (found,) = run(bridge.to_onnx(program), [to_storage(x)])
    np.testing.assert_array_equal(found, x[order][::-1].astype(np.float32))


@of_floats
def test_gradients_of_floats(name):
    """Which are computed in float32, and rounded."""
    if "e8m0" in name or "float6" in name:
        return
    x, w = np.float32([1.1, 1, -3]), np.arange(3).astype(dtype_of(name))
    program = export.export(jax.jit(lambda w, x: x * w.astype(jnp.float32)))(w, x)
    model = bridge.to_onnx(program.vjp(), opset=18)
    of_w, of_x = run(model, [to_storage(w), x, np.ones(3, np.float32)])
    np.testing.assert_array_equal(of_w, to_storage(x.astype(w.dtype)))
    np.testing.assert_array_equal(of_x, to_storage(w))
