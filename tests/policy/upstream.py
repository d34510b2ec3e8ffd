"""The parts of JAX, TensorFlow and their neighbours that may be used, and in which file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tests.policy.imports import imports_of, is_within, upstream_names
from tests.policy.source import Module

# The modules, and what is inside them, that may import a framework (design.md, "Where things
# live"). What is not listed here may be imported anywhere.
ALLOWED: Mapping[str, tuple[str, ...]] = {
    "jax": ("bridge", "xla_call_module"),
    "tensorflow": (
        "bridge.core._tf",
        "bridge.core.backend",
        "bridge.call_tf",
        "bridge.core.containers",
        "bridge.calling_tf.callbacks",
        "bridge.calling_tf.calls",
        "bridge.calling_tf.concrete_functions",
        "bridge.calling_tf.derivatives",
        "bridge.calling_tf.data_dependent_sizes",
        "bridge.calling_tf.differentiability",
        "bridge.calling_tf.eager_calls",
        "bridge.calling_tf.embedding",
        "bridge.calling_tf.graph_inlining",
        "bridge.calling_tf.results",
        "bridge.calling_tf.tape_gradients",
        "bridge.calling_tf.variables",
        "bridge.calling_tf.xla_lowering",
        "bridge.convert",
        "bridge.converting.converted_function",
        "bridge.converting.eager",
        "bridge.converting.tensors",
        "bridge.converting.gradient",
        "bridge.converting.variable_state",
        "bridge.checking_gradients.gradient_check",
        "bridge.jax2tf",
        "bridge.formats.saved_model_format",
        "bridge.keras",
        "bridge.layers.run_in_tensorflow",
        "bridge.local_server",
        "bridge.checking_gradients.modes",
        "bridge.checking_gradients.pullbacks",
        "bridge.serving",
        "bridge.testing",
        "bridge.verifying.composed_run",
        "bridge.verifying.tensorflow_probes",
        "bridge.verifying.tensorflow_run",
        "bridge.tf_keras",
        "xla_call_module._tf",
        "xla_call_module.runtime.function_op",
        "xla_call_module.runtime.op",
        "xla_call_module.runtime.shape_guard",
        "xla_call_module.runtime.tensorflow_errors",
    ),
    "keras": ("bridge.keras",),
    "tf_keras": ("bridge.tf_keras",),
    "ai_edge_litert": ("bridge.litert.litert_format", "bridge.litert.worker.model_execution"),
    "ai_edge_quantizer": ("bridge.litert.worker.model_quantization",),
    "litert_converter": ("bridge.litert.worker",),
    "onnx": ("bridge.onnx",),
    "onnxruntime": ("bridge.onnx.onnx_format",),
}
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


def misplaced_imports(modules: Iterable[Module]) -> list[str]:
    """Return where a framework is imported outside its files, imports for types included."""
    return [
        f"{found.where}: {found.name}"
        for module in modules
        for found in imports_of(module)
        for framework, allowed in ALLOWED.items()
        if is_within(found.name, framework)
        and not any(is_within(module.name, prefix) for prefix in allowed)
    ]


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


def jax2tf_names(modules: Iterable[Module]) -> list[str]:
    """Return where the converter that this project replaces is used."""
    return [
        f"{where}: {name}"
        for module in modules
        for name, where in upstream_names(module)
        if is_within(name, "jax.experimental.jax2tf")
    ]
