"""Derivatives at the edges of functions of JAX: lifted they are 0, infinite or NaN alike."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import enable_x64, export, lax, nn
from jax.extend.core import primitives
from jax.interpreters import ad
from jax.scipy import special

import bridge
from bridge.lifting.derivatives import own_lowerings

_POINTS = (
    0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, 1e-30, -1e-30, 1e30, -1e30, 0.5, -0.5, 2.0, -3.0, np.nan,
    3.0, 6.0, -6.0, 8.0, -8.0, 100.0, -100.0,
)  # fmt: skip
_GRID = [
    part.reshape(-1)
    for part in np.meshgrid(
        *[[0.0, 1.0, -1.0, np.inf, -np.inf, 1e-30, 1e30, 0.5, -2.0, np.nan]] * 2
    )
]


def _branches(x):
    """Each element takes a branch of its own, and has a derivative of that alone."""
    return jax.vmap(lambda x: lax.cond(x > 0, lambda x: jnp.log(x) * 2, lambda x: x, x))(x)


def _switches(x):
    branches = (jnp.sqrt, jnp.log, jnp.reciprocal)
    return jax.vmap(lambda x: lax.switch(x.astype(jnp.int32), branches, x))(x)


def _chooses_nothing(x):
    y = x * 2
    return lax.select(x == 1.0, y, y) + lax.select(x == 0.0, y, y)


# With arguments that are numbers, or several results.
_OF_SPECIAL = {
    "fresnel": lambda x: special.fresnel(x)[0] * special.fresnel(x)[1],
    "fresnel sine": lambda x: special.fresnel(x)[0],
    "hyp1f1": lambda x: special.hyp1f1(1.5, 2.5, x),
    "hyp2f1": lambda x: special.hyp2f1(1.5, 2.5, 1.0, x),
    "polygamma": lambda x: special.polygamma(2, x),
    "sici": lambda x: sum(special.sici(x)),
    "sici cosine": lambda x: special.sici(x)[1],
    "sici sine": lambda x: special.sici(x)[0],
    "wofz": lambda x: special.wofz(x.astype(jnp.complex64)).real,
}
_UNARY = {
    **{
        name: function
        for name, function in _OF_SPECIAL.items()
        if hasattr(special, name.split()[0])
    },
    **{
        f"{library.__name__}.{name}": function
        for library, names in (
            (special, "entr erfcinv erfcx exp1 expi gammaln i0 i0e i1 i1e"),
            (special, "log_ndtr logit ndtri spence"),
            (nn, "celu elu gelu hard_sigmoid hard_silu log1mexp log_sigmoid log_softmax mish relu"),
            (nn, "relu6 selu sigmoid silu softmax softplus squareplus"),
            (jnp, "arccosh arcsin cbrt i0 sinc sqrt tanh"),
            (lax, "one_minus_square"),
        )
        for name in names.split()
        if (function := getattr(library, name, None)) is not None
    },
    "branches": _branches,
    "chooses nothing": _chooses_nothing,
    "switches": _switches,
}
_BINARY = {
    **{f"special.{n}": getattr(special, n) for n in ("kl_div", "rel_entr", "xlog1py", "xlogy")},
    **{f"jnp.{n}": getattr(jnp, n) for n in ("arctan2", "hypot", "logaddexp", "logaddexp2")},
    **({"lax.nextafter": lax.nextafter} if primitives.nextafter_p in ad.primitive_jvps else {}),
}
_CASES = [(name, 1) for name in _UNARY] + [(name, 2) for name in _BINARY]


def _derivatives(function, count):
    """Both modes, by each argument."""

    def compute(*arguments):
        made = []
        for place in range(count):

            def of_one(value, place=place):
                given = list(arguments)
                given[place] = value
                return function(*given)

            value = arguments[place]
            made.append(jax.jvp(of_one, (value,), (jnp.ones_like(value),))[1])
            made.append(jax.grad(lambda value, of_one=of_one: of_one(value).sum())(value))
        return made

    return jax.jit(compute)


def _arguments(count):
    points = [_POINTS] if count == 1 else _GRID
    return [jnp.asarray(part, jnp.float32) for part in points]


def _check_derivatives(lifted, function, count):
    found, expected = (_derivatives(f, count)(*_arguments(count)) for f in (lifted, function))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "count"),
    _CASES,
)
def test_derivatives_at_edges(name, count):
    function = (_UNARY if count == 1 else _BINARY)[name]
    exported = export.export(jax.jit(lambda *given: function(*given)))(*_arguments(count))
    _check_derivatives(bridge.to_jax(exported), function, count)


@pytest.mark.parametrize(("name", "count"), [("jax.numpy.sinc", 1), ("jnp.hypot", 2)])
@pytest.mark.parametrize("shape", [None, "n"])
def test_derivatives_at_edges_of_what_is_exported_itself(name, count, shape, tmp_path):
    """The module has the name of the function, and no other function in it has."""
    function = (_UNARY if count == 1 else _BINARY)[name]
    arguments = _arguments(count)
    specs = export.symbolic_args_specs(arguments, shape)
    exported = export.export(function, platforms=["cpu", "tpu"])(*specs)
    _check_derivatives(bridge.to_jax(exported), function, count)
    loaded = bridge.load(bridge.save(exported, tmp_path / "itself", gradient_order=0).path)
    _check_derivatives(loaded, function, count)


_OF_TWO = {
    **{name: function for name, function in _BINARY.items() if "nextafter" not in name},
    **({"special.owens_t": special.owens_t} if hasattr(special, "owens_t") else {}),
}
_VECTOR = np.asarray(_POINTS, np.float32)
_COLUMN = _VECTOR[:, None]


@pytest.mark.parametrize(
    ("first", "second"),
    [(_VECTOR, 2.0), (0.0, _VECTOR), (_VECTOR, _COLUMN)],
    ids=["a scalar", "a scalar first", "vector and column"],
)
@pytest.mark.parametrize("name", _OF_TWO)
def test_derivatives_of_arguments_that_are_broadcast(name, first, second):
    function = _OF_TWO[name]
    given = tuple(jnp.asarray(each, jnp.float32) for each in (first, second))
    lifted = bridge.to_jax(export.export(jax.jit(lambda *given: function(*given)))(*given))
    found, expected = (_derivatives(f, 2)(*given) for f in (lifted, function))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["logpmf of poisson", *_OF_TWO])
def test_derivatives_where_an_argument_is_a_number(name):
    function = _OF_TWO.get(name, jax.scipy.stats.poisson.logpmf)
    x = jnp.asarray(_POINTS, jnp.float32)
    lifted = bridge.to_jax(export.export(jax.jit(lambda x: function(x, 2.5)))(x))
    found, expected = (_derivatives(f, 1)(x) for f in (lifted, lambda x: function(x, 2.5)))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


_COMPLEX = np.array([0, 1 + 1j, -1, 2 - 0.5j, 3j], np.complex64)
_COMPLEX_GRID = tuple(part.reshape(-1) for part in np.meshgrid(_COMPLEX, _COMPLEX))


@pytest.mark.parametrize(
    ("first", "second"),
    [_COMPLEX_GRID, (_COMPLEX, 2.0), (0.0, _COMPLEX), (_COMPLEX, _COMPLEX[:, None])],
    ids=["two arrays", "a scalar", "a scalar first", "vector and column"],
)
@pytest.mark.parametrize("name", ["xlog1py", "xlogy"])
def test_derivatives_of_complex_numbers_at_zero(name, first, second):
    function = getattr(special, name)
    given = tuple(jnp.asarray(each, jnp.complex64) for each in (first, second))
    lifted = bridge.to_jax(export.export(jax.jit(lambda *given: function(*given)))(*given))
    tangents = tuple(jnp.full_like(each, 1 + 2j) for each in given)
    zeros = tuple(map(jnp.zeros_like, given))
    for pushed in ((tangents[0], zeros[1]), (zeros[0], tangents[1])):
        found, expected = (jax.jvp(f, given, pushed) for f in (lifted, function))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(not hasattr(special, "owens_t"), reason="this JAX has no owens_t")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: special.owens_t(x, jnp.asarray(0.5, x.dtype)),
        lambda x: special.owens_t(jnp.asarray(0.5, x.dtype), x),
        lambda x: special.owens_t(x, x),
    ],
    ids=["height", "slope", "both"],
)
def test_derivatives_of_narrow_floats_that_are_computed_in_wider_ones(function, dtype):
    largest = float(jnp.finfo(dtype).max)
    x = jnp.asarray([0.0, 1.0, -1.5, largest, -largest, np.inf, -np.inf, np.nan], dtype)
    lifted = bridge.to_jax(export.export(jax.jit(lambda x: function(x)))(x))
    found, expected = (_derivatives(f, 1)(x) for f in (lifted, function))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(*map(np.float32, (one, other)), rtol=float(jnp.finfo(dtype).eps))


_OF_MATRICES = {
    "det": jnp.linalg.det,
    "logabsdet": lambda matrix: jnp.linalg.slogdet(matrix)[1],
    "pinv": jnp.linalg.pinv,
    "pinv of a tolerance": lambda matrix: jnp.linalg.pinv(matrix, 0.1),
    "pinv of a symmetric matrix": lambda matrix: jnp.linalg.pinv(matrix, hermitian=True),
    "slogdet by QR": lambda matrix: jnp.linalg.slogdet(matrix, method="qr")[1],
}


@pytest.mark.parametrize("name", _OF_MATRICES)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_derivatives_at_matrices_that_are_zero_or_nan(name, size):
    function = _OF_MATRICES[name]
    matrices = jnp.stack([jnp.full((size, size), n, np.float32) for n in (0.0, 1.0, np.nan)])
    lifted = bridge.to_jax(export.export(jax.jit(lambda x: function(x)))(matrices))
    found, expected = (_derivatives(f, 1)(matrices) for f in (lifted, function))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("part", [slice(0, 1), slice(0, 2)], ids=["mantissa", "both"])
def test_the_mantissa_has_its_derivative(part):
    x = jnp.asarray(_POINTS, jnp.float32)

    def compute(x):
        return sum(each.astype(x.dtype) for each in jnp.frexp(x)[part])

    lifted = bridge.to_jax(export.export(jax.jit(compute))(x))
    found, expected = (_derivatives(f, 1)(x) for f in (lifted, compute))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("function", "shape"),
    [(special.i0e, ""), (special.logit, ""), (special.logit, "b"), (special.entr, "")],
)
def test_scalars_and_symbolic_sizes(function, shape):
    spec = jax.ShapeDtypeStruct(export.symbolic_shape(shape), np.float32)
    lifted = bridge.to_jax(export.export(jax.jit(lambda x: function(x)))(spec))
    for value in (0.0, 1.0, np.inf):
        x = jnp.full((3,) if shape else (), value, np.float32)
        np.testing.assert_allclose(lifted(x), function(x), rtol=1e-6)
        found, expected = (jax.grad(lambda x, f=f: f(x).sum())(x) for f in (lifted, function))
        np.testing.assert_allclose(found, expected, rtol=1e-4)


_OF_ANY_SIZE = [
    *(
        f"jax.scipy.special.{name}"
        for name in ["entr", "erfcx", "exp1", "expi", "i0", "i0e", "log_ndtr", "logit", "ndtri"]
        if hasattr(special, name)
    ),
    *(f"jax.nn.{name}" for name in ("relu", "relu6", "softplus")),
]


@pytest.mark.parametrize("name", _OF_ANY_SIZE)
def test_derivatives_at_edges_of_arrays_of_any_size(name):
    function = _UNARY[name]
    spec = jax.ShapeDtypeStruct(export.symbolic_shape("b"), np.float32)
    lifted = bridge.to_jax(export.export(jax.jit(lambda x: function(x)))(spec))
    x = jnp.asarray(_POINTS, jnp.float32)
    found, expected = (_derivatives(f, 1)(x) for f in (lifted, function))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


# Loops of an unknown number of steps, which have no derivative backwards of their own.
_WITH_LOOPS = {
    **{n: getattr(special, n) for n in ("gammainc", "gammaincc", "poch", "zeta")},
    "betainc": lambda x, y: special.betainc(3.0, 2.0, y) * x,
    "random gamma": lambda x, y: jax.random.gamma(jax.random.key(3), x) * y,
    "random loggamma": lambda x, y: jax.random.loggamma(jax.random.key(3), x, x.shape) * y,
}


@pytest.mark.parametrize("shape", ["", "2, 3", "b"])
@pytest.mark.parametrize("name", _WITH_LOOPS)
def test_derivatives_of_functions_with_loops(name, shape):
    function = _WITH_LOOPS[name]
    if shape == "b" and name.startswith("random"):
        pytest.skip("JAX has no random numbers of unknown sizes")
    spec = jax.ShapeDtypeStruct(export.symbolic_shape(shape), np.float32)
    lifted = bridge.to_jax(export.export(jax.jit(lambda x, y: function(x, y)))(spec, spec))
    size = tuple(dim if isinstance(dim, int) else 3 for dim in spec.shape)
    x = jnp.resize(jnp.array([1.5, 0.7, 3.0], np.float32), size)
    y = jnp.resize(jnp.array([0.9, 0.2, 0.6], np.float32), size)
    for transform in (lambda f: jax.jvp(f, (x, y), (x, y)), lambda f: jax.vjp(f, x, y)[1](x)):
        found, expected = (jax.jit(lambda f=f, t=transform: t(f))() for f in (lifted, function))
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)


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

        def function(a):
            return draw(jax.random.key(0), a)

        lifted = bridge.to_jax(export.export(jax.jit(function))(a))
        found, expected = (jax.vjp(f, a)[1](jnp.ones(3)) for f in (lifted, function))
        assert found[0].dtype == a.dtype
        np.testing.assert_array_equal(*found, *expected)
