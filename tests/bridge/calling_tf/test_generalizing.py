"""TensorFlow functions with symbolic shapes, compiled into what JAX exports."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
import tensorflow as tf
from jax import export

import bridge
from tests.x64 import enable_x64
from xla_call_module.errors import StructureError

X = np.linspace(-1.0, 1.5, 12, dtype=np.float32).reshape(4, 3)
KERNEL = np.linspace(-1.0, 1.0, 6, dtype=np.float32).reshape(3, 2)
SIZES = (1, 2, 5)


def rows(count):
    return np.resize(X * 0.9, (count, 3))


def spec_of(shape, dtype=np.float32):
    return jax.ShapeDtypeStruct(export.symbolic_shape(shape), dtype)


def exported(function, *shapes):
    return export.export(jax.jit(function))(*map(spec_of, shapes))


def in_tensorflow(x):
    """Operations, the compiled forms of which have sizes in different places."""
    count = tf.shape(x)[0]
    return {
        "product": x @ KERNEL,
        "softmax": tf.nn.softmax(x, 0),
        "mean": tf.reduce_mean(x),
        "deviation": tf.math.reduce_std(x, 0),
        "rows": x + tf.cast(tf.range(count) * 3 + 2, tf.float32)[:, None],
        "joined": tf.concat([x, x[:1], tf.zeros([1, 3])], 0),
        "zeros": tf.concat([x, tf.zeros([count, 2])], 1),
        "tail": x[1:],
        "reversed": x[::-1],
        "padded": tf.pad(x, [[1, 0], [0, 2]], constant_values=0.5),
        "tiled": tf.tile(x, [2, 1]),
        "pairs": tf.matmul(x, x, transpose_b=True),
        "flat": tf.reshape(x, [-1]),
        "sorted": tf.sort(x, 0),
        "top": tf.math.top_k(x, 2),
        "diagonal": tf.linalg.diag(x),
        "chosen": tf.gather(x, [0, -1 + count]),
        "last": tf.slice(x, [count - 1, 0], [1, 3]),
        "known": tf.where(x > 0, x, 0.0),
        "index": tf.argmax(x, 1, tf.int32),
        "two": (x[:, None] * x[None], tf.cast(count, tf.float32)),
        "summed": tf.cumsum(x, 0, exclusive=True, reverse=True),
        "pooled": tf.nn.max_pool1d(x[None], 2, 1, "SAME"),
        "factors": tuple(tf.linalg.qr(x[:, :, None] * x[:, None] + tf.eye(3))),
        "erf": tf.math.erf(x),
        "mapped": tf.map_fn(lambda row: row * tf.reduce_sum(row), x),
    }


@pytest.fixture(scope="module")
def every_operation():
    return exported(bridge.call_tf(in_tensorflow), "b, 3")


@pytest.mark.parametrize("count", SIZES)
def test_every_size_has_the_values_of_tensorflow(every_operation, count):
    x = rows(count)
    found, expected = every_operation.call(x), in_tensorflow(tf.constant(x))
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, expected
    )


def test_result_shapes_are_symbolic(every_operation):
    shapes = jax.tree.unflatten(
        every_operation.out_tree, [str(a.shape) for a in every_operation.out_avals]
    )
    assert (shapes["joined"], shapes["tiled"]) == ("(b + 2, 3)", "(2*b, 3)")
    assert (shapes["flat"], shapes["pairs"]) == ("(3*b,)", "(b, b)")


def differentiated(x):
    """A function whose gradient has sizes in other places than its values."""
    hidden = tf.nn.softmax(tf.concat([x, x[:1]], 0) @ KERNEL, 0)
    order = tf.reduce_sum(tf.sort(x, 0)[1:] ** 2)
    return tf.reduce_mean(hidden[:, 0] ** 2) * tf.reduce_sum(x * x) + order


def gradient_of(function, x):
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        result = function(x)
    return tape.gradient(result, x)


def test_gradients_are_those_of_tensorflow():
    found = exported(jax.grad(bridge.call_tf(differentiated)), "b, 3")
    for count in SIZES:
        expected = gradient_of(differentiated, rows(count))
        np.testing.assert_allclose(found.call(rows(count)), expected, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def program():
    """A JAX program with a TensorFlow function of two symbols in its midst."""
    called = bridge.call_tf(
        lambda x: tf.tensordot(x, KERNEL, 1) + tf.reduce_mean(x, 1)[..., None, :2]
    )
    return lambda x: jnp.sin(called(x * 2.0))


def expected_of_program(x):
    x = x * 2.0
    return np.sin(x @ KERNEL + x.mean(1)[..., None, :2])


@pytest.mark.parametrize("way", ["convert", "save"])
def test_it_is_converted_and_saved(program, way, tmp_path):
    if way == "convert":
        converted = bridge.convert(program, polymorphic_shapes="b, t, 3")
        functions = [
            tf.function(
                converted, autograph=False, input_signature=[tf.TensorSpec([None, None, 3])]
            )
        ]
    else:
        bridge.save(exported(program, "b, t, 3"), tmp_path / "model")
        functions = [bridge.load(tmp_path / "model"), tf.saved_model.load(str(tmp_path / "model"))]
    for shape in ((1, 2, 3), (4, 5, 3)):
        x = np.resize(X, shape)
        for function in functions:
            np.testing.assert_allclose(function(x), expected_of_program(x), rtol=1e-5, atol=1e-6)


def test_a_recurrent_layer_of_keras_has_gradients_by_its_variables():
    layer = keras.layers.LSTM(2)
    layer.build((None, 3, 3))
    called = bridge.call_tf(layer, variables="argument")
    shapes = [tuple(w.shape) for w in layer.trainable_variables]
    names = [w.value.name.partition(":")[0] for w in layer.trainable_variables]
    given = {n: jax.ShapeDtypeStruct(s, np.float32) for n, s in zip(names, shapes, strict=True)}
    loss = lambda variables, x: (called(variables, x) ** 2).sum()  # noqa: E731
    found = export.export(jax.jit(jax.grad(loss)))(given, spec_of("b, 3, 3"))
    for count in (1, 4):
        x = np.resize(X, (count, 3, 3))
        with tf.GradientTape() as tape:
            result = tf.reduce_sum(layer(tf.constant(x)) ** 2)
        own = [w.value for w in layer.trainable_variables]
        gradients = found.call(called.variables(x), x)
        for name, expected in zip(names, tape.gradient(result, own), strict=True):
            np.testing.assert_allclose(gradients[name], expected, rtol=1e-4, atol=1e-6)


def test_a_transposed_gradient_takes_every_size():
    kernel = np.float32([[1, 2], [3, -4], [0.5, -1]])

    def transposed(function):
        def of(x):
            pull = jax.vjp(function, x)[1]
            cotangent = jax.ShapeDtypeStruct((x.shape[0], 2), x.dtype)
            return jax.linear_transpose(lambda given: pull(given)[0], cotangent)(x)[0]

        return of

    called = bridge.call_tf(lambda x: tf.tanh(tf.matmul(x, kernel)) * tf.reduce_sum(x))
    found = exported(transposed(called), "b, 3")
    expected = transposed(lambda x: jnp.tanh(x @ kernel) * x.sum())
    for count in (2, 5):
        x = np.linspace(-0.5, 1, 3 * count, dtype=np.float32).reshape(count, 3)
        np.testing.assert_allclose(found.call(x), expected(x), rtol=1e-5, atol=1e-5)


def test_constants_of_64_bits_are_kept():
    variable = tf.Variable([2**40 + 3, 5], dtype=tf.int64)

    def function(x):
        return x + tf.cast(variable[0] % 7, tf.float32)

    called = bridge.call_tf(function, variables="constant")
    np.testing.assert_array_equal(exported(called, "b, 3").call(X), function(X))
    with enable_x64():
        np.testing.assert_array_equal(exported(called, "b, 3").call(X), function(X))


NUMBERS = {
    "bool": [True, False, True],
    "int8": [1, -128, 0],
    "uint8": [1, 255, 0],
    "int32": [1, -5, 0],
    "uint64": [1, 2**64 - 1, 0],
    "float16": [0.5, np.nan, -0.0],
    "bfloat16": [0.5, np.inf, -0.0],
    "float32": [0.1, np.nan, -0.0],
    "float64": [0.1, -np.inf, -0.0],
    "complex64": [0.1 + 2j, complex(0, np.nan), -0.0],
    "complex128": [0.1 + 2j, complex(np.inf, 1), -0.0],
}


def test_constants_of_every_dtype_are_kept():
    """One number that is repeated as often as the size says, several that are, and many."""

    def function(x):
        count = tf.shape(x)[0]
        filled, tiled, signs = {}, {}, {}
        for name, numbers in NUMBERS.items():
            constant = tf.constant(np.array(numbers, jnp.dtype(name)))
            filled[name] = [tf.fill([count], constant[i]) for i in range(3)]
            tiled[name] = tf.tile(constant[None], [count, 1])
        for name in ("float32", "complex64"):
            signs[name] = tf.stack([tf.cast(count, name), tf.constant(np.array(-0.0, name))])
        return filled, tiled, signs, tf.tile(tf.constant(MANY)[None], [count, 1])

    with enable_x64():
        found = exported(bridge.call_tf(function), "b, 3")
        for count in SIZES:
            expected = function(tf.constant(rows(count)))
            for a, b in zip(
                *map(jax.tree.leaves, (found.call(rows(count)), expected)), strict=True
            ):
                assert (a.dtype, np.asarray(a).tobytes()) == (b.dtype.name, b.numpy().tobytes())


MANY = np.arange(400, dtype=np.float32).view(np.complex64)


def test_shapes_that_are_not_linear_are_declared():
    shape = "floordiv(b + 1, 2), 3"
    found = exported(bridge.call_tf(lambda x: tf.sin(x[::2]), shapes=shape), "b, 3")
    for count in SIZES:
        np.testing.assert_allclose(found.call(rows(count)), np.sin(rows(count)[::2]), rtol=1e-6)
    with pytest.raises(StructureError, match=r"not linear in b\. To do: pass shapes="):
        exported(bridge.call_tf(lambda x: x[::2]), "b, 3")
    with pytest.raises(StructureError, match=r"Result 0 of <lambda> has the shape .*declared was"):
        exported(bridge.call_tf(lambda x: x[::2], shapes="floordiv(b, 2), 3"), "b, 3")


def test_random_numbers_are_those_of_every_size():
    def function(x):
        return tf.random.stateless_uniform(tf.shape(x), [1, 2]) + x

    found = exported(bridge.call_tf(function), "b, 3")
    compiled = tf.function(function, jit_compile=True, autograph=False)  # which has others
    for count in SIZES:
        np.testing.assert_array_equal(found.call(rows(count)), compiled(rows(count)))


def test_a_sum_up_to_each_row_has_gradients_in_a_file(tmp_path):
    called = bridge.call_tf(lambda x: tf.cumsum(x * x, 0))
    bridge.save(exported(called, "b, 3"), tmp_path / "model")
    loaded, again = bridge.load(tmp_path / "model"), tf.saved_model.load(str(tmp_path / "model"))
    for count in SIZES:
        x = rows(count)
        expected = jax.grad(lambda x: jnp.cumsum(x * x, 0).sum())(x)
        found = jax.grad(lambda x: loaded(x).sum())(x)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        np.testing.assert_allclose(gradient_of(again, x), expected, rtol=1e-5)


REFUSED = {
    "a constant depends on the size.*graph=True": lambda x: tf.random.stateless_uniform(
        tf.shape(x), [1, 2], alg="philox"
    ),
    r"cannot be traced with b=\d+": lambda x: tf.reshape(x, [-1, 2, 3]) if x.shape[0] else x,
    "in Pad the number of its operations depends on the size": lambda x: (
        tf.pad(x, [[0, 1], [0, 0]])[: x.shape[0]] if x.shape[0] in (24, 72) else x
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_not_the_same_for_all_sizes_is_refused(why):
    with pytest.raises(StructureError, match=why):
        exported(bridge.call_tf(REFUSED[why], shapes="b, 3"), "b, 3")


def count_of(x):
    return tf.cast(tf.shape(x)[0], tf.float32)


# Each with a size below and one above which it is another function.
COMPARED = {
    "the smaller": (lambda x: x * tf.minimum(count_of(x), 10.0), 10, None),
    "the larger": (lambda x: x * tf.maximum(count_of(x), 100.0), None, 100),
    "larger constants": (
        lambda x: x * tf.cast(tf.maximum(tf.shape(x)[0], 1000), tf.float32), None, 1000
    ),
    "a branch": (
        lambda x: tf.cond(tf.shape(x)[0] > 8, lambda: x * 2.0, lambda: x * 3.0), 9, None
    ),
    "of Python": (lambda x: x * 2.0 if x.shape[0] is None or x.shape[0] > 8 else x, 9, None),
    "one": (lambda x: x / tf.maximum(count_of(x) - 1.0, 1.0), 2, None),
    "the first": (lambda x: tf.reduce_sum(x[:10], 0), 10, None),
}  # fmt: skip


@pytest.mark.parametrize("how", COMPARED)
def test_a_comparison_with_a_size_is_refused_where_it_may_turn_out_otherwise(how):
    function, least, greatest = COMPARED[how]
    called = bridge.call_tf(function)
    with pytest.raises(StructureError, match=r"symbolic sizes: .*constraints=|pass shapes="):
        exported(called, "b, 3")
    constraints = [f"b >= {least}"] if least else [f"b <= {greatest}"]
    shape = export.symbolic_shape("b, 3", constraints=constraints)
    found = export.export(jax.jit(called))(jax.ShapeDtypeStruct(shape, np.float32))
    for count in (least, 30) if least else (1, greatest):
        np.testing.assert_allclose(
            found.call(rows(count)), function(tf.constant(rows(count))), rtol=1e-5
        )


def test_a_callback_has_no_symbolic_shapes():
    called = bridge.call_tf(lambda x: tf.strings.length(tf.strings.as_string(x)), compiled=False)
    with pytest.raises(StructureError, match=r"args\[0\] has the symbolic shape .*graph=True"):
        exported(called, "b, 3")
