"""More of what the documentation of JAX's own converter shows, done with that one and with ours."""

from __future__ import annotations

import importlib
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import enable_x64

from bridge import jax2tf as ours
from tests.bridge.converters import BOTH, GRADIENTS, has_custom_calls, import_converter
from tests.jax_versions import INCONCLUSIVE

NO_GRADIENTS = tf.saved_model.SaveOptions(experimental_custom_gradients=False)


@pytest.fixture(params=BOTH)
def jax2tf(request):
    return import_converter(request)


def _graph(function, *specs):
    """A converted function, traced for these specs and for no other."""
    return tf.function(function, autograph=False).get_concrete_function(*specs)


def _module(function, *specs):
    module = tf.Module()
    module.f = tf.function(function, autograph=False, input_signature=specs)
    return module


def _reload(module, folder, options=GRADIENTS):
    tf.saved_model.save(module, str(folder), options=options)
    return tf.saved_model.load(str(folder))


class TestParameters:
    """A linear model, its parameters in the program or in variables."""

    OFFSET, SLOPE = np.float32(1), np.linspace(1, 2, 1 << 12, dtype=np.float32)

    @pytest.mark.parametrize("gradient", [True, False])
    def test_what_is_closed_over_is_in_the_program(self, jax2tf, gradient, tmp_path):
        def model(x):
            return self.OFFSET + self.SLOPE * x

        converted = jax2tf.convert(model, with_gradient=gradient)
        loaded = _reload(_module(converted, tf.TensorSpec([])), tmp_path)
        np.testing.assert_allclose(loaded.f(3.0), model(3.0), rtol=1e-6)
        assert os.path.getsize(tmp_path / "saved_model.pb") > self.SLOPE.nbytes


class TestFilesWithoutGradients:
    def test_the_value_is_there(self, jax2tf, tmp_path):
        module = _module(jax2tf.convert(jnp.sin), tf.TensorSpec([]))
        loaded = _reload(module, tmp_path, NO_GRADIENTS)
        np.testing.assert_allclose(loaded.f(0.5), np.sin(np.float32(0.5)), rtol=1e-6)

    def test_the_gradient_is_not(self, tmp_path):
        """With ours it still is in the process that saved it, which knows it."""
        theirs = importlib.import_module(BOTH[1])
        for name, convert in (("ours", ours.convert), ("theirs", theirs.convert)):
            folder = tmp_path / name
            loaded = _reload(_module(convert(jnp.sin), tf.TensorSpec([])), folder, NO_GRADIENTS)
            x = tf.Variable(0.5)
            with tf.GradientTape() as tape:
                result = loaded.f(x)
            if name == "theirs":
                with pytest.raises(TypeError, match="Graph"):
                    tape.gradient(result, x)
            else:
                np.testing.assert_allclose(tape.gradient(result, x), np.cos(0.5), rtol=1e-6)

    def test_a_loop(self, jax2tf, tmp_path):
        def doubled(x):
            return jax.lax.while_loop(lambda x: x.sum() < 10, lambda x: x * 2, x)

        module = _module(jax2tf.convert(doubled), tf.TensorSpec([2]))
        assert _reload(module, tmp_path, NO_GRADIENTS).f(tf.ones(2)).numpy().tolist() == [8, 8]


class TestWithTensorFlow:
    def test_what_is_around_it_need_not_be_compiled(self, jax2tf, tmp_path):
        compiled = tf.function(jax2tf.convert(jnp.square), autograph=False, jit_compile=True)

        def whole(text):
            return tf.strings.as_string(compiled(tf.strings.to_number(text)), precision=1)

        assert _reload(_module(whole, tf.TensorSpec([], tf.string)), tmp_path).f("3") == b"9.0"

    def test_a_device(self, jax2tf):
        device = tf.config.list_logical_devices("CPU")[0]
        assert jax.default_backend().upper() == device.device_type
        converted = jax2tf.convert(jnp.sin)

        @tf.function(autograph=False, jit_compile=False)
        def run(x):
            with tf.device(device.name):
                return converted(x)

        with tf.device(device.name):
            np.testing.assert_allclose(run(np.float32(0.5)), np.sin(np.float32(0.5)), rtol=1e-6)

    @has_custom_calls
    def test_a_layer_of_keras(self, jax2tf):
        def affine(params, x):
            return x @ params["w"] + params["b"]

        class Affine(tf.keras.layers.Layer):
            def build(self, shape):
                self.w = self.add_weight(shape=(shape[-1], 2), initializer="ones")
                self.b = self.add_weight(shape=(2,), initializer="zeros")
                self.converted = jax2tf.convert(affine, polymorphic_shapes=[None, "batch, _"])

            def call(self, x):
                return self.converted({"w": self.w.value, "b": self.b.value}, x)

        if tf.keras.backend.backend() != "tensorflow":
            pytest.skip("Keras runs on another backend in this process.")
        model = tf.keras.Sequential([Affine(), tf.keras.layers.Lambda(lambda x: x * 2)])
        model.compile(optimizer=tf.keras.optimizers.SGD(0.5), loss="mse")
        x, y = np.ones((4, 3), np.float32), np.zeros((4, 2), np.float32)
        assert model(x).numpy().tolist() == [[6.0, 6.0]] * 4
        history = model.fit(x, y, batch_size=2, epochs=2, verbose=0).history["loss"]
        assert history[0] != history[1]

    def test_another_generator_of_random_numbers(self, jax2tf):
        def draws(key):
            return sum(jax.random.uniform(k, (3,)) for k in jax.random.split(key, 4))

        sizes = []
        for name in ("threefry2x32", "unsafe_rbg"):
            before = jax.config.jax_default_prng_impl
            jax.config.update("jax_default_prng_impl", name)
            try:
                key = jax.random.PRNGKey(0)
                graph = _graph(jax2tf.convert(draws), tf.TensorSpec(key.shape, tf.uint32))
                np.testing.assert_allclose(graph(tf.constant(key)), draws(key), rtol=1e-6)
            finally:
                jax.config.update("jax_default_prng_impl", before)
            sizes.append(graph.graph.as_graph_def().ByteSize())
        assert sizes[1] < sizes[0]

    def test_a_call_that_the_consumer_is_said_to_have(self, jax2tf):
        def calls(x):
            return jax.ffi.ffi_call("my_target", x)(x)

        allowed = [jax2tf.DisabledSafetyCheck.custom_call("my_target")]
        converted = jax2tf.convert(calls, native_serialization_disabled_checks=allowed)
        graph = _graph(converted, tf.TensorSpec([2])).graph.as_graph_def()
        (node,) = [node for node in graph.node if node.op == "XlaCallModule"]
        assert b"my_target" in node.attr["module"].s


class TestShapes:
    @has_custom_calls
    @pytest.mark.parametrize("batch", [None, 1])
    def test_one_symbol_and_what_is_known(self, jax2tf, batch):
        def project(x, w):
            return jnp.einsum("bij,jk->bik", x, w)

        converted = jax2tf.convert(project, polymorphic_shapes=["(b, _, _)", None])
        graph = _graph(converted, tf.TensorSpec([batch, 3, 4]), tf.TensorSpec([4, 2]))
        assert graph(tf.ones([1, 3, 4]), tf.ones([4, 2])).shape == (1, 3, 2)

    @has_custom_calls
    @pytest.mark.parametrize("size", [None, 8])
    def test_one_symbol_of_two_arguments(self, jax2tf, size):
        converted = jax2tf.convert(
            lambda x, y: (x * y[:, None]).sum(), polymorphic_shapes=["(batch, _)", "(batch,)"]
        )
        graph = _graph(converted, tf.TensorSpec([size, 6]), tf.TensorSpec([size]))
        assert graph(tf.ones([8, 6]), tf.ones([8])).numpy() == 48

    @has_custom_calls
    def test_a_test_of_two_equal_dimensions_is_decided(self, jax2tf):
        def f(x):
            return jnp.matmul(x, jnp.sin(x)) if x.shape[-1] == x.shape[-2] else x

        graph = _graph(
            jax2tf.convert(f, polymorphic_shapes=["(b, d, d)"]), tf.TensorSpec([None] * 3)
        )
        x = np.random.default_rng(0).random((2, 3, 3), np.float32)
        np.testing.assert_allclose(graph(tf.constant(x)), f(x), rtol=1e-5)

    @has_custom_calls
    def test_dimensions_as_values(self, jax2tf):
        def f(x):
            return x + x.shape[0] + jnp.sin(x.shape[0]), jnp.array(x.shape), jnp.array(x.shape[0])

        sums, shape, size = jax2tf.convert(f, polymorphic_shapes=["b"])(np.ones(3))
        np.testing.assert_allclose(sums, np.full(3, 4 + np.sin(3)), rtol=1e-6)
        assert (shape.numpy().tolist(), size.numpy()) == ([3], 3)

    @has_custom_calls
    def test_comparisons(self, jax2tf):
        def f(x):
            a, b = x.shape
            assert b + b == 2 * b
            assert a >= 1
            assert 2 * a + b >= 3
            assert b + 1 != b
            assert b != 0
            for unknown in (lambda: b >= 2, lambda: a >= b, lambda: a - b >= 0):
                with pytest.raises(INCONCLUSIVE, match="inconclusive"):
                    unknown()
            return x

        assert jax2tf.convert(f, polymorphic_shapes="a, b")(np.ones((3, 4))).shape == (3, 4)

    @has_custom_calls
    def test_division(self, jax2tf):
        halves = lambda x: jnp.reshape(x, (2, -1))  # noqa: E731
        even = jax2tf.convert(halves, polymorphic_shapes=["(b, ...)"])
        assert even(np.ones((4, 5, 6))).shape == (2, 60)
        swapped = jax2tf.convert(
            lambda x: jnp.reshape(x, (-1, x.shape[0])), polymorphic_shapes=["(b1, b2, ...)"]
        )
        assert swapped(np.ones((4, 5, 6))).shape == (30, 4)
        with pytest.raises(INCONCLUSIVE, match=r"(?i)cannot divide"):
            even(np.ones((4, 5, 7)))

    @has_custom_calls
    def test_symbols_that_follow(self, jax2tf):
        f = jax2tf.convert(lambda x: x.sum(), polymorphic_shapes="a, 2*a, b")
        assert f(np.ones((2, 4, 3))).numpy() == 24
        g = jax2tf.convert(lambda x: x.sum(), polymorphic_shapes="a * a, a")
        assert g(np.ones((9, 3))).numpy() == 27

    def test_what_a_graph_is_not_meant_for(self, jax2tf):
        f = lambda x: 0 if x.shape[0] == 0 else 1  # noqa: E731
        graph = _graph(jax2tf.convert(f, polymorphic_shapes=["b"]), tf.TensorSpec([None]))
        with pytest.raises(tf.errors.InvalidArgumentError, match="b"):
            graph(tf.zeros(0))
        g = lambda x: 0 if x.shape[0] != x.shape[1] else 1  # noqa: E731
        graph = _graph(jax2tf.convert(g, polymorphic_shapes=["b, b"]), tf.TensorSpec([None, None]))
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"."):
            graph(tf.ones([4, 5]))


class TestStructures:
    def test_gradients_around_a_class_of_ones_own(self, jax2tf, tmp_path):
        class Both:
            def __init__(self, a, b):
                self.a, self.b = a, b

        jax.tree_util.register_pytree_node(
            Both, lambda both: ((both.a, both.b), None), lambda _, parts: Both(*parts)
        )
        f_tf = jax2tf.convert(lambda both: 2.0 * both.a + both.b**2)
        wrapped = lambda a, b: f_tf(Both(a, b))  # noqa: E731
        loaded = _reload(_module(wrapped, tf.TensorSpec([]), tf.TensorSpec([])), tmp_path)
        xs = [tf.Variable(4.0), tf.Variable(5.0)]
        for function in (wrapped, loaded.f):
            with tf.GradientTape() as tape:
                result = function(*xs)
            assert result.numpy() == 33.0
            assert [float(g) for g in tape.gradient(result, xs)] == [2.0, 10.0]

    def test_variables_with_64_bits(self, jax2tf):
        f = tf.function(jax2tf.convert(jnp.sin), autograph=False)
        assert f(tf.Variable(3.14, dtype=tf.float64)).dtype == tf.float32
        assert f(tf.Variable(3.14, dtype=jax2tf.dtype_of_val(3.14))).dtype == tf.float32
        with enable_x64(True):
            f = tf.function(jax2tf.convert(jnp.sin), autograph=False)
            assert f(tf.Variable(3.14, dtype=tf.float64)).dtype == tf.float64
            assert f(tf.Variable(3.14)).dtype == tf.float32
            assert f(tf.Variable(3.14, dtype=jax2tf.dtype_of_val(3.14))).dtype == tf.float64

    def test_bfloat16(self, jax2tf):
        x = tf.Variable([1.5, 2.0], dtype=tf.bfloat16)
        with tf.GradientTape() as tape:
            result = jax2tf.convert(lambda x: (x * x).astype(jnp.float32))(x)
        gradient = tape.gradient(result, x)
        assert (result.dtype, gradient.dtype) == (tf.float32, tf.bfloat16)
        assert gradient.numpy().tolist() == [3.0, 4.0]


class TestTensorFlowInJax:
    def test_it_is_part_of_the_program(self, jax2tf):
        f = lambda x: jnp.sin(jax2tf.call_tf(tf.math.cos)(x))  # noqa: E731
        text = jax.jit(f).lower(np.float32(1)).as_text()
        assert "stablehlo.cosine" in text
        assert "stablehlo.sine" in text
        assert "callback" not in text

    def test_gradients_of_ones_own_through_a_file(self, jax2tf, tmp_path):
        @jax.custom_vjp
        def f(x):
            return x * x

        f.defvjp(lambda x: (f(x), 3.0 * x), lambda residual, cotangent: (residual * cotangent,))
        loaded = _reload(_module(jax2tf.convert(f), tf.TensorSpec([])), tmp_path)
        back = jax2tf.call_tf(loaded.f)
        for run in (back, jax.jit(back)):
            value, gradient = jax.value_and_grad(run)(np.float32(4))
            assert (value, gradient) == (16.0, 12.0)

    @has_custom_calls
    def test_results_without_the_symbol(self, jax2tf):
        def total(x):
            called = jax2tf.call_tf(
                lambda x: tf.math.reduce_sum(tf.math.sin(x)), call_tf_graph=True
            )
            return called(x) + 1

        f = jax2tf.convert(total, polymorphic_shapes=["b, ..."])
        graph = _graph(f, tf.TensorSpec([None, 2]))
        for size in (1, 3):
            x = np.full((size, 2), 0.5, np.float32)
            np.testing.assert_allclose(graph(tf.constant(x)), np.sin(x).sum() + 1, rtol=1e-6)

    def test_a_branch_decides_the_shape(self, jax2tf):
        called = jax2tf.call_tf(
            tf.function(lambda x: tf.cond(x[0] >= 0, lambda: x, lambda: x[1:]), autograph=False)
        )
        x = np.array([-1, 2], np.int32)
        assert called(x).tolist() == [2]
        with pytest.raises(ValueError, match="shape"):
            jax.jit(called)(x)

    def test_a_variable_is_assigned_or_passed(self, jax2tf):
        variable = tf.Variable(1.0)

        def impure(x):
            variable.assign(11.0)
            return x + variable

        assert jax2tf.call_tf(impure)(np.float32(2)) == 13
        with pytest.raises((ValueError, NotImplementedError, TypeError), match=r"."):
            jax.jit(jax2tf.call_tf(impure))(np.float32(2))

        def pure(x, old):
            new = old + 10.0
            return x + new, new

        called = jax.jit(jax2tf.call_tf(pure))
        assert [float(value) for value in called(np.float32(2), variable.numpy())] == [23.0, 21.0]


class TestDifferences:
    """What JAX's own converter says it does not have."""

    def test_eigenvalues_of_a_batch(self):
        f = ours.convert(jnp.linalg.eigvalsh, polymorphic_shapes="b, _, _")
        matrices = np.array([[[2.0, 1.0], [1.0, 2.0]]] * 3, np.float32)
        np.testing.assert_allclose(f(matrices), [[1.0, 3.0]] * 3, rtol=1e-5)
