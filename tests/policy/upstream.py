"""The private parts of JAX, TensorFlow and Keras, and the files that may use them."""

from __future__ import annotations

from collections.abc import Iterable

from tests.policy.imports import is_within, upstream_names
from tests.policy.source import Module

PRIVATE = (
    "jax._src",
    "jaxlib",
    "keras.src",
    "tensorflow.__internal__",
    "tensorflow.compiler",
    "tensorflow.core",
    "tensorflow.python",
    "tf_keras.src",
)
GATES = ("_jax", "_tf")
_FRAMEWORKS = ("jax", "keras", "onnx", "tensorflow", "tf_keras")


def private_names(modules: Iterable[Module]) -> list[str]:
    """Return where a private part of a framework is used outside `_jax.py` and `_tf.py`."""
    return [
        f"{where}: {name}"
        for module in modules
        if module.path.stem not in GATES
        for name, where in upstream_names(module)
        if is_private(name)
    ]


def is_private(name: str) -> bool:
    """Return whether a dotted upstream name is listed as private, or spelled so."""
    parts = name.split(".")
    hidden = any(part.startswith("_") and not part.endswith("__") for part in parts)
    return any(is_within(name, prefix) for prefix in PRIVATE) or (
        parts[0] in _FRAMEWORKS and hidden
    )
