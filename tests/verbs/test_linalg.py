"""Linear algebra in TensorFlow: values, gradients of two orders, and files."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
import pytest
import tensorflow as tf
from jax import export, lax
from jax.scipy.stats import multivariate_normal

import bridge
from xla_call_module.errors import InteropError, StructureError

pytestmark = pytest.mark.usefixtures("x64")


def _draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def _hermitian(a):
    return (a + a.T.conj()) / 2


SQUARE, TALL, RIGHT = _draw(3, 3), _draw(4, 3), _draw(3, 2, seed=1)
POSITIVE = SQUARE @ SQUARE.T + 3 * np.eye(3)
COMPLEX = SQUARE + 1j * _draw(3, 3, seed=2)
# Each with the orders of gradients that are taken, of the sum of the squares of its results.
# Of complex numbers, and of custom rules; others are in the table of operations.
FUNCTIONS = {
    "cholesky_complex": (
        1,
        lambda a: jnp.linalg.cholesky(a @ a.conj().T + jnp.eye(3)).real,
        COMPLEX,
    ),
    "qr": (1, lambda a: jnp.linalg.qr(a)[0] ** 3, TALL),
    "solve": (2, jnp.linalg.solve, POSITIVE, RIGHT),
    "solve_complex": (1, lambda a: jnp.linalg.solve(a, RIGHT).real, COMPLEX),
    "eigvalsh_complex": (1, lambda a: jnp.linalg.eigvalsh(_hermitian(a)), COMPLEX),
    "svd_complex": (1, lambda a: jnp.linalg.svd(a, compute_uv=False), COMPLEX),
    "multivariate_normal": (
        1,
        lambda x, a: multivariate_normal.logpdf(x, jnp.zeros(3), _hermitian(a)),
        RIGHT[:, 0].copy(),
        POSITIVE,
    ),
}
if hasattr(lax.linalg, "ormqr"):  # since JAX 0.10

    def _multiply_by_q(a, b):
        packed, taus = jnp.linalg.qr(a, mode="raw")
        return lax.linalg.ormqr(packed.mT, taus, b, transpose=True)

    @jax.custom_vjp
    def _product(a, b):
        return a @ b

    _product.defvjp(
        lambda a, b: (a @ b, (a, b)), lambda ab, ct: (jnp.zeros((3, 3)), _multiply_by_q(ab[0], ct))
    )
    # JAX does not guarantee the library calls of these.
    FUNCTIONS["ormqr"] = (0, _multiply_by_q, SQUARE, RIGHT)
    FUNCTIONS["ormqr_complex"] = (0, lambda a: _multiply_by_q(a, a), COMPLEX)
    FUNCTIONS["ormqr_of_cotangents"] = (1, lambda b: _product(SQUARE, b), RIGHT)


def _jax_gradients(function, args, orders):
    """The gradients of the sum of squares, then those of the sum of their squares, and so on."""

    def total(*args):
        return sum(jnp.sum(jnp.square(x)) for x in jax.tree.leaves(function(*args)))

    for _ in range(orders):
        gradient = jax.grad(total, argnums=tuple(range(len(args))))
        yield jax.jit(gradient)(*args)

        def total(*args, gradient=gradient):
            return sum(jnp.sum(jnp.square(x.real)) for x in gradient(*args))


def _check(converted, function, args, orders):
    tensors = [tf.constant(x) for x in args]
    with tf.GradientTape() as outer:
        outer.watch(tensors)
        with tf.GradientTape() as inner:
            inner.watch(tensors)
            results = tf.nest.flatten(converted(*tensors))
            total = tf.add_n([tf.reduce_sum(tf.square(x)) for x in results])
        pairs = zip(results, jax.tree.leaves(function(*args)), strict=True)
        for result, wanted in pairs:
            np.testing.assert_allclose(result, wanted, rtol=1e-9, atol=1e-9)
        if orders:
            first = inner.gradient(total, tensors)
            again = tf.add_n([tf.reduce_sum(tf.square(tf.math.real(x))) for x in first])
    gradients = [first] if orders else []
    if orders > 1:
        gradients.append(outer.gradient(again, tensors))
    for found, wanted in zip(gradients, _jax_gradients(function, args, orders), strict=True):
        for ours, theirs in zip(found, wanted, strict=True):
            # TensorFlow's gradient of a complex value is the conjugate of JAX's.
            np.testing.assert_allclose(ours, np.conj(theirs), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients(name):
    orders, function, *args = FUNCTIONS[name]
    _check(bridge.convert(function), function, args, orders)


def _model(params, x):
    factor = jnp.linalg.cholesky(params["a"] @ params["a"].T + jnp.eye(3))
    return jnp.linalg.solve(jax.vmap(lambda v: factor + jnp.diag(v))(x), x[..., None])[..., 0]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A file with gradients of two orders and a symbolic batch."""
    x = jax.ShapeDtypeStruct(export.symbolic_shape("b, 3"), "float64")
    exported = export.export(jax.jit(_model))({"a": SQUARE}, x)
    path = tmp_path_factory.mktemp("linalg") / "model"
    bridge.save(exported, path, params={"a": SQUARE}, gradient_order=2)
    return tf.saved_model.load(str(path))


@pytest.mark.parametrize("batch", [1, 4])
def test_a_file(saved, batch):
    x = np.abs(_draw(batch, 3, seed=3))
    _check(saved, lambda x: _model({"a": SQUARE}, x), [x], 2)
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(saved(tf.constant(x)) ** 2)
    gradient = tape.gradient(total, saved.params["a"])
    wanted = jax.grad(lambda params: jnp.sum(_model(params, x) ** 2))({"a": SQUARE})["a"]
    np.testing.assert_allclose(gradient, wanted, rtol=1e-9)


def test_a_symbolic_batch_in_a_function():
    converted = bridge.convert(jnp.linalg.inv, polymorphic_shapes="b, ...")
    function = tf.function(converted, input_signature=[tf.TensorSpec([None, 3, 3], tf.float64)])
    for batch in (1, 3):
        a = _draw(batch, 3, 3)
        np.testing.assert_allclose(function(tf.constant(a)), np.linalg.inv(a), rtol=1e-9)


class TestOptions:
    def test_calls_of_lapack_stay_where_they_are_wanted(self, tmp_path):
        exported = export.export(jax.jit(jnp.linalg.inv))(SQUARE)
        for model in (jnp.linalg.inv, exported):
            converted = bridge.convert(model, linalg="lapack")
            with pytest.raises(tf.errors.OpError, match="lapack_dgetrf_ffi"):
                converted(tf.constant(SQUARE))
        for linalg in ("lapack", "portable"):
            path = tmp_path / linalg
            bridge.save(exported, path, linalg=linalg)
            assert (b"lapack_dgetrf_ffi" in (path / "saved_model.pb").read_bytes()) == (
                linalg == "lapack"
            )

    def test_unknown_ones(self, tmp_path):
        with pytest.raises(StructureError, match=r"linalg is 'blas'; expected 'portable' or"):
            bridge.convert(jnp.linalg.inv, linalg="blas")
        exported = export.export(jax.jit(jnp.linalg.inv))(SQUARE)
        with pytest.raises(StructureError, match=r"linalg is 'blas'; expected 'portable' or"):
            bridge.save(exported, tmp_path / "model", linalg="blas")

    @pytest.mark.parametrize(
        ("primitive", "function"),
        [("eig", jnp.linalg.eigvals), ("schur", jsl.schur), ("hessenberg", jsl.hessenberg)],
    )
    @pytest.mark.parametrize("linalg", ["portable", "lapack"])
    def test_what_has_no_portable_form(self, tmp_path, primitive, function, linalg):
        def fun(a):
            return function(a)

        anywhere = (
            rf"fun cannot be lowered for cuda and tpu .*no rule for the primitive {primitive}"
        )
        with pytest.raises(InteropError, match=anywhere):
            bridge.convert(fun, linalg=linalg)(tf.constant(SQUARE))
        on_cpu = (
            rf"fun calls lapack_\w+ at .*test_linalg\.py:\d+, a lib.* primitive {primitive} on cpu"
        )
        with pytest.raises(InteropError, match=on_cpu):
            bridge.convert(fun, platforms=["cpu"], linalg=linalg)(tf.constant(SQUARE))
        with pytest.raises(InteropError, match=on_cpu):
            bridge.save(export.export(jax.jit(fun))(SQUARE), tmp_path / "model", linalg=linalg)
