"""The variables of a TensorFlow function in a JAX program: live, as arguments, as constants."""

from __future__ import annotations

import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import enable_x64

import bridge
from xla_call_module.errors import StructureError, UnsupportedError

X = np.arange(3, dtype=np.float32)


class Affine(tf.Module):
    def __init__(self):
        super().__init__()
        self.scale = tf.Variable([1.0, 2.0, 3.0], name="scale")
        self.shift = tf.Variable(1.0, name="shift")
        self.calls = tf.Variable(2**40, dtype=tf.int64, name="calls", trainable=False)

    def __call__(self, x):
        return x * self.scale**2 + self.shift * tf.cast(self.calls - 2**40 + 1, tf.float32)


def in_jax(variables, x):
    return x * variables["scale"] ** 2 + variables["shift"]


@pytest.fixture
def module():
    return Affine()


LIVE = {
    "eager": lambda f: f,
    "jit": jax.jit,
    "jit of grad": lambda f: jax.jit(jax.grad(lambda x: (f(x) ** 2).sum())),
    "jit of vmap": lambda f: jax.jit(lambda x: jax.vmap(f)(jnp.stack([x, x]))),
    "scan": lambda f: jax.jit(lambda x: jax.lax.scan(lambda c, _: (f(c), c), x, None, length=2)[0]),
}


@pytest.mark.parametrize("how", LIVE)
def test_an_assignment_is_seen_by_the_next_run(module, how):
    run = LIVE[how](bridge.call_tf(module))
    for value in ([1.0, 2.0, 3.0], [5.0, -1.0, 0.5]):
        module.scale.assign(value)
        variables = {"scale": np.asarray(value, np.float32), "shift": np.float32(1.0)}
        expected = LIVE[how](lambda x, w=variables: in_jax(w, x))(X)
        np.testing.assert_allclose(run(X), expected, rtol=1e-6)


def test_64_bits_of_a_variable_are_kept_while_jax_has_32(module):
    run = jax.jit(bridge.call_tf(module))
    before = run(X)
    module.calls.assign_add(1)
    np.testing.assert_allclose(run(X), before + 1.0)
    with enable_x64():
        np.testing.assert_allclose(run(X), before + 1.0)


def test_variables_are_arguments_with_gradients_of_order_two(module):
    called = bridge.call_tf(module, variables="argument")
    variables = called.variables()
    assert sorted(variables) == ["scale", "shift"]  # an integer has no gradient, and stays live

    def loss(function):
        return lambda w: (function(w, X) ** 2).sum()

    jax.tree.map(
        lambda found, expected: np.testing.assert_allclose(found, expected, rtol=1e-5),
        jax.jit(jax.value_and_grad(loss(called)))(variables),
        jax.value_and_grad(loss(in_jax))(variables),
    )
    jax.tree.map(
        lambda found, expected: np.testing.assert_allclose(found, expected, rtol=1e-5),
        jax.jvp(jax.jit(jax.grad(loss(called))), (variables,), (variables,)),
        jax.jvp(jax.grad(loss(in_jax)), (variables,), (variables,)),
    )


def test_an_ensemble_maps_over_the_variables(module):
    called = bridge.call_tf(module, variables="argument")
    several = jax.tree.map(lambda v: jnp.stack([v, 2 * v]), called.variables())
    found = jax.vmap(called, in_axes=(0, None))(several, X)
    np.testing.assert_allclose(found, jax.vmap(in_jax, in_axes=(0, None))(several, X), rtol=1e-6)


def test_what_tensorflow_cannot_vectorize_is_mapped_over_the_variables(module):
    def quantized(x):
        y = tf.quantization.fake_quant_with_min_max_args(module(x), min=-6, max=60)
        return y + tf.cast(tf.bitcast(y, tf.int32) > 0, tf.float32)

    called = bridge.call_tf(quantized, variables="argument")
    variables = called.variables(X)
    several = jax.tree.map(lambda v: jnp.stack([v, 2 * v]), variables)
    xs = jnp.stack([X, X + 1])
    rows = [(jax.tree.map(lambda v, n=n: v[n], several), xs[n]) for n in (0, 1)]
    for function in (called, jax.grad(lambda v, x: (called(v, x) ** 2).sum())):
        found = jax.jit(jax.vmap(function))(several, xs)
        expected = jax.tree.map(lambda *parts: jnp.stack(parts), *(function(*row) for row in rows))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, expected)


def test_one_gradient_of_the_variables_for_each_element(module):
    called = bridge.call_tf(module, variables="argument")
    xs = jnp.stack([X, X + 1])

    def gradient(function):
        return jax.vmap(jax.grad(lambda w, x: function(w, x).sum()), in_axes=(None, 0))

    jax.tree.map(
        lambda found, expected: np.testing.assert_allclose(found, expected, rtol=1e-5),
        gradient(called)(called.variables(), xs),
        gradient(in_jax)(called.variables(), xs),
    )


def test_a_training_step_of_a_keras_model_that_is_not_built_yet():
    model = tf.keras.Sequential([tf.keras.layers.Dense(4, "tanh"), tf.keras.layers.Dense(1)])
    called = bridge.call_tf(model, variables="argument")
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    variables = called.variables(x)
    assert [v.shape for v in variables.values()] == [v.shape for v in model.variables]

    @jax.jit
    def step(variables):
        loss, gradients = jax.value_and_grad(lambda w: (called(w, x) ** 2).mean())(variables)
        return loss, jax.tree.map(lambda v, g: v - 0.1 * g, variables, gradients)

    first, variables = step(variables)
    second, _ = step(variables)
    assert second < first
    np.testing.assert_allclose(first, np.mean(model(x).numpy() ** 2), rtol=1e-5)


def test_constants_are_what_the_variables_were_when_jax_traced(module):
    called = bridge.call_tf(module, variables="constant")
    exported = jax.export.export(jax.jit(called))(X)
    before = called(X)
    module.scale.assign([0.0, 0.0, 0.0])
    np.testing.assert_array_equal(exported.call(X), before)
    assert not np.array_equal(called(X), before)


def test_live_variables_are_refused_where_they_cannot_go(module):
    with pytest.raises(StructureError, match=r"calls back to Python.*variables='constant'"):
        bridge.convert(bridge.call_tf(module))(X)


def test_live_variables_are_refused_by_name_in_every_export(module, tmp_path):
    called = bridge.call_tf(module)
    ways = (
        lambda: bridge.convert(called)(X),
        lambda: jax.export.export(jax.jit(called))(X),
        lambda: jax.export.export(jax.jit(jax.grad(lambda x: called(x).sum())))(X),
        lambda: bridge.save(
            called, tmp_path / "model", args=(jax.ShapeDtypeStruct((3,), X.dtype),)
        ),
    )
    for way in ways:
        with pytest.raises(UnsupportedError, match=r"^affine reads scale.*variables='constant'"):
            way()


def test_a_variable_of_which_the_caller_says_nothing_is_refused(module):
    called = bridge.call_tf(module, variables="argument")
    with pytest.raises(StructureError, match="first argument is the dict of variables"):
        called(X)
    with pytest.raises(StructureError, match=r"are \['scale', 'shift'\]; got \['scale'\]"):
        called({"scale": X}, X)


def test_a_function_that_does_not_say_its_variables_is_asked_with_arguments(module):
    called = bridge.call_tf(lambda x: x * module.scale, variables="argument")
    with pytest.raises(StructureError, match="does not say which variables"):
        called.variables()
    assert list(called.variables(X)) == ["scale"]


def test_what_was_read_stays_as_it_was_however_the_variable_is_written(module):
    called = bridge.call_tf(module, variables="argument")
    called.variables()
    writes = [
        lambda v: v.assign(-v),
        lambda v: v.assign_add([1.0, 1.0, 1.0]),
        lambda v: v.scatter_nd_update([[0]], [9.0]),
        lambda v: v[1].assign(7.0),
    ]
    for write in writes:
        held = called.variables()["scale"]
        copied = np.array(held)
        write(module.scale)
        assert not np.array_equal(module.scale.numpy(), copied)
        np.testing.assert_array_equal(held, copied)


_ON_ANOTHER_DEVICE = """
import tensorflow as tf
(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import bridge, jax
with tf.device("CPU:1"):
    variable = tf.Variable([2.0, 3.0])
assert variable.device.endswith("CPU:1")
f = bridge.call_tf(lambda x: x * variable)
x = jax.numpy.ones(2)
assert f(x).tolist() == jax.jit(f)(x).tolist() == [2, 3]
assert jax.grad(lambda x: f(x).sum())(x).tolist() == [2, 3]
"""


def test_variables_on_another_device_than_the_first_cpu(preloaded_python):
    """As on a GPU, where TensorFlow puts them by default."""
    command = [preloaded_python, "-W", "error", "-c", _ON_ANOTHER_DEVICE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Wide(tf.Module):
    def __init__(self):
        super().__init__()
        self.scale = tf.Variable([1.0, 2.0, 3.0], name="scale")
        self.wide = tf.Variable([0.1, 0.2, 0.3], dtype=tf.float64, name="wide")

    def __call__(self, x):
        return tf.cast(tf.cast(x * self.scale, tf.float64) * self.wide, tf.float32)


def test_floats_of_64_bits_have_gradients_only_where_jax_has_them():
    module = Wide()
    wide = module.wide.numpy()

    def loss(function):
        return lambda *given: (function(*given) ** 2).sum()

    def expected(variables, x):
        factor = variables.get("wide", wide).astype(x.dtype)
        return x * variables["scale"].astype(x.dtype) * factor

    for is_wide in (False, True):
        with enable_x64(is_wide):
            called = bridge.call_tf(module, variables="argument")
            variables = called.variables(X)
            assert sorted(variables) == (["scale", "wide"] if is_wide else ["scale"])
            found = jax.jit(jax.grad(loss(called), (0, 1)))(variables, X)
            wanted = jax.grad(loss(expected), (0, 1))(variables, jnp.asarray(X))
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, wanted)


def test_bits_of_a_float_of_64_are_not_differentiated():
    """Forward mode of a function that is linear in the variable, whose bits are an input."""
    module = Wide()
    live = bridge.call_tf(module)
    with enable_x64(False):
        _, tangent = jax.jvp(live, (jnp.asarray(X),), (jnp.ones(3, np.float32),))
        np.testing.assert_allclose(tangent, module.scale.numpy() * module.wide.numpy(), rtol=1e-6)
        compiled = next(iter(live._bound.values()))
        assert [spec.dtype for spec in compiled.specs] == [np.float32, np.uint32]
