"""Folding of a module's arithmetic of sizes and small constants, while it is traced.

A module with symbolic shapes computes its sizes by operations; of these none is left in what JAX
traces: with concrete shapes they are numbers, and under `jax.export` they are JAX's own dimension
expressions.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jax import export

from bridge.core._jax import is_certain, is_lowered_narrow
from bridge.lifting.known_values import (
    DeviceNumber,
    LiftedValue,
    PlatformChoice,
    SizeArray,
    of_dimensions,
    repeated_element,
)
from xla_call_module.stablehlo.attributes import Attributes, comparison_direction
from xla_call_module.stablehlo.elements import element_dtype
from xla_call_module.stablehlo.modules import tensor_type

__all__ = ["COMPARISONS", "MAX_FOLDED", "fold"]

Array = np.ndarray[Any, Any]

# Elements of an operand beyond which an operation is left to XLA.
MAX_FOLDED = 1024
# The same where JAX has no program for it.
_MAX_FOLDED_WIDE = 1 << 24


def fold(raw: Any, operands: Sequence[LiftedValue]) -> LiftedValue | None:
    """Return the result of an operation whose operands are known; None if it is to be computed.

    Args:
        raw: the operation, as MLIR has it.
        operands: its operands.
    """
    rule = _RULES.get(raw.name)
    if rule is None or not operands:
        return None
    if isinstance(operands[0], DeviceNumber):
        return _fold_device_number(raw, operands)
    if any(isinstance(operand, PlatformChoice) for operand in operands):
        return _fold_for_platforms(raw, operands)
    if not all(isinstance(operand, (np.ndarray, SizeArray)) for operand in operands):
        return None
    is_repeated = all(repeated_element(operand) is not None for operand in operands)
    if is_repeated and raw.name not in _JOINS:
        return _fold_repeated(raw, operands)
    is_narrow = any(is_lowered_narrow(operand.dtype) for operand in operands)
    most = _MAX_FOLDED_WIDE if is_narrow else MAX_FOLDED
    if any(np.prod(operand.shape) > most for operand in operands):
        return None
    type_ = tensor_type(str(raw.results[0].type))
    dtype = element_dtype(type_.element)
    if any(isinstance(operand, SizeArray) for operand in operands):
        return _fold_sizes(raw, operands, dtype)
    if not _is_exact(raw.name, operands, dtype):
        return None
    with np.errstate(all="ignore"):
        result = rule(Attributes(raw), *operands)
    return None if result is None else _wrapped(result, dtype)


def _fold_repeated(raw: Any, operands: Sequence[Array]) -> Array | None:
    """Return what an operation makes of arrays of one repeated element each: such an array."""
    type_ = tensor_type(str(raw.results[0].type))
    scalars = [repeated_element(operand) for operand in operands]
    dtype = element_dtype(type_.element)
    if None in type_.shape or not _is_exact(raw.name, operands, dtype):
        return None
    result = scalars[0]
    if raw.name not in _RESHAPES:
        with np.errstate(all="ignore"):
            result = _RULES[raw.name](Attributes(raw), *scalars)
    if result is None:
        return None
    return np.broadcast_to(_wrapped(result, dtype), [dim or 0 for dim in type_.shape])


def _wrapped(result: Array, dtype: np.dtype[Any]) -> Array:
    """Return a result in a dtype; integers of Python wrap around, such as the least one by -1."""
    array = np.asarray(result)
    if array.dtype == object and dtype.kind in "iu":
        bits = 8 * dtype.itemsize
        unsigned: Array = np.asarray(array & ((1 << bits) - 1), f"u{dtype.itemsize}")
        return unsigned.view(dtype)
    with np.errstate(all="ignore"):
        return array.astype(dtype, copy=False)


def _fold_for_platforms(raw: Any, operands: Sequence[LiftedValue]) -> PlatformChoice | None:
    """Return the result for each platform; None if it is not known for all of them."""
    names = next(o.values for o in operands if isinstance(o, PlatformChoice))
    results = {
        name: fold(raw, [o.values[name] if isinstance(o, PlatformChoice) else o for o in operands])
        for name in names
    }
    if not all(isinstance(result, np.ndarray) for result in results.values()):
        return None
    return PlatformChoice({name: result for name, result in results.items() if result is not None})


def _fold_device_number(raw: Any, operands: Sequence[LiftedValue]) -> DeviceNumber | None:
    """Return the place of a device along some axes, as JAX computes it of the device's number."""
    number, *others = operands
    if raw.name == "stablehlo.convert":
        dtype = element_dtype(tensor_type(str(raw.results[0].type)).element)
        return DeviceNumber(number.axes, dtype) if dtype.kind in "iu" else None
    if raw.name not in ("stablehlo.divide", "stablehlo.remainder"):
        return None
    if not isinstance(others[0], np.ndarray):
        return None
    sizes = [size for _, size in number.axes]
    wanted = int(others[0])
    for place in range(len(sizes) + 1):
        if math.prod(sizes[place:]) == wanted:
            kept = number.axes[:place] if raw.name == "stablehlo.divide" else number.axes[place:]
            return DeviceNumber(kept, number.dtype)
    return None


def _fold_sizes(
    raw: Any, operands: Sequence[LiftedValue], dtype: np.dtype[Any]
) -> LiftedValue | None:
    """Return what an operation makes of dimension expressions; None if JAX has none for it."""
    if dtype.kind not in "biu":
        return None
    given = [_elements(operand) for operand in operands]
    results: list[Array | None] = []

    def compute() -> bool:
        results.append(_RULES[raw.name](Attributes(raw), *given))
        return results[0] is not None

    # What depends on the sizes, such as whether b is 3, is computed when they are known.
    if not is_certain(compute):
        return None
    return of_dimensions(np.asarray(results[0], object), dtype)


def _elements(operand: LiftedValue) -> Array:
    """Return the elements of a known value as Python's numbers where they may be sizes."""
    if isinstance(operand, SizeArray):
        return operand.elements
    array: Array = operand
    return array.astype(object) if array.dtype.kind in "biu" else array


def _is_exact(name: str, operands: Sequence[Array], dtype: np.dtype[Any]) -> bool:
    """Return whether numpy computes what XLA does, which it may round otherwise of floats."""
    if name in _MOVES:
        return True
    return all(array.dtype.kind in "biu" for array in operands) and (
        dtype.kind in "biu" or name == "stablehlo.convert"
    )


def _divide(_: Attributes, left: Array, right: Array) -> Array | None:
    """Return the quotient rounded towards zero; None where a divisor is 0."""
    if (right == 0).any():
        return None
    if left.dtype == object or right.dtype == object:
        same = (left >= 0) & (right > 0)
        return left // right if np.all(same) else None
    quotient = np.abs(left.astype(object)) // np.abs(right.astype(object))
    return np.asarray(np.where((left < 0) != (right < 0), -quotient, quotient))


def _remainder(op: Attributes, left: Array, right: Array) -> Array | None:
    """Return what is left by a division, with the sign of the dividend."""
    quotient = _divide(op, left, right)
    if quotient is None:
        return None
    if left.dtype == object or right.dtype == object:
        return np.asarray(left % right)
    return np.asarray(left.astype(object) - quotient * right.astype(object))


# The operator of each direction, for numbers, arrays of numpy, and dimensions.
COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "EQ": operator.eq, "GE": operator.ge, "GT": operator.gt,
    "LE": operator.le, "LT": operator.lt, "NE": operator.ne,
}  # fmt: skip


def _compare(op: Attributes, left: Array, right: Array) -> Array | None:
    if op.text("compare_type").find("TOTALORDER") >= 0:
        left, right = _total_order(left), _total_order(right)
    return np.asarray(COMPARISONS[comparison_direction(op.raw)](left, right))


def _total_order(value: Array) -> Array:
    """Return integers in the order of floats with -NaN < -infinity < -0 < 0 < infinity < NaN."""
    if value.dtype.kind in "biuO":
        return value
    signed = value.view(f"i{value.dtype.itemsize}")
    return np.where(signed < 0, signed ^ np.iinfo(signed.dtype).max, signed)


def _bitcast(op: Attributes, value: Array) -> Array | None:
    dtype = element_dtype(tensor_type(str(op.raw.results[0].type)).element)
    kinds = value.dtype.kind + dtype.kind
    is_packed = any(bits in f"{value.dtype} {dtype}" for bits in ("int2", "int4", "float4"))
    if value.dtype.itemsize != dtype.itemsize or set("bcO") & set(kinds) or is_packed:
        return None
    return np.ascontiguousarray(value).view(dtype).reshape(value.shape)  # it has no scalars


def _sign(_: Attributes, value: Array) -> Array:
    positive, negative = np.asarray(value > 0, bool), np.asarray(value < 0, bool)
    return np.asarray(positive.astype(int) - negative.astype(int))


def _extreme(name: str) -> Callable[[Attributes, Array, Array], Array]:
    def fold_extreme(_: Attributes, left: Array, right: Array) -> Array:
        if object not in (left.dtype, right.dtype):
            return np.asarray(getattr(np, f"{name}imum")(left, right))
        pairs = zip(left.reshape(-1), right.reshape(-1), strict=True)
        chosen = [_symbolic_extreme(name, *pair) for pair in pairs]
        return np.array(chosen, object).reshape(left.shape)

    return fold_extreme


def _symbolic_extreme(name: str, left: Any, right: Any) -> Any:
    """Return the greater or the lesser of two dimensions, one of which is an expression."""
    scope = next((dim.scope for dim in (left, right) if export.is_symbolic_dim(dim)), None)
    return export.symbolic_shape(f"{name}({left}, {right})", scope=scope)[0]


def _select(_: Attributes, which: Array, chosen: Array, other: Array) -> Array:
    return np.where(np.asarray(which, bool), chosen, other)


def _broadcast(op: Attributes, value: Array) -> Array | None:
    shape = tensor_type(str(op.raw.results[0].type)).shape
    is_large = np.prod([dim or 0 for dim in shape]) > MAX_FOLDED
    if None in shape or (is_large and (value.ndim or value.dtype == object)):
        return None
    axes = op.integers("broadcast_dimensions")
    placed = [1] * len(shape)
    for axis, size in zip(axes, value.shape, strict=True):
        placed[axis] = size
    return np.broadcast_to(value.reshape(placed), [dim or 0 for dim in shape])


def _reshape(op: Attributes, value: Array) -> Array | None:
    shape = tensor_type(str(op.raw.results[0].type)).shape
    return None if None in shape else value.reshape([dim or 0 for dim in shape])


def _concatenate(op: Attributes, *values: Array) -> Array:
    return np.concatenate(values, op.integer("dimension"))


def _slice(op: Attributes, value: Array) -> Array:
    bounds = zip(
        op.integers("start_indices"), op.integers("limit_indices"), op.integers("strides"),
        strict=True,
    )  # fmt: skip
    return value[tuple(slice(*bound) for bound in bounds)]


def _not(_: Attributes, value: Array) -> Array | None:
    if value.dtype == object:
        return ~value.astype(bool) if all(type(v) is bool for v in value.reshape(-1)) else None
    return np.asarray(~value)


def _count_bits(test: Callable[[Array], Array]) -> Callable[..., Array | None]:
    """Return the fold of how many of an integer's shifts by 0, 1, 2, … pass a test."""

    def fold_count(_: Attributes, value: Array) -> Array | None:
        if value.dtype == object:
            return None
        unsigned = value.view(f"u{value.dtype.itemsize}")
        shifted = [unsigned >> unsigned.dtype.type(n) for n in range(8 * value.dtype.itemsize)]
        return np.asarray(sum(test(bits).astype(np.int64) for bits in shifted))

    return fold_count


def _shift(function: Callable[..., Any]) -> Callable[..., Array | None]:
    """Return the fold of a shift, which leaves 0 where it is by all bits or more."""

    def fold_shift(_: Attributes, value: Array, amount: Array) -> Array | None:
        if object in (value.dtype, amount.dtype):
            return None
        bits = 8 * value.dtype.itemsize
        unsigned, by = value.view(f"u{value.dtype.itemsize}"), amount.view(f"u{bits // 8}")
        shifted = function(unsigned, np.minimum(by, bits - 1).astype(unsigned.dtype))
        return np.where(by < bits, shifted, 0).astype(unsigned.dtype).view(value.dtype)

    return fold_shift


def _logical(name: str) -> Callable[[Attributes, Array, Array], Array]:
    bitwise = getattr(np, f"bitwise_{name}")
    return lambda _, left, right: bitwise(left, right)


def _plain(function: Callable[..., Any]) -> Callable[..., Array | None]:
    return lambda _, *operands: function(*operands)


_RULES: Mapping[str, Callable[..., Array | None]] = {
    "stablehlo.abs": _plain(np.abs),
    "stablehlo.add": _plain(np.add),
    "stablehlo.and": _logical("and"),
    "stablehlo.bitcast_convert": _bitcast,
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.compare": _compare,
    "stablehlo.concatenate": _concatenate,
    "stablehlo.convert": _plain(lambda value: None if value.dtype.kind == "c" else value),
    "stablehlo.count_leading_zeros": _count_bits(lambda bits: np.asarray(bits == 0)),
    "stablehlo.divide": _divide,
    "stablehlo.imag": _plain(np.imag),
    "stablehlo.maximum": _extreme("max"),
    "stablehlo.minimum": _extreme("min"),
    "stablehlo.multiply": _plain(np.multiply),
    "stablehlo.negate": _plain(np.negative),
    "stablehlo.not": _not,
    "stablehlo.or": _logical("or"),
    "stablehlo.popcnt": _count_bits(lambda bits: np.asarray(bits & 1)),
    "stablehlo.real": _plain(np.real),
    "stablehlo.remainder": _remainder,
    "stablehlo.reshape": _reshape,
    "stablehlo.select": _select,
    "stablehlo.shift_left": _shift(np.left_shift),
    "stablehlo.shift_right_logical": _shift(np.right_shift),
    "stablehlo.sign": _sign,
    "stablehlo.slice": _slice,
    "stablehlo.subtract": _plain(np.subtract),
    "stablehlo.xor": _logical("xor"),
}
_JOINS = ("stablehlo.concatenate",)
_RESHAPES = ("stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.slice")
# Operations that only move or compare values, which is exact for floats, too.
_MOVES = frozenset(
    f"stablehlo.{name}"
    for name in (
        "bitcast_convert",
        "broadcast_in_dim",
        "compare",
        "concatenate",
        "imag",
        "real",
        "reshape",
        "select",
        "slice",
    )
)
