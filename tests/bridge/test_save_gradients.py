"""First-order gradients of loaded files, for every kind of function that a file can hold."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import bridge
from tests.bridge.models import BY_NAME, CASES
from tests.bridge.pytrees import (
    arguments_by_path,
    by_path,
    physical,
    read_meta_graph,
    read_paths,
    tensors,
    tensors_by_path,
)

pytestmark = pytest.mark.usefixtures("on_the_cpu")

# Relative to the largest of a gradient: the two XLA versions add and fuse in other orders.
TOLERANCE = {"float32": 2e-6, "bfloat16": 2**-7}
NOT_DIFFERENTIABLE = {"integers", "bytes", "keys", "while_loop", "float8"}
# Gradients of the many dtypes and of complex numbers have their own tests.
GRADIENTS = [
    (case, key)
    for case in CASES
    if case.name not in NOT_DIFFERENTIABLE | {"all_dtypes", "passed_on", "complex"}
    for key in case.functions
]
each_function = pytest.mark.parametrize(
    ("case", "key"), GRADIENTS, ids=[f"{case.name}-{key}" for case, key in GRADIENTS]
)


@pytest.fixture(scope="module")
def path_of(tmp_path_factory):
    """The folder of a case: what was saved, or what TensorFlow has loaded and saved again."""
    folder = tmp_path_factory.mktemp("models")

    @functools.cache
    def path_of(name, origin):
        path = folder / f"{name}-{origin}"
        if origin == "saved":
            BY_NAME[name].save(path)
        else:
            loaded = tf.saved_model.load(path_of(name, "saved"))
            tf.saved_model.save(loaded, path, signatures=loaded.signatures)
        return path

    return path_of


def _is_float(leaf):
    return leaf is not None and physical(leaf).dtype in (np.float32, jnp.bfloat16)


def _floats(by_name):
    return {name: leaf for name, leaf in by_name.items() if _is_float(leaf)}


def _cotangent(leaf):
    """Small whole numbers, some of them negative."""
    array = physical(leaf)
    return (np.arange(array.size) % 5 - 1).reshape(array.shape).astype(array.dtype)


@functools.cache
def _jax_gradients(name, key):
    """The gradients of the parameters in their order, and of the arguments by their paths."""
    case = BY_NAME[name]
    cotangents = {
        path: _cotangent(result)
        for path, result in _floats(by_path("result", case.results(key))).items()
    }

    def loss(params, args, kwargs):
        found = by_path("result", case.functions[key](*params, *args, **kwargs))
        return sum((found[path] * cotangent).sum() for path, cotangent in cotangents.items())

    primal = (case.leading(), case.args, dict(case.kwargs))
    params, args, kwargs = jax.jit(jax.grad(loss, argnums=(0, 1, 2), allow_int=True))(*primal)
    padded = (*[None] * len(case.leading()), *args)
    return jax.tree.leaves(params), by_path("args", padded) | by_path("kwargs", kwargs)


def _call_root(case, loaded, key, path):
    """The inputs by their paths, and the function that gives the results by theirs."""
    args, kwargs = tensors(case.args), tensors(case.kwargs)
    padded = (*[None] * len(case.leading()), *case.args)
    inputs = tensors_by_path("args", padded, (*[None] * len(case.leading()), *args))
    inputs |= tensors_by_path("kwargs", dict(case.kwargs), kwargs)

    def call():
        found = getattr(loaded, key)(*args, **kwargs)
        return tensors_by_path("result", case.results(key), found)

    return inputs, call


def _call_signature(case, loaded, key, path):
    input_paths, output_paths = read_paths(path, key)
    arrays = arguments_by_path(case)
    inputs = {name: tf.constant(arrays[path]) for name, path in input_paths.items()}

    def call():
        found = loaded.signatures[key](**inputs)
        return {path: found[name] for name, path in output_paths.items()}

    return {path: inputs[name] for name, path in input_paths.items()}, call


WAYS = {
    "eager": ("saved", _call_root, lambda run: run),
    "graph": ("saved", _call_root, functools.partial(tf.function, autograph=False)),
    "compiled": (
        "saved",
        _call_root,
        functools.partial(tf.function, autograph=False, jit_compile=True),
    ),
    "signature": ("saved", _call_signature, lambda run: run),
    "saved again": ("again", _call_root, lambda run: run),
    "signature, saved again": ("again", _call_signature, lambda run: run),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@each_function
def test_gradients_are_those_of_jax(path_of, case, key, way):
    origin, call_of, mode = way
    loaded = tf.saved_model.load(path_of(case.name, origin))
    inputs, call = call_of(case, loaded, key, path_of(case.name, "saved"))
    inputs = _floats(inputs)
    variables = loaded.trainable_variables
    cotangents = {
        path: tf.constant(_cotangent(leaf))
        for path, leaf in _floats(by_path("result", case.results(key))).items()
    }

    def run():
        sources = [*variables, *inputs.values()]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(sources)
            found = call()
        targets = [found[path] for path in cotangents]
        return tape.gradient(targets, sources, output_gradients=list(cotangents.values()))

    by_variable, by_argument = _jax_gradients(case.name, key)
    want = [slope for slope in by_variable if _is_float(slope)]
    want += [by_argument[path] for path in inputs]
    found = mode(run)()
    assert len(found) == len(want)
    for gradient, slope in zip(found, want, strict=True):
        if gradient is None:
            # TensorFlow's way to say that nothing depends on it.
            assert not np.any(slope)
            continue
        assert (gradient.dtype.as_numpy_dtype, gradient.shape) == (slope.dtype, slope.shape)
        bound = TOLERANCE[slope.dtype.name] * np.abs(slope).max(initial=0)
        np.testing.assert_allclose(
            np.asarray(gradient, "f4"), np.asarray(slope, "f4"), rtol=0, atol=bound
        )


def test_nothing_depends_on_what_is_not_used(path_of):
    loaded = tf.saved_model.load(path_of("unused", "saved"))
    x, y = tf.constant([1.0, 2.0, 3.0]), tf.constant([1, 2])
    with tf.GradientTape() as tape:
        tape.watch(x)
        used = loaded(x, y, flag=tf.constant(True))["used"]
    of_x, of_params = tape.gradient(used, [x, dict(loaded.params)])
    np.testing.assert_array_equal(of_x, np.ones(3))
    np.testing.assert_array_equal(of_params["used"], np.ones(3))
    assert of_params["unused"] is None
    assert of_params["last"] is None


def _power(params, z):
    return {"power": z**2 * params["c"], "sum": jnp.abs(z).sum()}


@pytest.mark.parametrize("way", ["root", "signature", "again"])
def test_complex_gradients_are_conjugates(tmp_path, way):
    """TensorFlow's own gradient of the same function is what a user combines ours with."""
    params = {"c": np.complex64(0.5 - 2j)}
    z = np.array([1 + 2j, -3 + 0.5j, 0.25j], np.complex64)
    bridge.save(jax.export.export(jax.jit(_power))(params, z), tmp_path / "model", params=params)
    loaded = tf.saved_model.load(tmp_path / "model")
    if way == "again":
        tf.saved_model.save(loaded, tmp_path / "again")
        loaded = tf.saved_model.load(tmp_path / "again")
    call = loaded.signatures["serving_default"] if way == "signature" else loaded

    def native(z):
        return {"power": z**2 * loaded.params["c"], "sum": tf.reduce_sum(tf.abs(z))}

    def differentiate(function):
        x = tf.constant(z)
        with tf.GradientTape() as tape:
            tape.watch(x)
            found = function(z=x)
            loss = tf.reduce_sum(tf.math.real(found["power"]) ** 2) + found["sum"]
            loss += tf.reduce_sum(tf.math.imag(found["power"]))
        return tape.gradient(loss, [x, loaded.params["c"]])

    for ours, theirs in zip(differentiate(call), differentiate(native), strict=True):
        assert np.abs(np.imag(theirs)).min() > 0.1
        np.testing.assert_allclose(ours, theirs, rtol=2e-6)


def _choose(params, x):
    scores = x * params
    return {"class": jnp.argmax(scores, axis=1), "scores": scores, "count": jnp.int32(3)}


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("way", ["root", "signature", "again"])
def test_integer_results_of_any_size(tmp_path, way, batch):
    """After a reload TensorFlow passes cotangents of another shape for them."""
    params = np.array([1.0, -2.0, 3.0], np.float32)
    specs = jax.export.symbolic_args_specs((params, np.zeros((2, 3), np.float32)), ("3", "b, 3"))
    exported = jax.export.export(jax.jit(_choose))(*specs)
    bridge.save(exported, tmp_path / "model", params=params)
    loaded = tf.saved_model.load(tmp_path / "model")
    if way == "again":
        tf.saved_model.save(loaded, tmp_path / "again")
        loaded = tf.saved_model.load(tmp_path / "again")
    call = loaded.signatures["serving_default"] if way == "signature" else loaded
    x = tf.constant(np.arange(3 * batch, dtype=np.float32).reshape(batch, 3))
    with tf.GradientTape() as tape:
        tape.watch(x)
        found = call(x=x)
        loss = tf.reduce_sum(found["scores"] * 2)
    of_x, of_params = tape.gradient(loss, [x, loaded.params])
    assert found["class"].shape == (batch,)
    np.testing.assert_array_equal(of_x, np.tile(2 * params, (batch, 1)))
    np.testing.assert_array_equal(of_params, 2 * np.sum(x, axis=0))


@pytest.mark.parametrize("dtype", [jnp.float8_e4m3fn, jnp.float8_e5m2])
@pytest.mark.parametrize("way", ["root", "signature"])
def test_float8_results_of_any_size(tmp_path, way, dtype):
    """TensorFlow has no gradient for them, and passes zeros of another shape."""
    x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 2"), np.float32)
    exported = jax.export.export(jax.jit(lambda x: {"a": x * x, "b": x.astype(dtype)}))(x)
    bridge.save(exported, tmp_path / "model")
    loaded = tf.saved_model.load(tmp_path / "model")
    call = loaded.signatures["serving_default"] if way == "signature" else loaded

    x = tf.constant([[1.0, 2.0]] * 3)
    with tf.GradientTape() as tape:
        tape.watch(x)
        found = call(x=x)["a"]
    np.testing.assert_array_equal(tape.gradient(found, x), [[2, 4]] * 3)


def _regress(params, x):
    hidden = jnp.tanh(x @ params["first"]["w"] + params["first"]["b"])
    return hidden @ params["second"]["w"]


def _loss(params, x, y):
    return ((_regress(params, x) - y) ** 2).mean()


def _parameters():
    random = np.random.default_rng(0)
    return {
        "first": {
            "w": random.normal(size=(3, 8)).astype(np.float32),
            "b": np.zeros(8, np.float32),
        },
        "second": {"w": random.normal(size=(8, 2)).astype(np.float32)},
    }


@pytest.mark.parametrize("way", ["root", "signature"])
def test_training_goes_on_after_tensorflow_saved_it(tmp_path, way):
    """As many steps in TensorFlow as in JAX, half of them after it saved and loaded the file."""
    params = _parameters()
    random = np.random.default_rng(1)
    x = random.normal(size=(16, 3)).astype(np.float32)
    y = random.normal(size=(16, 2)).astype(np.float32)
    specs = jax.export.symbolic_args_specs((params, x), (None, "b, 3"))
    bridge.save(jax.export.export(jax.jit(_regress))(*specs), tmp_path / "0", params=params)

    def train(loaded, steps):
        optimizer = tf.keras.optimizers.SGD(0.1)

        @tf.function
        def step():
            with tf.GradientTape() as tape:
                if way == "root":
                    found = loaded(tf.constant(x))
                else:
                    found = loaded.signatures["serving_default"](x=tf.constant(x))["output_0"]
                loss = tf.reduce_mean((found - y) ** 2)
            gradients = tape.gradient(loss, list(loaded.trainable_variables))
            optimizer.apply_gradients(zip(gradients, loaded.trainable_variables, strict=True))

        for _ in range(steps):
            step()

    loaded = tf.saved_model.load(tmp_path / "0")
    train(loaded, 10)
    tf.saved_model.save(loaded, tmp_path / "1", signatures=loaded.signatures)
    again = tf.saved_model.load(tmp_path / "1")
    train(again, 10)

    initial = float(_loss(params, x, y))
    for _ in range(20):
        gradients = jax.grad(_loss)(params, x, y)
        params = jax.tree.map(lambda value, slope: value - 0.1 * slope, params, gradients)
    assert float(_loss(params, x, y)) < initial / 2
    for variable, value in zip(again.trainable_variables, jax.tree.leaves(params), strict=True):
        # Twenty steps, each of which rounds differently in the two.
        np.testing.assert_allclose(variable, value, rtol=0, atol=1e-5)
    served = again.signatures["serving_default"](x=tf.constant(x))["output_0"]
    np.testing.assert_allclose(served, _regress(params, x), rtol=0, atol=1e-5)


def test_variables_that_are_not_trainable_have_gradients_when_asked(tmp_path):
    params = {"frozen": np.float32(3), "free": np.float32(2)}
    exported = jax.export.export(jax.jit(lambda p, x: x * p["frozen"] * p["free"]))(params, 1.0)
    bridge.save(exported, tmp_path / "m", params=params, trainable={"frozen": False, "free": True})
    loaded = tf.saved_model.load(tmp_path / "m")
    frozen, free = loaded.params["frozen"], loaded.params["free"]
    with tf.GradientTape() as tape:
        found = loaded(tf.constant(5.0))
    frozen_gradient, free_gradient = tape.gradient(found, [frozen, free])
    assert frozen_gradient is None
    assert free_gradient.numpy() == 15
    with tf.GradientTape() as tape:
        tape.watch(frozen)
        found = loaded(tf.constant(5.0))
    assert tape.gradient(found, frozen).numpy() == 10


def test_without_reverse_mode_a_file_is_written_all_the_same(tmp_path):
    case = BY_NAME["while_loop"]
    params, exported = case.leading()[0], case.export()["serving_default"]
    with pytest.warns(UserWarning, match="^loop is saved without a gradient, .*reverse") as found:
        bridge.save(exported, tmp_path / "model", params=params)
    assert [warning.filename for warning in found] == [__file__]
    loaded = tf.saved_model.load(tmp_path / "model")
    (x,) = tensors(case.args)
    np.testing.assert_array_equal(loaded(x)[1], case.results()[1])
    # TensorFlow prepares the gradient of a function when it is called under a tape.
    refused = pytest.raises(LookupError, match=r"loop was saved .*up to order 0, not 1")
    with refused, tf.GradientTape():
        loaded(x)


def test_no_gradient_is_written_where_nothing_is_differentiable(tmp_path, recwarn):
    case = BY_NAME["integers"]
    case.save(tmp_path / "model")
    assert recwarn.list == []
    assert not read_meta_graph(tmp_path / "model").graph_def.library.registered_gradients


def test_a_persistent_tape_takes_one_order_more(tmp_path):
    x = tf.constant([1.0, 2.0])

    def call(order):
        bridge.save(
            lambda p, x: jnp.sin(p * x), tmp_path / "model", params=np.full(2, 3.0, "float32"),
            args="f32[2]", gradient_order=order, overwrite=True,
        )  # fmt: skip
        loaded = tf.saved_model.load(tmp_path / "model")
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = loaded(x)
        return tape.gradient(y, x)

    with pytest.raises(LookupError, match=r"order=2 or more .*tapes that are persistent"):
        call(1)
    np.testing.assert_allclose(call(2), 3 * np.cos(3 * x), rtol=1e-5)
