"""Operations on constants, computed by NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bridge.blocks.block import Value
from xla_call_module.dtypes import Array
from xla_call_module.size_polynomials import is_static, numbers_of

# Up to how many elements a result is computed, and up to how many one is that is a constant's own.
_MAX_MADE, _MAX_MOVED = 1 << 16, 1 << 27
# The same of one that is repeated, which most kernels do themselves.
_MAX_REPEATED = 1 << 12
# What is left of the sizes of floats that are added, if they do not cancel.
_LEAST_PART = 1e-2
_Parameters = Mapping[str, Any]
_Evaluate = Callable[..., Any]


def fold(
    name: str, operands: Sequence[Value], parameters: _Parameters, result: Value
) -> Array | None:
    """Return the result of an operation on constants; None where it is not to be computed here."""
    evaluate = _EVALUATORS.get(name)
    if evaluate is None or not is_static(result.shape):
        return None
    arrays = [operand.array for operand in operands if operand.array is not None]
    if len(arrays) != len(operands):
        return None
    count = math.prod(numbers_of(result.shape))
    given = max((array.size for array in arrays), default=0)
    most = _MAX_REPEATED if name == "broadcast_in_dim" else _MAX_MADE
    if count > (_MAX_MOVED if name in _MOVING and count <= given else most):
        return None
    with np.errstate(all="ignore"):
        made = evaluate(result, parameters, *arrays)
    if made is None:
        return None
    return np.ascontiguousarray(np.asarray(made).astype(result.dtype)).reshape(result.shape)


def _divide(result: Value, _: _Parameters, left: Array, right: Array) -> Any:
    if result.dtype.kind == "f":
        return left / right
    if (right == 0).any() or (right == -1).any():
        return None
    return np.trunc(left.astype(np.float64) / right) if result.dtype.itemsize < 8 else None


def _convert(result: Value, _: _Parameters, value: Array) -> Any:
    if value.dtype.kind == "f" and result.dtype.kind in "iu":
        bounds = np.iinfo(result.dtype)
        whole = np.trunc(value.astype(np.float64))
        if not np.isfinite(whole).all() or (whole < bounds.min).any() or (whole > bounds.max).any():
            return None
    return value.astype(result.dtype)


def _bitcast(result: Value, _: _Parameters, value: Array) -> Any:
    if value.dtype.itemsize != result.dtype.itemsize:
        return None
    return np.ascontiguousarray(value).reshape(-1).view(result.dtype).reshape(value.shape)


def _broadcast(result: Value, parameters: _Parameters, value: Array) -> Any:
    shape = [1] * len(result.shape)
    for axis, size in zip(parameters["broadcast_dimensions"], value.shape, strict=True):
        shape[axis] = size
    return np.broadcast_to(value.reshape(shape), numbers_of(result.shape))


def _slice(_: Value, parameters: _Parameters, value: Array) -> Any:
    strides = parameters["strides"] or (1,) * value.ndim
    ends = zip(parameters["start_indices"], parameters["limit_indices"], strides, strict=True)
    return value[tuple(slice(*map(int, three)) for three in ends)]


def _pad(_: Value, parameters: _Parameters, value: Array, fill: Array) -> Any:
    if any(min(triple) < 0 or triple[2] for triple in parameters["padding_config"]):
        return None
    widths = [triple[:2] for triple in parameters["padding_config"]]
    return np.pad(value, widths, constant_values=fill)


def _iota(result: Value, parameters: _Parameters) -> Any:
    shape = numbers_of(result.shape)
    axis = parameters["dimension"]
    line = [-1 if n == axis else 1 for n in range(len(shape))]
    return np.broadcast_to(np.arange(shape[axis]).reshape(line), shape)


def _shift(function: Any, kind: str) -> _Evaluate:
    def shift(_: Value, __: _Parameters, value: Array, by: Array) -> Any:
        inside = (by >= 0).all() and (by < 8 * value.dtype.itemsize).all()
        return function(value, by) if inside and value.dtype.kind in kind else None

    return shift


def _of(function: Any) -> _Evaluate:
    return lambda _, __, *arrays: function(*arrays)


def _reduced(function: Any) -> _Evaluate:
    def reduce(_: Value, parameters: _Parameters, value: Array) -> Any:
        axes = tuple(parameters["axes"])
        if not value.size:
            return None
        made = function(value, axis=axes)
        if function is not np.sum or value.dtype.kind in "biu":
            return made
        # What cancels depends on the order, which is each runtime's own.
        sizes = np.sum(np.abs(value), axis=axes)
        return None if (np.abs(made) < _LEAST_PART * sizes).any() else made

    return reduce


def _power(_: Value, __: _Parameters, base: Array, exponent: Array) -> Any:
    return base**exponent if base.dtype.kind == "f" else None


_MOVING: Mapping[str, _Evaluate] = {
    "concatenate": lambda _, p, *arrays: np.concatenate(arrays, p["dimension"]),
    "reshape": lambda result, _, value: value.reshape(result.shape),
    "rev": lambda _, p, value: np.flip(value, p["dimensions"]),
    "slice": _slice,
    "transpose": lambda _, p, value: value.transpose(p["permutation"]),
}
_EVALUATORS: Mapping[str, _Evaluate] = {
    **_MOVING,
    **{
        name: _of(getattr(np, function))
        for name, function in {
            "abs": "abs", "add": "add", "and": "bitwise_and", "ceil": "ceil", "cos": "cos",
            "eq": "equal", "exp": "exp", "floor": "floor", "ge": "greater_equal", "gt": "greater",
            "le": "less_equal", "log": "log", "lt": "less", "max": "maximum", "min": "minimum",
            "mul": "multiply", "ne": "not_equal", "neg": "negative", "not": "invert",
            "or": "bitwise_or", "sin": "sin", "sqrt": "sqrt", "sub": "subtract",
            "tanh": "tanh", "xor": "bitwise_xor",
        }.items()
    },
    **{
        f"reduce_{name}": _reduced(function)
        for name, function in {
            "and": np.all, "max": np.max, "min": np.min, "or": np.any, "prod": np.prod,
            "sum": np.sum,
        }.items()
    },
    "bitcast_convert_type": _bitcast,
    "broadcast_in_dim": _broadcast,
    "clamp": lambda _, __, low, value, high: np.minimum(np.maximum(value, low), high),
    "convert_element_type": _convert,
    "div": _divide,
    "iota": _iota,
    "pad": _pad,
    "pow": _power,
    "round": lambda _, p, value: np.rint(value) if int(p["rounding_method"]) == 1 else None,
    "select_n": lambda _, __, which, no, yes: np.where(which, yes, no),
    "tile": lambda _, p, value: np.tile(value, p["reps"]),
    "shift_left": _shift(np.left_shift, "iu"),
    "shift_right_arithmetic": _shift(np.right_shift, "i"),
    "shift_right_logical": _shift(np.right_shift, "u"),
    "sign": lambda _, __, value: np.where(value == 0, value, np.sign(value)),  # that of -0.0, too
}  # fmt: skip
