"""Every function in two modes of TensorFlow, to the second order, and some in all to the third.

They are compared with JAX; that both sides are wrong together is what the finite differences would
show. With `-m slow` every function is compared in all modes, to the third order.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import bridge
from bridge.testing import assert_gradients_match
from tests.renewed_process import RenewedProcess
from tests.verbs.gradient_functions import CASES
from tests.verbs.gradient_processes import MAX_CASES, compare, compare_by_name, prepare

pytestmark = pytest.mark.usefixtures("on_the_cpu")

MODES = ("eager", "graph", "jit", "saved", "tf_saved", "resaved")
ORDER = 3
BY_NAME = {case.name: case for case in CASES}
# In all modes and to the third order each takes seconds.
IN_FULL = ("elementwise", "softmax", "sort", "fori_loop", "complex products", "fft")
# Other versions of JAX run every sixth only.
MARKED = [
    pytest.param(index, id=case.name, marks=[pytest.mark.alike] if index % 6 else [])
    for index, case in enumerate(CASES)
]
FULL = [
    pytest.param(case, id=case.name, marks=[] if case.name in IN_FULL else [pytest.mark.slow])
    for case in CASES
]
REFUSED = [(case, mode) for case in CASES for mode in case.refused]


@pytest.fixture(scope="module")
def process():
    process = RenewedProcess(MAX_CASES, prepare)
    yield process
    process.close()


@pytest.mark.parametrize("index", MARKED)
def test_gradients_are_those_of_jax(index, process):
    """In one test, because JAX's side and the exports are the same for all modes."""
    case = CASES[index]
    modes = [mode for mode in MODES if mode not in case.refused]
    first = (index + index // 6) % len(modes)
    process.run(compare_by_name, case.name, 2, [*modes[first:], *modes][:2])


@pytest.mark.parametrize("case", FULL)
def test_all_modes_to_the_third_order(case, process):
    modes = [mode for mode in MODES if mode not in case.refused]
    process.run(compare_by_name, case.name, ORDER, modes)


@pytest.mark.parametrize(
    ("case", "mode"), REFUSED, ids=[f"{case.name}-{mode}" for case, mode in REFUSED]
)
def test_what_does_not_go(case, mode):
    """It goes as far as the table says, and not further."""
    order, message = case.refused[mode]
    compare(case, order, [mode])
    with pytest.raises((AssertionError, SystemError), match=message):
        compare(case, order + 1, [mode])


def _double(x):
    return jax.lax.while_loop(lambda x: x.sum() < 100, lambda x: x * 2, x)


def test_what_jax_cannot_differentiate():
    x = np.ones(3, np.float32)
    # A gradient is written when a function is saved, whether one is asked for or not.
    with pytest.warns(UserWarning, match="without a gradient.*while_loop"):
        assert_gradients_match(_double, x, order=0, modes=MODES)
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
        assert_gradients_match(_double, x, order=1, modes=["eager"])


SAMPLED = ("elementwise", "softmax", "einsum", "sort", "fori_loop", "complex products", "fft")


class _Loss:
    """A real number that depends on all inputs and results of a case, in TensorFlow."""

    def __init__(self, case, place, folder):
        exported = jax.export.export(jax.jit(case.function))(*case.args)
        self.run = bridge.convert(exported)
        if place == "file":
            bridge.save(exported, folder / "model", gradient_order=2)
            self.run = tf.saved_model.load(str(folder / "model"))
        self._random = np.random.default_rng(1)
        self.inputs = [tf.constant(array) for array in case.args]
        results = tf.nest.flatten(self.run(*self.inputs))
        self._weights = [self.draw(result) for result in results if result.dtype != tf.int32]

    def draw(self, like):
        values = self._random.normal(size=like.shape)
        if like.dtype.is_complex:
            values = values + 1j * self._random.normal(size=like.shape)
        return tf.constant(values, like.dtype)

    def value(self, inputs):
        results = [x for x in tf.nest.flatten(self.run(*inputs)) if x.dtype != tf.int32]
        return inner(self._weights, results)

    def gradient(self, inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            value = self.value(inputs)
        return tape.gradient(value, inputs)


def inner(a, b):
    """Of complex vectors as of pairs of real ones: TensorFlow's gradients are meant so."""
    products = [tf.reduce_sum(tf.math.real(tf.math.conj(x) * y)) for x, y in zip(a, b, strict=True)]
    return tf.add_n(products)


@pytest.mark.parametrize("place", ["live", "file"])
@pytest.mark.parametrize("name", SAMPLED)
def test_finite_differences(name, place, tmp_path):
    with BY_NAME[name].context():
        _check_finite_differences(name, place, tmp_path)


def _check_finite_differences(name, place, tmp_path):
    loss = _Loss(BY_NAME[name], place, tmp_path)
    inputs = loss.inputs
    along, across = ([loss.draw(x) for x in inputs] for _ in range(2))
    step = 1e-4

    def slope(function):
        """Along one direction, with an error of the order of `step**2`."""
        ahead, behind = (
            function(
                [x + tf.cast(sign * step, x.dtype) * d for x, d in zip(inputs, along, strict=True)]
            )
            for sign in (1, -1)
        )
        return (ahead - behind) / (2 * step)

    first = inner(loss.gradient(inputs), along)
    np.testing.assert_allclose(first, slope(loss.value), rtol=1e-5, atol=1e-6)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        derivative = inner(loss.gradient(inputs), across)
    second = inner(tape.gradient(derivative, inputs), along)
    expected = slope(lambda inputs: inner(loss.gradient(inputs), across))
    assert abs(float(expected)) > 0.01
    np.testing.assert_allclose(second, expected, rtol=1e-5, atol=1e-6)


def test_a_wide_function_is_saved_while_x64_is_off(tmp_path):
    """JAX traces the VJP only now; with 32 bits it would fail."""
    case = BY_NAME["softmax"]
    with case.context():
        exported = jax.export.export(jax.jit(case.function))(*case.args)
        expected = jax.grad(lambda x: case.function(x)[0][0, 0])(*case.args)
    bridge.save(exported, tmp_path / "m")
    loaded = tf.saved_model.load(str(tmp_path / "m"))
    x = tf.constant(case.args[0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = loaded(x)[0][0, 0]
    np.testing.assert_allclose(tape.gradient(y, x), expected, rtol=1e-12)


def test_sparse_upstream_gradients(mode):
    """`tf.gather` hands IndexedSlices to what it gathers from."""
    converted = bridge.convert(lambda x: jnp.sin(x) * x)
    x = tf.constant(np.linspace(-1, 1, 6).astype(np.float32).reshape(3, 2))

    def gradient(function):
        def run(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                rows = tf.gather(function(x), [2, 0, 2])
                loss = tf.reduce_sum(rows**2)
            return tape.gradient(loss, x)

        return run

    native = gradient(lambda x: tf.sin(x) * x)(x)
    np.testing.assert_allclose(mode(gradient(converted))(x), native, rtol=1e-5)


def test_sparse_upstream_gradients_in_a_file(tmp_path):
    x = tf.constant(np.linspace(-1, 1, 6).astype(np.float32).reshape(3, 2))
    bridge.save(jax.export.export(jax.jit(lambda x: jnp.sin(x) * x))(x.numpy()), tmp_path / "m")
    loaded = tf.saved_model.load(str(tmp_path / "m"))

    def gradient(function):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.gather(function(x), [2, 0, 2]) ** 2)
        return tape.gradient(loss, x)

    np.testing.assert_allclose(gradient(loaded), gradient(lambda x: tf.sin(x) * x), rtol=1e-5)
