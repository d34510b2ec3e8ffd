"""The elements of a `stablehlo.constant` as a numpy array, whatever their type.

jaxlib has Python classes for integers and for the floats that numpy has, too. Of complex numbers it
refuses the attribute itself, and of the floats and integers of ml_dtypes it has no array. Those are
read as MLIR prints them (mlir/lib/IR/AsmPrinter.cpp): one by one, or, where there are many, as the
hexadecimal digits of their bytes.
"""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np

from xla_call_module.dtypes import DTYPES
from xla_call_module.errors import DtypeError
from xla_call_module.stablehlo.modules import print_constant, splat, tensor_type

Array = np.ndarray[Any, Any]

# The operations that repeat elements.
BROADCASTS = ("stablehlo.broadcast_in_dim", "stablehlo.dynamic_broadcast_in_dim")
_DTYPES = {dtype.mlir: dtype.numpy for dtype in DTYPES}
_NARROW_FLOAT = re.compile(r"f(\d)(E\w+)")
_NARROW_INTEGER = re.compile(r"(u?)i(\d)")
# One element of a list: a complex number, or what is between brackets and commas.
_ELEMENT = re.compile(r"\([^()]*\)|[^\s\[\],()]+")


def element_dtype(element: str) -> np.dtype[Any]:
    """Return the numpy dtype of an element type as StableHLO writes it, such as `f8E4M3FN`."""
    if (known := _DTYPES.get(element)) is not None:
        return known
    name = element
    if (match := _NARROW_FLOAT.fullmatch(element)) is not None:
        name = f"float{match[1]}_{match[2].lower()}"
    elif (match := _NARROW_INTEGER.fullmatch(element)) is not None:
        name = f"{match[1]}int{match[2]}"
    scalar = getattr(ml_dtypes, name, None)
    if scalar is None:
        raise DtypeError(
            f"A constant has elements of type {element}, which ml_dtypes "
            f"{ml_dtypes.__version__} does not have. To do: install a newer ml_dtypes."
        )
    dtype: np.dtype[Any] = np.dtype(scalar)
    return dtype


def read_elements(constant: Any) -> Array:
    """Return the elements of a `stablehlo.constant`, in its shape.

    The array may be read-only, and may lie in the memory of the module.
    """
    type_ = tensor_type(str(constant.results[0].type))
    shape = tuple(dim or 0 for dim in type_.shape)
    dtype = element_dtype(type_.element)
    if 0 in shape:
        return np.zeros(shape, dtype)
    if (repeated := read_splat(constant)) is not None:
        return np.broadcast_to(repeated, shape)
    if dtype.isbuiltin == 1 and dtype.kind != "c":  # 1: not of ml_dtypes
        return np.asarray(constant.attributes["value"]).reshape(shape)
    return _parse_elements(print_constant(constant), dtype).reshape(shape)


def read_splat(constant: Any) -> Array | None:
    """Return the one element that a `stablehlo.constant` repeats, as a scalar; None of several."""
    text = splat(constant)
    if not text:
        return None
    return _parse_element(text, element_dtype(tensor_type(str(constant.results[0].type)).element))


def repeated_number(value: Any) -> float | None:
    """Return the number that a constant repeats, broadcast or not; None of another value."""
    maker = value.owner
    name = getattr(maker, "name", "")
    if name in BROADCASTS:
        return repeated_number(maker.operands[0])
    number = read_splat(maker) if name == "stablehlo.constant" else None
    return None if number is None or number.dtype.kind == "c" else float(number)


def _parse_elements(text: str, dtype: np.dtype[Any]) -> Array:
    digits = re.search(r'dense<"0x([0-9A-Fa-f]*)">', text)
    if digits is not None:
        return np.frombuffer(bytes.fromhex(digits[1]), dtype)
    first = text.index("dense<") + len("dense<")
    elements = _ELEMENT.findall(text, first, text.index("> :", first))
    return np.array([_parse_element(element, dtype)[()] for element in elements], dtype)


def _parse_element(text: str, dtype: np.dtype[Any]) -> Array:
    """Return a number, `true`, the bits of a float, or a complex number of two of those."""
    if dtype.kind == "c":
        half = np.dtype(f"f{dtype.itemsize // 2}")
        parts = [_parse_element(part.strip(), half) for part in text.strip("()").split(",")]
        return np.array(parts, half).view(dtype).reshape(())
    if dtype == np.bool_:
        return np.array(text == "true")
    if text.startswith("0x"):
        return np.array(int(text, 16), f"u{dtype.itemsize}").view(dtype)
    if dtype.kind in "iu" or "int" in dtype.name:
        return np.array(int(text)).astype(dtype)
    return np.array(float(text)).astype(dtype)
