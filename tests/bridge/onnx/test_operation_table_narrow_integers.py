"""Integers of 4 and 2 bits: all of their values, in all families of operations.

What adds and multiplies is computed in int32 by JAX and wrapped here; XLA ends the process at some
operations of 2 bits.
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
from bridge.cli.main import main
from tests.bridge.onnx.checking import (
    check_narrow,
    check_whole,
    evaluate,
    operations,
    run,
    to_storage,
)
from tests.bridge.onnx.written import check_written, exported, type_of
from xla_call_module._jax import ir, make_ir_context
from xla_call_module.errors import StructureError, UnsupportedError

NAMES = [
    name
    for name in ("int4", "uint4", "int2", "uint2")
    if hasattr(ml_dtypes, name) and hasattr(jnp, name)
]
each = pytest.mark.parametrize("name", NAMES)
ELEMENTS = {"int4": "i4", "uint4": "ui4", "int2": "i2", "uint2": "ui2"}


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name))


def width_of(name):
    return int(name[-1])


def every(name):
    """All values, from the least to the greatest."""
    bounds = ml_dtypes.iinfo(dtype_of(name))
    return np.arange(int(bounds.min), int(bounds.max) + 1).astype(dtype_of(name))


def pairs(name):
    """All pairs of values, as two arrays."""
    left, right = np.meshgrid(every(name), every(name), indexing="ij")
    return left.reshape(-1), right.reshape(-1)


def wrapped(numbers, name):
    """Integers modulo the size of the dtype, in two's complement."""
    numbers, size = np.asarray(numbers).astype(np.int64), 1 << width_of(name)
    low = 0 if name.startswith("u") else size // 2
    return ((numbers + low) % size - low).astype(dtype_of(name))


def wide(array):
    """The same numbers in a dtype in which nothing wraps around."""
    return array.astype(np.uint32 if array.dtype.name.startswith("u") else np.int32)


def check_wide(function, *arrays, name, **options):
    """A function of which the result is that of wide integers, wrapped around at the end."""
    results = jax.tree_util.tree_leaves(jax.jit(function)(*map(wide, arrays)))
    return check_narrow(function, arrays, [wrapped(x, name) for x in results], **options)


@each
def test_arithmetic_of_all_pairs(name):
    def function(a, b):
        return [
            *(do(a, b) for do in (lax.add, lax.sub, lax.mul, lax.div, lax.rem)),
            *(do(a, b) for do in (lax.max, lax.min)), a & b, a | b, a ^ b,
            -a, ~a, lax.sign(a), a * 3 + b * b,
        ]  # fmt: skip

    check_wide(function, *pairs(name), name=name)


@pytest.mark.parametrize("name", NAMES[:2])
def test_jax_computes_the_same(name):
    left, right = pairs(name)

    def function(a, b):
        return [
            *(do(a, b) for do in (lax.add, lax.sub, lax.mul, lax.div, lax.rem)),
            *(do(a, b) for do in (lax.shift_left, lax.shift_right_logical)),
            lax.shift_right_arithmetic(a, b), -a, ~a, lax.sign(a), lax.clz(a),
            lax.iota(a.dtype, 40), a < b, jnp.where(a == b, a, b),
        ]  # fmt: skip

    check_narrow(function, [left, right], list(map(np.asarray, jax.jit(function)(left, right))))


@each
def test_comparisons_of_all_pairs(name):
    left, right = pairs(name)
    functions = [lax.eq, lax.ne, lax.lt, lax.le, lax.gt, lax.ge]
    expected = [np.asarray(do(wide(left), wide(right))) for do in functions]
    check_narrow(lambda a, b: [do(a, b) for do in functions], [left, right], expected)
    expected = [np.where(wide(left) > wide(right), left, right).astype(left.dtype)]
    check_narrow(lambda a, b: jnp.where(a > b, a, b), [left, right], expected)


@each
def test_shifts_of_all_pairs(name):
    left, right = pairs(name)
    width, mask = width_of(name), (1 << width_of(name)) - 1
    bits, amounts = left.astype(np.int64) & mask, right.astype(np.int64) & mask
    signed = np.where(bits > mask // 2, bits - mask - 1, bits)
    results = [
        np.where(amounts < width, bits << amounts, 0),
        np.where(amounts < width, bits >> amounts, 0),
        signed >> np.minimum(amounts, width - 1),
    ]
    functions = [lax.shift_left, lax.shift_right_logical, lax.shift_right_arithmetic]
    check_narrow(lambda a, b: [do(a, b) for do in functions], [left, right],
               [wrapped(result, name) for result in results])  # fmt: skip


@each
def test_bits_are_counted(name):
    texts = [f"{int(n) & ((1 << width_of(name)) - 1):0{width_of(name)}b}" for n in every(name)]
    ones = [text.count("1") for text in texts]
    zeros = [len(text) - len(text.lstrip("0")) for text in texts]
    check_narrow(lambda a: [lax.population_count(a), lax.clz(a)], [every(name)],
               [wrapped(ones, name), wrapped(zeros, name)])  # fmt: skip


@each
def test_powers_and_sizes(name):
    base, exponent = pairs(name)
    reciprocals = {1: lambda n: 1, -1: lambda n: -1 if n % 2 else 1}
    powers = [
        int(b) ** int(n) if n >= 0 else reciprocals.get(int(b), lambda n: 0)(int(n))
        for b, n in zip(base, exponent, strict=True)
    ]
    type_ = type_of(base)
    check_written(f"%r0 = stablehlo.power %a, %b : {type_}", [base, exponent],
                  wrapped([power % 16 for power in powers], name), in_jax=False)  # fmt: skip
    if not name.startswith("u"):
        check_written(f"%r0 = stablehlo.abs %a : {type_}", [base],
                      wrapped(np.abs(base.astype(int)), name), in_jax=False)  # fmt: skip


@each
def test_conversions_to_other_dtypes(name):
    targets = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float16",
               "bfloat16", "float32", *NAMES]  # fmt: skip
    numbers = every(name).astype(np.int64)
    expected = [
        wrapped(numbers, target) if target in NAMES else numbers.astype(jnp.dtype(target))
        for target in targets
    ]
    expected = [x.astype(np.float32) if x.dtype == ml_dtypes.bfloat16 else x for x in expected]

    def function(a):
        made = [a.astype(target) for target in targets]
        return [x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x for x in made]

    check_narrow(function, [every(name)], expected)


@each
def test_conversions_from_other_dtypes(name):
    numbers = {
        "bool": [False, True], "int8": [-128, -9, -8, -3, 0, 7, 8, 100, 127], "uint8": [0, 9, 255],
        "int32": [-(2**31), -17, 15, 16, 2**31 - 1], "uint32": [0, 15, 17, 2**32 - 1],
    }  # fmt: skip
    for source, values in numbers.items():
        array = np.array(values).astype(source)
        expected = [wrapped(array, name)]
        check_narrow(lambda a: a.astype(dtype_of(name)), [array], expected)


@each
@pytest.mark.parametrize("source", ["float16", "float32"])
def test_floats_become_the_nearest_integer_towards_zero(name, source):
    floats = np.array([-1e4, -8.9, -8, -7.5, -2.5, -1.9, -0.9, -0.0, 0.9, 1.5, 3.9, 7.5, 8, 15.9,
                       16, 1e4, np.inf, -np.inf, np.nan], source)  # fmt: skip
    least, greatest = int(every(name)[0]), int(every(name)[-1])
    expected = np.clip(np.trunc(np.nan_to_num(floats.astype(float), nan=0.0)), least, greatest)
    check_narrow(lambda a: a.astype(dtype_of(name)), [floats], [expected.astype(dtype_of(name))])


@each
def test_bits_read_as_bytes_and_back(name):
    width = width_of(name)
    each_byte = 8 // width
    bytes_ = np.arange(256).astype(np.uint8)
    parts = np.stack([bytes_ >> (width * n) for n in range(each_byte)], axis=-1)
    elements = wrapped(parts, name)
    check_narrow(lambda a: lax.bitcast_convert_type(a, dtype_of(name)), [bytes_], [elements])
    check_narrow(lambda a: lax.bitcast_convert_type(a, jnp.uint8), [elements], [bytes_])
    words = np.float32([1, -3.5, 1e10, np.pi, -0.0])
    of_words = wrapped(
        np.stack([words.view(np.uint32) >> (width * n) for n in range(32 // width)], axis=-1), name
    )
    check_narrow(lambda a: lax.bitcast_convert_type(a, dtype_of(name)), [words], [of_words])
    check_narrow(lambda a: lax.bitcast_convert_type(a, jnp.float32), [of_words], [words])


@pytest.mark.parametrize("source", ["int4", "uint4"])
def test_bits_of_4_read_as_those_of_2(source):
    numbers = every(source)
    quarters = np.stack([numbers.astype(np.int64) >> (2 * n) for n in range(2)], axis=-1)
    for target in ("int2", "uint2"):
        parts = wrapped(quarters, target)
        for before, after in ((numbers, parts), (parts, numbers)):
            types = f"({type_of(before)}) -> {type_of(after)}"
            body = f"%r0 = stablehlo.bitcast_convert %a : {types}"
            check_written(body, [before], after, in_jax=False)
    other = "uint4" if source == "int4" else "int4"
    check_narrow(lambda a: lax.bitcast_convert_type(a, dtype_of(other)), [numbers],
               [wrapped(numbers, other)])  # fmt: skip


def test_bits_are_not_read_as_truth_values():
    x = np.zeros(3, ml_dtypes.int4)
    program = exported("%r0 = stablehlo.bitcast_convert %a : (tensor<3xi4>) -> tensor<3x4xi1>", [x],
                       [np.zeros((3, 4), bool)])  # fmt: skip
    with pytest.raises(UnsupportedError, match="read as truth values, or made of them"):
        bridge.to_onnx(program)


@each
def test_constants(name):
    array = wrapped(np.arange(12).reshape(3, 4) * 5, name)
    many = wrapped(np.arange(3000) * 7, name)  # which MLIR writes as bits
    model = check_narrow(lambda x: (x[:, None] + array[:1], lax.iota(array.dtype, 3000) + many),
                       [array[:, 0]],
                       [wrapped(array[:, :1].astype(int) + array[:1].astype(int), name),
                        wrapped(np.arange(3000) + many.astype(int), name)])  # fmt: skip
    assert {tensor.data_type for tensor in model.graph.initializer} <= {
        onnx.TensorProto.UINT8 if name.startswith("u") else onnx.TensorProto.INT8,
        onnx.TensorProto.INT64,
    }


@each
def test_what_only_moves_values(name):
    x = wrapped(np.arange(24).reshape(4, 6) * 3, name)
    indices = np.int32([[0], [3], [9], [-2]])

    def function(x, i):
        return [
            jnp.concatenate([x, x], 1), x[1:, ::2], x.reshape(3, 8), x.T, x[::-1],
            lax.pad(x, x[0, 1], [(1, 2, 1), (-1, 0, 0)]), jnp.broadcast_to(x[:, :1], (4, 3)),
            x[i[:, 0]], lax.dynamic_slice(x, (i[1, 0], i[2, 0]), (2, 2)),
            lax.dynamic_update_slice(x, x[:2, :2], (i[1, 0], i[0, 0])),
            x.at[i[:, 0]].set(x[::-1]), x.at[i[:, 0]].max(x[::-1]), x.at[i[:, 0]].min(x[::-1]),
            jnp.sort(x, 1), lax.sort((x, x.T.reshape(4, 6)), dimension=0)[1],
            lax.clamp(x[0, 0], x, x[0, 4]), lax.top_k(x, 2)[0],
            lax.cummax(x, 1), x.max(0), x.min((0, 1)),
            lax.reduce_window(x, x[0, 0], lax.max, (2, 2), (1, 1), "VALID"),
        ]  # fmt: skip

    expected = jax.jit(function)(wide(x), indices)
    check_narrow(function, [x, indices], [np.asarray(y).astype(x.dtype) for y in expected])


@each
def test_where_the_extremes_are(name):
    x = wrapped(np.arange(24).reshape(4, 6) * 3, name)

    def function(x):
        return [jnp.argmax(x, 1), jnp.argmin(x, 0), jnp.argsort(x, 1), lax.top_k(x, 3)[1]]

    expected = jax.jit(function)(wide(x))
    check_narrow(function, [x], list(map(np.asarray, expected)))


@each
def test_sums_and_products_wrap_around(name):
    x = wrapped(np.arange(24).reshape(4, 6) * 3 + 1, name)

    def function(x):
        zero, one = (np.array(n, x.dtype) for n in (0, 1))
        windows = ((2, 2), (1, 1), "VALID")
        return [
            lax.reduce(x, zero, lax.add, (0,)), lax.reduce(x, x[0, 0], lax.add, (0, 1)),
            lax.reduce(x, one, lax.mul, (1,)), lax.reduce(x, zero, lambda a, b: a ^ b, (0, 1)),
            lax.reduce(x, zero, lambda a, b: a | b, (0,)),
            lax.reduce(x, ~jnp.asarray(zero), lambda a, b: a & b, (0,)),
            lax.reduce(x, zero, lambda a, b: a + b + a * b, (1,)),
            lax.cumsum(x, 1), lax.cumprod(x, 0), lax.cumsum(x, 0, reverse=True),
            lax.reduce_window(x, zero, lax.add, *windows),
            lax.reduce_window(x, one, lax.mul, *windows),
            x.at[np.int32([0, 2, 0, 7])].add(x), x.at[np.int32([0, 2, 0, 7])].multiply(x),
        ]  # fmt: skip

    check_wide(function, x, name=name)


@each
def test_products_of_matrices(name):
    a, b = wrapped(np.arange(12).reshape(3, 4) * 5, name), wrapped(np.arange(8).reshape(4, 2), name)
    check_wide(lambda a, b: lax.dot(a, b), a, b, name=name)
    wide_ = jnp.uint32 if name.startswith("u") else jnp.int32
    expected = np.asarray(wide(a) @ wide(b))
    check_narrow(lambda a, b: lax.dot(a, b, preferred_element_type=wide_), [a, b], [expected])
    check_narrow(lambda a, b: a.astype(jnp.float32) @ b.astype(jnp.float32), [a, b],
               [a.astype(np.float32) @ b.astype(np.float32)])  # fmt: skip


@each
def test_convolutions(name):
    x, kernel = (wrapped(np.arange(n).reshape(shape) * 5, name)
                 for n, shape in ((30, (1, 2, 15)), (12, (2, 2, 3))))  # fmt: skip
    check_wide(lambda x, k: lax.conv(x, k, (2,), "SAME"), x, kernel, name=name)


@each
def test_loops_and_branches(name):
    x = every(name)

    def function(x):
        one = np.array(1, x.dtype)
        counted = lax.fori_loop(0, 5, lambda _, c: c * x + x, x)
        until = lax.while_loop(lambda c: c[1] < 3, lambda c: (c[0] + x, c[1] + 1), (x, 0))[0]
        last, rows = lax.scan(lambda c, y: (c + y, c * y), x[0], x)
        chosen = lax.cond(x[0] == x[-1], lambda: x, lambda: x - one)
        several = lax.switch(jnp.int32(x[1] == x[1]), [lambda: x, lambda: x + x])
        return counted, until, last, rows, chosen, several

    # The counter is no wide integer, and what is compared does not wrap around.
    check_wide(function, x, name=name)


@each
def test_a_counter_of_few_bits(name):
    last = every(name)[-1]

    def function(x):
        zero, one = (np.array(n, x.dtype) for n in (0, 1))
        return lax.while_loop(
            lambda c: c[0] < last, lambda c: (c[0] + one, c[1] * x + x), (zero, x)
        )

    x = every(name)
    total = x.astype(np.int64)
    for _ in range(int(last)):
        total = wrapped(total * x.astype(np.int64) + x.astype(np.int64), name).astype(np.int64)
    check_narrow(function, [x], [last, wrapped(total, name)])


def test_random_integers():
    key = np.uint32([3, 4])

    def function(key, dtype="int4"):
        return jax.random.randint(key, (20,), -3, 6, dtype=dtype)

    expected = [np.asarray(jax.jit(function)(key))]
    check_narrow(function, [key], expected)
    with pytest.raises(UnsupportedError, match="its bits are uint4"):
        bridge.to_onnx(
            exported(
                "%s, %r0 = stablehlo.rng_bit_generator %a, algorithm = THREE_FRY : "
                "(tensor<2xui64>) -> (tensor<2xui64>, tensor<4xui4>)",
                [np.zeros(2, np.uint64)], [np.zeros(4, ml_dtypes.uint4)],
            )
        )  # fmt: skip


@each
def test_inputs_of_more_bits_wrap_around(name):
    program = export.export(jax.jit(lambda x: (x, x + x)))(every(name))
    model = bridge.to_onnx(program)
    given = to_storage(every(name)).dtype.type(
        [0, 1, 100, 120, 17, 13, 200 - 256 * (name[0] != "u"), 63]
    )
    given = np.resize(given, len(every(name)))
    expected = [to_storage(wrapped(given, name)), to_storage(wrapped(2 * given.astype(int), name))]
    for how in (run, evaluate):
        for found, wanted in zip(how(model, [given]), expected, strict=True):
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
    expected = X @ (W.astype(np.float32) * SCALE)
    for how in (run, evaluate):
        np.testing.assert_allclose(how(model, [X])[0], expected, rtol=1e-6)


def test_parameters_that_do_not_fit(program):
    params = {"kernel": W.astype(np.int8), "scale": SCALE}
    with pytest.raises(StructureError, match=r"kernel is int8\[4, 3\].*exported for int4\[4,3\]"):
        bridge.to_onnx(program, params=params)


def test_inputs_have_their_names_and_shapes(program):
    model = bridge.to_onnx(program)
    found = {i.name: i.type.tensor_type for i in model.graph.input}
    assert found["w_kernel"].elem_type == onnx.TensorProto.INT8
    assert found["x"].shape.dim[0].dim_param == "batch"


def test_gradients(program, tmp_path):
    """Integers have a gradient of no numbers, which is False."""
    bridge.save_onnx(program, tmp_path / "vjp.onnx", gradient_order=1)
    model = onnx.load(tmp_path / "vjp.onnx")
    cotangent = np.ones((2, 3), np.float32)
    found = run(model, [to_storage(W), SCALE, X, cotangent])
    _, pull_back = jax.vjp(lambda s, x: layer({"kernel": W, "scale": s}, x), SCALE, X)
    of_scale, of_x = pull_back(cotangent)
    assert found[0].dtype == bool
    assert found[0].shape == W.shape
    assert not found[0].any()
    np.testing.assert_allclose(found[1], of_scale, rtol=1e-5)
    np.testing.assert_allclose(found[2], of_x, rtol=1e-5)


def test_artifacts(program, tmp_path, capsys):
    path = tmp_path / "layer.bin"
    path.write_bytes(program.serialize(vjp_order=1))
    assert main(["onnx", str(path), str(tmp_path / "layer.onnx")]) == 0
    capsys.readouterr()
    model = onnx.load(tmp_path / "layer.onnx")
    expected = X @ (W.astype(np.float32) * SCALE)
    found = run(model, [to_storage(W), SCALE, X])[0]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@each
def test_files_of_stablehlo(name, tmp_path):
    element = ELEMENTS[name]
    text = f"""func.func public @double(%arg0: tensor<?x{element}>) -> tensor<?x{element}> {{
      %0 = stablehlo.add %arg0, %arg0 : tensor<?x{element}>
      return %0 : tensor<?x{element}>
    }}"""
    path = tmp_path / "double.mlir"
    path.write_text(text)
    with make_ir_context():
        assert ir.Module.parse(text).operation.verify()
    model = bridge.to_onnx(path)
    (found,) = run(model, [to_storage(every(name))])
    np.testing.assert_array_equal(found, to_storage(wrapped(2 * every(name).astype(int), name)))


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
    model = check_narrow(lambda x: (x * x, lax.population_count(x >> 1)), [x],
                       [wrapped(x.astype(int) ** 2, "int4"),
                        wrapped([bin((int(n) >> 1) & 15).count("1") for n in x], "int4")],
                       opset=opset)  # fmt: skip
    check_whole(model)
    assert model.opset_import[0].version == opset
