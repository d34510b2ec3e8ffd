"""What functions become in ONNX: few nodes, those that the runtime knows best; and what is refused.

That their numbers are JAX's, `tests/operations` says of each operation.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import enable_x64, export, lax

import bridge
from tests.bridge import networks
from tests.bridge.onnx.checking import assert_same, check, check_whole, evaluate, operations, run
from tests.bridge.onnx.written import exported, type_of
from xla_call_module.errors import UnsupportedError

KEY = np.array([3, 7], np.uint32)
NHWC = ("NHWC", "HWIO", "NHWC")
INTS = np.arange(1, 13, dtype=np.int32).reshape(3, 4)
X = np.float32([[-1, 0, 2], [np.nan, np.inf, -np.inf]])
IMAGE, KERNEL = np.ones((1, 5, 6, 3), np.float32), np.ones((3, 3, 3, 3), np.float32)
FIRST = np.ones((2, 3, 6, 6), np.float32), np.ones((4, 3, 3, 3), np.float32)


def _convolve(x, w, **options):
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NHWC, **options)


@pytest.mark.parametrize(
    ("function", "arrays", "expected"),
    [
        (lambda x: jnp.maximum(x, 0), [X], "Relu"),
        (lambda x: -((1 * (x / 1) * 1 - 0.0) + -0.0), [X], "Neg"),
        (lambda x: (0 + x) * 1 - 0 + 0, [INTS], "Identity"),
        (lambda x: lax.add(x, np.float32(0)), [np.array([-0.0, 1], np.float32)], "Add"),
        (lambda x, y: x[:, None] * y + 1.0, [X[0], X[:1]], "Unsqueeze Mul Add"),
        (lambda x: x + lax.bitcast_convert_type(np.float32(1.5), jnp.int32), [INTS], "Add"),
        (lambda x: jnp.argmax(x, 1), [INTS], "ArgMax Cast"),
        (lambda x: jnp.sort(x), [INTS], "TopK GatherElements"),
        (lambda x: lax.top_k(x, 3), [INTS], "TopK GatherElements Cast"),
        (lambda x, w: lax.conv(x, w, (1, 1), "SAME"), FIRST, "Conv"),
        (lambda x: jnp.split(x, 4, axis=1), [INTS], "Split"),
        (lambda x: (x[:, 3:], x[:, :3]), [INTS], "Split"),
        (lambda x: (x[:, :2], x[:, 3:]), [INTS], "Slice Slice"),
        (lambda x: (x[:, :3], x[:, 2:]), [INTS], "Slice Slice"),
        (lambda x: (x[:, :2], lax.slice(x, (0, 2), (3, 4), (1, 2))), [INTS], "Slice Slice"),
    ],
)
def test_nodes(function, arrays, expected):
    assert operations(check(function, *arrays, atol=1e-5)) == expected.split()


def test_nodes_of_images_are_turned_once():
    def function(x, first, second):
        y = jax.nn.relu(_convolve(x, first) * np.float32([1, 2, 3]) + np.float32([3, 2, 1]))
        return jax.nn.relu(_convolve(y, second) + y)

    for shapes in (None, ["b, h, w, 3", None, None]):
        model = check(function, IMAGE, KERNEL, KERNEL, shapes=shapes, atol=1e-3)
        # The input, two kernels and the result.
        assert operations(model).count("Transpose") == 4


def test_extremes_of_wide_integers():
    """By Max and Min where all elements are known to fit in 32 bits."""

    def narrow(x, places):
        limited = jnp.clip(places.astype(np.int64), 0, 5)
        return jnp.maximum(limited[::2], 3), x[places], jnp.maximum(x[0], 2**40)

    x = np.array([[1, 2**31, -(2**40)], [2**32 - 1, -1, 2**33]])
    wide = check(lambda x: (jnp.maximum(x, 0), jnp.minimum(x, x[::-1]), lax.cummax(x)), x)
    assert not {"Max", "Min"} & set(operations(wide))
    model = check(narrow, np.arange(6) << 32, np.array([4, -2, 7], np.int32))
    assert {"Max", "Min"} <= set(operations(model))


def test_a_region_that_onnx_does_not_have_is_a_loop():
    def combine(one, other):
        return one[0] * other[0], one[1] * other[0] + other[1]

    def function(a, b):
        return lax.reduce((a, b), (np.float32(1), np.float32(0)), combine, (1,))

    arrays = [networks.Draw().numbers(3, 7) for _ in range(2)]
    model = check(function, *arrays, atol=1e-5, shapes=["b, t"] * 2)
    assert "Loop" in operations(model)


def _loop_of(model):
    (loop,) = [node for node in model.graph.node if node.op_type in ("Loop", "Scan")]
    return loop.attribute[0].g


def _scan(carry, xs, **options):
    return lax.scan(lambda c, x: (jnp.tanh(c + x), c * x), carry, xs, **options)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_has_scan_outputs(reverse):
    xs, carry = networks.Draw().numbers(7, 3), networks.Draw().numbers(3)
    model = check(lambda c, xs: _scan(c, xs, reverse=reverse), carry, xs)
    check_whole(model)
    body = _loop_of(model)
    assert sorted(node.op_type for node in body.node) == ["Add", "Mul", "Tanh"]
    assert len(body.input) == len(body.output) == 2  # the carry and a row
    for rows in (1, 6):  # of a length that only a run knows
        model = check(
            lambda c, xs: _scan(c, xs, reverse=reverse), carry, xs[:rows], shapes=["3", "t, 3"]
        )
        assert "ScatterND" not in [node.op_type for node in _loop_of(model).node]


def test_what_a_loop_costs_does_not_grow_with_its_length():
    sizes = []
    for length in (10, 1000):
        model = bridge.to_onnx(lambda c, xs: _scan(c, xs), args=f"f32[3], f32[{length},3]")
        assert operations(model)[-1] == "Scan"
        sizes.append(len(model.SerializeToString()))
    assert abs(sizes[0] - sizes[1]) < 64


@pytest.mark.parametrize("reverse", [False, True])
def test_products_with_rows_are_computed_at_once(reverse):
    weight, draw = networks.Draw().numbers(3, 4), networks.Draw()

    def function(c, xs):
        return lax.scan(
            lambda c, x: (jnp.tanh(c + x @ weight), x.sum() + c), c, xs, reverse=reverse
        )

    model = check(function, draw.numbers(2, 4), draw.numbers(5, 2, 3), rtol=1e-4, atol=1e-6)
    assert "MatMul" in operations(model)
    assert not {"MatMul", "Gather"} & {node.op_type for node in _loop_of(model).node}


Z = (np.sin(np.arange(32) ** 1.3) + 1j * np.cos(np.arange(32) ** 1.7)).reshape(4, 8)


@pytest.mark.parametrize("opset", [18, 21])
def test_transforms_of_powers_of_two_are_one_operation(opset):
    def function(z):
        return jnp.fft.fft(z), jnp.fft.ifft(z[:, :4], axis=0), jnp.fft.rfft(z.real[0])

    def others(z):
        return jnp.fft.fft(z, n=7), jnp.fft.irfft(z, n=6), jnp.fft.fft2(z[:3, :5])

    model = bridge.to_onnx(function, args="c64[4,8]", opset=opset)
    assert operations(model).count("DFT") == 3
    assert "MatMul" not in operations(model)
    assert "DFT" not in operations(bridge.to_onnx(others, args="c64[4,8]", opset=opset))
    z = Z.astype(np.complex64)
    pairs = [np.stack([part.real, part.imag], -1) for part in (z, *map(np.asarray, function(z)))]
    for how in (run, evaluate):
        assert_same(how(model, pairs[:1]), pairs[1:], rtol=1e-5, atol=1e-5)


def test_complex_numbers_are_pairs_by_name(tmp_path):
    def function(params, x):
        with jax.named_scope("block"):
            return jnp.fft.fft(params["w"] * x)

    options = {"params": {"w": Z[0].astype(np.complex64)}, "args": "c64[batch,8]"}
    written = bridge.save_onnx(function, tmp_path / "m.onnx", **options)
    assert str(written.signatures[0].outputs[0].dtype) == "float32"
    model = bridge.to_onnx(function, **options)
    shape = [
        dim.dim_param or dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim
    ]
    assert shape == ["batch", 8, 2]
    assert [(one.name, list(one.dims)) for one in model.graph.initializer][:1] == [("w", [8, 2])]
    assert all("block" in node.name for node in model.graph.node if node.op_type == "Mul")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_uniform_numbers_are_bit_for_bit(dtype):
    def function(data):
        key = jax.random.wrap_key_data(data)
        return jax.random.uniform(key, (9,), dtype).astype(jnp.float32)

    assert ("Gather" in operations(check(function, KEY, rtol=0))) == (dtype != "float32")


def test_a_key_is_an_input():
    spec = jax.eval_shape(lambda: jax.random.key(0))
    program = export.export(jax.jit(lambda key: jax.random.bits(key, (2,))))(spec)
    (value,) = bridge.to_onnx(program).graph.input
    assert value.type.tensor_type.shape.dim[0].dim_value == 2


def test_an_opset_is_as_new_as_what_reads_bits_asks_for():
    def sign(x):
        return x + lax.top_k(np.float32([np.inf, np.nan, -np.nan, 3]), 4)[1]

    x = np.float32([np.nan, -np.nan])
    assert check(jnp.signbit, x).opset_import[0].version == 26
    assert check(sign, np.int32(0)).opset_import[0].version == 21
    with pytest.raises(UnsupportedError, match=r"sign of a NaN.*leave opset out, or pass 26"):
        check(jnp.signbit, x, opset=25)
    check(lambda x: lax.bitcast_convert_type(x, jnp.float32), np.int32([1, 2, -1]), opset=18)
    check(lambda x: lax.top_k(x, 4)[1], np.float32([1, np.nan, -0.0, 0.0, np.inf]), opset=21)
    check(
        lambda x: lax.reduce_precision(x, 4, 3), np.float32([1 / 3, 1e-6, -70000, -0.0]), opset=21
    )


@pytest.mark.parametrize("direction", ["to", "from"])
def test_floats_of_8_bits_need_an_opset_that_has_them(direction):
    def function(x):
        return x.astype(jnp.float8_e5m2).astype(x.dtype) if direction == "to" else x.astype("f")

    x = np.ones(3, np.float32 if direction == "to" else jnp.float8_e5m2)
    program = export.export(jax.jit(function))(x)
    with pytest.raises(bridge.InteropError, match=r"test_rules_nodes\.py:\d+.*from opset 19 on"):
        bridge.to_onnx(program, opset=18)
    bridge.to_onnx(program, opset=19)


def test_a_kernel_of_unknown_size_is_refused_where_none_computes_it():
    """The gradient of a kernel is a convolution by an image."""
    arrays = [np.ones(shape) for shape in ((2, 6, 7, 3), (3, 2, 3, 4), (2, 6, 7, 4))]
    pull = lambda x, w, y: jax.vjp(_convolve, x, w)[1](y)  # noqa: E731
    with pytest.raises(UnsupportedError, match="its kernel has a dynamic number of places"):
        check(pull, *arrays, shapes=["b, h, w, 3", "3, 2, 3, 4", "b, h, w, 4"])


def test_numbers_without_a_seed_are_refused():
    with pytest.raises(
        UnsupportedError, match=r"stablehlo\.rng at .*test_rules_nodes.*threefry2x32"
    ):
        check(lambda x: lax.rng_uniform(x[0], x[1], (2,)), np.arange(2, dtype=np.float32))


_COMPARED = """%r0 = "stablehlo.sort"(%a) ({ ^bb0(%x: tensor<i64>, %y: tensor<i64>):
    %s = stablehlo.multiply %x, %x : tensor<i64>
    %c = stablehlo.compare LT, %s, %y : (tensor<i64>, tensor<i64>) -> tensor<i1>
    stablehlo.return %c : tensor<i1> }) {is_stable = true}
    : (tensor<20000xi64>) -> tensor<20000xi64>"""
_RESIZED = """%r0 = "stablehlo.set_dimension_size"(%a, %b) {dimension = 0 : i64}
    : (tensor<2x3xf32>, tensor<i32>) -> tensor<2x3xf32>"""
_BITS = """%s, %r0 = stablehlo.rng_bit_generator %a, algorithm = THREE_FRY :
    (tensor<2xui64>) -> (tensor<2xui64>, tensor<4xui4>)"""
_FLAGS = "%r0 = stablehlo.bitcast_convert %a : (tensor<3xi4>) -> tensor<3x4xi1>"


@pytest.mark.parametrize(
    ("body", "arrays", "result", "message"),
    [
        (_COMPARED, [np.zeros(20_000, np.int64)], np.zeros(20_000, np.int64),
         r"sort at .*20000 elements are too many"),
        (_RESIZED, [X, np.array(2, np.int32)], X, r"set_dimension_size at .*take a slice"),
        (_BITS, [np.zeros(2, np.uint64)], np.zeros(4, jnp.uint4), "its bits are uint4"),
        (_FLAGS, [np.zeros(3, jnp.int4)], np.zeros((3, 4), bool),
         "read as truth values, or made of them"),
        ("%r0 = stablehlo.add %a, %a : tensor<3xf8E8M0FNU>", [np.ones(3, jnp.float8_e8m0fnu)],
         np.ones(3, jnp.float8_e8m0fnu), r"compute with float8_e8m0fnu.*convert it to floa"),
    ],
)  # fmt: skip
def test_what_is_written_and_refused(body, arrays, result, message):
    with pytest.raises(UnsupportedError, match=message):
        bridge.to_onnx(exported(body, arrays, [result]))


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("all_gather", "all_gather_dim = 0 : i64, replica_groups = dense<0> : tensor<1x1xi64>"),
        ("collective_broadcast", "replica_groups = dense<0> : tensor<1x1xi64>"),
        ("collective_permute", "source_target_pairs = dense<0> : tensor<1x2xi64>"),
    ],
)
def test_collectives_of_one_device_do_nothing(tmp_path, name, attributes):
    path, x = tmp_path / "collective.mlir", X[0]
    text = f"""func.func @main(%a: {type_of(x)}) -> {type_of(x)} {{
        %r = "stablehlo.{name}"(%a) {{{attributes}}} : ({type_of(x)}) -> {type_of(x)}
        return %r : {type_of(x)} }}"""
    path.write_text(text)
    assert_same(run(bridge.to_onnx(path), [x]), [x], rtol=0, atol=0)
    path.write_text(text.replace("dense<0>", "dense<[[0, 1]]>").replace("1x1xi64", "1x2xi64"))
    with pytest.raises(UnsupportedError, match="it is for several devices"):
        bridge.to_onnx(path)


def test_flags_of_bits_and_loops_that_never_begin():
    """Which XLA has in another way, or does not have."""
    flags = np.unpackbits(np.frombuffer(X.tobytes(), np.uint8), bitorder="little")
    flags = flags.reshape(2, 3, 32).astype(bool)
    body = """%r0 = stablehlo.bitcast_convert %a : (tensor<2x3xf32>) -> tensor<2x3x32xi1>
        %r1 = stablehlo.bitcast_convert %b : (tensor<2x3x32xi1>) -> tensor<2x3xi32>
        %r2 = stablehlo.while(%x = %a) : tensor<2x3xf32>
        cond { stablehlo.return %c : tensor<i1> }
        do { %y = stablehlo.add %x, %x : tensor<2x3xf32>
             stablehlo.return %y : tensor<2x3xf32> }"""
    results = [flags, X.view(np.int32), X]
    with enable_x64(True):
        model = bridge.to_onnx(exported(body, [X, flags, np.array(False)], results))
    for how in (run, evaluate):
        assert_same(how(model, [X, flags, np.array(False)]), results, rtol=0, atol=0)
