"""Eager calls that JAX runs itself: when it does, and that nobody can tell by memory or numbers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import bridge
from bridge.converting import eager
from xla_call_module.errors import PlatformError, StructureError
from xla_call_module.flags import XlaFlags
from xla_call_module.runtime.op import Op


@pytest.fixture
def in_jax(monkeypatch):
    """TensorFlow's op fails where it is run eagerly."""

    def fail(*_):
        raise AssertionError("TensorFlow ran the op")

    monkeypatch.setattr(Op, "run", fail)


@pytest.fixture
def runs(monkeypatch):
    """The names of the calls that TensorFlow's op has run."""
    names, run = [], Op.run

    def record(op, operands):
        names.append(op.call.name)
        return run(op, operands)

    monkeypatch.setattr(Op, "run", record)
    return names


def _pointer(tensor):
    return np.asarray(tensor).__array_interface__["data"][0]


@pytest.mark.usefixtures("in_jax")
class TestInJax:
    def test_a_pytree(self):
        f = bridge.convert(lambda p, *, scale: {"y": [p["w"] @ p["x"] * scale]})
        p = {"x": tf.Variable([1.0, 2.0]), "w": tf.constant([[1.0, 2.0], [3.0, 4.0]])}
        for _ in range(2):
            result = f(p, scale=tf.constant(2.0))["y"][0]
            assert result.numpy().tolist() == [10.0, 22.0]
            assert result.device.endswith("CPU:0")

    @pytest.mark.parametrize("shape", [(3,), (2, 0), ()])
    @pytest.mark.parametrize(
        "dtype",
        ["bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "complex64"],
    )
    def test_dtypes(self, dtype, shape):
        x = tf.cast(tf.ones(shape), dtype)
        result = bridge.convert(lambda x: x[None])(x)
        assert (result.dtype, result.shape) == (dtype, (1, *shape))
        assert (result == x).numpy().all()

    def test_bfloat16(self):
        x = tf.constant([1.5, -2.0], tf.bfloat16)
        result = bridge.convert(lambda x: x * 2)(x)
        assert result.dtype == tf.bfloat16
        assert result.numpy().tolist() == [3.0, -4.0]
        assert result.numpy().dtype == ml_dtypes.bfloat16

    def test_symbolic_dimensions(self):
        f = bridge.convert(lambda x: x.sum(0) / x.shape[0], polymorphic_shapes="b, _")
        assert [f(tf.ones([size, 2])).numpy().tolist() for size in (3, 1)] == [[1.0, 1.0]] * 2

    def test_linear_algebra_is_that_of_the_op(self):
        x = np.random.default_rng(0).standard_normal((5, 5)).astype(np.float32)
        f = bridge.convert(lambda x: jnp.linalg.qr(x))
        graph = tf.function(f, autograph=False)
        for here, there in zip(f(tf.constant(x)), graph(tf.constant(x)), strict=True):
            np.testing.assert_allclose(here, there, rtol=1e-4, atol=1e-5)  # the signs, too

    def test_the_settings_of_jax(self):
        f = bridge.convert(lambda x: x + jnp.arange(3, dtype=jnp.int8))
        x = tf.ones(3)
        assert f(x).dtype == tf.float32
        with (
            jax.numpy_dtype_promotion("strict"),
            pytest.raises(ValueError, match="no available implicit"),
        ):
            f(x)

    def test_in_a_python_function_of_a_graph(self):
        f = bridge.convert(jnp.square)
        outer = tf.function(lambda x: tf.py_function(f, [x], tf.float32), autograph=False)
        assert outer(tf.constant(3.0)).numpy() == 9.0

    def test_many_threads(self):
        f = bridge.convert(lambda x: jnp.cumsum(x) * x.shape[0])

        def run(index):
            size = index % 7 + 1
            return f(tf.fill([size], float(index))).numpy().tolist() == [
                float(index * (i + 1) * size) for i in range(size)
            ]

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(run, range(200)))


@pytest.mark.usefixtures("in_jax")
class TestMemory:
    def test_a_result_that_is_an_argument_has_its_own(self):
        x = tf.constant(np.arange(64, dtype=np.float32))
        results = bridge.convert(lambda x: (x, x, x.reshape(8, 8), x + 0))(x)
        assert len({_pointer(x), *map(_pointer, results)}) == 5

    @pytest.mark.parametrize("index", [0, 1])
    def test_an_assigned_result_changes_nothing_else(self, index):
        x = tf.constant(np.zeros(64, np.float32))
        results = list(bridge.convert(lambda x: (x, x, jnp.zeros(64)))(x))
        variable = tf.Variable(tf.zeros(64))
        variable.assign(results.pop(index))  # it may have the memory, and now has it alone
        for _ in range(3):
            variable.assign_add(tf.ones(64))
            variable.scatter_nd_add([[0]], [1.0])
        assert variable.numpy()[:2].tolist() == [6.0, 3.0]
        for other in (x, *results):
            assert not np.any(other)

    def test_results_of_two_calls_are_apart(self):
        f = bridge.convert(lambda x: (jnp.ones(64), x))
        x = tf.zeros(64)
        first, second = f(x), f(x)
        variable = tf.Variable(tf.zeros(64))
        variable.assign(first[0])
        del first
        variable.assign_add(tf.ones(64))
        assert second[0].numpy().tolist() == f(x)[0].numpy().tolist() == [1.0] * 64

    def test_a_variable_that_changes_after_the_call(self):
        variable = tf.Variable(tf.ones([600, 600]))
        f = bridge.convert(lambda x: (x, x @ x @ x @ x))
        for start in range(1, 4):
            same, product = f(variable)
            variable.assign_add(tf.ones([600, 600]))
            assert same.numpy()[0, 0] == start
            np.testing.assert_allclose(product[0, 0], 600.0**3 * start**4, rtol=1e-5)

    def test_a_donated_argument_stays_tensorflows(self):
        values = np.arange(4096, dtype=np.float32)
        tensor, variable = tf.constant(values), tf.Variable(values)
        f = bridge.convert(jax.jit(lambda x, y: (x * 2.0, y), donate_argnums=(0, 1)))
        for given in (tensor, variable):
            for _ in range(3):
                doubled, same = f(given, given)
                assert doubled.numpy()[-1] == 2 * values[-1]
                np.testing.assert_array_equal(same, values)
                np.testing.assert_array_equal(given.numpy(), values)

    def test_a_result_is_donated(self):
        f = bridge.convert(lambda x: (x + 1.0, x))
        x = tf.constant(np.arange(4096, dtype=np.float32))
        results = f(x)
        kept = [result.numpy().copy() for result in results]
        step = jax.jit(lambda x: x * 3.0, donate_argnums=0)
        for result, values in zip(results, kept, strict=True):
            array = jnp.from_dlpack(result)
            np.testing.assert_array_equal(step(array), values * 3)
            np.testing.assert_array_equal(result.numpy(), values)
        np.testing.assert_array_equal(x.numpy(), kept[1])

    def test_threads_that_change_a_variable(self):
        """A call takes the variable as it is before or after an assignment, never in between."""
        size = 1 << 14
        variable = tf.Variable(tf.zeros(size))
        f = bridge.convert(lambda x: (x, x * 2.0))
        f(variable)

        def change(index):
            variable.assign(tf.fill([size], float(index)))
            return True

        def look(_):
            same, doubled = (result.numpy() for result in f(variable))
            return np.array_equal(same * 2.0, doubled) and len(set(same)) == 1

        with ThreadPoolExecutor(8) as pool:
            looks = [pool.submit(look if i % 2 else change, i) for i in range(200)]
        assert all(look.result() for look in looks)

    def test_a_result_outlives_all_else(self):
        f = bridge.convert(lambda x: x * 2)
        results = [f(tf.fill([1 << 16], float(index))) for index in range(50)]
        del f
        assert [result.numpy()[-1] for result in results] == [2.0 * i for i in range(50)]


class TestInTensorFlow:
    """Where JAX cannot run it, or would not do the same."""

    def test_a_tape_records(self, runs):
        f = bridge.convert(lambda x: x**3)
        x = tf.Variable(2.0)
        assert f(x).numpy() == 8.0
        assert runs == []
        with tf.GradientTape() as outer:
            with tf.GradientTape() as tape:
                result = f(x)
            first = tape.gradient(result, x)
        assert [t.numpy() for t in (result, first, outer.gradient(first, x))] == [8.0, 12.0, 12.0]
        assert len(runs) == 3

    def test_a_tape_in_another_thread(self):
        """A tape records the calls of its own thread, and those only."""
        f = bridge.convert(lambda x: x**3)

        def differentiate(value):
            x = tf.Variable(value)
            with tf.GradientTape() as tape:
                result = f(x)
            return float(tape.gradient(result, x))

        def run(value):
            return float(f(tf.constant(value)))

        values = [float(i) for i in range(1, 41)]
        with ThreadPoolExecutor(4) as pool:
            gradients, results = pool.map(differentiate, values), pool.map(run, values)
        np.testing.assert_allclose(list(gradients), [3 * v * v for v in values], rtol=1e-6)
        np.testing.assert_allclose(list(results), [v**3 for v in values], rtol=1e-6)

    def test_a_variable_that_changes_before_the_gradient(self):
        x = tf.Variable([1.0, 2.0])
        f = bridge.convert(lambda x: x**3)
        with tf.GradientTape() as tape:
            result = f(x)
        x.assign_add([10.0, 10.0])
        assert result.numpy().tolist() == [1.0, 8.0]
        assert tape.gradient(result, x).numpy().tolist() == [3.0, 12.0]

    def test_forward_mode(self):
        x = tf.constant(2.0)
        f = bridge.convert(lambda x: x**3)
        f(x)
        with tf.autodiff.ForwardAccumulator(x, tf.constant(1.0)) as accumulator:
            result = f(x)
        assert accumulator.jvp(result).numpy() == 12.0

    def test_flags(self, runs, monkeypatch):
        monkeypatch.setattr(eager, "flags_in_force", lambda: XlaFlags(given=True))
        assert bridge.convert(jnp.square)(tf.constant(3.0)).numpy() == 9.0
        assert len(runs) == 1

    @pytest.mark.parametrize("checks", [["platform"], ["shape_assertions", "platform"]])
    def test_checks_that_are_disabled(self, runs, checks):
        f = bridge.convert(jnp.square, platforms=["tpu"], disabled_checks=checks)
        assert f(tf.constant(3.0)).numpy() == 9.0
        assert len(runs) == 1

    def test_while_jax_traces(self, runs):
        f = bridge.convert(jnp.square)
        x = tf.constant(3.0)
        f(x)
        assert jax.jit(lambda y: y + f(x).numpy())(1.0) == 10.0
        assert len(runs) == 1

    def test_a_scalar_that_numpy_cannot_view(self, runs):
        assert bridge.convert(lambda x: x * 2)(tf.constant(1.5, tf.bfloat16)).numpy() == 3.0
        assert len(runs) == 1

    def test_keys_and_64_bits(self, runs):
        drawn = bridge.convert(lambda seed: jax.random.key(seed))(tf.constant(3))
        np.testing.assert_array_equal(drawn, jax.random.key_data(jax.random.key(3)))
        with pytest.warns(UserWarning, match="float64 tensor"):
            assert bridge.convert(jnp.square)(tf.constant(3.0, tf.float64)).dtype == tf.float32
        assert len(runs) == 2

    def test_what_fails_in_jax(self, runs, monkeypatch):
        def fail(*_):
            raise RuntimeError

        monkeypatch.setattr(eager, "dlpack_exporter", lambda: fail)
        f = bridge.convert(jnp.square)
        assert [f(tf.constant(3.0)).numpy() for _ in range(2)] == [9.0, 9.0]
        assert len(runs) == 2

    def test_what_is_wrong_in_this_package_is_raised(self, monkeypatch):
        def fail(*_):
            raise AttributeError("has been renamed")

        monkeypatch.setattr(eager, "dlpack_exporter", lambda: fail)
        with pytest.raises(AttributeError, match="has been renamed"):
            bridge.convert(jnp.square)(tf.constant(3.0))

    @pytest.mark.parametrize("guard", [jax.debug_nans, jax.transfer_guard])
    def test_what_jax_is_told_to_refuse_later(self, runs, guard):
        f = bridge.convert(jnp.log)
        x = tf.constant([-1.0])
        f(x)
        assert runs == []
        with guard(True if guard is jax.debug_nans else "disallow"):
            assert [np.isnan(f(x).numpy()) for _ in range(2)] == [True, True]
        assert len(runs) >= 1


class TestErrors:
    """The same ones as those of the op."""

    def test_another_platform(self):
        f = bridge.convert(jnp.square, platforms=["tpu"])
        with pytest.raises(PlatformError, match="was exported for tpu, and it would run on"):
            f(tf.constant(3.0))

    @pytest.mark.usefixtures("in_jax")
    def test_shapes(self):
        f = bridge.convert(jnp.square, polymorphic_shapes="b, b")
        for _ in range(2):
            with pytest.raises(StructureError, match="whose dimension 1 is 2 with b = 2"):
                f(tf.zeros([2, 3]))
            assert f(tf.zeros([2, 2])).shape == (2, 2)
