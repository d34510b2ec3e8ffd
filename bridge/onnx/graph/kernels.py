"""The dtype in which each operation is computed, where ONNX or ONNX Runtime lack the own one.

ONNX says for each operation which dtypes it takes, and ONNX Runtime has kernels on the CPU for some
of those. A tensor of any other dtype is widened for the operation and narrowed after it, which
gives the same numbers: integers wrap around, and XLA, too, computes small floats as float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from onnx import TensorProto, defs

from bridge.core.narrow_types import NARROW_TYPES
from bridge.onnx.graph.onnx_runtime import KERNELS
from xla_call_module.dtypes import DTYPES
from xla_call_module.errors import DtypeError

# In the order in which they are tried.
_WIDER: Mapping[str, tuple[str, ...]] = {
    "bool": ("uint8", "int32"),
    "int8": ("int32", "int64", "float32"),
    "int16": ("int32", "int64", "float32"),
    "int32": ("int64", "float64"),
    "uint8": ("uint32", "int32", "int64", "float32"),
    "uint16": ("uint32", "int32", "int64", "float32"),
    "uint32": ("uint64", "int64", "float64"),
    "uint64": ("int64",),
    "float16": ("float32",),
    "bfloat16": ("float32",),
    "float8_e4m3fn": ("float32",),
    "float8_e5m2": ("float32",),
}
# Of these the low bits do not depend on how the highest one is read.
_MODULAR = frozenset({
    "Add", "CumSum", "Einsum", "Expand", "MatMul", "Mul", "Neg", "Pad", "Sub",
    "Tile", "Where",
})  # fmt: skip
# Of these small integers may not be rounded on the way.
_EXACT_IN_FLOAT = frozenset({"ReduceMax", "ReduceMin", "MaxPool", "TopK", "Resize"})

# Of these a runtime may add or multiply numbers of 16 bits in 16 bits, one after another.
_ROUNDED_AT_EACH_STEP = frozenset({"CumSum", "Einsum", "ReduceProd", "ReduceSum"})

# The name that ONNX has for each dtype.
_ONNX_NAMES: Mapping[str, str] = {
    **{name: name for name in _WIDER}, "int64": "int64", "float32": "float", "float64": "double",
    "float8_e4m3fn": "float8e4m3fn", "float8_e5m2": "float8e5m2",
}  # fmt: skip


def elem_type(dtype: np.dtype[Any]) -> int:
    """The number that ONNX has for a dtype."""
    return TensorProto.DataType.Value(_ONNX_NAMES[dtype.name].upper())


def dtype_of(element: str, *, where: str) -> np.dtype[Any]:
    """The dtype of a StableHLO element type, such as `bf16`."""
    for dtype in DTYPES:
        if dtype.mlir == element and dtype.name in _ONNX_NAMES:
            return dtype.numpy
    raise DtypeError(
        f"{where}: ONNX's operations do not take elements of type {element}. They take "
        f"{', '.join(_ONNX_NAMES)}, and, converted to wider dtypes, "
        f"{', '.join(narrow.name for narrow in NARROW_TYPES.values())}. To do: convert it to one "
        "of these before the export."
    )


def computation_dtype(op_type: str, dtype: np.dtype[Any], opset: int) -> np.dtype[Any]:
    """The dtype in which an operation is computed: the same, or a wider one."""
    name = _computation_dtype(op_type, dtype.name, opset)
    if name is None:
        raise DtypeError(
            f"ONNX Runtime has no {op_type} of {dtype.name}, nor of a wider dtype with the same "
            "results. To do: compute this in another dtype."
        )
    return dtype if name == dtype.name else np.dtype(name)


@cache
def _computation_dtype(op_type: str, dtype: str, opset: int) -> str | None:
    taken = _taken_by_schema(op_type, opset)
    kernels = KERNELS.get(op_type, taken)
    for candidate in (dtype, *_WIDER.get(dtype, ())):
        if candidate not in taken or candidate not in kernels:
            continue
        if dtype == "uint64" and candidate == "int64" and op_type not in _MODULAR:
            continue
        if candidate == "float16" and op_type in _ROUNDED_AT_EACH_STEP:
            continue
        of_integers = "int" in dtype and candidate.startswith("float")
        if of_integers and op_type not in _EXACT_IN_FLOAT:
            continue
        return candidate
    return None


@cache
def _principal(op_type: str, opset: int) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """The type variable of what an operation computes with, and those of all inputs and outputs."""
    schema = defs.get_schema(op_type, opset)
    inputs = tuple(formal.type_str for formal in schema.inputs)
    outputs = tuple(formal.type_str for formal in schema.outputs)
    if op_type == "Where":
        return inputs[1], inputs, outputs
    if op_type == "Pow":  # the exponent's dtype may be another one, and is not here
        return inputs[0], (inputs[0],) * 2, outputs
    return (inputs or outputs)[0], inputs, outputs


@cache
def _taken_by_schema(op_type: str, opset: int) -> frozenset[str]:
    variable = _principal(op_type, opset)[0]
    constraints = defs.get_schema(op_type, opset).type_constraints
    texts = next((c.allowed_type_strs for c in constraints if c.type_param_str == variable), None)
    if texts is None:
        texts = [variable]
    return frozenset(n for n, onnx_name in _ONNX_NAMES.items() if f"tensor({onnx_name})" in texts)


def typed_alike(
    op_type: str, opset: int, inputs: int, outputs: int
) -> tuple[list[bool], list[bool]]:
    """Return which inputs and outputs have the dtype that the operation computes in."""
    variable, of_inputs, of_outputs = _principal(op_type, opset)

    def alike(formals: tuple[str, ...], count: int) -> list[bool]:
        padded = (*formals, *formals[-1:] * count)  # the last one may repeat
        return [formal == variable for formal in padded[:count]]

    return alike(of_inputs, inputs), alike(of_outputs, outputs)
