"""Gradients of every order: live, in files, and in files that TensorFlow has saved again."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import bridge
import savedmodel
from xla_call_module import decode_node
from xla_call_module.errors import StructureError

PARAMS = {"w": np.linspace(-1, 1, 6).astype(np.float32).reshape(3, 2)}
X = np.linspace(0.1, 1.3, 12).astype(np.float32).reshape(4, 3)
# float32, through three orders of tanh
RTOL = 2e-4


def network(params, x):
    hidden = jnp.tanh(x @ params["w"]) ** 3
    return {"y": hidden, "count": x.shape[0] + jnp.arange(x.shape[0])}


@pytest.fixture(scope="module")
def exported():
    (b,) = jax.export.symbolic_shape("b")
    return jax.export.export(jax.jit(network))(PARAMS, jax.ShapeDtypeStruct((b, 3), np.float32))


class Converted(tf.Module):
    """A module that TensorFlow saves."""

    def __init__(self, source, **options):
        super().__init__()
        self.params = {"w": tf.Variable(PARAMS["w"])}
        self._converted = bridge.convert(source, **options)

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, 3], tf.float32)])
    def __call__(self, x):
        return self._converted({"w": self.params["w"]}, x)


def save_by_tensorflow(module, path):
    tf.saved_model.save(module, str(path))
    return tf.saved_model.load(str(path))


@pytest.fixture(scope="module")
def saved(exported, tmp_path_factory):
    """Loaded models by the order of their gradients, or by how they came to be."""
    folder = tmp_path_factory.mktemp("gradients")
    models = {}
    for order in range(4):
        bridge.save(exported, folder / f"{order}", params=PARAMS, gradient_order=order)
        models[order] = tf.saved_model.load(str(folder / f"{order}"))
    tf.saved_model.save(models[3], str(folder / "again"), signatures=models[3].signatures)
    models["again"] = tf.saved_model.load(str(folder / "again"))
    bridge.save(exported, folder / "residuals", params=PARAMS, gradient_order=3, residuals=True)
    models["residuals"] = tf.saved_model.load(str(folder / "residuals"))
    models["residuals again"] = save_by_tensorflow(models["residuals"], folder / "residuals again")
    for order in (1, 2, 3):
        module = Converted(exported, gradient_order=order, residuals=order == 2)
        models[f"converted {order}"] = save_by_tensorflow(module, folder / f"converted {order}")
    models["converted again"] = save_by_tensorflow(
        models["converted 3"], folder / "converted again"
    )
    return models


@pytest.fixture(params=["eager", "graph", "jit"])
def mode(request):
    """The way in which a function of TensorFlow is run."""
    if request.param == "eager":
        return lambda f: f()
    return lambda f: tf.function(f, jit_compile=request.param == "jit", autograph=False)()


MODELS = (
    "live", "live residuals", 3, "signature", "again", "residuals", "residuals again",
    "converted 3", "converted again",
)  # fmt: skip


@pytest.fixture(params=MODELS)
def model(request, exported, saved):
    """A variable, and a function of `x` that depends on it."""
    if str(request.param).startswith("live"):
        variable = tf.Variable(PARAMS["w"])
        converted = bridge.convert(exported, residuals=request.param == "live residuals")
        return variable, lambda x: converted({"w": variable}, x)["y"]
    loaded = saved[3 if request.param == "signature" else request.param]
    if request.param == "signature":
        return loaded.params["w"], lambda x: loaded.signatures["serving_default"](x=x)["y"]
    return loaded.params["w"], lambda x: loaded(x)["y"]


def tf_nested(function, at, order):
    """The sum, differentiated `order` times by tapes in tapes."""
    if order == 0:
        return tf.reduce_sum(function())
    with tf.GradientTape() as tape:
        tape.watch(at)
        below = tf_nested(function, at, order - 1)
    gradient = tape.gradient(below, at)
    return tf.reduce_sum(gradient) if order < 3 else gradient


def jax_nested(function, order):
    if order == 0:
        return lambda x: function(x).sum()
    below = jax_nested(function, order - 1)
    if order < 3:
        return lambda x: jax.grad(below)(x).sum()
    return jax.grad(below)


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("of", ["variable", "input"])
def test_orders(model, mode, order, of):
    variable, function = model
    x = tf.constant(X)
    if of == "variable":
        found = mode(lambda: tf_nested(lambda: function(x), variable, order))
        expected = jax_nested(lambda w: network({"w": w}, X)["y"], order)(PARAMS["w"])
    else:
        found = mode(lambda: tf_nested(lambda: function(x), x, order))
        expected = jax_nested(lambda x: network(PARAMS, x)["y"], order)(X)
    np.testing.assert_allclose(found, expected, rtol=RTOL, atol=1e-4)


def test_against_finite_differences(model):
    """In float64 both sides could only be wrong together; here they cannot."""
    variable, function = model
    x, step = tf.constant(X), 1e-2
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(function(x))
    gradient = tape.gradient(loss, variable).numpy()
    before = variable.numpy()
    for index in [(0, 0), (2, 1)]:
        moved = []
        for sign in (1, -1):
            shifted = before.copy()
            shifted[index] += sign * step
            variable.assign(shifted)
            moved.append(float(tf.reduce_sum(function(x))))
        variable.assign(before)
        # the third derivative times step**2, and float32 over 2 * step
        assert gradient[index] == pytest.approx((moved[0] - moved[1]) / (2 * step), abs=5e-3)


def test_forward_mode(model, mode):
    _, function = model

    def run():
        x = tf.constant(X)
        with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
            y = function(x)
        return accumulator.jvp(y)

    _, expected = jax.jvp(lambda x: network(PARAMS, x)["y"], (X,), (np.ones_like(X),))
    np.testing.assert_allclose(mode(run), expected, rtol=RTOL)


def _hessian_times_ones():
    gradient = jax.grad(lambda x: network(PARAMS, x)["y"].sum())
    return jax.jvp(gradient, (X,), (np.ones_like(X),))[1]


def test_forward_over_reverse(model):
    _, function = model
    x = tf.constant(X)
    with tf.autodiff.ForwardAccumulator(x, tf.ones_like(X)) as accumulator:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(function(x))
        gradient = tape.gradient(y, x)
    found = accumulator.jvp(gradient)
    np.testing.assert_allclose(found, _hessian_times_ones(), rtol=RTOL, atol=1e-5)


def test_reverse_over_forward(exported):
    """Live only: through a function of its own TensorFlow cannot do this, whatever is in it."""
    converted = bridge.convert(exported)
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        with tf.autodiff.ForwardAccumulator(x, tf.ones_like(X)) as accumulator:
            y = converted(PARAMS, x)["y"]
        tangent = tf.reduce_sum(accumulator.jvp(y))
    found = tape.gradient(tangent, x)
    np.testing.assert_allclose(found, _hessian_times_ones(), rtol=RTOL, atol=1e-5)


def test_persistent_tape_and_jacobian(model):
    _, function = model
    x = tf.constant(X)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = function(x)
    expected = jax.jacobian(lambda x: network(PARAMS, x)["y"])(X)
    np.testing.assert_allclose(tape.jacobian(y, x), expected, rtol=RTOL, atol=1e-6)
    rows = np.einsum("bibj->bij", np.asarray(expected))
    np.testing.assert_allclose(tape.batch_jacobian(y, x), rows, rtol=RTOL, atol=1e-6)


def test_in_control_flow(model):
    _, function = model
    expected = jax.grad(lambda x: network(PARAMS, x)["y"].sum())(X)

    def fixed(x):
        return tf.ensure_shape(function(x), [4, 2])

    def gradient(of):
        @tf.function(autograph=False)
        def run():
            x = tf.constant(X)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = of(x)
            return tape.gradient(y, x)

        return run()

    ways = {
        "while": lambda x: tf.while_loop(
            lambda i, _: i < 1, lambda i, _: (i + 1, fixed(x)), [0, tf.zeros([4, 2])]
        )[1],
        "cond": lambda x: tf.cond(x[0, 0] > 0, lambda: fixed(x), lambda: tf.zeros([4, 2])),
        "map_fn": lambda x: tf.map_fn(lambda row: function(row[None])[0], x),
        "recompute": lambda x: tf.recompute_grad(function)(x),
    }
    for name, way in ways.items():
        np.testing.assert_allclose(gradient(way), expected, rtol=RTOL, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_the_first_order_that_is_missing(saved, order):
    model = saved[order]
    x = tf.constant(X)
    wanted = rf"saved with gradients up to order {order}.*gradient_order={order + 1} or more"
    with pytest.raises(LookupError, match=wanted):
        tf_nested(lambda: model(x)["y"], x, order + 1)


def test_hessians_in_a_graph(exported):
    converted = bridge.convert(exported)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        w = tf.constant(PARAMS["w"])
        y = converted({"w": w}, X)["y"]
        found = session.run(tf.hessians(tf.reduce_sum(y), w)[0])
    expected = jax.hessian(lambda w: network({"w": w}, X)["y"].sum())(PARAMS["w"])
    np.testing.assert_allclose(found, expected, rtol=RTOL, atol=1e-4)


@jax.custom_vjp
def _takes_one(x, u):
    """Neither it nor its gradient takes `u`, whose gradient is not zeros."""
    return x * 2


_takes_one.defvjp(lambda x, u: (x * 2, None), lambda _, ct: (ct * 2, ct * 3))

# What TensorFlow's own operations have None for: inputs that a result does not depend on.
CONNECTIONS = {
    "unused": (lambda x, u: x * 2, False),
    "stopped": (lambda x, u: x * jax.lax.stop_gradient(u), False),
    "floored": (lambda x, u: x * jnp.floor(u), False),
    "its shape only": (lambda x, u: x + jnp.zeros_like(u), False),
    "times zero": (lambda x, u: x + 0 * u, True),
    "used": (lambda x, u: x * u, True),
    "by a gradient that was written": (_takes_one, True),
}


@pytest.mark.parametrize("name", CONNECTIONS)
@pytest.mark.parametrize("file", [False, True])
@pytest.mark.parametrize("dims", ["3", "b"])
def test_none_for_what_is_unconnected(name, file, dims, tmp_path):
    function, connected = CONNECTIONS[name]
    shape = jax.export.symbolic_shape(dims)
    spec = jax.ShapeDtypeStruct(shape, np.float32)
    exported = jax.export.export(jax.jit(function))(spec, spec)
    if file:
        bridge.save(exported, tmp_path / "m")
        called = tf.saved_model.load(str(tmp_path / "m"))
    else:
        called = bridge.convert(exported)
    x, u = tf.constant([1.0, 2.0, 3.0]), tf.constant([1.0, 1.0, 1.0])

    def gradients(unconnected):
        with tf.GradientTape() as tape:
            tape.watch([x, u])
            y = called(x, u)
        return tape.gradient(y, [x, u], unconnected_gradients=unconnected)

    of_x, of_u = gradients(tf.UnconnectedGradients.NONE)
    assert of_x is not None
    assert (of_u is not None) == connected
    _, zeros = gradients(tf.UnconnectedGradients.ZERO)
    assert zeros.shape == [3]


@pytest.mark.parametrize("serialized", [0, 1])
def test_an_exported_with_fewer_orders(exported, tmp_path, serialized):
    """Those that it lacks are made of its operations."""
    read = jax.export.deserialize(exported.serialize(vjp_order=serialized))
    sources = ("saved", "lifted") if serialized else ("lifted", "lifted")
    written = bridge.save(read, tmp_path / "m", params=PARAMS, gradient_order=2)
    assert written.signatures[0].gradient_sources == sources
    report = bridge.inspect(tmp_path / "m").signatures[0]
    assert report.gradient_order == 2
    changed = ["made of the operations" in " ".join(order.changes) for order in report.orders]
    assert changed == [False, *(source == "lifted" for source in sources)]
    model = tf.saved_model.load(str(tmp_path / "m"))
    x = tf.constant(X)
    found = tf_nested(lambda: model(x)["y"], x, 2)
    expected = jax_nested(lambda x: network(PARAMS, x)["y"], 2)(X)
    np.testing.assert_allclose(found, tf.reduce_sum(expected), rtol=RTOL)
    loaded = bridge.load(tmp_path / "m").default
    assert [loaded.gradient_source(order) for order in (1, 2, 3)] == [*sources, "lifted"]


class TestSavedByTensorFlow:
    """`bridge.convert` inside a `tf.Module` that `tf.saved_model.save` writes."""

    @pytest.mark.parametrize("order", [1, 2])
    def test_the_first_order_that_is_missing(self, saved, order):
        model = saved[f"converted {order}"]
        x = tf.constant(X)
        wanted = rf"network was saved.*up to order {order}.*gradient_order={order + 1} or more"
        with pytest.raises(LookupError, match=wanted):
            tf_nested(lambda: model(x)["y"], x, order + 1)

    def test_a_function_without_a_gradient(self, tmp_path):
        """It is saved with a warning, and the gradient fails when it runs."""
        module = tf.Module()
        loop = bridge.convert(
            lambda x: jax.lax.while_loop(lambda c: c.sum() < 9, lambda c: c * 2, x)
        )
        module.f = tf.function(loop, input_signature=[tf.TensorSpec([2])], autograph=False)
        with pytest.warns(UserWarning, match="without a gradient of order 1: .*while_loop"):
            loaded = save_by_tensorflow(module, tmp_path / "m")
        x = tf.constant([1.0, 2.0])
        np.testing.assert_array_equal(loaded.f(x), [4.0, 8.0])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = loaded.f(x)
            with pytest.raises(tf.errors.InvalidArgumentError, match="without a gradient"):
                tape.gradient(y, x)

    def test_an_exported_with_fewer_orders(self, exported, tmp_path):
        once = jax.export.deserialize(exported.serialize(vjp_order=1))
        loaded = save_by_tensorflow(Converted(once, gradient_order=2), tmp_path / "m")
        x = tf.constant(X)
        for order in (1, 2):
            expected = jax_nested(lambda x: network(PARAMS, x)["y"], order)(X)
            found = tf_nested(lambda: loaded(x)["y"], x, order)
            np.testing.assert_allclose(found, tf.reduce_sum(expected), rtol=RTOL)

    def test_a_training_step_with_a_gradient_in_it(self, exported, tmp_path):
        module = Converted(exported)

        @tf.function(input_signature=[tf.TensorSpec([None, 3])], autograph=False)
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(module(x)["y"])
            return tape.gradient(loss, module.params["w"])

        module.step = step
        loaded = save_by_tensorflow(module, tmp_path / "m")
        expected = jax.grad(lambda w: network({"w": w}, X)["y"].sum())(PARAMS["w"])
        np.testing.assert_allclose(loaded.step(X), expected, rtol=RTOL)

    def test_an_order_below_one(self, exported):
        with pytest.raises(bridge.InteropError, match=r"gradient_order is 0.*with_gradient=False"):
            bridge.convert(exported, gradient_order=0)


def test_residuals_that_the_forward_pass_hands_on(exported):
    """In a function the backward pass has none of the forward pass's operations."""
    converted = bridge.convert(exported, residuals=True)

    @tf.function(autograph=False)
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = converted(PARAMS, x)["y"]
        return tape.gradient(y, x)

    graph = gradient.get_concrete_function(tf.TensorSpec([4, 3])).graph.as_graph_def()
    nodes = [n for f in graph.library.function for n in f.node_def] + [*graph.node]
    calls = [decode_node(node) for node in nodes if node.op == "XlaCallModule"]
    handed = {(call.residual_results, call.residual_args) for call in calls}
    assert {(1, 0), (0, 1)} <= handed
    expected = jax.grad(lambda x: network(PARAMS, x)["y"].sum())(X)
    np.testing.assert_allclose(gradient(tf.constant(X)), expected, rtol=RTOL)


def test_residuals_in_a_file(exported, tmp_path):
    bridge.save(exported, tmp_path / "m", params=PARAMS, residuals=True)
    forward, backward = savedmodel.read(tmp_path / "m").default.function.chain
    assert forward.residual_results == backward.residual_args == 1
    assert len(forward.own_results) == 2


@pytest.mark.parametrize("residuals", [False, True])
@pytest.mark.parametrize(
    ("upstream", "found"),
    [
        (tf.ones([5, 2]), r"float32 of shape \(5, 2\)"),
        (tf.ones([4]), r"float32 of shape \(4,\)"),
        (tf.ones([4, 2], tf.float64), r"float64 of shape \(4, 2\)"),
    ],
)
def test_an_upstream_gradient_that_is_not_like_the_result(exported, residuals, upstream, found):
    converted = bridge.convert(exported, residuals=residuals)
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = converted(PARAMS, x)["y"]
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=rf"upstream gradient of result\['y'\] of network is {found}; expected float32 of "
        r"shape \(4, 2\), .*To do: pass output_gradients",
    ):
        tape.gradient(y, x, upstream)


@pytest.mark.parametrize("residuals", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_gradient_that_needs_sizes_as_numbers(residuals, compiled, tmp_path):
    """JAX multiplies halves of halves, and knows no half of a symbol; it runs without."""
    exported = jax.export.export(jax.jit(jnp.prod))(
        jax.ShapeDtypeStruct(jax.export.symbolic_shape("b"), np.float32)
    )
    product = bridge.convert(exported, residuals=residuals)
    run = tf.function(product, jit_compile=compiled, autograph=False)
    x = tf.constant([2.0, 3.0])
    assert float(run(x)) == 6
    with tf.GradientTape() as tape:
        tape.watch(x)
        result = product(x)
    why = "The gradient of .*prod needs a symbolic size as a number"
    with pytest.raises(StructureError, match=why):
        tape.gradient(result, x)
    with pytest.raises(StructureError, match=why):
        bridge.save_onnx(exported, tmp_path / "m.onnx", gradient_order=1)
    with pytest.warns(UserWarning, match=f"saved without a gradient.*{why}"):
        bridge.save(exported, tmp_path / "m", gradient_order=1, residuals=residuals)
    assert float(tf.saved_model.load(str(tmp_path / "m"))(x)) == 6


@pytest.mark.parametrize("compiled", [False, True])
def test_residuals_of_what_has_no_gradient(compiled):
    """It runs, and the error comes where the gradient is taken."""
    halve = bridge.convert(
        lambda x: jax.lax.while_loop(lambda c: c > 1, lambda c: c * 0.5, x), residuals=True
    )
    run = tf.function(halve, jit_compile=compiled, autograph=False)
    x = tf.constant(5.0)
    assert float(run(x)) == 0.625
    with tf.GradientTape() as tape:
        tape.watch(x)
        result = halve(x)
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
        tape.gradient(result, x)
