"""The drop-in and JAX's own converter, which are to behave alike."""

from __future__ import annotations

import importlib
from types import ModuleType

import jax
import pytest
import tensorflow as tf

BOTH = ("bridge.jax2tf", "jax.experimental.jax2tf")
GRADIENTS = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
# That of JAX 0.12 writes custom calls, such as those that assert sizes, in a form that is newer
# than TensorFlow 2.21.
_UNREADABLE = pytest.mark.xfail(
    jax.__version_info__ >= (0, 12),
    raises=tf.errors.InvalidArgumentError,
    strict=False,
    reason="TensorFlow does not read what JAX's converter writes",
)


def import_converter(request: pytest.FixtureRequest) -> ModuleType:
    """The converter that is a test's parameter."""
    if request.param != BOTH[0]:
        request.applymarker(_UNREADABLE)
    return importlib.import_module(request.param)
