"""A chain of calls as one differentiable TensorFlow function.

Order 0 of the chain is the function, order k+1 the VJP of order k, which `Exported.vjp()` makes
without tracing the user's function again. Each order is a `tf.custom_gradient` whose gradient is
the next one, so tapes can be nested.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from jax import export

from xla_call_module._tf import imported_release, recording_query, stop_recording
from xla_call_module.call import TensorSpec
from xla_call_module.dimensions import evaluate_shape, solve
from xla_call_module.errors import StructureError
from xla_call_module.exported import from_exported
from xla_call_module.op import Op
from xla_call_module.retargeting import retarget

__all__ = ["DifferentiableCall"]

Tensors = list[tf.Tensor]


class DifferentiableCall:
    """One order of the chain, on flat tensors."""

    def __init__(self, exported: export.Exported, *, with_gradient: bool) -> None:
        """Check and retarget the `Exported` for the imported TensorFlow; its VJP waits for need.

        Raises:
            InteropError: it cannot be called from the imported TensorFlow.
        """
        call = from_exported(exported, allow_flat_trees=True)
        self._op = Op(retarget(call, imported_release()))
        self._exported = exported
        self._with_gradient = with_gradient
        self._vjp: DifferentiableCall | None = None
        self._lock = threading.Lock()
        self._may_record = recording_query()
        # A forward accumulator inside a graph sees nothing of a `tf.custom_gradient` there, and
        # takes the tangents for zero; a function's gradient it transposes.
        self._function = tf.function(self._attach_gradient, autograph=False)
        self.call = self._op.call

    def __call__(self, tensors: Sequence[tf.Tensor]) -> Tensors:
        """The flat results.

        Args:
            tensors: one for each of `call.args`, of their dtypes and of fitting shapes.
        """
        if tf.executing_eagerly() and not self._may_record():
            return self._op.run([tensors[index] for index in self.call.kept])
        if not tensors:
            return self._apply(tensors)
        if not self._with_gradient:
            return [_prevent_gradient(result, self.call.name) for result in self._apply(tensors)]
        if tf.executing_eagerly() or not self._may_record():
            return self._attach_gradient(*tensors)
        return list(self._function(*tensors))

    def _attach_gradient(self, *tensors: tf.Tensor) -> Tensors:
        return list(tf.custom_gradient(self._differentiable)(*tensors))

    def _differentiable(self, *tensors: tf.Tensor) -> tuple[Tensors, Any]:
        with stop_recording():
            results = self._apply(tensors)

        def gradient(*cotangents: tf.Tensor | None) -> list[tf.Tensor | None]:
            return self._pull_back(tensors, results, cotangents)

        return results, gradient

    def _apply(self, tensors: Sequence[tf.Tensor]) -> Tensors:
        operands = [tensors[index] for index in self.call.kept]
        if tf.executing_eagerly():
            return self._op.run(operands)
        sizes = [_known_shape(tensor) for tensor in tensors]
        symbols = solve([spec.shape or () for spec in self.call.args], sizes)
        shapes = [evaluate_shape(spec.shape or (), symbols) for spec in self.call.results]
        return self._op.add_to_graph(operands, shapes)

    def _pull_back(
        self,
        tensors: Sequence[tf.Tensor],
        results: Sequence[tf.Tensor],
        cotangents: Sequence[tf.Tensor | None],
    ) -> list[tf.Tensor | None]:
        """TensorFlow's gradients from JAX's: conjugated, and None where nothing depends on it."""
        vjp = self._order_above()
        filled = [
            _cotangent(spec, cotangent, result)
            for spec, cotangent, result in zip(
                vjp.call.args[len(tensors) :], cotangents, results, strict=True
            )
        ]
        gradients = vjp([*tensors, *filled])
        return [
            None if pulled.is_zero or not spec.dtype.differentiable else _conjugate(spec, gradient)
            for spec, pulled, gradient in zip(
                self.call.args, vjp.call.results, gradients, strict=True
            )
        ]

    def _order_above(self) -> DifferentiableCall:
        with self._lock:
            if self._vjp is None:
                if not self._exported.has_vjp():
                    raise StructureError(
                        f"{self.call.name} was serialized without its VJP, so it has no gradient. "
                        "To do: serialize it with Exported.serialize(vjp_order=1) or more."
                    )
                self._vjp = DifferentiableCall(self._exported.vjp(), with_gradient=True)
            return self._vjp


def _cotangent(spec: TensorSpec, cotangent: tf.Tensor | None, result: tf.Tensor) -> tf.Tensor:
    """What the VJP module takes for one result: `false` for a float0, else the conjugate."""
    if spec.element == "float0":
        return tf.zeros(tf.shape(result), tf.bool)
    if cotangent is None:
        return tf.zeros_like(result)
    return _conjugate(spec, tf.convert_to_tensor(cotangent))


def _conjugate(spec: TensorSpec, tensor: tf.Tensor) -> tf.Tensor:
    """TensorFlow's gradient of a complex value is the conjugate of JAX's cotangent.

    JAX: https://docs.jax.dev/en/latest/notebooks/autodiff_cookbook.html#complex-numbers-and-differentiation
    TensorFlow: the gradients in tensorflow/python/ops/math_grad.py conjugate their inputs.
    """
    return tf.math.conj(tensor) if spec.dtype.is_complex else tensor


def _known_shape(tensor: tf.Tensor) -> tuple[int | None, ...] | None:
    return None if tensor.shape.rank is None else tuple(tensor.shape.as_list())


def _prevent_gradient(tensor: tf.Tensor, name: str) -> tf.Tensor:
    if not tensor.dtype.is_floating and not tensor.dtype.is_complex:
        return tensor
    message = f"{name} was converted with with_gradient=False, so it has no gradient."
    return tf.raw_ops.PreventGradient(input=tensor, message=message)
