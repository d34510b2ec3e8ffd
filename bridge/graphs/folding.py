"""Operations of constants, computed at once.

Only those whose results are the same in every runtime, and no larger than what they are made of;
and functions of one number, so that no quotient of 1 is left to the runtime.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from xla_call_module.dtypes import Array
from xla_call_module.stablehlo.constant_evaluation import COMPARISONS, FUNCTIONS, truncated_quotient

MAX_BYTES = 1 << 25  # of the operands of an operation that is computed here
MAX_COUNTED = 1 << 20  # numbers 0, 1, 2, … that are written down; more are counted by the model
_MAX_GROWN_BYTES = 1 << 16  # bytes of a result that may be larger than its operands

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
    if _elements(op_type, arrays, attributes) > max(_MAX_GROWN_BYTES, size):
        return None
    with np.errstate(all="ignore"):
        computed = compute(list(arrays), attributes)
    if computed is None:
        return None
    result = np.asarray(computed)
    return None if result.nbytes > max(_MAX_GROWN_BYTES, size) else result


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
    return lambda arrays, _: function(*arrays)


def _of_integers(function: Callable[..., Any]) -> Callable[[list[Array], _Attributes], Any]:
    """Fold integers alone: runtimes do not agree which of two float zeros is the greater one."""
    return lambda arrays, _: function(*arrays) if arrays[0].dtype.kind in "iu" else None


def _of_numbers(function: Callable[..., Any]) -> Callable[[list[Array], _Attributes], Any]:
    """A function of single numbers, which runtimes may round in another way; in float64."""

    def compute(arrays: list[Array], _: _Attributes) -> Any:
        if any(array.size != 1 or array.dtype.kind == "c" for array in arrays):
            return None
        return function(*(array.astype(np.float64) for array in arrays)).astype(arrays[0].dtype)

    return compute


def _divide(arrays: list[Array], _: _Attributes) -> Any:
    """Fold a quotient; integers round towards zero, and by 0 a processor would trap."""
    dividend, divisor = arrays
    if dividend.dtype.kind not in "iu":
        return np.divide(dividend, divisor)
    return truncated_quotient(dividend, divisor)


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


# The function of NumPy that gives the same numbers as an operation, element by element.
ELEMENTWISE: Mapping[str, Callable[..., Any]] = {
    "Abs": FUNCTIONS["abs"], "Add": FUNCTIONS["add"], "And": FUNCTIONS["and"],
    "BitwiseAnd": FUNCTIONS["and"], "BitwiseNot": FUNCTIONS["not"], "BitwiseOr": FUNCTIONS["or"],
    "BitwiseXor": FUNCTIONS["xor"], "Ceil": FUNCTIONS["ceil"], "Equal": COMPARISONS["EQ"],
    "Floor": FUNCTIONS["floor"], "Greater": COMPARISONS["GT"], "GreaterOrEqual": COMPARISONS["GE"],
    "IsInf": np.isinf, "IsNaN": np.isnan, "Less": COMPARISONS["LT"],
    "LessOrEqual": COMPARISONS["LE"], "Mul": FUNCTIONS["multiply"], "Neg": FUNCTIONS["negate"],
    "Not": FUNCTIONS["not"], "NotEqual": COMPARISONS["NE"], "Or": FUNCTIONS["or"],
    "Reciprocal": np.reciprocal, "Sign": FUNCTIONS["sign"], "Sqrt": FUNCTIONS["sqrt"],
    "Sub": FUNCTIONS["subtract"], "Where": np.where, "Xor": FUNCTIONS["xor"],
}  # fmt: skip
# The same of single numbers, which runtimes may round in another way.
OF_NUMBERS: Mapping[str, Callable[..., Any]] = {
    "Cos": FUNCTIONS["cosine"], "Exp": FUNCTIONS["exponential"], "Log": FUNCTIONS["log"],
    "Pow": FUNCTIONS["power"], "Sin": FUNCTIONS["sine"], "Tanh": FUNCTIONS["tanh"],
}  # fmt: skip
_FOLDS: Mapping[str, Callable[[list[Array], _Attributes], Any]] = {
    **{name: _elementwise(function) for name, function in ELEMENTWISE.items()},
    **{name: _of_numbers(function) for name, function in OF_NUMBERS.items()},
    "Cast": lambda arrays, attributes: arrays[0].astype(attributes["to"]),
    "Concat": lambda arrays, attributes: np.concatenate(arrays, attributes["axis"]),
    "Div": _divide,
    "Expand": lambda arrays, _: np.broadcast_to(
        arrays[0], np.broadcast_shapes(arrays[0].shape, tuple(arrays[1]))
    ),
    "Gather": lambda arrays, attributes: arrays[0].take(arrays[1], attributes.get("axis", 0)),
    "Max": _of_integers(np.maximum),
    "Min": _of_integers(np.minimum),
    "Reshape": _reshape,
    "Slice": _slice,
    "Squeeze": _of_axes(np.squeeze),
    "Transpose": lambda arrays, attributes: np.transpose(arrays[0], attributes["perm"]),
    "Unsqueeze": _of_axes(np.expand_dims),
}
