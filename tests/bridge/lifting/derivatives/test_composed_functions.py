"""Functions whose derivative their operations do not say: lifted, it is that of JAX's function."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import enable_x64, export, lax, nn
from jax.scipy import special

import bridge
from bridge.lifting.derivatives import own_lowerings
from tests.bridge.lifting.lifted import assert_same, lift, names, symbolic

_POINTS = jnp.array([
    0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, 1e-30, -1e-30, 1e30, -1e30, 0.5, -0.5, 2.0, -3.0, np.nan,
    3.0, 6.0, -6.0, 8.0, -8.0, 100.0, -100.0,
])  # fmt: skip


def _thrice(x):
    for _ in range(3):
        x = lax.erfc(x)
    return x


# Parts of results, compositions, and what has arguments that are numbers.
_UNARY = {
    "erfc three times": _thrice,
    "erfc, inner one first": lambda x: lax.erfc(lax.erfc(x)),
    "logsumexp": lambda x: nn.logsumexp(x) * x,
    "poisson": lambda x: jax.scipy.stats.poisson.logpmf(x, 2.5),
    "chooses nothing": lambda x: lax.select(x == 1.0, x * 2, x * 2),
    "fresnel sine": lambda x: special.fresnel(x)[0],
    "hyp1f1": lambda x: special.hyp1f1(1.5, 2.5, x),
    "hyp2f1": lambda x: special.hyp2f1(1.5, 2.5, 1.0, x),
    "polygamma": lambda x: special.polygamma(2, x),
    "wofz": lambda x: special.wofz(x.astype(jnp.complex64)).real,
}  # fmt: skip
_IN_THIS_JAX = {n: f for n, f in _UNARY.items() if n not in ("fresnel sine", "wofz")
    or hasattr(special, n.split()[0])}  # fmt: skip
_OF_ANY_SIZE = [
    *(getattr(special, name)
      for name in ["entr", "erfcx", "exp1", "expi", "i0", "i0e", "log_ndtr", "logit", "ndtri"]
      if hasattr(special, name)),
    nn.relu, nn.relu6, nn.softplus,
]  # fmt: skip


def _derivatives(function, *arguments):
    """Both modes, by each argument."""

    def compute(*given):
        made = []
        for place in range(len(given)):
            of_one = lambda value, n=place: function(*given[:n], value, *given[n + 1 :])  # noqa: E731
            made.append(jax.jvp(of_one, (given[place],), (jnp.ones_like(given[place]),))[1])
            made.append(jax.grad(lambda v, f=of_one: f(v).sum())(given[place]))
        return made

    return jax.jit(compute)(*arguments)


def _check_derivatives(lifted, function, *arguments):
    found, expected = (_derivatives(f, *arguments) for f in (lifted, function))
    assert_same(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", _IN_THIS_JAX)
def test_derivatives_at_edges(name):
    _check_derivatives(lift(_UNARY[name], _POINTS), _UNARY[name], _POINTS)


@pytest.mark.parametrize("function", _OF_ANY_SIZE)
def test_derivatives_of_arrays_of_any_size_and_of_numbers(function):
    lifted = lift(function, symbolic("b"))
    _check_derivatives(lifted, function, _POINTS)
    lifted = lift(function, jnp.float32(1))
    for value in (0.0, 1.0, np.inf):
        _check_derivatives(lifted, function, jnp.float32(value))


@pytest.mark.parametrize("shape", [None, "n"])
def test_derivatives_of_what_is_exported_itself(shape, tmp_path):
    """The module has the name of the function, and no other function in it has."""
    arguments = [_POINTS, _POINTS[::-1]]
    exported = export.export(jnp.hypot, platforms=["cpu", "tpu"])(
        *export.symbolic_args_specs(arguments, shape)
    )
    _check_derivatives(bridge.to_jax(exported), jnp.hypot, *arguments)
    loaded = bridge.load(bridge.save(exported, tmp_path / "itself", gradient_order=0).path)
    _check_derivatives(loaded, jnp.hypot, *arguments)


@pytest.mark.parametrize("name", ["gammainc", "gammaincc", "poch", "zeta", "betainc"])
def test_derivatives_of_functions_with_loops_of_any_size(name):
    """Loops of an unknown number of steps have no derivative backwards of their own."""
    function = getattr(special, name)
    if name == "betainc":
        function = lambda x, y: special.betainc(3.0, 2.0, y) * x  # noqa: E731
    x, y = jnp.array([1.5, 0.7, 3.0]), jnp.array([0.9, 0.2, 0.6])
    lifted = lift(function, *[symbolic("b")] * 2)
    for transform in (lambda f: jax.jvp(f, (x, y), (x, y)), lambda f: jax.vjp(f, x, y)[1](x)):
        assert_same(
            *(jax.jit(lambda f=f, t=transform: t(f))() for f in (lifted, function)), rtol=1e-5
        )


_AT_ONE_PLACE = {
    "bessel_i0e": (2.5, 3.0, 30.0), "bessel_i1e": (2.5, 0.0, 30.0), "digamma": (2.5, 3.0, 30.0),
    "erf_inv": (0.5, 0.0, -0.75), "erfc": (-2.5, 0.0, 30.0), "lgamma": (2.5, 3.0, 30.0),
}  # fmt: skip


@pytest.mark.parametrize("size", ["3", "b"])
@pytest.mark.parametrize("name", _AT_ONE_PLACE)
def test_calls_from_one_place_have_their_derivatives(name, size):
    """Calls from one line are lowered to other operations each."""

    def function(x):
        half = jnp.float32(0.5)
        several = (x, half, x.astype("float16"), half, x[None], x[0], x.astype("bfloat16"), x * 0.5)
        called = [getattr(lax, name)(each) for each in several]
        return sum(each.astype(x.dtype).sum() for each in called)

    x = jnp.array(_AT_ONE_PLACE[name], jnp.float32)
    found = (jax.jit(jax.grad(f))(x) for f in (lift(function, symbolic(size)), function))
    assert_same(*found, rtol=2e-3)  # those of bfloat16 are in the sum


def _powers(x, n):
    """Return powers whose exponents are integers that a call has, an array of them or in a loop."""
    several = x[:, None] ** jnp.arange(4, dtype=n.dtype)
    looped = lax.fori_loop(0, 3, lambda i, total: total + x**i, jnp.zeros_like(x))
    return several.sum() + looped.sum() + (x[None] ** n[:, None]).sum() + (x ** n[1]).sum()


@pytest.mark.parametrize(
    ("dtype", "exponents", "size"),
    [("float32", "int32", "b"), ("bfloat16", "uint8", "2"), ("complex64", "int8", "2")],
)
def test_powers_of_integers_have_a_derivative_at_zero(dtype, exponents, size):
    x, n = jnp.array([0, 2], dtype), jnp.array([2, 0, 1], exponents)
    lifted = lift(_powers, symbolic(size, dtype), n)
    np.testing.assert_allclose(*(np.asarray(f(x, n), np.complex64) for f in (lifted, _powers)))
    is_complex = dtype == "complex64"
    derivatives = [
        lambda f: jax.grad(f, holomorphic=is_complex)(x, n),
        lambda f: jax.jvp(lambda x: f(x, n), (x,), (jnp.ones_like(x),))[1],
        lambda f: jax.jvp(jax.grad(lambda x: f(x, n), holomorphic=is_complex), (x,), (x,))[1],
    ]
    for derivative in derivatives:  # the second one is NaN at 0 in JAX, too
        found, expected = (np.asarray(derivative(f), np.complex64) for f in (lifted, _powers))
        assert np.isfinite(expected).all() or derivative is derivatives[-1]
        np.testing.assert_allclose(found, expected, rtol=1e-2 if dtype == "bfloat16" else 1e-5)


def test_a_file_without_gradients_has_those_in_a_tape(tmp_path):
    """Its derivatives are those of the lifted function, which `save` makes of an `Exported`."""

    def function(x):
        inverse = [lax.erf_inv(each) for each in (x, jnp.float32(0.3), x.astype(jnp.float16))]
        return sum(each.astype(x.dtype).sum() for each in inverse) + _powers(x, jnp.arange(3))

    x = np.array([0.0, 0.5], np.float32)
    alone = export.deserialize(export.export(jax.jit(function))(x).serialize())
    loaded = tf.saved_model.load(bridge.save(alone, tmp_path / "m").path)
    variable = tf.Variable(x)
    with tf.GradientTape() as tape:
        (result,) = loaded.signatures["serving_default"](x=variable).values()
    np.testing.assert_allclose(tape.gradient(result, variable), jax.grad(function)(x), rtol=1e-3)
    tangent = jax.jvp(bridge.load(tmp_path / "m"), (x,), (np.ones_like(x),))[1]
    np.testing.assert_allclose(tangent, jax.grad(function)(x).sum(), rtol=1e-3)


def test_a_name_alone_says_nothing():
    @jax.jit
    def relu(x):
        return jnp.maximum(x, 0) * 3

    @jax.jit
    def erfc(x):
        return jnp.tanh(x) + 1

    def function(x):
        with jax.named_scope("lgamma"):
            return relu(x) + erfc(x)

    x = jnp.array([0.0, 0.5, -1.0])
    assert_same(*(jax.grad(lambda x, f=f: f(x).sum())(x) for f in (lift(function, x), function)))


def test_products_in_another_order_stay():
    x = jnp.array([0.37, 1.1, -7.3])
    assert "integer_pow" not in names(lift(lambda x: 1 / (((x * x) * x) * x), x), x)


def test_what_looks_like_another_function_is_none():
    """The sum of two numbers, but for NaN: the branches of `logaddexp` the other way round."""

    def function(x, y):
        delta = x - y
        usual = jnp.maximum(x, y) + jnp.log1p(jnp.exp(-jnp.abs(delta)))
        return lax.select(lax.eq(delta, delta), x + y, usual)

    x, y = jnp.array([0.5, -1.0]), jnp.array([0.25, 2.0])
    np.testing.assert_array_equal(lift(function, x, y)(x, y), x + y)


@pytest.mark.parametrize(
    ("first", "second"), [([0, 1 + 1j, -1, 2 - 0.5j], [3j, 0, 0, 1 + 1j]), ([0, 1 + 1j], 0)]
)
@pytest.mark.parametrize("function", [special.xlog1py, special.xlogy])
def test_derivatives_of_complex_numbers_at_zero(function, first, second):
    given = tuple(jnp.asarray(each, jnp.complex64) for each in (first, second))
    zeros = tuple(map(jnp.zeros_like, given))
    for pushed in ((given[0] + 1, zeros[1]), (zeros[0], given[1] + 2j)):
        found = (jax.jvp(f, given, pushed) for f in (lift(function, *given), function))
        assert_same(*found, rtol=1e-4, atol=1e-6)


def test_what_is_known_does_not_depend_on_how_jax_is_set():
    x = jnp.array([0.3, 0.5, 0.7])
    exported = export.export(jax.jit(lambda x: jax.random.gamma(jax.random.key(0), x)))(x)
    expected = jax.jit(exported.call)(x)
    lifted = bridge.to_jax(exported)
    own_lowerings._own_graph.cache_clear()
    with jax.disable_jit():
        lifted(x)
    assert "random_gamma" in str(jax.make_jaxpr(lifted)(x))
    with jax.threefry_partitionable(not jax.config.jax_threefry_partitionable):
        np.testing.assert_allclose(jax.jit(bridge.to_jax(exported))(x), expected, rtol=1e-6)


@pytest.mark.parametrize(("order", "x64"), [("float32", True), ("float16", False)])
@pytest.mark.parametrize("draw", [jax.random.gamma, jax.random.loggamma])
def test_random_gamma_is_known_where_it_is_wider_than_its_order(draw, order, x64):
    with enable_x64(x64):
        a = jnp.array([0.3, 0.5, 2.0], order)
        function = lambda a: draw(jax.random.key(0), a)  # noqa: E731
        found, expected = (jax.vjp(f, a)[1](jnp.ones(3)) for f in (lift(function, a), function))
        assert_same(found, expected)


@pytest.mark.parametrize("shape", [None, "n"])
@pytest.mark.parametrize("function", [lax.abs, lax.exp, lax.square])
def test_derivatives_of_complex_numbers_where_a_case_ends(function, shape):
    """A square of parts of one size is a case of its own, and so is the size of 0."""
    x = jnp.array([0, 3 - 3j, 2 + 2j, -1j, 1, 88.8 + 1j], jnp.complex64)
    lifted = lift(function, x if shape is None else symbolic(shape, jnp.complex64))
    found, expected = (jax.vjp(f, x) for f in (lifted, function))
    weights = jnp.arange(1.0, 7.0).astype(expected[0].dtype)
    assert_same(found[0], expected[0], rtol=1e-6)
    assert_same(found[1](weights), expected[1](weights), rtol=1e-6)
