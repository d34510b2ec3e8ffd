"""A converted function inside what TensorFlow offers: loops, branches, threads, other functions."""

from __future__ import annotations

import gc
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import enable_x64, lax

import bridge
from xla_call_module.errors import InteropError

X = np.linspace(-1, 1, 6).astype(np.float32).reshape(2, 3)


def _double(x):
    return x * 2


def _while_loop(f, x):
    return tf.while_loop(
        lambda i, _: i < 3, lambda i, x: (i + 1, f(x)), (0, x), maximum_iterations=3
    )[1]


def _cond(f, x):
    return tf.cond(tf.reduce_sum(x) > -100, lambda: f(x), lambda: x)


def _autograph(f, x):
    for _ in tf.range(3):
        if tf.reduce_sum(x) > -100:
            x = f(x)
    return x


def _switch(f, x):
    return tf.switch_case(tf.constant(1), [lambda: x, lambda: f(x)])


def _scan(f, x):
    return tf.scan(lambda carry, row: f(carry) + row, x)


PLACES = {
    "while_loop": (_while_loop, 8 * X),
    "cond": (_cond, 2 * X),
    "map_fn": (tf.map_fn, 2 * X),
    "AutoGraph": (_autograph, 8 * X),
    "switch_case": (_switch, 2 * X),
    "scan": (_scan, np.stack([X[0], 2 * X[0] + X[1]])),
}


@pytest.mark.parametrize("place", PLACES)
class TestPlaces:
    def test_values(self, place, mode):
        run, expected = PLACES[place]
        converted = bridge.convert(_double)
        result = mode(lambda x: run(converted, x))(tf.constant(X))
        np.testing.assert_array_equal(result, expected)

    def test_gradients(self, place, mode):
        run, _ = PLACES[place]
        converted = bridge.convert(lambda x: jnp.sin(x))

        def gradient(f, x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = run(f, x)
            return tape.gradient(y, x)

        result = mode(lambda x: gradient(converted, x))(tf.constant(X))
        # XLA's sine and cosine differ from Eigen's in the last places
        np.testing.assert_allclose(result, gradient(tf.sin, tf.constant(X)), rtol=2e-6)


def test_recomputed_gradients():
    """TensorFlow cannot save what is inside a `recompute_grad`, so this is not reloaded."""
    recomputed = tf.recompute_grad(bridge.convert(lambda x: jnp.sin(x)))
    x = tf.constant(X)
    for run in (recomputed, tf.function(recomputed)):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = run(x)
        np.testing.assert_allclose(tape.gradient(y, x), np.cos(X), rtol=2e-6)


def test_a_function_inside_a_function(mode):
    inner = bridge.convert(lambda x: x + 1)
    middle = tf.function(lambda x: inner(x) * 3)
    outer = bridge.convert(lambda x: x - 2)
    assert mode(lambda x: outer(middle(inner(x))))(tf.constant(1.0)).numpy() == 7


def test_a_module_with_variables(tmp_path):
    """What is trained in TensorFlow is seen by the function, before and after a reload."""

    class Model(tf.Module):
        def __init__(self):
            self.params = {"w": tf.Variable([[1.0], [2.0]]), "b": tf.Variable([0.5])}
            self.predict = bridge.convert(
                lambda params, x: x @ params["w"] + params["b"], polymorphic_shapes=(None, "b, _")
            )

        @tf.function(input_signature=[tf.TensorSpec([None, 2])])
        def __call__(self, x):
            return self.predict(self.params, x)

    model = Model()
    model.params["w"].assign([[3.0], [4.0]])
    tf.saved_model.save(model, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    for module in (model, loaded):
        assert module(tf.ones((3, 2))).numpy().tolist() == [[7.5]] * 3
        with tf.GradientTape() as tape:
            y = module(tf.constant([[1.0, 2.0]]))
        gradients = tape.gradient(y, [module.params["b"], module.params["w"]])
        assert [g.numpy().tolist() for g in gradients] == [[1.0], [[1.0], [2.0]]]
        module.params["b"].assign([10.0])
        assert module(tf.ones((1, 2))).numpy().tolist() == [[17.0]]


class TestTraces:
    def test_equal_specs_are_exported_once(self):
        traces = []
        converted = bridge.convert(lambda x: traces.append(x.shape) or x + 1)
        same = [tf.zeros(2), tf.Variable([0.0, 0.0]), np.zeros(2, np.float32), jnp.zeros(2)]
        for value in same * 2:
            converted(value)
        graph = tf.function(converted)
        for value in same:
            graph(tf.convert_to_tensor(value))
        assert traces == [(2,)]
        converted(tf.zeros(3))
        converted(tf.zeros(2, tf.int32))
        assert traces == [(2,), (3,), (2,)]

    def test_a_gradient_traces_nothing_again(self):
        traces = []
        converted = bridge.convert(lambda x: traces.append(x.shape) or jnp.sin(x).sum())
        x = tf.constant([1.0, 2.0])
        for _ in range(2):
            with tf.GradientTape() as outer:
                outer.watch(x)
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    y = converted(x)
                first = inner.gradient(y, x)
            second = outer.gradient(first, x)
        assert len(traces) == 1
        np.testing.assert_allclose(first, np.cos([1.0, 2.0]), rtol=1e-6)
        np.testing.assert_allclose(second, -np.sin([1.0, 2.0]), rtol=1e-6)

    def test_settings_of_jax_that_change_the_module(self):
        traces = []
        converted = bridge.convert(lambda x: traces.append(x.dtype) or x @ x)
        converted(np.eye(2))
        with enable_x64(True):
            assert converted(np.eye(2)).dtype == tf.float64
        with jax.default_matmul_precision("highest"):
            converted(np.eye(2))
        assert traces == ["float32", "float64", "float32"]
        converted(np.eye(2))
        with enable_x64(True):
            converted(np.eye(2))
        assert len(traces) == 3

    def test_what_fails_is_tried_again(self):
        attempts = []

        def function(x):
            attempts.append(1)
            if len(attempts) == 1:
                raise OSError("at first")
            return x

        converted = bridge.convert(function)
        with pytest.raises(OSError, match="at first"):
            converted(1.0)
        assert converted(1.0).numpy() == 1

    def test_it_goes_with_its_function(self):
        """Nothing at module level keeps a converted function, or what it was made of."""

        def function(x):
            return x + 1

        gone = weakref.ref(function)
        converted = bridge.convert(function)
        converted(tf.ones(2))
        del function, converted
        jax.clear_caches()
        gc.collect()
        assert gone() is None


class TestThreads:
    def _run(self, target, count):
        errors = []

        def guarded(index):
            try:
                target(index)
            except Exception as error:  # noqa: BLE001 - shown by the assertion
                errors.append(error)

        threads = [threading.Thread(target=guarded, args=(index,)) for index in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []

    def test_every_shape_and_its_gradient(self):
        traces, results = [], {}
        converted = bridge.convert(lambda x: traces.append(x.shape) or (x**2).sum())

        def call(index):
            x = tf.fill([index % 3 + 1], float(index))
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = converted(x)
            # Gradients of functions in functions are not safe in threads: TensorFlow builds them in
            # a graph that all share.
            assert tf.function(converted)(x).numpy() == y.numpy()
            results[index] = tape.gradient(y, x).numpy().tolist()

        self._run(call, 9)
        assert results == {index: [2.0 * index] * (index % 3 + 1) for index in range(9)}
        assert sorted(traces) == [(1,), (2,), (3,)]


class TestGradients:
    def test_none_for_what_is_not_differentiated(self, mode):
        def function(x, n, unused, mask):
            return jnp.where(mask, x * n, 0.0)

        converted = bridge.convert(function)
        args = tf.constant([1.0, 2.0]), tf.constant(3), tf.constant(4.0), tf.constant([True, False])

        def gradients(*args):
            with tf.GradientTape() as tape:
                tape.watch(args[0])
                tape.watch(args[2])
                y = converted(*args)
            found = tape.gradient(y, [args[0], args[2]])
            assert found[1] is None
            return found[0]

        assert mode(gradients)(*args).numpy().tolist() == [3, 0]

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex64"])
    def test_dtypes(self, dtype):
        converted = bridge.convert(lambda x: x * x)
        x = tf.cast([1.5, -2.0], dtype)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = converted(x)
        gradient = tape.gradient(y, x)
        assert gradient.dtype == x.dtype
        np.testing.assert_array_equal(tf.cast(gradient, tf.complex64), [3, -4])

    def test_without(self, mode):
        converted = bridge.convert(lambda x: (x * 2, x.astype(int)), with_gradient=False)
        x = tf.constant(1.5)
        run = mode(converted)
        y, n = run(x)
        assert (y.numpy(), n.numpy()) == (3, 1)

        def gradient():
            """A tf.function makes its gradient when it is called, a tape when it is asked."""
            with tf.GradientTape() as tape:
                tape.watch(x)
                y, _ = run(x)
            return tape.gradient(y, x)

        with pytest.raises(LookupError, match="with_gradient=False: it has no gradient"):
            gradient()
        with pytest.raises(LookupError, match="with_gradient=False: it has no gradient"):
            tf.function(gradient, autograph=False)()

    def test_what_jax_cannot_differentiate(self):
        """It is only an error where a gradient is asked for."""
        converted = bridge.convert(
            lambda x: jax.lax.while_loop(lambda y: y < 9, lambda y: y * 2, x)
        )
        x = tf.constant(1.0)
        assert converted(x).numpy() == 16
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = converted(x)
        with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
            tape.gradient(y, x)


class TestOptions:
    def test_options_that_are_wrong(self):
        with pytest.raises(InteropError, match=r"'metal' is unknown; expected some of cpu, cuda"):
            bridge.convert(_double, platforms=["metal"])
        with pytest.raises(InteropError, match="'all' is unknown; expected 'platform'"):
            bridge.convert(_double, disabled_checks=["all"])


class TestWhatCannotRun:
    @pytest.mark.parametrize("ordered", [False, True])
    def test_callbacks(self, ordered):
        shape = jax.ShapeDtypeStruct((2,), "float32")

        def printing(x):
            jax.debug.print("{}", x, ordered=ordered)
            return x

        functions = [
            printing,
            lambda x: jax.experimental.io_callback(np.sin, shape, x, ordered=ordered),
            lambda x: jax.pure_callback(np.sin, shape, x),
        ]
        for function in functions:
            with pytest.raises(
                InteropError, match=r"calls back to Python.* To do: leave pure_callback"
            ):
                bridge.convert(function)(tf.ones(2))

    def test_what_jax_says_is_passed_on(self):
        def missing(x):
            raise NotImplementedError("for later")

        with pytest.raises(NotImplementedError, match="for later"):
            bridge.convert(missing)(1.0)
        with pytest.raises(TypeError, match="incompatible shapes for broadcasting"):
            bridge.convert(lambda x, y: x + y)(tf.ones(2), tf.ones(3))


class TestPlainOperations:
    """A function of TensorFlow's own operations, in the places where functions are called."""

    X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
    W = np.linspace(-0.5, 1, 9, dtype=np.float32).reshape(3, 3)

    def layer(self, x):
        return jax.nn.softmax(jnp.tanh(x @ self.W))

    @pytest.fixture
    def call(self):
        return bridge.convert(self.layer, operations="tensorflow", polymorphic_shapes="b, _")

    def test_no_module_is_in_the_graph(self, call):
        concrete = tf.function(call).get_concrete_function(tf.TensorSpec([None, 3]))
        functions = concrete.graph.as_graph_def().library.function
        operations = {node.op for function in functions for node in function.node_def}
        assert "MatMul" in operations
        assert "XlaCallModule" not in operations
        np.testing.assert_allclose(concrete(tf.constant(self.X)), self.layer(self.X), rtol=1e-6)

    @pytest.mark.parametrize("way", ["eager", "data", "vectorized", "map"])
    def test_values(self, call, way):
        x = tf.constant(self.X)
        found = {
            "eager": lambda: call(x),
            "data": lambda: next(iter(tf.data.Dataset.from_tensors(x).map(call))),
            "vectorized": lambda: tf.vectorized_map(lambda row: call(row[None])[0], x),
            "map": lambda: tf.map_fn(lambda row: call(row[None])[0], x),
        }[way]()
        np.testing.assert_allclose(found, self.layer(self.X), rtol=1e-6)

    @pytest.mark.parametrize("in_graph", [False, True])
    def test_gradients_of_two_orders(self, call, in_graph):
        def second(x):
            with tf.GradientTape() as outer:
                outer.watch(x)
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    y = tf.reduce_sum(call(x) ** 2 * x)
                first = inner.gradient(y, x)
                total = tf.reduce_sum(first**2)
            return first, outer.gradient(total, x)

        run = tf.function(second) if in_graph else second
        found = run(tf.constant(self.X))
        loss = jax.grad(lambda x: (self.layer(x) ** 2 * x).sum())
        np.testing.assert_allclose(found[0], loss(self.X), rtol=1e-5, atol=1e-6)
        expected = jax.grad(lambda x: (loss(x) ** 2).sum())(self.X)
        np.testing.assert_allclose(found[1], expected, rtol=1e-4, atol=1e-5)

    def test_forward_mode(self, call):
        x = tf.constant(self.X)
        with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
            y = call(x)
        expected = jax.jvp(self.layer, (self.X,), (np.ones_like(self.X),))[1]
        np.testing.assert_allclose(accumulator.jvp(y), expected, rtol=1e-5, atol=1e-6)

    def test_what_tensorflow_saves_of_it_is_read_in_jax(self, call, tmp_path):
        module = tf.Module()
        module.call = tf.function(call, input_signature=[tf.TensorSpec([None, 3], name="x")])
        tf.saved_model.save(module, tmp_path / "saved", signatures=module.call)
        loaded = bridge.load(tmp_path / "saved")
        np.testing.assert_allclose(loaded(self.X), self.layer(self.X), rtol=1e-6)


def _rows(x):
    return jnp.stack([x, x * 2, x * 3])


CONTROL_FLOW = {
    "scan": lambda x: lax.scan(lambda c, r: (jnp.sin(c + r), c * r), jnp.zeros(3), _rows(x))[0],
    "stacked": lambda x: lax.scan(lambda c, r: (c + r, jnp.sin(c)), jnp.zeros(3), _rows(x))[1][2],
    "loop": lambda x: lax.fori_loop(0, 4, lambda i, c: jnp.sin(c) * i, x),
    "branch": lambda x: lax.cond(x[0] > 0, jnp.sin, jnp.cos, x),
}


def _converted(function, _):
    return bridge.convert(function, operations="tensorflow")


def _loaded(function, path):
    bridge.save(function, path, args="f32[3]", operations="tensorflow")
    return tf.saved_model.load(path)


def _retargeted(function, path):
    bridge.save(function, path, args="f32[3]")
    bridge.retarget(path, to=f"{path}_plain", operations="tensorflow")
    return tf.saved_model.load(f"{path}_plain")


@pytest.mark.parametrize("made", [_converted, _loaded, _retargeted])
@pytest.mark.parametrize("name", CONTROL_FLOW)
def test_jacobians_of_control_flow_in_plain_operations(name, made, tmp_path):
    """TensorFlow vectorizes the bodies of loops and branches, too."""
    function, x = CONTROL_FLOW[name], np.float32([0.3, -0.2, 0.5])
    call = made(function, tmp_path / "model")

    def jacobian(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            results = call(x)
        return tape.jacobian(results, x)

    wanted = jax.jacrev(function)(x)
    for run in (jacobian, tf.function(jacobian)):
        np.testing.assert_allclose(run(tf.constant(x)), wanted, rtol=1e-5, atol=1e-6)
    batch = np.stack([x, -x])
    mapped = tf.vectorized_map(call, tf.constant(batch))
    np.testing.assert_allclose(mapped, jax.vmap(function)(batch), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("made", [_converted, _loaded, _retargeted])
@pytest.mark.parametrize("name", CONTROL_FLOW)
def test_xla_compiles_control_flow_in_plain_operations(name, made, tmp_path):
    """It compiles every node of a body."""
    function, x = CONTROL_FLOW[name], np.float32([0.3, -0.2, 0.5])
    compiled = tf.function(made(function, tmp_path / "model"), jit_compile=True, autograph=False)
    with tf.GradientTape() as tape:
        given = tf.constant(x)
        tape.watch(given)
        results = compiled(given)
    np.testing.assert_allclose(results, function(x), rtol=1e-5, atol=1e-6)
    gradient = jax.grad(lambda x: function(x).sum())(x)
    np.testing.assert_allclose(tape.gradient(results, given), gradient, rtol=1e-5, atol=1e-6)
