"""TensorFlow functions that JAX cannot compile, run through callbacks."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import bridge
from xla_call_module.errors import StructureError

X = np.arange(6, dtype=np.float32).reshape(2, 3)
LIKE_X = jax.ShapeDtypeStruct(X.shape, X.dtype)


def through_text(x):
    return tf.strings.to_number(tf.strings.as_string(x)) * x


TRANSFORMED = {
    "eager": lambda f: f,
    "jit": jax.jit,
    "vmap": lambda f: jax.jit(jax.vmap(f)),
    "grad": lambda f: jax.jit(jax.grad(lambda x: f(x).sum())),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x,)),
    "scan": lambda f: lambda x: jax.lax.scan(lambda c, e: (c + f(e), f(c)), x[0], x),
}


@pytest.mark.parametrize("how", TRANSFORMED)
def test_strings_run_in_tensorflow(how):
    called = bridge.call_tf(through_text, compiled=False)
    found = TRANSFORMED[how](called)(X)
    # The gradient of what goes through text is none.
    expected = TRANSFORMED[how](lambda x: jax.lax.stop_gradient(x) * x)(X)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), found, expected)


def test_python_runs_with_declared_shapes():
    def function(x):
        return {"y": tf.py_function(lambda y: y * y, [x], tf.float32)}

    called = bridge.call_tf(function, compiled=False, shapes={"y": LIKE_X})
    np.testing.assert_array_equal(jax.jit(called)(X)["y"], X * X)
    np.testing.assert_array_equal(jax.jit(jax.grad(lambda x: called(x)["y"].sum()))(X), 2 * X)


def test_a_table_is_looked_up():
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1, 2], [30, 40]), -1)
    called = bridge.call_tf(lambda x: table.lookup(tf.cast(x, tf.int32)), compiled=False)
    np.testing.assert_array_equal(jax.jit(called)(X), [[-1, 30, 40], [-1, -1, -1]])


def test_declared_shapes_are_checked():
    function = functools.partial(tf.boolean_mask, mask=X > 1.0)
    like = functools.partial(jax.ShapeDtypeStruct, dtype=np.float32)
    right = bridge.call_tf(function, compiled=False, shapes=like((4,)))
    np.testing.assert_array_equal(jax.jit(right)(X), [2, 3, 4, 5])
    wrong = bridge.call_tf(function, compiled=False, shapes=like((5,)))
    with pytest.raises(StructureError, match=r"has the shape \(4,\); declared was \(5,\)"):
        wrong(X)
    with pytest.raises(Exception, match=r"has the shape \(4,\); declared was \(5,\)"):
        jax.jit(wrong)(X)


def test_declarations_that_contradict_tensorflow_are_refused():
    for shapes, message in (
        (jax.ShapeDtypeStruct((7,), np.float32), r"declared as float32\[7\].*shape \(2, 3\)"),
        (jax.ShapeDtypeStruct((2, 3), np.int32), r"declared as int32\[2, 3\].*as float32"),
        ([LIKE_X], r"has the structure .*\[\*\].*returns PyTreeDef\(\*\)"),
        (7, "has 7 for result .*expected a jax.ShapeDtypeStruct, or a text"),
        ("7", r"declared as float32\[7\]"),
    ):
        with pytest.raises(StructureError, match=message):
            bridge.call_tf(tf.sin, shapes=shapes)(X)


def test_a_shape_that_nobody_knows_is_refused():
    called = bridge.call_tf(lambda x: tf.cast(tf.where(x > 1.0), tf.int32), compiled=False)
    with pytest.raises(StructureError, match=r"Where \(Where\).*shapes= of the results"):
        called(X)


@pytest.fixture
def counter():
    return tf.Variable(0.0)


@pytest.fixture
def counted(counter):
    def function(x):
        return x * 0.0 + counter.assign_add(1.0)

    return bridge.call_tf(function, compiled=False)


PROGRAMS = {
    "twice": (lambda f: lambda x: (f(x), f(x)), 2),
    "unused": (lambda f: lambda x: (f(x), x)[1], 1),
    "scan": (lambda f: lambda x: jax.lax.scan(lambda c, _: (f(c), c[0]), x, None, length=3), 3),
    "while": (
        lambda f: (
            lambda x: jax.lax.while_loop(
                lambda state: state[0] < 4, lambda state: (state[0] + 1, f(state[1])), (0, x)
            )
        ),
        4,
    ),
    "a branch not taken": (lambda f: lambda x: jax.lax.cond(x[0] > 5.0, f, jnp.sin, x), 0),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_assignments_happen_once_for_each_call_and_in_order(counter, counted, program):
    make, count = PROGRAMS[program]
    run = jax.jit(make(counted))
    for calls in (1, 2):
        jax.block_until_ready(run(X[0]))
        jax.effects_barrier()
        assert counter.numpy() == count * calls


def test_effects_keep_their_order_under_the_checks_of_jax(counter, counted):
    with jax.enable_checks(True):
        first, second = jax.jit(lambda x: (counted(x), counted(x)))(X[0])
        assert (first.tolist(), second.tolist()) == ([1.0] * 3, [2.0] * 3)
        assert counted(X[0]).tolist() == [3.0] * 3


def test_calls_keep_the_order_of_the_program():
    told = []

    def function(x):
        tf.py_function(told.append, [x[0]], [])
        return x

    called = bridge.call_tf(function, compiled=False)

    @jax.jit
    def program(x):
        for index in range(5):
            called(x + index)
        return x

    program(X[0])
    jax.effects_barrier()
    assert list(map(int, told)) == [0, 1, 2, 3, 4]


def test_what_jax_cannot_do_with_effects_is_an_error(counted, counter):
    with pytest.raises(StructureError, match=r"AssignAddVariableOp would assign.*again"):
        jax.grad(lambda x: counted(x).sum())(X)
    with pytest.raises(ValueError, match="ordered IO callback"):
        jax.vmap(counted)(X)
    assert counter.numpy() == 0.0
    without = bridge.call_tf(
        lambda x: tf.random.uniform(()) * 0.0 + x, compiled=False, has_side_effects=False
    )
    np.testing.assert_array_equal(jax.vmap(without)(X), X)


def test_a_training_step_of_keras_updates_its_moving_averages():
    layer = tf.keras.layers.BatchNormalization(momentum=0.5)
    layer.build((None, 3))
    called = jax.jit(bridge.call_tf(functools.partial(layer, training=True), compiled=False))
    for _ in range(2):
        jax.block_until_ready(called(X))
    np.testing.assert_allclose(layer.moving_mean.numpy(), X.mean(0) * 0.75, rtol=1e-6)


def test_a_callback_cannot_be_exported():
    called = bridge.call_tf(through_text, compiled=False)
    with pytest.raises(StructureError, match="calls back to Python"):
        bridge.convert(called)(X)
    with pytest.raises(StructureError, match=r"calls back to Python.*graph=True replaces"):
        bridge.exported_from_stage(jax.jit(called), X)


def test_options_that_contradict_a_callback_are_refused():
    with pytest.raises(
        StructureError, match="reads its variables itself, and variables='constant'"
    ):
        bridge.call_tf(tf.sin, compiled=False, variables="constant")


def pointer(array):
    return np.asarray(array).__array_interface__["data"][0]


def test_eager_arrays_and_tensors_share_their_memory():
    seen = []

    def function(x):
        seen.append(x)
        return x

    def python(x):
        return tf.ensure_shape(tf.py_function(function, [x], x.dtype), x.shape)

    x = jnp.arange(1000.0)
    into = bridge.call_tf(python, compiled=False)(x)
    assert pointer(seen[-1]) == x.unsafe_buffer_pointer() == into.unsafe_buffer_pointer()
    made = tf.Variable(np.ones(1000, np.float32))
    out = bridge.call_tf(lambda: made.read_value(), compiled=False)()
    held = made.read_value()
    assert out.unsafe_buffer_pointer() == pointer(held)
    tensor = tf.constant(np.arange(1000.0, dtype=np.float32))
    passed = bridge.call_tf(tf.identity, compiled=False)(tensor)
    assert passed.unsafe_buffer_pointer() == pointer(tensor)


def test_shared_memory_is_never_written_to():
    variable = tf.Variable(np.zeros(1000, np.float32))
    keep = bridge.call_tf(lambda x: variable.assign(x), compiled=False)
    x = jnp.arange(1000.0)
    copied = np.array(x)
    result = keep(x)
    variable.assign_add(tf.ones(1000))
    variable.scatter_nd_update([[0]], [9.0])
    np.testing.assert_array_equal(x, copied)
    np.testing.assert_array_equal(result, copied)
    # An array that shares a tensor's memory is given away, and JAX writes elsewhere.
    tensor = tf.constant(copied)
    shared = bridge.call_tf(tf.identity, compiled=False)(tensor)
    jax.block_until_ready(jax.jit(lambda x: x + 1.0, donate_argnums=0)(shared))
    np.testing.assert_array_equal(tensor.numpy(), copied)


def test_a_variable_does_not_keep_the_memory_of_a_callback():
    variable = tf.Variable(np.zeros(1000, np.float32))
    keep = jax.jit(bridge.call_tf(lambda x: variable.assign(x)[0], compiled=False))
    for offset in range(3):
        jax.block_until_ready(keep(jnp.arange(1000.0) + offset))
        jax.block_until_ready([jax.jit(jnp.sin)(jnp.arange(1000.0) * i) for i in range(5)])
        np.testing.assert_array_equal(variable.numpy(), np.arange(1000.0) + offset)


@pytest.mark.parametrize("compiled", [True, False])
def test_what_is_donated_was_not_a_tensors(compiled):
    """An eager tensor that was passed on as an array stays as it is, whatever becomes of that."""
    values = np.arange(4096, dtype=np.float32)
    tensor, variable = tf.constant(values), tf.Variable(values)
    step = jax.jit(lambda x: x * 2.0 + 1.0, donate_argnums=0)
    identity = bridge.call_tf(tf.identity, compiled=compiled)
    for given in (tensor, variable):
        for _ in range(3):
            x = identity(given)
            for _ in range(3):
                x = step(x)  # each time into the memory of the one before
            np.testing.assert_array_equal(x, values * 8 + 7)
            np.testing.assert_array_equal(given.numpy(), values)


@pytest.mark.parametrize("compiled", [True, False])
def test_what_tensorflow_holds_was_not_donated(compiled):
    """A tensor that was an array's memory keeps it when the array is given away."""
    held = []

    def keep(x):
        held.append(tf.identity(x))
        return x + 1.0

    x = jnp.arange(4096.0)
    values = np.array(x)
    step = jax.jit(lambda x: x * 2.0, donate_argnums=0)
    tf_view = tf.experimental.dlpack.from_dlpack(x.__dlpack__())
    if not compiled:
        call = lambda x: tf.ensure_shape(tf.py_function(keep, [x], x.dtype), x.shape)  # noqa: E731
        bridge.call_tf(call, compiled=False)(x)
    else:
        np.testing.assert_array_equal(bridge.call_tf(lambda x: x + 1.0)(x), values + 1)
    doubled = step(x)
    for _ in range(3):
        doubled = step(doubled)
    np.testing.assert_array_equal(doubled, values * 16)
    for tensor in (tf_view, *held):
        np.testing.assert_array_equal(tensor.numpy(), values)


def test_an_array_is_donated_to_a_program_around_a_call():
    called = bridge.call_tf(lambda x, y: x * y + 1.0)
    step = jax.jit(lambda x, y: called(x, y), donate_argnums=0)
    tensor = tf.constant(np.full(4096, 2.0, np.float32))
    values = np.arange(4096, dtype=np.float32)
    x = step(jnp.asarray(values), bridge.call_tf(tf.identity, compiled=False)(tensor))
    x = step(x, 2.0)
    np.testing.assert_array_equal(x, (values * 2 + 1) * 2 + 1)
    assert set(tensor.numpy()) == {2.0}
