"""The drop-in and JAX's own converter, which are to behave alike."""

from __future__ import annotations

import importlib
from types import ModuleType

import jax
import pytest
import tensorflow as tf

BOTH = ("bridge.jax2tf", "jax.experimental.jax2tf")
GRADIENTS = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
# That of JAX 0.12 writes custom calls in a form that is newer than TensorFlow 2.21: those that
# assert symbolic sizes, and that of a function which stays TensorFlow's.
_UNREADABLE = pytest.mark.xfail(
    jax.__version_info__ >= (0, 12),
    raises=tf.errors.InvalidArgumentError,
    reason="TensorFlow does not read what JAX's converter writes",
)
has_custom_calls = pytest.mark.has_custom_calls


def import_converter(request: pytest.FixtureRequest) -> ModuleType:
    """The converter that is a test's parameter."""
    if request.param != BOTH[0] and request.node.get_closest_marker("has_custom_calls"):
        request.applymarker(_UNREADABLE)
    return importlib.import_module(request.param)
