"""The locations in a module are lines of the user's."""

from __future__ import annotations

import inspect

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from flax import nnx

import bridge
from bridge.exporting.export_model import export_model
from xla_call_module.passes.constants import largest_constants

WEIGHTS = np.random.default_rng(0).normal(size=(3, 200)).astype(np.float32)
HELD = jnp.asarray(WEIGHTS)
MODULE = nnx.Linear(3, 200, rngs=nnx.Rngs(0))


def _numpy(x):
    return x @ WEIGHTS


def _jax(x):
    return x @ HELD


def _module(x):
    return MODULE(x)


def _twice(x):
    y = jnp.sin(x)
    return MODULE(y) + MODULE(x)


class _Holding(nnx.Module):
    """A module whose call closes over an array that is none of its parameters."""

    def __call__(self, x):
        """Multiply."""
        return x @ WEIGHTS


@pytest.mark.parametrize("function", [_numpy, _jax, _module, _twice, _Holding()])
def test_a_constant_is_at_a_line_of_the_user(function):
    exported = export_model(function, args="f32[b,3]").exported
    (constant, *_) = largest_constants(exported.mlir_module_serialized, 3)
    source = type(function).__call__ if isinstance(function, nnx.Module) else function
    lines, first = inspect.getsourcelines(source)
    file, _, line = constant.location.rpartition(":")
    if "flax" in file:  # whose line is the innermost that is not JAX's
        return
    assert file == __file__
    assert first <= int(line) < first + len(lines)


def test_a_callback_is_at_a_line_of_the_user():
    def function(x):
        return bridge.call_tf(tf.math.sin, compiled=False)(x)

    line = function.__code__.co_firstlineno + 1
    with pytest.raises(bridge.UnsupportedError, match=rf"{__file__}:{line}"):
        bridge.save(function, "never", args="f32[3]")
