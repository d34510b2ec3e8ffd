"""`bridge.load`: every transformation of JAX, of the saved VJPs and of the lifted function."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import bridge
from bridge.lifting.lifting_table import JAX_TABLE
from xla_call_module.errors import ArgumentError, StructureError, UnsupportedError

W = np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2)
X = np.linspace(0, 1, 12, dtype=np.float32).reshape(4, 3)
N = np.arange(4, dtype=np.int32)
PARAMS = {"b": np.ones(2, np.float32), "w": W}
KEY = jax.random.key(3)


def network(params, x, n, key):
    """Integers and keys come, integers go."""
    noise = jax.random.uniform(key, (2,))
    y = jnp.tanh(x @ params["w"] + params["b"] * noise) * n[:, None]
    y, _ = lax.scan(lambda y, _: (jnp.sin(y), None), y, None, length=2)
    return {"n": n + 1, "y": y}


@jax.custom_vjp
def clipped(x):
    """A function whose author knows better: its gradient is ten times what it would be."""
    return jnp.sin(x)


clipped.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (10 * ct * jnp.cos(x),))


def save(function, path, *args, order):
    bridge.save(export.export(jax.jit(function))(*args), path, gradient_order=order)
    return bridge.load(path)


@pytest.fixture(scope="module", params=[0, 1])
def signature(request, tmp_path_factory):
    """The network without gradients, and with those of one order."""
    path = tmp_path_factory.mktemp("model") / "m"
    (b,) = export.symbolic_shape("b")
    specs = jax.ShapeDtypeStruct((b, 3), np.float32), jax.ShapeDtypeStruct((b,), np.int32)
    exported = export.export(jax.jit(network))(PARAMS, *specs, KEY)
    bridge.save(exported, path, params=PARAMS, gradient_order=request.param)
    return bridge.load(path).default


def of_params_and_x(call):
    return lambda params, x: call(params, x, N, KEY)["y"]


def loss(call):
    return lambda params, x: (of_params_and_x(call)(params, x) ** 2).sum()


def in_a_scan(function):
    def run(params, x):
        step = lambda total, scale: (total + loss(function)(params, x * scale), None)  # noqa: E731
        return lax.scan(step, 0.0, jnp.arange(3.0))[0]

    return jax.grad(run, argnums=(0, 1))


def of_a_batch(function):
    """The gradient of a mean over a batch, for parameters that the batch shares."""
    mapped = jax.vmap(loss(function), (None, 0))
    return jax.grad(lambda params, x: mapped(params, jnp.stack([x, x + 1])).mean(), argnums=(0, 1))


def pushed_forward(function):
    return lambda params, x: jax.jvp(
        of_params_and_x(function), (params, x), jax.tree.map(jnp.ones_like, (params, x))
    )


def linearized(function):
    def run(params, x):
        _, push = jax.linearize(of_params_and_x(function), params, x)
        directions = jax.tree.map(jnp.ones_like, (params, x))
        return push(*directions), jax.linear_transpose(push, *directions)(jnp.ones((4, 2)))

    return run


def along_a_direction(function):
    """A gradient of a derivative in forward mode."""
    return jax.grad(
        lambda params, x: jax.jvp(lambda x: loss(function)(params, x), (x,), (x,))[1] ** 2
    )


def transposed(function):
    """The derivative of a VJP with respect to its cotangent, back again."""

    def run(params, x):
        _, pull = jax.vjp(lambda x: of_params_and_x(function)(params, x), x)
        return jax.linear_transpose(pull, jnp.ones((4, 2)))((x,))

    return run


TRANSFORMATIONS = {
    "along_a_direction": along_a_direction,
    "checkpoint": lambda f: jax.grad(jax.checkpoint(loss(f)), argnums=(0, 1)),
    "forward_over_reverse": lambda f: jax.hessian(loss(f), argnums=1),
    "grad": lambda f: jax.grad(loss(f), argnums=(0, 1)),
    "in_a_scan": in_a_scan,
    "jacfwd": lambda f: jax.jacfwd(of_params_and_x(f), argnums=(0, 1)),
    "jacrev": lambda f: jax.jacrev(of_params_and_x(f), argnums=(0, 1)),
    "linearized": linearized,
    "of_a_batch": of_a_batch,
    "pushed_forward": pushed_forward,
    "reverse_over_forward": lambda f: jax.jacrev(jax.jacfwd(loss(f), argnums=1)),
    "third_order": lambda f: jax.jacrev(
        lambda p, x: jax.grad(lambda x: jax.grad(loss(f), argnums=1)(p, x).sum())(x)
    ),
    "transposed": transposed,
    "twice_forward": lambda f: jax.jacfwd(jax.jacfwd(loss(f), argnums=1)),
    "vmap_of_grad": lambda f: lambda p, x: jax.vmap(jax.grad(loss(f), argnums=(0, 1)), (None, 0))(
        p, jnp.stack([x, x + 1])
    ),
    "vmap_of_vmap": lambda f: lambda p, x: jax.vmap(
        jax.vmap(of_params_and_x(f), (None, 0), 1), (0, None)
    )(jax.tree.map(lambda w: jnp.stack([w, -w]), p), jnp.stack([x, x + 1, -x])),
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_as_of_the_original(signature, name):
    transform = TRANSFORMATIONS[name]
    found = jax.jit(transform(signature.exported.call))(PARAMS, X)
    expected = jax.jit(transform(network))(PARAMS, X)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5), found, expected
    )


def test_eagerly_and_by_the_signature(signature):
    function = lambda x: signature(x, N, KEY)["y"]  # noqa: E731
    original = lambda x: network(PARAMS, x, N, KEY)["y"]  # noqa: E731
    for one, other in (
        (function, original),
        (jax.grad(lambda x: function(x).sum()), jax.grad(lambda x: original(x).sum())),
    ):
        found = jax.jvp(one, (X,), (X,))
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
            found, jax.jvp(other, (X,), (X,)),
        )  # fmt: skip


def test_integers_and_keys_are_batched(signature):
    many = jnp.stack([N, 2 * N])
    found = jax.vmap(signature, (None, 0, None))(X, many, KEY)
    np.testing.assert_array_equal(found["n"], many + 1)
    keys = jax.random.split(KEY, 3)
    found = jax.vmap(signature, (None, None, 0))(X, N, keys)["y"]
    expected = jax.vmap(lambda key: network(PARAMS, X, N, key)["y"])(keys)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_call_is_bit_equal_in_every_mode(signature):
    value = signature(X, N, KEY)["y"].sum()
    function = lambda x: signature(x, N, KEY)["y"].sum()  # noqa: E731
    assert jax.value_and_grad(function)(X)[0] == value
    assert jax.jvp(function, (X,), (X,))[0] == value


def test_a_batch_is_one_program(signature):
    count = signature.exported.mlir_module().count("stablehlo.while")
    mapped = jax.vmap(signature, (0, None, None))
    lowered = jax.jit(mapped).lower(np.stack([X] * 5), N, KEY).as_text()
    assert lowered.count("stablehlo.while") <= count
    assert "5x4x2" in lowered


class TestSources:
    """The VJPs of the author come first."""

    def test_they_are_told(self, signature):
        first = "saved" if signature.exported.has_vjp() else "lifted"
        assert [signature.gradient_source(order) for order in (1, 2)] == [first, "lifted"]

    @pytest.mark.parametrize(("order", "factor"), [(1, 10), (0, 1)])
    def test_a_custom_vjp(self, tmp_path, order, factor):
        model = save(clipped, tmp_path / "m", np.float32(0), order=order)
        x = np.float32(0.5)
        batch = np.array([0.5, 1], np.float32)
        assert model.default.gradient_source() == ("saved" if order else "lifted")
        np.testing.assert_allclose(jax.grad(model)(x), factor * np.cos(x), rtol=1e-6)
        found = jax.grad(lambda x: jax.vmap(model)(x).sum())(batch)
        np.testing.assert_allclose(found, factor * np.cos(batch), rtol=1e-6)
        found = jax.vmap(jax.grad(model))(batch)
        np.testing.assert_allclose(found, factor * np.cos(batch), rtol=1e-6)
        # JAX has no custom VJP in forward mode.
        np.testing.assert_allclose(jax.jvp(model, (x,), (x,))[1], x * np.cos(x), rtol=1e-6)
        found = jax.grad(jax.grad(model))(x)
        np.testing.assert_allclose(found, -factor * np.sin(x), rtol=1e-6)

    def test_what_has_none(self, tmp_path):
        model = save(lambda n: n * 2, tmp_path / "m", N, order=1)
        with pytest.raises(StructureError, match=r"no gradient of order 1: all arguments or all"):
            model.default.gradient_source()

    @pytest.mark.parametrize("order", [0, -1, True, "1"])
    def test_no_order(self, signature, order):
        with pytest.raises(ArgumentError, match="expected a whole number from 1 on"):
            signature.gradient_source(order)

    def test_a_loop_has_no_reverse_mode(self, tmp_path):
        loop = lambda x: lax.while_loop(lambda x: x < 9, lambda x: x * 2, x)  # noqa: E731
        with pytest.warns(UserWarning, match="without a gradient"):
            model = save(loop, tmp_path / "m", np.float32(0), order=1)
        x = np.float32(1)
        assert jax.jvp(model, (x,), (x,)) == (16, 16)
        match = r"gradients up to order 0, and its operations do not yield order 1.*[Rr]everse-mode"
        with pytest.raises(StructureError, match=match):
            jax.grad(model)(x)
        with pytest.raises(StructureError, match=match):
            model.default.gradient_source()


class TestWithoutLifting:
    """What cannot be lifted runs as it is, with what was saved."""

    @pytest.fixture
    def model(self, tmp_path, monkeypatch):
        monkeypatch.delitem(JAX_TABLE.rules, "stablehlo.tanh")
        return save(lambda x: (jnp.tanh(x), x > 0), tmp_path / "m", X, order=1)

    def test_a_batch(self, model):
        many = np.stack([X, -X])
        found, _ = jax.vmap(model)(many)
        np.testing.assert_allclose(found, np.tanh(many), rtol=1e-6)
        found = jax.vmap(jax.grad(lambda x: model(x)[0].sum()))(many)
        np.testing.assert_allclose(found, 1 - np.tanh(many) ** 2, rtol=1e-4, atol=1e-6)
        found = jax.grad(lambda x: jax.vmap(model)(x)[0].sum())(many)
        np.testing.assert_allclose(found, 1 - np.tanh(many) ** 2, rtol=1e-4, atol=1e-6)

    def test_forward_mode(self, model):
        match = r"no derivative in forward mode.*tanh.*in reverse mode, by jax\.grad"
        with pytest.raises(UnsupportedError, match=match):
            jax.jvp(lambda x: model(x)[0], (X,), (X,))

    def test_an_order_that_was_not_saved(self, model):
        loss = lambda x: model(x)[0].sum()  # noqa: E731
        match = r"up to order 1, .* do not yield order 2.*tanh.*gradient_order=2 or more"
        with pytest.raises(StructureError, match=match):
            jax.grad(lambda x: jax.grad(loss)(x).sum())(X)
        with pytest.raises(StructureError, match=match):
            model.default.gradient_source(2)
        assert model.default.gradient_source(1) == "saved"
