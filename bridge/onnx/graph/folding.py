"""ONNX operations of constants, computed at once.

Only those whose results are the same in every runtime, and no larger than what they are made of;
and functions of one number, so that no quotient of 1 is left to the runtime (`Graph.nodes_of`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from xla_call_module.dtypes import Array

__all__ = ["MAX_BYTES", "MAX_COUNTED", "fold"]

MAX_BYTES = 1 << 25  # of the operands of an operation that is computed here
MAX_COUNTED = 1 << 20  # numbers 0, 1, 2, … that are written down; more are counted by the model
_SMALL = 1 << 16  # bytes of a result that may be larger than its operands

_Attributes = Mapping[str, Any]
# Operations of which the result has no more elements, or is a view (Expand).
_MOVING = frozenset({
    "Cast", "Concat", "Expand", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze",
})  # fmt: skip


def fold(op_type: str, arrays: Sequence[Array], attributes: _Attributes) -> Array | None:
    """The result of an operation of constants; None where it is left to the runtime."""
    compute = _FOLDS.get(op_type)
    size = sum(array.nbytes for array in arrays)
    if compute is None or size > MAX_BYTES:
        return None
    if _elements(op_type, arrays, attributes) > max(_SMALL, size):
        return None
    with np.errstate(all="ignore"):
        computed = compute(list(arrays), attributes)
    if computed is None:
        return None
    result = np.asarray(computed)
    return None if result.nbytes > max(_SMALL, size) else result


def _elements(op_type: str, arrays: Sequence[Array], attributes: _Attributes) -> int:
    """Return the number of elements of the result; 0 where it is no more than of the operands."""
    first, *others = arrays
    if op_type in _MOVING:
        return 0
    if op_type == "Gather":
        along = first.shape[int(attributes.get("axis", 0))]
        return int(first.size // max(1, along) * others[0].size)
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    return int(math.prod(shape))


def _elementwise(function: Callable[..., Any]) -> Callable[[list[Array], _Attributes], Any]:
    def compute(arrays: list[Array], _: _Attributes) -> Any:
        return function(*arrays)

    return compute


def _of_integers(function: Callable[..., Any]) -> Callable[[list[Array], _Attributes], Any]:
    """Fold integers alone: runtimes do not agree which of two float zeros is the greater one."""

    def compute(arrays: list[Array], _: _Attributes) -> Any:
        return function(*arrays) if arrays[0].dtype.kind in "iu" else None

    return compute


def _of_numbers(function: Callable[..., Any]) -> Callable[[list[Array], _Attributes], Any]:
    """A function of single numbers, which runtimes may round in another way; in float64."""

    def compute(arrays: list[Array], _: _Attributes) -> Any:
        if any(array.size != 1 for array in arrays):
            return None
        return function(*(array.astype(np.float64) for array in arrays)).astype(arrays[0].dtype)

    return compute


def _divide(arrays: list[Array], _: _Attributes) -> Any:
    """Fold a quotient; integers round towards zero, and by 0 a processor would trap."""
    dividend, divisor = arrays
    if dividend.dtype.kind not in "iu":
        return np.divide(dividend, divisor)
    if (divisor == 0).any():
        return None
    quotient = np.floor_divide(dividend, divisor)
    is_below = (np.remainder(dividend, divisor) != 0) & ((dividend < 0) != (divisor < 0))
    return quotient + is_below.astype(quotient.dtype)


def _slice(arrays: list[Array], _: _Attributes) -> Any:
    data, starts, ends, axes = arrays[:4]
    steps = arrays[4] if len(arrays) > 4 else np.ones_like(starts)
    index = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        # A negative end counts from the back, and one before all elements is none at all.
        stop = None if step < 0 and end < -data.shape[axis] else int(end)
        index[axis] = slice(int(start), stop, int(step))
    return data[tuple(index)]


def _reshape(arrays: list[Array], attributes: _Attributes) -> Any:
    data, shape = arrays
    if attributes.get("allowzero"):
        return data.reshape(shape)
    return data.reshape([data.shape[i] if n == 0 else int(n) for i, n in enumerate(shape)])


def _of_axes(function: Callable[..., Any]) -> Callable[[list[Array], _Attributes], Any]:
    def compute(arrays: list[Array], _: _Attributes) -> Any:
        # Without them it is all axes, or for Squeeze all that have one element.
        return function(arrays[0], tuple(map(int, arrays[1])) if len(arrays) > 1 else None)

    return compute


def _cast(arrays: list[Array], attributes: _Attributes) -> Any:
    return arrays[0].astype(attributes["to"])


_FOLDS: Mapping[str, Callable[[list[Array], _Attributes], Any]] = {
    "Abs": _elementwise(np.abs),
    "Add": _elementwise(np.add),
    "And": _elementwise(np.logical_and),
    "BitwiseAnd": _elementwise(np.bitwise_and),
    "BitwiseNot": _elementwise(np.bitwise_not),
    "BitwiseOr": _elementwise(np.bitwise_or),
    "BitwiseXor": _elementwise(np.bitwise_xor),
    "Cast": _cast,
    "Ceil": _elementwise(np.ceil),
    "Concat": lambda arrays, attributes: np.concatenate(arrays, attributes["axis"]),
    "Cos": _of_numbers(np.cos),
    "Div": _divide,
    "Equal": _elementwise(np.equal),
    "Expand": lambda arrays, _: np.broadcast_to(
        arrays[0], np.broadcast_shapes(arrays[0].shape, tuple(arrays[1]))
    ),
    "Exp": _of_numbers(np.exp),
    "Floor": _elementwise(np.floor),
    "Gather": lambda arrays, attributes: arrays[0].take(arrays[1], attributes.get("axis", 0)),
    "Greater": _elementwise(np.greater),
    "GreaterOrEqual": _elementwise(np.greater_equal),
    "IsInf": _elementwise(np.isinf),
    "IsNaN": _elementwise(np.isnan),
    "Less": _elementwise(np.less),
    "LessOrEqual": _elementwise(np.less_equal),
    "Log": _of_numbers(np.log),
    "Max": _of_integers(np.maximum),
    "Min": _of_integers(np.minimum),
    "Mul": _elementwise(np.multiply),
    "Neg": _elementwise(np.negative),
    "Not": _elementwise(np.logical_not),
    "Or": _elementwise(np.logical_or),
    "Pow": _of_numbers(np.power),
    "Reciprocal": _elementwise(np.reciprocal),
    "Reshape": _reshape,
    "Sign": _elementwise(np.sign),
    "Sin": _of_numbers(np.sin),
    "Slice": _slice,
    "Sqrt": _elementwise(np.sqrt),
    "Squeeze": _of_axes(np.squeeze),
    "Sub": _elementwise(np.subtract),
    "Tanh": _of_numbers(np.tanh),
    "Transpose": lambda arrays, attributes: np.transpose(arrays[0], attributes["perm"]),
    "Unsqueeze": _of_axes(np.expand_dims),
    "Where": _elementwise(np.where),
    "Xor": _elementwise(np.logical_xor),
}
