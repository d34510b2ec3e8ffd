"""Batch normalization, as XLA expands it (xla/service/batchnorm_expander.cc)."""

from __future__ import annotations

import re
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from bridge.lifting.lifted_operation import LiftedOperation, LiftingRule

_EPSILON = re.compile(r"[^ :]+")


def _epsilon(op: LiftedOperation) -> np.ndarray[Any, Any]:
    """Return the attribute such as `1.000000e-05 : f32`, in the dtype of the operand."""
    match = _EPSILON.match(op.text("epsilon"))
    return np.asarray(float(match[0]) if match else 0.0).astype(op.dtype)


def _along(op: LiftedOperation, vector: Any) -> Any:
    """Return a number for each feature in the shape of the operand."""
    return lax.broadcast_in_dim(vector, np.shape(op.operands[0]), [op.integer("feature_index")])


def _sums(op: LiftedOperation, value: Any) -> Any:
    """Return the sum of the elements of each feature."""
    feature = op.integer("feature_index")
    return lax.reduce_sum(value, [axis for axis in range(np.ndim(value)) if axis != feature])


def _count(op: LiftedOperation) -> Any:
    """Return how many elements each feature has."""
    shape, feature = np.shape(op.operands[0]), op.integer("feature_index")
    count: Any = 1
    for axis, size in enumerate(shape):
        count = count * (1 if axis == feature else size)
    return lax.convert_element_type(jnp.asarray(count), op.dtype)


def _inverse_deviation(op: LiftedOperation, variance: Any) -> Any:
    return lax.rsqrt(variance + _epsilon(op))


def _inference(op: LiftedOperation) -> Any:
    value, scale, offset, mean, variance = op.arrays
    factor = scale * _inverse_deviation(op, variance)
    shift = offset - mean * factor
    return value * _along(op, factor) + _along(op, shift)


def _training(op: LiftedOperation) -> Any:
    value, scale, offset = op.arrays
    count = _count(op)
    mean = _sums(op, value) / count
    variance = _sums(op, value * value) / count - mean * mean
    factor = scale * _inverse_deviation(op, variance)
    shift = offset - mean * factor
    return [value * _along(op, factor) + _along(op, shift), mean, variance]


def _gradient(op: LiftedOperation) -> Any:
    value, scale, mean, variance, cotangent = op.arrays
    count, inverse = _count(op), _inverse_deviation(op, variance)
    centered = value - _along(op, mean)
    offset_part = _sums(op, cotangent)
    scale_part = _sums(op, cotangent * centered) * inverse
    factor = _along(op, scale * inverse / count)
    inner = cotangent * _along(op, jnp.broadcast_to(count, offset_part.shape))
    inner = inner - _along(op, offset_part)
    inner = inner - centered * _along(op, scale_part * inverse)
    return [factor * inner, scale_part, offset_part]


_READ = ("epsilon", "feature_index")
RULES = {
    "stablehlo.batch_norm_grad": LiftingRule(_gradient, _READ),
    "stablehlo.batch_norm_inference": LiftingRule(_inference, _READ),
    "stablehlo.batch_norm_training": LiftingRule(_training, _READ),
}
