"""TensorFlow functions in JAX programs: values, derivatives and every transformation."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import enable_x64
from jax.test_util import check_grads

import bridge
from bridge import InteropError
from xla_call_module.dtypes import DTYPES, WIDE
from xla_call_module.errors import ArgumentError, DtypeError, FormatError, StructureError

X = np.linspace(-1.0, 2.0, 6, dtype=np.float32).reshape(2, 3)


def in_tensorflow(x, y):
    return tf.sin(x) * y + tf.math.log1p(x * x)


def in_jax(x, y):
    return jnp.sin(x) * y + jnp.log1p(x * x)


@pytest.fixture(scope="module")
def called():
    """One wrapper, so that each derivative is compiled once."""
    return bridge.call_tf(in_tensorflow)


def total(function):
    return lambda *args: function(*args).sum()


TRANSFORMED = {
    "eager": lambda f: f,
    "jit": jax.jit,
    "grad": lambda f: jax.grad(total(f), argnums=(0, 1)),
    "jitted grad": lambda f: jax.jit(jax.grad(total(f), argnums=1)),
    "order 2": lambda f: jax.grad(lambda x, y: (jax.grad(total(f))(x, y) ** 2).sum()),
    "jvp": lambda f: lambda x, y: jax.jvp(f, (x, y), (y, x)),
    "jvp of grad": lambda f: lambda x, y: jax.jvp(jax.grad(total(f)), (x, y), (y, x)),
    "linearize": lambda f: lambda x, y: jax.linearize(f, x, y)[1](y, x),
    "vmap": jax.vmap,
    "vmap of one": lambda f: lambda x, y: jax.vmap(f, in_axes=(0, None), out_axes=1)(x, y[0]),
    "vmap of vmap": lambda f: jax.vmap(jax.vmap(f)),
    "vmap of grad": lambda f: jax.vmap(jax.grad(total(f), argnums=(0, 1))),
    "vmap of grad, shared": lambda f: lambda x, y: jax.vmap(jax.grad(total(f), 1), (0, None))(x, y),
    "grad of vmap": lambda f: jax.grad(total(jax.vmap(f))),
    "forward over reverse": lambda f: lambda x, y: jax.hessian(total(f))(x[0, :2], y[0, :2]),
    "jacobian": lambda f: lambda x, y: jax.jacrev(f)(x[0], y[0]),
    "checkpoint": lambda f: jax.grad(total(jax.checkpoint(f))),
    "scan": lambda f: lambda x, y: jax.lax.scan(lambda c, e: (f(c, e), f(e, c)), x[0], y),
    "grad of scan": lambda f: jax.grad(
        lambda x, y: jax.lax.scan(lambda c, e: (f(c, e), None), x[0], y)[0].sum()
    ),
    "while": lambda f: (
        lambda x, y: jax.lax.while_loop(
            lambda state: state[0] < 3, lambda state: (state[0] + 1, f(state[1], y)), (0, x)
        )[1]
    ),
    "cond": lambda f: lambda x, y: jax.lax.cond(x.sum() > 0, f, lambda x, y: f(y, x), x, y),
}


@pytest.mark.parametrize("how", TRANSFORMED)
def test_every_transformation_has_the_values_of_jax(called, how):
    transform = TRANSFORMED[how]
    y = jnp.asarray(X) * 0.5 + 1.0
    found, expected = transform(called)(jnp.asarray(X), y), transform(in_jax)(jnp.asarray(X), y)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5), found, expected
    )


def test_the_transpose_is_the_one_of_the_tangents(called):
    check_grads(called, (X, X + 0.5), order=2, modes=("fwd", "rev"), atol=2e-2, rtol=2e-2)


def test_nothing_is_traced_again_for_the_same_shapes():
    traces = []

    def function(x):
        traces.append(x.shape)
        return x * 2.0

    called = bridge.call_tf(function)
    for _ in range(3):
        called(X)
        jax.jit(called)(X)
        jax.grad(total(called))(jnp.asarray(X))
    assert len(traces) == 1
    called(X[0])
    assert len(traces) == 2


class Point(NamedTuple):
    x: object
    y: object


def test_pytrees_go_in_and_out():
    def function(point, *, scale):
        return {"sum": [point.x["a"] * scale, (point.y, None)], "point": Point(point.y, 2)}

    found = jax.jit(bridge.call_tf(function))(Point({"a": X}, True), scale=2.0)
    expected = {"sum": [X * 2, (np.True_, None)], "point": Point(np.True_, 2)}
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize("dtype", [d.name for d in DTYPES if d.name not in WIDE])
def test_every_shared_dtype_goes_through(dtype):
    values = jnp.asarray([0, 1, 2]).astype(dtype)
    called = bridge.call_tf(lambda x: (tf.identity(x), tf.reshape(x, [3, 1])))
    for result in jax.jit(called)(values):
        assert result.dtype == values.dtype
        np.testing.assert_array_equal(np.asarray(result).ravel(), np.asarray(values))


@pytest.mark.parametrize("compiled", [True, False])
def test_one_number_of_a_dtype_that_numpy_does_not_have(compiled):
    three = tf.constant(3.0, tf.bfloat16)
    variable = tf.Variable(three)
    called = bridge.call_tf(lambda x: x * variable, compiled=compiled)
    for run in (called, jax.jit(called)):
        found = run(jnp.bfloat16(2.0))
        assert (found.dtype, float(found)) == (jnp.bfloat16, 6.0)
    assert float(called(three)) == 9.0


def test_64_bits_are_kept_where_jax_has_them():
    def function(x):
        return tf.argmax(x), tf.cast(x, tf.float64) / 3.0

    with pytest.warns(UserWarning, match="jax_enable_x64") as told:
        index, third = bridge.call_tf(function)(X[0])
    assert len(told) == 2
    assert (index.dtype, third.dtype) == (jnp.int32, jnp.float32)
    with enable_x64():
        index, third = bridge.call_tf(function)(X[0])
        assert (index.dtype, third.dtype) == (jnp.int64, jnp.float64)
        np.testing.assert_array_equal(third, X[0].astype(np.float64) / 3.0)


@pytest.mark.parametrize(
    "options",
    [{}, {"compiled": False}, {"graph": True, "variables": "constant"}],
    ids=["compiled", "callback", "graph"],
)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["now", "jit"])
def test_results_of_64_bits_are_narrowed_with_a_word(options, wrap):
    def function(x):
        return {"hash": tf.cast(x, tf.int64) * 2**33, "same": x, "z": tf.cast(x, tf.complex128)}

    run = wrap(bridge.call_tf(function, **options))
    with pytest.warns(UserWarning, match="jax_enable_x64") as told:
        run(X[0])
    assert [str(one.message).partition(",")[0] for one in told] == [
        "result['hash'] of function is int64",
        "result['z'] of function is complex128",
    ]
    run(X[:2])  # other shapes, of which nothing is new: warnings are errors here


def test_a_prng_key_arrives_as_its_data():
    key = jax.random.key(7)
    found = jax.jit(bridge.call_tf(lambda k: tf.identity(k)))(key)
    np.testing.assert_array_equal(found, jax.random.key_data(key))


def test_complex_derivatives_follow_the_convention_of_jax():
    def ours(z):
        return z * z * tf.math.conj(z)

    def theirs(z):
        return z * z * jnp.conj(z)

    z, t = jnp.complex64(1 + 2j), jnp.complex64(1 - 3j)
    called = bridge.call_tf(ours)
    np.testing.assert_allclose(jax.vjp(called, z)[1](t), jax.vjp(theirs, z)[1](t))
    np.testing.assert_allclose(jax.jvp(called, (z,), (t,))[1], jax.jvp(theirs, (z,), (t,))[1])


def test_integers_have_float0_gradients_and_unused_arguments_zeros():
    called = bridge.call_tf(lambda x, n, unused: (x * tf.cast(n, tf.float32), n + 1))
    gradients = jax.grad(lambda *a: called(*a)[0], argnums=(0, 1, 2), allow_int=True)(2.0, 3, 4.0)
    assert [float(gradients[0]), float(gradients[2])] == [3.0, 0.0]
    assert gradients[1].dtype == jax.dtypes.float0


def test_the_gradient_is_that_which_tensorflow_was_told():
    @tf.custom_gradient
    def straight_through(x):
        return tf.round(x), lambda cotangent: cotangent * 3.0

    np.testing.assert_array_equal(jax.grad(bridge.call_tf(straight_through))(1.4), 3.0)


@pytest.mark.parametrize("order", [1, 2])
def test_the_gradient_that_tensorflow_was_told_is_mapped(order):
    @tf.custom_gradient
    def cubed(x):
        return x**3, lambda cotangent: cotangent * 100.0 * x

    def derivative(function):
        for _ in range(order):
            function = jax.grad(function)
        return function

    called = derivative(bridge.call_tf(tf.function(lambda x: cubed(x) * 2.0)))
    expected = [[200.0, 400.0], [200.0, 200.0]][order - 1]
    np.testing.assert_allclose(jax.vmap(called)(jnp.array([1.0, 2.0])), expected)


@pytest.mark.parametrize("compiled", [True, False])
def test_branches_have_gradients(compiled):
    def function(x):
        if x > 1.0:
            return tf.sin(x) * x
        return x * x

    called = bridge.call_tf(tf.function(function), compiled=compiled)
    first, second = jax.jit(jax.grad(called)), jax.jit(jax.grad(jax.grad(called)))
    np.testing.assert_allclose([first(0.5), second(0.5)], [1.0, 2.0])
    expected = [np.sin(2) + 2 * np.cos(2), 2 * np.cos(2) - 2 * np.sin(2)]
    np.testing.assert_allclose([first(2.0), second(2.0)], expected, rtol=1e-6)
    assert jax.jvp(called, (0.5,), (1.0,))[1] == 1.0


def test_slices_of_a_gradient_are_added_up():
    called = bridge.call_tf(lambda table: tf.gather(table, [0, 0, 1]))
    np.testing.assert_array_equal(jax.grad(total(called))(X), [[2.0] * 3, [1.0] * 3])


def test_nothing_is_logged_of_what_tensorflow_cannot_vectorize(caplog):
    tf.get_logger().addHandler(caplog.handler)
    try:
        mapped = jax.vmap(bridge.call_tf(lambda x: tf.bitcast(x, tf.int32)))(X[0])
        tf.get_logger().error("heard")
    finally:
        tf.get_logger().removeHandler(caplog.handler)
    np.testing.assert_array_equal(mapped, X[0].view(np.int32))
    assert {record.message for record in caplog.records} == {"heard"}


@pytest.mark.parametrize("how", ["plain", "gradient"])
def test_what_tensorflow_cannot_vectorize_is_one_program(how):
    """JAX batches the operations of the module, where it did so one element after another."""
    converted = bridge.convert(lambda x: jnp.sin(x) * jnp.cumsum(x))
    called = bridge.call_tf(lambda x: converted(x) + tf.cast(tf.bitcast(x, tf.int32) > 0, x.dtype))
    function = called if how == "plain" else jax.grad(lambda x: called(x).sum())
    mapped = jax.vmap(function)
    assert not {"scan[", "while["} & set(re.findall(r"\w+\[", str(jax.make_jaxpr(mapped)(X))))
    expected = np.stack([function(row) for row in X])
    np.testing.assert_allclose(mapped(X), expected, rtol=1e-6)


def test_no_elements_are_mapped_to_none():
    found = jax.vmap(bridge.call_tf(lambda x: tf.reduce_sum(x)))(jnp.zeros((0, 3)))
    assert found.shape == (0,)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A SavedModel with a variable and a signature."""

    class Model(tf.Module):
        def __init__(self):
            self.weight = tf.Variable(2.0, name="weight")

        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
        def __call__(self, x):
            return {"y": x * self.weight}

    folder = str(tmp_path_factory.mktemp("saved") / "model")
    tf.saved_model.save(Model(), folder)
    return folder, tf.saved_model.load(folder)  # a signature does not own its variables


SOURCES = {
    "path": lambda folder, _: folder,
    "loaded": lambda _, loaded: loaded,
    "signature": lambda _, loaded: loaded.signatures["serving_default"],
    "tf.function": lambda *_: tf.function(lambda x: {"y": x * 2.0}),
    "concrete": lambda *_: tf.function(lambda x: {"y": x * 2.0}).get_concrete_function(
        tf.TensorSpec([3], tf.float32, name="x")
    ),
    "partial": lambda *_: functools.partial(lambda scale, x: {"y": x * scale}, 2.0),
}


@pytest.mark.parametrize("source", SOURCES)
def test_whatever_stands_for_a_function_is_called(saved, source):
    called = bridge.call_tf(SOURCES[source](*saved))
    given = {"x": X[0]} if source in ("signature", "concrete") else None
    found = jax.jit(called)(**given) if given else jax.jit(called)(X[0])
    np.testing.assert_array_equal(found["y"], X[0] * 2.0)


def test_variables_say_whether_tensorflow_trains_them(tmp_path):
    class Model(tf.Module):
        def __init__(self):
            self.scale = tf.Variable(3.0, trainable=False, name="scale")
            self.weight = tf.Variable(2.0, name="weight")

        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
        def __call__(self, x):
            return x * self.weight + self.scale

    tf.saved_model.save(Model(), str(tmp_path / "model"))
    with pytest.raises(StructureError, match=r"bridge\.call_tf\(path\), with variables='argument'"):
        bridge.load(tmp_path / "model")
    called = bridge.call_tf(tmp_path / "model", variables="argument")
    assert called.trainable() == {"scale": False, "weight": True}
    params = called.variables()
    assert jax.grad(lambda v: called(v, X[0]).sum())(params)["weight"] == X[0].sum()
    bridge.save(
        called, tmp_path / "saved", params=params, trainable=called.trainable(), args="f32[3]"
    )
    loaded = tf.saved_model.load(str(tmp_path / "saved"))
    np.testing.assert_array_equal(loaded(X[0]), X[0] * 2 + 3)
    assert [v.numpy() for v in loaded.trainable_variables] == [2.0]


def test_a_signature_whose_model_is_gone_is_refused(saved):
    signature = tf.saved_model.load(saved[0]).signatures["serving_default"]
    with pytest.raises(StructureError, match=r"variables that are gone.*keep what was loaded"):
        bridge.call_tf(signature)(x=X[0])


def test_a_saved_model_that_is_only_signatures_is_called_by_the_default_one(tmp_path):
    module = tf.Module()
    function = tf.function(lambda x: {"y": x + 1.0})
    spec = tf.TensorSpec([3], tf.float32, name="x")
    tf.saved_model.save(
        module, str(tmp_path / "one"), signatures=function.get_concrete_function(spec)
    )
    np.testing.assert_array_equal(bridge.call_tf(tmp_path / "one")(x=X[0])["y"], X[0] + 1.0)
    names = {"first": function, "second": function}
    concrete = {name: found.get_concrete_function(spec) for name, found in names.items()}
    tf.saved_model.save(module, str(tmp_path / "two"), signatures=concrete)
    with pytest.raises(StructureError, match="signatures first, second, none of which"):
        bridge.call_tf(tmp_path / "two")


def test_the_linear_algebra_of_tensorflow_needs_no_library():
    def function(x):
        return tf.linalg.cholesky(tf.matmul(x, x, transpose_b=True) + tf.eye(2))

    np.testing.assert_allclose(jax.jit(bridge.call_tf(function))(X), function(X), rtol=1e-5)


REFUSED = {
    "strings": (lambda x: tf.strings.to_number(tf.strings.as_string(x)), "no AsString.*compiled=F"),
    "Python": (lambda x: tf.ensure_shape(tf.numpy_function(abs, [x], x.dtype), x.shape), "PyFunc"),
    "prints": (lambda x: (tf.print(x), x)[1], "no StringFormat"),
    "values decide the shape": (lambda x: tf.cast(tf.where(x > 0), "int32"), r"\(None, 2\).*Where"),
    "and so does what follows": (lambda x: tf.unique(x[0])[0] * 2.0, r"Unique \(Unique\)"),
    "random": (lambda x: tf.random.uniform((2,)) + x[0, 0], "RandomUniform.*stateless_uniform"),
    "axis from outside": (functools.partial(tf.reduce_sum, axis=tf.constant(1)), "input 1 of Sum"),
    "sparse": (lambda x: tf.sparse.from_dense(x), "result of .*SparseTensor.*dense"),
    "string result": (lambda x: tf.strings.as_string(x), "result of .* has dtype string"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_compiled_is_refused_by_name(what):
    function, message = REFUSED[what]
    with pytest.raises(InteropError, match=f"(?s){message}"):
        jax.jit(bridge.call_tf(function))(X)


def test_assertions_hold_where_tensorflow_runs_the_function():
    """XLA leaves them out, under TensorFlow's own `jit_compile`, too."""

    def asserting(x):
        tf.debugging.assert_positive(x, message="not positive")
        return x * 2.0

    x = jnp.asarray([1.0, -2.0])
    compiled = tf.function(asserting, jit_compile=True)(np.asarray(x))
    np.testing.assert_array_equal(bridge.call_tf(asserting)(x), compiled)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not positive"):
        bridge.call_tf(asserting, compiled=False)(x)


def test_a_recurrent_layer_of_keras():
    layer = tf.keras.layers.LSTM(2)
    called, x = bridge.call_tf(layer), tf.Variable(X[None])
    with tf.GradientTape() as tape:
        result = tf.reduce_sum(layer(x))
    np.testing.assert_allclose(jax.jit(called)(X[None]).sum(), result, rtol=1e-5)
    called = bridge.call_tf(layer, compiled=False)
    gradient = jax.grad(lambda x: called(x).sum())(X[None])
    np.testing.assert_allclose(gradient, tape.gradient(result, x), rtol=1e-4, atol=1e-6)


def fake_quantized(x):
    return tf.quantization.fake_quant_with_min_max_args(x, min=-0.5, max=1.5) * x


FORWARD = {
    "jvp": lambda f: jax.jvp(f, (X,), (X,))[1],
    "jacfwd": lambda f: jax.jacfwd(lambda x: f(x).sum())(X) * X,
    "vmap": lambda f: jax.jvp(jax.vmap(f), (X,), (X,))[1],
    "jit": lambda f: jax.jit(lambda x: jax.jvp(f, (x,), (x,))[1])(X),
}
LOST = {
    "second order": lambda f: jax.jit(jax.jacrev(jax.grad(lambda x: f(x).sum())))(X),
    "forward over reverse": lambda f: jax.jvp(jax.grad(lambda x: f(x).sum()), (X,), (X,)),
}


def gradient_in_tensorflow(function):
    with tf.GradientTape() as tape:
        tape.watch(x := tf.constant(X))
        result = function(x)
    return tape.gradient(result, x).numpy()


@pytest.mark.parametrize("how", FORWARD)
def test_what_has_a_gradient_alone_has_that_in_forward_mode(how):
    """An operation of TensorFlow says its gradient, of which JAX takes the transpose."""
    expected = gradient_in_tensorflow(fake_quantized) * X
    found = FORWARD[how](bridge.call_tf(fake_quantized))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("how", "compiled"),
    [*((how, True) for how in LOST), *((how, False) for how in (*LOST, *FORWARD))],
)
def test_a_derivative_that_tensorflow_takes_for_zero_is_refused(how, compiled):
    called = bridge.call_tf(fake_quantized, compiled=compiled)
    found = jax.grad(lambda x: called(x).sum())(X)
    np.testing.assert_allclose(found, gradient_in_tensorflow(fake_quantized), rtol=1e-6)
    with pytest.raises(StructureError, match=r"has no .*FakeQuantWithMinMaxArgsGradient.*To do"):
        (LOST | FORWARD)[how](called)


def test_a_lost_derivative_is_found_inside_of_branches_and_loops():
    def branches(x):
        return tf.cond(x[0, 0] > 0.0, lambda: fake_quantized(x), lambda: x)

    def loop(x):
        start = (tf.constant(0), x)
        return tf.while_loop(
            lambda i, _: i < 3,
            lambda i, y: (i + 1, fake_quantized(y)),
            start,
            maximum_iterations=3,
        )[1]

    for function in (branches, loop):
        called = bridge.call_tf(function)
        with pytest.raises(StructureError, match="FakeQuantWithMinMaxArgsGradient"):
            jax.jacrev(jax.grad(lambda x, f=called: f(x).sum()))(X)


def test_the_first_gradient_of_what_is_computed_again_is_the_only_one():
    again = tf.recompute_grad(lambda x: tf.sin(x) * x)
    called = bridge.call_tf(lambda x: again(x))
    np.testing.assert_allclose(
        jax.grad(lambda x: called(x).sum())(X), np.sin(X) + X * np.cos(X), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(
        jax.jvp(called, (X,), (X,))[1], (np.sin(X) + X * np.cos(X)) * X, rtol=1e-4, atol=1e-6
    )
    with pytest.raises(StructureError, match=r"no gradient of its gradient.*jax\.checkpoint"):
        jax.jacrev(jax.grad(lambda x: called(x).sum()))(X)


def test_the_gradient_of_a_loop_needs_its_number_of_steps():
    def function(x, steps=None):
        start = (tf.constant(0), x)
        return tf.while_loop(
            lambda i, _: i < 3, lambda i, y: (i + 1, y * y), start, maximum_iterations=steps
        )[1]

    def gradient(fun):
        return jax.grad(lambda x: bridge.call_tf(fun)(x).sum())(X)

    with pytest.raises(StructureError, match=r"To do: pass maximum_iterations= to tf\.while_loop"):
        gradient(function)
    bounded = functools.partial(function, steps=5)
    np.testing.assert_allclose(gradient(bounded), 8 * X**7, rtol=1e-5)


@pytest.mark.parametrize("wrong", [np.arange(3), np.ones((2, 3), np.float32)])
def test_what_does_not_fit_a_signature_is_refused(wrong):
    signature = [tf.TensorSpec([None], tf.float32)]
    called = bridge.call_tf(tf.function(lambda x: x * 2.0, input_signature=signature))
    assert called(np.ones(3, np.float32)).tolist() == [2.0, 2.0, 2.0]
    with pytest.raises(ArgumentError, match=r"do not fit its signature.*input_signature"):
        called(wrong)


def test_a_table_is_refused_with_the_operation_that_takes_it():
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1], [3]), -1)
    with pytest.raises(StructureError, match=r"not a variable, for .*LookupTableFindV2"):
        bridge.call_tf(lambda x: table.lookup(tf.cast(x, tf.int32)))(X)


def test_arguments_that_cannot_cross_are_refused_with_their_path():
    called = bridge.call_tf(lambda x, **_: x)
    with pytest.raises(StructureError, match=r"kwargs\['mode'\] is 'fast' \(str\).*partial"):
        called(X, mode="fast")
    with pytest.raises(DtypeError, match=r"args\[0\] has dtype int4"):
        called(jnp.ones(3, "int4"))


def test_sparse_and_ragged_arguments_are_refused():
    called = bridge.call_tf(lambda x: x)
    for value in (tf.sparse.from_dense(X), tf.ragged.constant([[1.0], [1.0, 2.0]])):
        with pytest.raises(
            ArgumentError, match=r"args\[0\] is a \w+Tensor; expected a dense.*parts"
        ):
            called(value)


def test_a_python_value_is_bound_first():
    layer = tf.keras.layers.Dropout(0.5)
    with pytest.raises(ArgumentError, match=r"for a Python value, such as training=True.*partial"):
        bridge.call_tf(layer)(X, training=True)
    np.testing.assert_array_equal(bridge.call_tf(functools.partial(layer, training=False))(X), X)
    training = functools.partial(layer, training=True)
    with pytest.raises(StructureError, match=r"^dropout\w* has effects"):
        bridge.call_tf(training)(X)


def test_a_path_without_a_model_is_refused(tmp_path):
    with pytest.raises(FormatError, match=r"is not a SavedModel.*holds saved_model\.pb"):
        bridge.call_tf(tmp_path)


def test_wrong_options_are_refused_at_once():
    with pytest.raises(StructureError, match="variables is 'frozen'; expected one of 'live'"):
        bridge.call_tf(tf.sin, variables="frozen")
    with pytest.raises(StructureError, match=r"has no side effects.*compiled=False"):
        bridge.call_tf(tf.sin, has_side_effects=True)
    with pytest.raises(StructureError, match="cannot be called and has no signatures"):
        bridge.call_tf(3)


LINEAR = {
    "scale": (lambda x: x * 2.0, lambda x: x * 2.0),
    "matrix": (lambda x: tf.matmul(x, tf.ones((3, 2))), lambda x: x @ jnp.ones((3, 2))),
    "two results": (lambda x: (x[0], tf.reduce_sum(x, 1)), lambda x: (x[0], x.sum(1))),
    "converted": (bridge.convert(lambda x: x[:, ::-1] * 3.0), lambda x: x[:, ::-1] * 3.0),
}


@pytest.mark.parametrize("how", ["plain", "jit", "vmap"])
@pytest.mark.parametrize("name", LINEAR)
def test_what_is_linear_is_transposed(name, how):
    ours, theirs = LINEAR[name]
    wrap = {"plain": lambda f: f, "jit": jax.jit, "vmap": jax.vmap}[how]
    x = jnp.asarray(X)[None] if how == "vmap" else jnp.asarray(X)
    functions = [wrap(bridge.call_tf(ours)), wrap(theirs)]
    cotangents = jax.tree.map(
        lambda y: jnp.cos(jnp.arange(y.size)).reshape(y.shape), wrap(theirs)(x)
    )
    found, expected = (jax.linear_transpose(f, x)(cotangents)[0] for f in functions)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_it_is_transposed_in_one_of_its_arguments():
    called = bridge.call_tf(lambda x, y: x * tf.sin(y))
    (found,) = jax.linear_transpose(lambda x: called(x, X), X)(jnp.ones_like(X))
    np.testing.assert_allclose(found, np.sin(X), rtol=1e-6)


@pytest.mark.parametrize("function", [tf.sin, lambda x: x * x])
def test_what_is_not_linear_is_not_transposed(function):
    called = bridge.call_tf(function)
    with pytest.raises(StructureError, match=r"cannot be transposed: .* not linear in them"):
        jax.linear_transpose(called, X)(jnp.ones_like(X))
