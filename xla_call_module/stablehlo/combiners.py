"""The function that a region of scalars computes, by its operations or by trying it on numbers.

JAX and ONNX have operations of their own for reductions by a sum, a product or an extreme, for the
place of an extreme, and for sorting by the order of numbers. A region says none of these names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from xla_call_module.dtypes import Array
from xla_call_module.stablehlo.attributes import comparison_direction
from xla_call_module.stablehlo.constant_evaluation import evaluate_block
from xla_call_module.stablehlo.elements import element_dtype
from xla_call_module.stablehlo.modules import custom_call_target, tensor_type

_COMBINERS = frozenset({"add", "and", "maximum", "minimum", "multiply", "or", "subtract", "xor"})
# What changes nothing when it is combined with another element.
_IDENTITIES: Mapping[str, str] = {
    "add": "0", "and": "all", "maximum": "least", "minimum": "greatest", "multiply": "1",
    "or": "none", "xor": "none",
}  # fmt: skip
# Operations of which trials are exact for floats, too.
_CHOICES = frozenset(
    f"stablehlo.{name}" for name in ("and", "compare", "constant", "not", "or", "select", "xor")
)
# JAX writes them everywhere in a computation that is partly manual.
_CONSTRAINT = "sdy.sharding_constraint"
_RETURNS = frozenset({"func.return", "stablehlo.return"})


def block_dtypes(block: Any) -> tuple[np.dtype[Any], ...]:
    """Return the dtypes of a block's arguments."""
    types = (tensor_type(str(argument.type)) for argument in block.arguments)
    return tuple(element_dtype(type_.element) for type_ in types)


def combiner_of(block: Any) -> str:
    """Return the name of the operation by which a block combines its two arguments.

    It is `replace` where it returns the second one, and empty for anything else.
    """
    operations = [view.operation for view in block if not _is_constraint(view.operation)]
    arguments = list(block.arguments)
    returned = list(map(_unconstrained, operations[-1].operands))
    if len(arguments) != 2 or len(returned) != 1:
        return ""
    if len(operations) == 1:
        return "replace" if returned[0] == arguments[1] else ""
    name = str(operations[0].name).rpartition(".")[2]
    operands = list(operations[0].operands)
    if len(operations) != 2 or name not in _COMBINERS or returned[0] != operations[0].results[0]:
        return ""
    turned = operands == arguments[::-1] and name != "subtract"
    return name if operands == arguments or turned else ""


def complex_combiner_of(block: Any) -> str:
    """Return `maximum` or `minimum` if a block keeps that of two complex numbers; else empty."""
    *_, terminator = block
    returned = _unconstrained(terminator.operation.operands[0])
    select = getattr(returned.owner, "operation", None)
    if select is None or select.name != "stablehlo.select":
        return ""
    chosen = list(select.operands)[1:]
    return complex_extreme(select) if chosen == list(block.arguments) else ""


def complex_extreme(select: Any) -> str:
    """Return `maximum` or `minimum` if a choice is that of complex numbers in JAX; else empty.

    Their order is that of the real parts, and of the imaginary parts where those are equal.
    """
    which, *values = select.operands
    if _maker(which) != "stablehlo.select":
        return ""
    equal, by_imag, by_real = (
        _direction_of_parts(operand, part, values)
        for operand, part in zip(which.owner.operands, ("real", "imag", "real"), strict=True)
    )
    extremes = {"GT": "maximum", "LT": "minimum"}
    return extremes.get(by_real, "") if equal == "EQ" and by_imag == by_real else ""


def _direction_of_parts(compared: Any, part: str, values: Sequence[Any]) -> str:
    """Return how parts of two complex numbers are compared; empty if they are not."""
    if _maker(compared) != "stablehlo.compare":
        return ""
    for operand, value in zip(compared.owner.operands, values, strict=True):
        if _maker(operand) != f"stablehlo.{part}" or operand.owner.operands[0] != value:
            return ""
    return comparison_direction(compared.owner)


def _maker(value: Any) -> str:
    return str(getattr(value.owner, "name", ""))


def _unconstrained(value: Any) -> Any:
    """Return a value as it is without a sharding, which says nothing of a scalar."""
    maker = getattr(value.owner, "operation", None)
    return value if maker is None or not _is_constraint(maker) else maker.operands[0]


def _is_constraint(raw: Any) -> bool:
    """Return whether an operation says how an array lies, in Shardy's form or in GSPMD's."""
    is_call = raw.name == "stablehlo.custom_call"
    return raw.name == _CONSTRAINT or (is_call and custom_call_target(raw) == "Sharding")


def identity_of(combiner: str, dtype: Any) -> Array:
    """Return the scalar that changes nothing when it is combined with another one.

    Of floats without infinities the least and the greatest are their largest numbers.
    """
    kind, dtype = _IDENTITIES[combiner], np.dtype(dtype)
    if kind in ("0", "1"):
        return np.array(int(kind)).astype(dtype)
    if dtype.kind == "b":
        return np.array(kind in ("all", "greatest"))
    if kind in ("all", "none"):
        return np.array(-(kind == "all")).astype(dtype)
    if "int" in dtype.name:
        bounds: Any = ml_dtypes.iinfo if dtype.kind == "V" else np.iinfo
        limits = bounds(dtype)
        return np.array(limits.min if kind == "least" else limits.max, dtype)
    infinite = np.array(-np.inf if kind == "least" else np.inf).astype(dtype)
    if np.isinf(np.real(infinite).astype(np.float64)):
        return infinite
    floats: Any = ml_dtypes.finfo
    return np.asarray(floats(dtype).min if kind == "least" else floats(dtype).max, dtype)


def extreme_and_place_of(block: Any) -> str:
    """Return `max` or `min` if a block keeps that one of two numbers, and its place; else empty.

    Of equal numbers it keeps the lower place, and NaN before all others, as `jax.lax.argmax` does.
    A region that does nothing but compare and choose is known when it has been applied to numbers
    in every order.
    """
    dtypes = block_dtypes(block)
    if len(dtypes) != 4 or not _only_chooses(block) or dtypes[0].kind == "b":
        return ""
    numbers = _samples(dtypes[0])
    grid = np.meshgrid(numbers, (0, 1), numbers, (0, 1), indexing="ij")
    arrays = [part.reshape(-1).astype(kind) for part, kind in zip(grid, dtypes, strict=True)]
    both_nan = _is_nan(arrays[0]) & _is_nan(arrays[2])
    apart = (arrays[1] != arrays[3]) & (~both_nan | (arrays[1] < arrays[3]))
    arrays = [array[apart] for array in arrays]
    results = evaluate_block(block, arrays)
    for name in ("max", "min") if results is not None else ():
        first = _comes_first(name, arrays)
        expected = [np.where(first, arrays[i], arrays[i + 2]) for i in (0, 1)]
        assert results is not None
        if all(_same(*pair) for pair in zip(results, expected, strict=True)):
            return name
    return ""


def _only_chooses(block: Any) -> bool:
    names = {view.operation.name for view in block}
    return names - _RETURNS <= _CHOICES


def _samples(dtype: np.dtype[Any]) -> Sequence[float]:
    if dtype.kind == "b":
        return (0, 1)
    if dtype.name.startswith("uint"):
        return (0, 1, 2)
    return (
        (-1, 0, 1) if dtype.name.startswith("int") else (-np.inf, -1, -0.0, 0.0, 1, np.inf, np.nan)
    )


def _is_nan(array: Array) -> Array:
    return np.isnan(array.astype(np.float64))


def _comes_first(name: str, arrays: Sequence[Array]) -> Array:
    left, place, right, other = (array.astype(np.float64) for array in arrays)
    nan_left, nan_right = np.isnan(left), np.isnan(right)
    before = left > right if name == "max" else left < right
    equal = (left == right) | (nan_left & nan_right)
    first: Array = (nan_left & ~nan_right) | (before & ~nan_right) | (equal & (place < other))
    return first


def _same(one: Array, other: Array) -> bool:
    floats = one.astype(np.float64), other.astype(np.float64)
    return bool(np.array_equal(*floats, equal_nan=True))
