"""The functions of the matrix, written by a CPU-only process, on the device of this machine."""

from __future__ import annotations

import contextlib
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bridge
from tests.device import IN_FULL
from tests.device.precision import assert_close, rounds_to_tf32
from tests.device.writing import BY_NAME, ORDER, Derivatives, settings_of
from tests.matrix.files import is_inexact, logical_arguments, physical_array

KEY = "serving_default"
# On a CPU, where the matrix itself runs all of them, one of each kind.
SAMPLED = ("batch", "complex_functions", "symbolic_scan", "eigvalsh", "platforms_last")
NAMES = tuple(BY_NAME) if os.environ.get(IN_FULL) else SAMPLED
# What a CPU computes for these is not what is meant on another device.
OF_THE_DEVICE = {
    "float8_inside": "XLA rounds to float8 on NVIDIA GPUs after it has rounded to float16",
    "platforms": "each platform has a branch",
    "platforms_last": "each platform has a branch",
    "platforms_symbolic": "each platform has a branch",
}
# What JAX computes for these on another device is wrong, and what a file computes is not.
OF_A_CPU = {"integers": "XLA doubles products of int8 on NVIDIA GPUs, and files have none there"}
# The gradients of what these are lowered to are not those of the functions, or there are none.
LIFTED_WITHOUT_RULES = {
    "custom_rule": "a rule of the user is no operation",
    "custom_tangent": "a rule of the user is no operation",
    "complex_functions": "the operations of the square root have no derivative at i",
    "exp1": "a loop of as many steps as the numbers need has no reverse mode",
    "expi": "a loop of as many steps as the numbers need has no reverse mode",
    "random_gamma": "a loop of as many steps as the numbers need has no reverse mode",
    "singular_values": "JAX has no derivative of the Householder factors in the portable form",
}
# TensorFlow pulls zeros back through results that nothing asks for; a rule makes zeros of them.
LINEAR_IN_TENSORFLOW = {"custom_rule": "the rule of the case adds a number to each cotangent"}


class _Comparison:
    """The comparison of what was computed for one call with what JAX computes, here and there."""

    def __init__(self, name, signature):
        self.case = BY_NAME[name]
        self._params = () if self.case.params is None else (self.case.params,)
        self._tf32 = rounds_to_tf32(signature.exported.mlir_module())

    def original(self, *arguments):
        return jax.tree.leaves(self.case.function(*self._params, *arguments))

    def reference(self):
        """Return the context in which JAX computes what a file must compute on this device."""
        on_cpu = self.case.name in OF_A_CPU
        return jax.default_device(jax.devices("cpu")[0]) if on_cpu else contextlib.nullcontext()

    def arguments(self, call):
        return logical_arguments(self.case, call.arguments)

    def hold(self, values, call, what):
        """Hold that the results, and the gradients as far as there are any, are the expected."""
        found = _orders(values)
        derivatives = Derivatives(self.original, self.arguments(call))
        with self.reference():
            here = _orders(derivatives.values(len(found) - 1))
        self._hold(found, here, f"{what} and JAX on this device, batch {_batch(call)}")
        if self.case.name not in OF_THE_DEVICE:
            there = [call.results, *([gradient] for gradient in call.gradients[:1])]
            self._hold(found[:2], there, f"{what} and JAX on a CPU, batch {_batch(call)}")

    def _hold(self, found, expected, what):
        for order, (left, right) in enumerate(zip(found, expected, strict=False)):
            assert len(left) == len(right)
            for index, pair in enumerate(zip(left, right, strict=True)):
                assert_close(
                    *pair,
                    relative=self.case.tolerance.relative,
                    order=order,
                    tf32=self._tf32,
                    what=f"{what}, order {order}, result {index}",
                )


def _batch(call):
    return call.arguments[0].shape[:1]


def _orders(values):
    results, *gradients = values
    return [list(map(physical_array, results)), *([physical_array(g)] for g in gradients)]


# JAX's own rule that scatters rows in a batched loop asks for the dtype of its 64-bit counter.
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64:UserWarning")
@pytest.mark.parametrize("name", NAMES)
def test_in_jax(name, written, device):
    """Values and gradients of two orders, of the loaded and the lifted function; its vmap."""
    file = written(name)
    with settings_of(BY_NAME[name]):
        signature = bridge.load(file.path).signatures[KEY]
        run = lambda *args: jax.tree.leaves(signature(*args))  # noqa: E731
        comparison = _Comparison(name, signature)
        for call in file.calls:
            loaded = Derivatives(run, comparison.arguments(call)).values(len(call.gradients))
            assert {leaf.device for leaf in jax.tree.leaves(loaded)} == {device}
            comparison.hold(loaded, call, "loaded")
        call = file.calls[0]
        arguments = comparison.arguments(call)
        params = () if comparison.case.params is None else (comparison.case.params,)
        to_jax = bridge.to_jax(file.path)
        lifted = lambda *args: jax.tree.leaves(to_jax(*params, *args))  # noqa: E731
        order = 0 if name in LIFTED_WITHOUT_RULES else min(len(call.gradients), 1)
        comparison.hold(Derivatives(lifted, arguments).values(order), call, "lifted")
        batched = [jnp.stack([argument] * 2) for argument in arguments]
        found = jax.jit(jax.vmap(run))(*batched)
        with comparison.reference():
            expected = jax.jit(jax.vmap(comparison.original))(*batched)
        for left, right in zip(found, expected, strict=True):
            tolerance = {"relative": comparison.case.tolerance.relative, "order": 0, "tf32": True}
            left, right = map(physical_array, (left, right))
            assert_close(left, right, what="vmap", **tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_in_tensorflow(name, written):
    """Values and gradients of two orders, of the signature as TensorFlow loads it."""
    tf = pytest.importorskip("tensorflow")
    file = written(name)
    with settings_of(BY_NAME[name]):
        comparison = _Comparison(name, bridge.load(file.path).signatures[KEY])
        loaded = tf.saved_model.load(str(file.path))
        for call in file.calls:
            if name in LINEAR_IN_TENSORFLOW:
                del call.gradients[1:]
            comparison.hold(_in_tensorflow(tf, loaded.signatures[KEY], call), call, "TensorFlow")


def _in_tensorflow(tf, signature, call):
    """The results, and the gradients of as many orders as are expected."""
    arguments = [tf.constant(argument) for argument in call.arguments]
    watched = next((arg for arg in arguments if is_inexact(arg.numpy())), None)
    # A tape that records what has no gradient of its order is refused.
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            for tape in (inner, outer)[: len(call.gradients)]:
                tape.watch(watched)
            found = signature(**{f"x{index}": arg for index, arg in enumerate(arguments)})
            results = [found[f"y{index}"] for index in range(len(found))]
            if tf.config.list_physical_devices("GPU"):
                assert {result.device.rpartition(":")[0][-3:] for result in results} == {"GPU"}
        orders = [[result.numpy() for result in results]]
        if not call.gradients:
            return orders
        wanted = [result for result in results if is_inexact(result.numpy())]
        gradient = _pull_back(tf, inner, wanted, watched)
        orders.append(gradient.numpy())
    if len(call.gradients) == ORDER:
        orders.append(_pull_back(tf, outer, [gradient], watched).numpy())
    return orders


def _pull_back(tf, tape, results, argument):
    steps = [np.cos(np.arange(tf.size(y).numpy()).reshape(y.shape)) for y in results]
    return tape.gradient(
        results,
        argument,
        output_gradients=[
            tf.cast(step + (0.5j if y.dtype.is_complex else 0), y.dtype)
            for step, y in zip(steps, results, strict=True)
        ],
        unconnected_gradients=tf.UnconnectedGradients.ZERO,
    )
