"""What TensorFlow can differentiate, in its convention, and what to say of what it cannot."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from bridge.calling_tf.concrete_functions import Traced
from bridge.calling_tf.effects import stateful_operations
from xla_call_module.dtypes import dtype_from_name
from xla_call_module.errors import StructureError

__all__ = [
    "conjugate",
    "is_differentiable",
    "lost_gradients",
    "refuse_effects",
    "without_derivative",
]

_DERIVATIVES = {"tangent": "derivative in forward mode", "pullback": "gradient of its gradient"}


def is_differentiable(dtype: str) -> bool:
    """Whether TensorFlow has gradients for a dtype.

    Raises:
        DtypeError: JAX does not have it.
    """
    return dtype_from_name(dtype, where="a value").differentiable


def conjugate(tensor: tf.Tensor) -> tf.Tensor:
    """A cotangent of TensorFlow as one of JAX, and back."""
    return tf.math.conj(tensor) if tensor.dtype.is_complex else tensor


def refuse_effects(traced: Traced) -> None:
    """Refuse to differentiate what would run once more for its derivative.

    Raises:
        StructureError: it has effects.
    """
    if stateful := stateful_operations(traced.concrete):
        raise StructureError(
            f"{traced.name} cannot be differentiated: TensorFlow would run it once more, and "
            f"{', '.join(stateful)} would assign, or draw random numbers, once more. To do: take "
            "and return what changes, and use tf.random.stateless_uniform and the like."
        )


def lost_gradients(name: str, kind: str, lost: Sequence[str]) -> StructureError:
    """The error for a derivative that TensorFlow would compute as zero without a word.

    Args:
        name: of the function.
        kind: the derivative, `tangent` or `pullback`.
        lost: the operations that have no gradient.
    """
    return StructureError(
        f"{name} has no {_DERIVATIVES[kind]}: TensorFlow's gradient of it uses {', '.join(lost)}, "
        "which has no gradient itself. To do: leave the operation out, give it a gradient of other "
        "operations with tf.custom_gradient, or take the first derivative alone, in reverse mode."
    )


def without_derivative(name: str, kind: str, error: Exception) -> StructureError:
    """The error for what TensorFlow cannot differentiate, with what it says itself.

    Args:
        name: of the function.
        kind: the derivative, `tangent` or `pullback`.
        error: of TensorFlow.
    """
    text = str(error).partition("\n")[0]
    if "recompute_grad" in text:
        return StructureError(
            f"{name} has no {_DERIVATIVES[kind]}: tf.recompute_grad gives a function a first "
            "gradient only. To do: leave it out, and have JAX compute the values again, as in "
            f"jax.checkpoint(bridge.call_tf(fun)). TensorFlow says: {text}"
        )
    return StructureError(
        f"{name} has no derivative: TensorFlow says: {text}. To do: give the operation a gradient "
        "with tf.custom_gradient."
    )
