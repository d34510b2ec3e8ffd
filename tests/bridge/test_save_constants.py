"""Large arrays that a function closes over: kept once, outside of every module."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import bridge
import savedmodel
from bridge.loading.restore import find_constants
from xla_call_module import decode_node
from xla_call_module.errors import StructureError

draw = np.random.default_rng(0)
W = draw.standard_normal((160, 160)).astype(np.float32) / 12
X = draw.standard_normal((3, 160)).astype(np.float32)


def function(x):
    return jnp.tanh(x @ W) @ W


@pytest.fixture(scope="module")
def exported():
    spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 160"), np.float32)
    return jax.export.export(jax.jit(function))(spec)


@pytest.fixture(scope="module")
def loaded(exported, tmp_path_factory):
    """The ways in which the function comes back from a file."""
    folder = tmp_path_factory.mktemp("constants")
    models = {}
    for name, residuals in (("saved", False), ("residuals", True)):
        bridge.save(exported, folder / name, gradient_order=2, residuals=residuals)
        models[name] = tf.saved_model.load(str(folder / name))
        models[f"{name} again"] = _again(models[name], folder / f"{name}_again")
    module = tf.Module()
    module.call = tf.function(
        bridge.convert(exported, gradient_order=2),
        input_signature=[tf.TensorSpec([None, 160])],
        autograph=False,
    )
    models["by TensorFlow"] = _again(module, folder / "module").call
    return models


def _again(module, path):
    tf.saved_model.save(module, str(path), signatures=getattr(module, "signatures", None))
    return tf.saved_model.load(str(path))


WAYS = ("live", "live residuals", "saved", "saved again", "residuals", "residuals again",
        "by TensorFlow")  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", ["eager", "graph", "jit"])
def test_values_and_gradients(exported, loaded, way, mode):
    if way.startswith("live"):
        called = bridge.convert(exported, residuals=way == "live residuals")
    else:
        called = loaded[way]

    def run(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = called(x)
            gradient = tape.gradient(y, x)
        return y, gradient, outer.gradient(gradient, x)

    if mode != "eager":
        run = tf.function(run, autograph=False, jit_compile=mode == "jit")
    y, first, second = run(tf.constant(X))
    gradient = jax.grad(lambda x: function(x).sum())
    np.testing.assert_allclose(y, function(X), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(first, gradient(X), rtol=1e-5, atol=1e-5)
    expected = jax.grad(lambda x: gradient(x).sum())(X)
    np.testing.assert_allclose(second, expected, rtol=1e-4, atol=1e-5)


def test_one_copy_for_all_orders_and_signatures(exported, tmp_path):
    twice = jax.export.export(jax.jit(lambda x: function(x) * 2))(X)
    model = {"serving_default": exported, "twice": twice}
    bridge.save(model, tmp_path / "m", gradient_order=2)
    read = savedmodel.read(tmp_path / "m")
    (constant,) = read.variables
    assert constant.constant
    np.testing.assert_array_equal(constant.to_numpy(), W)
    for signature in read.signatures:
        assert signature.function.constants == {constant.name.removeprefix("constants/"): 0}
        assert not signature.function.bound
    assert (tmp_path / "m" / "saved_model.pb").stat().st_size < W.nbytes
    assert [p.name for p in bridge.inspect(tmp_path / "m").parameters] == [constant.name]


def test_constants_are_no_parameters(exported, tmp_path):
    params = {"w": np.ones(160, np.float32)}
    scaled = jax.export.export(jax.jit(lambda params, x: function(x) * params["w"]))(params, X)
    bridge.save(scaled, tmp_path / "m", params=params)
    model = tf.saved_model.load(str(tmp_path / "m"))
    assert [v.name for v in model.variables] == ["w:0"]
    assert [v.shape for v in model.constants] == [W.shape]
    np.testing.assert_allclose(model(X), function(X), rtol=1e-5, atol=1e-5)
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        meta = tf.compat.v1.saved_model.load(session, ["serve"], str(tmp_path / "m"))
        signature = meta.signature_def["serving_default"]
        (output,) = (info.name for info in signature.outputs.values())
        (found,) = session.run([output], {signature.inputs["x"].name: X})
    np.testing.assert_allclose(found, function(X), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("limit", [None, W.nbytes + 1])
def test_off_or_above_the_size(exported, tmp_path, limit):
    bridge.save(exported, tmp_path / "m", hoist_constants=limit)
    assert not savedmodel.read(tmp_path / "m").variables
    converted = bridge.convert(exported, hoist_constants=limit)
    graph = tf.function(converted, autograph=False).get_concrete_function(X).graph
    (node,) = (node for node in graph.as_graph_def().node if node.op == "XlaCallModule")
    assert decode_node(node).hoisted == ()
    assert len(node.attr["module"].s) > W.nbytes


def test_a_converted_function_shares_them(exported):
    converted = bridge.convert(exported)

    @tf.function(autograph=False)
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = converted(x)
        return tape.gradient(y, x)

    concrete = gradient.get_concrete_function(tf.TensorSpec([3, 160]))
    assert [tensor.shape for tensor in concrete.captured_inputs] == [W.shape]
    assert concrete.graph.as_graph_def().ByteSize() < W.nbytes


@pytest.mark.parametrize("order", [1, 2])
def test_a_constant_of_the_gradient_alone(order, tmp_path):
    @jax.custom_vjp
    def sine(x):
        return jnp.sin(x)

    sine.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct @ W,))
    module = tf.Module()
    module.call = tf.function(
        bridge.convert(lambda x: sine(x), gradient_order=order),
        input_signature=[tf.TensorSpec([3, 160])],
        autograph=False,
    )
    loaded = _again(module, tmp_path / "m").call
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = loaded(x)
    expected = np.ones_like(X) @ W
    np.testing.assert_allclose(tape.gradient(y, x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("residuals", [False, True])
def test_a_constant_of_the_gradient_alone_in_jax(residuals, tmp_path):
    """Whoever wrote the file, and however the function is called in it."""

    @jax.custom_vjp
    def sine(x):
        return jnp.sin(x)

    sine.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct * W[0],))
    exported = jax.export.export(jax.jit(sine))(jax.ShapeDtypeStruct((160,), np.float32))
    options = {"residuals": residuals, "hoist_constants": 16}
    bridge.save(exported, tmp_path / "saved", gradient_order=1, **options)
    saved = tf.saved_model.load(str(tmp_path / "saved"))
    _again(saved, tmp_path / "again")
    spec = [tf.TensorSpec([160])]
    functions = {"twice": lambda x: saved(saved(x)), "one": bridge.convert(exported, **options)}
    for name, function in functions.items():
        module = tf.Module()
        module.call = tf.function(function, input_signature=spec, autograph=False)
        module.saved = saved
        tf.saved_model.save(module, str(tmp_path / name), {"serving_default": module.call})
    for name in ("saved", "again", "twice", "one"):
        loaded = bridge.load(tmp_path / name).default

        def total(x, loaded=loaded):
            return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(loaded(x)))

        found = jax.grad(total)(X[0])
        expected = W[0] ** (2 if name == "twice" else 1)
        np.testing.assert_allclose(found, expected, rtol=1e-6, err_msg=name)


def test_a_constant_of_the_gradient_that_the_file_lacks(tmp_path):
    @jax.custom_vjp
    def sine(x):
        return jnp.sin(x)

    sine.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct * W[0],))
    exported = jax.export.export(jax.jit(sine))(jax.ShapeDtypeStruct((160,), np.float32))
    bridge.save(exported, tmp_path / "saved", gradient_order=1, hoist_constants=16)
    model = savedmodel.read(tmp_path / "saved")
    (signature,) = model.signatures
    found = find_constants(signature.function.chain, {}, dataclasses.replace(model, variables=()))
    (key,) = signature.function.chain[1].constants.values()
    with pytest.raises(StructureError, match=r"constant float32\[160\], which the file lacks"):
        found(key)


def test_in_graphs_of_sessions():
    """What one graph made does not reach the next one."""
    converted = bridge.convert(function)
    for _ in range(2):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            x = tf.constant(X)
            y = converted(x)
            found = session.run([y, *tf.gradients(y, x)])
        np.testing.assert_allclose(found[0], function(X), rtol=1e-5, atol=1e-5)
        expected = jax.grad(lambda x: function(x).sum())(X)
        np.testing.assert_allclose(found[1], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:A large amount of constants")
@pytest.mark.parametrize("order", [0, 1])
def test_more_than_a_module_can_hold(order, tmp_path):
    """3 GB of weights that are closed over.

    They are mapped from files, and count as no memory: with a gradient it takes 12.3 GB besides.
    """
    weights = []
    for index in range(6):
        weight = np.memmap(tmp_path / f"{index}", np.float32, "w+", shape=(16384, 8192))
        weight[:] = index
        weight[0, 0] = index + 1  # a splat would be stored as one element
        weight.flush()
        weights.append(np.asarray(weight))
    exported = jax.export.export(jax.jit(lambda x: sum((x @ w).sum() for w in weights)))(
        jax.ShapeDtypeStruct((1, 16384), np.float32)
    )
    jax.clear_caches()  # which hold a module with all of them
    bridge.save(exported, tmp_path / "m", gradient_order=order)
    assert (tmp_path / "m" / "saved_model.pb").stat().st_size < 100_000
    del exported
    model = tf.saved_model.load(str(tmp_path / "m"))
    x = tf.ones([1, 16384])
    with tf.GradientTape() as tape:
        if order:
            tape.watch(x)
        y = model(x)
    expected = sum(index * 16384 * 8192 + 1 for index in range(6))
    np.testing.assert_allclose(y, expected, rtol=1e-5)
    if order:
        rows = sum(weight[:2].sum(1, np.float64) for weight in weights)
        np.testing.assert_allclose(tape.gradient(y, x)[0, :2], rows, rtol=1e-5)
