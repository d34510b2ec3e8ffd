"""A traced TensorFlow function that TensorFlow runs, called back from JAX's program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import tensorflow as tf
from jax import experimental

from bridge.calling_tf.concrete_functions import Traced
from bridge.calling_tf.variables import to_array, to_numpy, to_tensor
from bridge.core._jax import is_staging
from xla_call_module.errors import StructureError

__all__ = ["Callback", "call_now", "runs_now"]


@dataclass(frozen=True, slots=True)
class Callback:
    """How TensorFlow is called back.

    Attributes:
        ordered: whether the calls keep their order, and happen even if no result is used.
        keeps_arguments: whether the function may hold on to an argument, as an assignment to a
            variable does.
    """

    ordered: bool
    keeps_arguments: bool

    def run(
        self, traced: Traced, results: Sequence[jax.ShapeDtypeStruct], arguments: Sequence[Any]
    ) -> list[Any]:
        """The results of a call now, or in the program that is being traced.

        Raises:
            StructureError: a result has another shape than was declared.
        """
        if runs_now(arguments):
            return call_now(traced, results, arguments)

        def called_back(*values: Any) -> list[np.ndarray[Any, Any]]:
            # XLA takes the memory back when the call is over.
            given = [
                tf.constant(np.array(x)) if self.keeps_arguments else to_tensor(x) for x in values
            ]
            return [to_numpy(tensor) for tensor in _call(traced, results, given)]

        if self.ordered:
            staged = experimental.io_callback(called_back, list(results), *arguments, ordered=True)
        else:
            staged = jax.pure_callback(
                called_back, list(results), *arguments, vmap_method="sequential"
            )
        return list(staged)


def runs_now(arguments: Sequence[Any]) -> bool:
    """Whether these are values, and not what JAX traces a program with."""
    return not is_staging() and not any(isinstance(x, jax.core.Tracer) for x in arguments)


def call_now(
    traced: Traced, results: Sequence[jax.ShapeDtypeStruct], arguments: Sequence[Any]
) -> list[Any]:
    """The results of TensorFlow as JAX arrays; on the CPU nothing is copied.

    Raises:
        StructureError: a result has another shape than was declared.
    """
    found = _call(traced, results, [to_tensor(x) for x in arguments])
    return [to_array(tensor) for tensor in found]


def _call(
    traced: Traced, results: Sequence[jax.ShapeDtypeStruct], tensors: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    with tf.init_scope():
        found: list[tf.Tensor] = list(traced.concrete(*tensors))
    for index, (tensor, spec) in enumerate(zip(found, results, strict=True)):
        if tuple(tensor.shape) != spec.shape:
            raise StructureError(
                f"Result {index} of {traced.name} has the shape {tuple(tensor.shape)}; declared "
                f"was {spec.shape}. To do: pass the right one as shapes=."
            )
    return found
