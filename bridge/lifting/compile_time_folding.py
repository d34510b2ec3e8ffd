"""Folding of a module's arithmetic of sizes and small constants, while it is traced.

A module with symbolic shapes computes its sizes by operations; of these none is left in what JAX
traces: with concrete shapes they are numbers, and under `jax.export` they are JAX's own dimension
expressions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from operator import ge
from typing import Any

import numpy as np
from jax import export

from bridge.core._jax import is_certain
from bridge.lifting.known_values import (
    DeviceNumber,
    LiftedValue,
    PlatformChoice,
    SizeArray,
    of_dimensions,
)
from xla_call_module.stablehlo.attributes import comparison_direction
from xla_call_module.stablehlo.constant_evaluation import MAX_EVALUATED, RULES, compute, evaluate
from xla_call_module.stablehlo.elements import element_dtype
from xla_call_module.stablehlo.modules import tensor_type

Array = np.ndarray[Any, Any]


def fold(raw: Any, operands: Sequence[LiftedValue]) -> LiftedValue | None:
    """Return the result of an operation whose operands are known; None if it is to be computed."""
    if raw.name not in RULES or not operands:
        return None
    if isinstance(operands[0], DeviceNumber):
        return _fold_device_number(raw, operands)
    if any(isinstance(operand, PlatformChoice) for operand in operands):
        return _fold_for_platforms(raw, operands)
    if (deciding := _deciding(raw, operands)) is not None:
        return deciding
    if not all(isinstance(operand, (np.ndarray, SizeArray)) for operand in operands):
        return None
    if not any(isinstance(operand, SizeArray) for operand in operands):
        return evaluate(raw, operands)
    if any(np.prod(operand.shape) > MAX_EVALUATED for operand in operands):
        return None
    return _fold_sizes(raw, operands)


def _deciding(raw: Any, operands: Sequence[LiftedValue]) -> Array | None:
    """Return the operand that decides a conjunction or disjunction alone; None if there is none."""
    if raw.name not in ("stablehlo.and", "stablehlo.or"):
        return None
    for operand in operands:
        is_flags = isinstance(operand, np.ndarray) and operand.dtype.kind == "b"
        if is_flags and (operand == (raw.name == "stablehlo.or")).all():
            decided: Array = operand
            return decided
    return None


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


def _fold_sizes(raw: Any, operands: Sequence[LiftedValue]) -> LiftedValue | None:
    """Return what an operation makes of dimension expressions; None if JAX has none for it."""
    dtype = element_dtype(tensor_type(str(raw.results[0].type)).element)
    if dtype.kind not in "biu":
        return None
    elements = [_elements(operand) for operand in operands]
    results: list[Array | None] = []

    def is_computed() -> bool:
        is_comparison = raw.name == "stablehlo.compare"
        if is_comparison and (direction := comparison_direction(raw)) in ("EQ", "NE"):
            equal = _equality(*elements)
            results.append(equal if direction == "EQ" or equal is None else ~equal)
        else:
            results.append(compute(raw, elements))
        return results[0] is not None

    # What depends on the sizes, such as whether b is 3, is computed when they are known.
    if not is_certain(is_computed):
        return None
    result = np.asarray(results[0], object)
    return None if result.size > MAX_EVALUATED else of_dimensions(result, dtype)


def _equality(left: Array, right: Array) -> Array | None:
    """Return where sizes are equal; None where that depends on what they are.

    JAX says of expressions that they differ where it does not know (`_DimExpr.__eq__` in
    jax/_src/export/shape_poly.py).
    """
    differences = np.asarray(left - right, object).reshape(-1)
    for difference in differences:
        if export.is_symbolic_dim(difference):
            is_less, is_more = partial(ge, -1, difference), partial(ge, difference, 1)
            if not (is_certain(is_less) or is_certain(is_more)):
                return None
    flags = [not export.is_symbolic_dim(d) and d == 0 for d in differences]
    return np.array(flags, bool).reshape(np.broadcast_shapes(left.shape, right.shape))


def _elements(operand: LiftedValue) -> Array:
    """Return the elements of a known value as Python's numbers where they may be sizes."""
    if isinstance(operand, SizeArray):
        return operand.elements
    array: Array = operand
    return array.astype(object) if array.dtype.kind in "biu" else array
