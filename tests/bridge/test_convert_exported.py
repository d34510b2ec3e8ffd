"""`bridge.convert` of an `Exported`: what arrives must be what it was exported for."""

from __future__ import annotations

import dataclasses
import warnings
from collections import OrderedDict

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import enable_x64, export
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

import bridge
from tests.work import times_called
from xla_call_module._jax import parse_artifact, serialize_artifact
from xla_call_module.errors import DtypeError, InteropError, StructureError, VersionError

FLOAT = jax.ShapeDtypeStruct((), "float32")


def _function(tree, x, *, scale):
    return {"y": x * tree["a"] * scale, "n": x.shape[0] + tree["b"][0]}


@pytest.fixture(scope="module")
def exported():
    x = jax.ShapeDtypeStruct(export.symbolic_shape("b, 3"), "float32")
    tree = {"a": FLOAT, "b": [jax.ShapeDtypeStruct((), "int32")]}
    return export.export(jax.jit(_function))(tree, x, scale=FLOAT)


@pytest.fixture(scope="module")
def converted(exported):
    return bridge.convert(exported)


@pytest.fixture(scope="module")
def wide():
    with enable_x64(True):
        return export.export(jax.jit(lambda x, n: (jnp.sin(x) * n, n)))(
            jax.ShapeDtypeStruct((2,), "float64"), jax.ShapeDtypeStruct((), "int64")
        )


def _tree(a=2.0, b=1):
    return {"a": a, "b": [b]}


def test_values(converted, mode):
    run = mode(lambda a, b, x, s: converted(_tree(a, b), x, scale=s))
    result = run(tf.constant(2.0), tf.constant(1), tf.ones((4, 3)), tf.constant(0.5))
    np.testing.assert_array_equal(result["y"], np.ones((4, 3)))
    assert result["n"].numpy() == 5


def test_one_that_was_serialized(exported):
    """It is differentiated with its VJP, and without one by its operations."""
    x = tf.ones((1, 3))
    for order in (0, 1):
        again = export.deserialize(exported.serialize(vjp_order=order))
        converted = bridge.convert(again)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = converted(_tree(), x, scale=3.0)["y"]
        assert y.numpy().tolist() == [[6.0] * 3]
        assert tape.gradient(y, x).numpy().tolist() == [[6.0] * 3]


def test_one_without_a_vjp_that_is_not_differentiable():
    loop = jax.jit(lambda x: jax.lax.while_loop(lambda x: x < 9, lambda x: x * 2, x))
    made = export.export(loop)(jax.ShapeDtypeStruct((), "float32"))
    converted = bridge.convert(export.deserialize(made.serialize()))
    x = tf.constant(2.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = converted(x)
    match = r"without its VJP, which its operations do not yield.*everse.*serialize\(vjp_order=1\)"
    with pytest.raises(StructureError, match=match):
        tape.gradient(y, x)


def test_python_numbers_take_the_dtype(exported):
    converted = bridge.convert(
        export.export(jax.jit(lambda x, n: x + n))(
            jax.ShapeDtypeStruct((), "bfloat16"), jax.ShapeDtypeStruct((), "uint8")
        )
    )
    result = converted(1.5, 2)
    assert (result.dtype, float(result)) == (tf.bfloat16, 3.5)
    assert float(converted(True, 2)) == 3
    with pytest.raises(DtypeError, match=r"args\[1\] has dtype float32; it was exported for uint8"):
        converted(1.5, 2.5)


@pytest.mark.parametrize(
    ("args", "kwargs", "error", "match"),
    [
        (
            (_tree(), tf.ones((2, 3))),
            {},
            StructureError,
            (
                r"called with 2 positional arguments and the"
                r" keywords \[\]; it was exported for 2 and \['scale'\]"
            ),
        ),
        ((_tree(), tf.ones((2, 3)), 1.0), {}, StructureError, "called with 3 positional arguments"),
        ((_tree(), tf.ones((2, 3))), {"s": 1.0}, StructureError, r"the keywords \['s'\]; it was"),
        (
            ({"a": 1.0}, tf.ones((2, 3))),
            {"scale": 1.0},
            StructureError,
            (
                r"^args\[0\] of _function has the structure PyTreeDef\(\{'a': \*\}\); it was "
                r"exported for PyTreeDef\(\{'a': \*, 'b': \["
            ),
        ),
        (
            (_tree(), [tf.ones((2, 3))]),
            {"scale": 1.0},
            StructureError,
            r"^args\[1\] of _function has",
        ),
        ((_tree(), None), {"scale": 1.0}, StructureError, r"^args\[1\] of .* PyTreeDef\(None\)"),
        (
            (_tree(), tf.ones((2, 3))),
            {"scale": (1.0,)},
            StructureError,
            r"^kwargs\['scale'\] of _func",
        ),
        ((OrderedDict(_tree()), tf.ones((2, 3))), {"scale": 1.0}, StructureError, r"^args\[0\] of"),
        (
            (_tree(tf.constant(2)), tf.ones((2, 3))),
            {"scale": 1.0},
            DtypeError,
            r"^args\[0\]\['a'\] has dtype int32; it was exported for float32\. To do: cast it",
        ),
        (
            (_tree(2.0, 1.5), tf.ones((2, 3))),
            {"scale": 1.0},
            DtypeError,
            r"^args\[0\]\['b'\]\[0\] has",
        ),
        (
            (_tree(), tf.ones((2, 3), tf.float16)),
            {"scale": 1.0},
            DtypeError,
            r"^args\[1\] has dtype fl",
        ),
        (
            (_tree(), np.ones((2, 3), np.int8)),
            {"scale": 1.0},
            DtypeError,
            r"^args\[1\] has dtype int8",
        ),
        (
            (_tree(), tf.ones((2, 3))),
            {"scale": 1j},
            DtypeError,
            r"^kwargs\['scale'\] has dtype comple",
        ),
        (
            (_tree(), tf.ones((2, 4))),
            {"scale": 1.0},
            StructureError,
            (
                r"^args\[1\] of _function has sha"
                r"pe \(2, 4\); expected float32\[b,3\], whose dimension 1 is 3\."
            ),
        ),
        (
            (_tree(), tf.ones((3,))),
            {"scale": 1.0},
            StructureError,
            r"^args\[1\] .* of rank 1; expecte",
        ),
        ((_tree(), tf.ones((0, 3))), {"scale": 1.0}, StructureError, "variable b would be 0"),
        (
            (_tree(tf.ones(1)), tf.ones((2, 3))),
            {"scale": 1.0},
            StructureError,
            r"^args\[0\]\['a'\] of",
        ),
    ],
)
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_what_does_not_fit(converted, args, kwargs, error, match, traced):
    call = (lambda: tf.function(lambda: converted(*args, **kwargs))()) if traced else None
    with pytest.raises(error, match=match.removeprefix("^") if traced else match):
        call() if call else converted(*args, **kwargs)


def test_a_sharded_one(mode):
    """One device ignores the shardings."""
    sharding = NamedSharding(AbstractMesh((2,), ("x",)), PartitionSpec("x"))
    spec = jax.ShapeDtypeStruct((4,), "float32", sharding=sharding)
    run = mode(bridge.convert(export.export(jax.jit(lambda x: jnp.sin(x) + 1))(spec)))
    x = tf.range(4.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = run(x)
    # XLA's two versions of sine and cosine differ in the last place
    np.testing.assert_allclose(y, np.sin(np.arange(4)) + 1, rtol=1e-6)
    np.testing.assert_allclose(tape.gradient(y, x), np.cos(np.arange(4)), rtol=1e-6)


class TestX64:
    """An `Exported` has chosen its dtypes, whatever the setting is when it is converted."""

    def test_values_and_gradients(self, wide, mode):
        x, n = tf.constant([1.0, 2.0], tf.float64), tf.constant(1 << 40, tf.int64)
        run = mode(bridge.convert(wide))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with tf.GradientTape() as tape:
                tape.watch(x)
                y, same = run(x, n)
        assert (y.dtype, same.dtype, same.numpy()) == (tf.float64, tf.int64, 1 << 40)
        np.testing.assert_allclose(y, np.sin([1.0, 2.0]) * 2**40, rtol=1e-15)
        gradient = tape.gradient(y, x)
        assert gradient.dtype == tf.float64
        np.testing.assert_allclose(gradient, np.cos([1.0, 2.0]) * 2**40, rtol=1e-15)

    def test_python_numbers_and_arrays(self, wide):
        converted = bridge.convert(wide)
        y, n = converted(np.array([1.0, 2.0]), 1 << 40)
        assert (y.dtype, n.dtype) == (tf.float64, tf.int64)
        np.testing.assert_allclose(y, np.sin([1.0, 2.0]) * 2**40, rtol=1e-15)
        assert converted(np.array([1.0, 2.0]), True)[1].numpy() == 1
        with pytest.raises(DtypeError, match=r"args\[1\] has dtype float64; it was .* for int64"):
            converted(np.array([1.0, 2.0]), 0.5)

    def test_a_narrow_one_refuses_wide_tensors_while_x64_is_on(self):
        narrow = bridge.convert(export.export(jax.jit(jnp.sin))(FLOAT))
        wide = tf.constant(1.0, tf.float64)
        with (
            enable_x64(True),
            pytest.raises(
                DtypeError, match=r"args\[0\] has dtype float64; it was exported for float32"
            ),
        ):
            narrow(wide)
        with pytest.warns(UserWarning, match=r"args\[0\] is a float64 tensor, .* with float32"):
            assert narrow(wide).dtype == tf.float32


class TestWideTensors:
    """While x64 is off, JAX makes 32-bit numbers of 64-bit ones."""

    @pytest.mark.parametrize(
        ("dtype", "narrow"),
        [
            ("float64", "float32"),
            ("int64", "int32"),
            ("uint64", "uint32"),
            ("complex128", "complex64"),
        ],
    )
    def test_one_warning_names_the_argument_and_the_switch(self, dtype, narrow):
        converted = bridge.convert(lambda tree: tree["x"] + 1)
        message = (
            rf"args\[0\]\['x'\] is a {dtype} tensor, and while jax_enable_x64 is off JAX comput"
        )
        with pytest.warns(
            UserWarning, match=rf"{message}es with {narrow}\. To keep 64 .*_x64', True"
        ) as w:
            result = converted({"x": tf.cast([1, 2], dtype)})
        assert (result.dtype.name, len(w), w[0].filename) == (narrow, 1, __file__)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            converted({"x": tf.cast([1, 2], dtype)})
            converted({"x": tf.cast([1, 2, 3], dtype)})

    def test_arrays_and_numbers_narrow_as_in_jax(self):
        converted = bridge.convert(lambda x: x)
        for value, dtype in [(np.float64(1), "float32"), (np.arange(2), "int32"), (1, "int32")]:
            assert converted(value).dtype.name == dtype == jnp.asarray(value).dtype
        with pytest.raises(DtypeError, match=r"2147483648, which int32 does not hold"):
            converted(np.array([2**31]))

    def test_gradients_are_as_wide_as_the_tensors(self, mode):
        converted = bridge.convert(lambda x: x * x)
        x = tf.constant([3.0], tf.float64)
        with tf.GradientTape() as tape:
            tape.watch(x)
            with pytest.warns(UserWarning, match="is a float64 tensor"):
                y = mode(converted)(x)
        gradient = tape.gradient(y, x)
        assert (y.dtype, gradient.dtype, gradient.numpy().tolist()) == (
            tf.float32,
            tf.float64,
            [6.0],
        )

    def test_x64_on(self, mode):
        x = tf.constant([1.0, 2.0], tf.float64)
        with enable_x64(True):
            run = mode(bridge.convert(lambda x, n: jnp.sin(x) * n))
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = run(x, tf.constant(3, tf.int64))
        gradient = tape.gradient(y, x)
        assert (y.dtype, gradient.dtype) == (tf.float64, tf.float64)
        np.testing.assert_allclose(gradient, 3 * np.cos([1.0, 2.0]), rtol=1e-15)

    def test_python_numbers_are_wide_and_weak_while_x64_is_on(self):
        converted = bridge.convert(lambda x: x)
        product = bridge.convert(lambda x, y: x * y)
        with enable_x64(True):
            assert [converted(value).dtype.name for value in (1, 1.0, 1j, True)] == [
                "int64",
                "float64",
                "complex128",
                "bool",
            ]
            assert product(tf.ones(2, tf.bfloat16), 2.0).dtype == tf.bfloat16


class TestContradictions:
    @pytest.mark.parametrize(
        ("field", "value", "error"),
        [
            ("calling_convention_version", 99, VersionError),
            ("platforms", ("cpu", "tpu"), StructureError),
            ("platforms", ("metal",), InteropError),
            ("module_kept_var_idx", (0, 1), StructureError),
            ("mlir_module_serialized", b"garbage", InteropError),
            ("ordered_effects", ("print",), StructureError),
        ],
    )
    def test_they_are_refused_at_once(self, exported, field, value, error):
        with pytest.raises(error, match=r"."):
            bridge.convert(dataclasses.replace(exported, **{field: value}))


def test_each_order_is_parsed_once_and_serialized_once():
    spec = jax.ShapeDtypeStruct(export.symbolic_shape("b, 3"), "float32")
    exported = export.export(jax.jit(lambda x: jnp.tanh(x[1:])))(spec)
    x, made = tf.ones((4, 3)), []

    def work(action):
        return times_called(parse_artifact, action), times_called(serialize_artifact, action)

    def gradient():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = bridge.convert(exported)(x)
        made.append(tape.gradient(y, x))

    assert work(lambda: bridge.convert(exported)) == (1, 1)
    assert work(gradient) == (2, 2)
    np.testing.assert_allclose(made[0][1:], 1 - np.tanh(1) ** 2 * np.ones((3, 3)), rtol=1e-5)
    assert not made[0][0].numpy().any()
