"""StableHLO's reference interpreter, which jaxlib has, as a judge of what is lifted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from xla_call_module.dtypes import DTYPES
from xla_call_module.stablehlo.elements import read_elements
from xla_call_module.stablehlo.modules import Main, read_main

Array = np.ndarray[Any, Any]

_ELEMENTS = {dtype.name: dtype.mlir for dtype in DTYPES}


def element_type(dtype: np.dtype[Any]) -> str:
    """Return a dtype as StableHLO writes it."""
    name = dtype.name
    if name in _ELEMENTS:
        return _ELEMENTS[name]
    if "int" in name:
        return name.replace("uint", "ui").replace("int", "i")
    bits, _, layout = name.removeprefix("float").partition("_")
    return f"f{bits}{layout.upper()}"


def mlir_type(array: Array) -> str:
    """Return the type of an array as StableHLO writes it."""
    dims = "".join(f"{size}x" for size in array.shape)
    return f"tensor<{dims}{element_type(array.dtype)}>"


def dense_text(array: Array) -> str:
    """Return an array as an attribute of MLIR, such as `dense<[1, 2]> : tensor<2xi32>`."""
    if array.size == 0:
        return f"dense<> : {mlir_type(array)}"
    if array.dtype == np.bool_ or "int" in array.dtype.name:
        return f"dense<{_nested(array.astype(object))}> : {mlir_type(array)}"
    digits = np.ascontiguousarray(array).tobytes().hex().upper()
    return f'dense<"0x{digits}"> : {mlir_type(array)}'


def _nested(array: Any) -> str:
    if np.ndim(array):
        return f"[{', '.join(map(_nested, array))}]"
    return str(bool(array)).lower() if isinstance(array, (bool, np.bool_)) else str(int(array))


def read_dense(text: str) -> Array:
    """Return the array of an attribute of MLIR, with its type."""
    with mlir.make_ir_context(), ir.Location.unknown():
        module = ir.Module.parse(f"%0 = stablehlo.constant {text}")
        return np.array(read_elements(module.body.operations[0].operation))


def interpret(text: str, arrays: Sequence[Array]) -> list[Array]:
    """Return what the reference interpreter computes by the function `main` of a module."""
    with mlir.make_ir_context(), ir.Location.unknown():
        main = read_main(ir.Module.parse(text))
        module = ir.Module.parse(f"{text.replace('@main(', '@judged(')}\n{_caller(main, arrays)}")
        parts = iter(map(str, stablehlo.eval_module(module, [])))
    results = []
    for type_ in main.results:
        part = read_dense(next(parts))
        is_complex = type_.element.startswith("complex")
        if is_complex:
            both = np.stack([part, read_dense(next(parts))], axis=-1)
            part = both.view(f"c{2 * part.itemsize}")[..., 0]
        results.append(part)
    return results


def _caller(main: Main, arrays: Sequence[Array]) -> str:
    """Return a function that calls another with constants, and returns no complex numbers.

    jaxlib has no class for attributes of complex numbers.
    """
    lines = [f"%x{n} = stablehlo.constant {dense_text(array)}" for n, array in enumerate(arrays)]
    names = ", ".join(f"%x{n}" for n in range(len(arrays)))
    types = [str(type_) for type_ in main.results]
    made = ", ".join(f"%r{n}" for n in range(len(types)))
    given = ", ".join(map(mlir_type, arrays))
    lines.append(f"{made} = func.call @judged({names}) : ({given}) -> ({', '.join(types)})")
    returned = []
    for n, type_ in enumerate(types):
        if "complex" not in type_:
            returned.append((f"%r{n}", type_))
            continue
        half = re.sub(r"complex<(\w+)>", r"\1", type_)
        for part in ("real", "imag"):
            lines.append(f"%{part}{n} = stablehlo.{part} %r{n} : ({type_}) -> {half}")
            returned.append((f"%{part}{n}", half))
    values, kinds = (", ".join(column) for column in zip(*returned, strict=True))
    body = "\n  ".join([*lines, f"return {values} : {kinds}"])
    return f"func.func @main() -> ({kinds}) {{\n  {body}\n}}"


def differs(found: Any, expected: Array, *, ulps: float = 0, absolute: float = 0) -> str:
    """Return what tells two arrays apart; empty if nothing does.

    Args:
        found: the array that is judged.
        expected: the array that it should be.
        ulps: by how many units in its last place an element may differ.
        absolute: by how much it may differ besides.
    """
    found = np.asarray(found)
    if (found.shape, found.dtype) != (expected.shape, expected.dtype):
        return f"{found.dtype}{found.shape}, expected {expected.dtype}{expected.shape}"
    if found.tobytes() == expected.tobytes() or found.size == 0:
        return ""
    if found.dtype.kind == "c":
        parts = zip((found.real, found.imag), (expected.real, expected.imag), strict=True)
        return "; ".join(filter(None, (differs(*p, ulps=ulps, absolute=absolute) for p in parts)))
    if not jax.numpy.issubdtype(found.dtype, np.inexact):
        return "" if np.array_equal(found, expected) else f"{found}, expected {expected}"
    numbers = ml_dtypes.finfo(found.dtype)
    one, other = found.astype(np.float64), expected.astype(np.float64)
    with np.errstate(all="ignore"):
        allowed = absolute + ulps * float(numbers.eps) * np.abs(other)
        # XLA flushes denormal numbers of its own dtypes to 0.
        allowed += float(numbers.smallest_normal) if ulps else 0
        near = np.abs(one - other) <= allowed
    same = (one == other) & (np.signbit(one) == np.signbit(other) if not ulps else True)
    right = np.where(np.isfinite(one) & np.isfinite(other), near | same, same)
    right |= np.isnan(one) & np.isnan(other)
    if right.all():
        return ""
    return f"{found.dtype} {one[~right][:6]}, expected {other[~right][:6]}"
