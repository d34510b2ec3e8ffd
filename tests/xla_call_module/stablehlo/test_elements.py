"""The elements of constants: every type, few and many, one repeated and several."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from jax.extend.mlir import ir
from jax.interpreters import mlir

from xla_call_module._jax import dense_elements
from xla_call_module.dtypes import DTYPES
from xla_call_module.errors import DtypeError
from xla_call_module.stablehlo.elements import element_dtype, read_elements, read_splat

NARROW = {
    "i4": "int4", "ui4": "uint4", "i2": "int2", "ui2": "uint2", "f8E4M3": "float8_e4m3",
    "f8E3M4": "float8_e3m4", "f8E4M3B11FNUZ": "float8_e4m3b11fnuz", "f8E5M2FNUZ": "float8_e5m2fnuz",
    "f8E8M0FNU": "float8_e8m0fnu", "f4E2M1FN": "float4_e2m1fn",
}  # fmt: skip
ELEMENTS = [dtype.mlir for dtype in DTYPES] + [
    mlir for mlir, name in NARROW.items() if hasattr(ml_dtypes, name)
]


def _arrays(dtype):
    """Arrays of one element, of one repeated, of few and of many, with every special number."""
    numbers = np.array([1, 0, 1])
    for shape in [(), (1,), (3,), (2, 3), (0,), (4, 0), (40, 3)]:
        yield np.resize(numbers, shape).astype(dtype)
        yield np.ones(shape, dtype)
    width = 1 if dtype.kind == "b" else 8 * dtype.itemsize
    if width > 1 and "int" not in dtype.name and not dtype.name.startswith("float4"):
        special = np.array([0.5, 2, 1 / 3, np.nan, np.inf, -np.inf, -0.0, 1e-40, -3])
        with np.errstate(over="ignore"):
            special = special.astype(dtype)
        yield special
        yield from special  # each of them repeated by itself
        if dtype.kind == "c":
            yield np.stack([special.real, special.real[::-1]], -1).view(dtype)[..., 0]
    elif width > 1:
        yield np.array([1, 1, 0, 1]).astype(dtype) * dtype.type(-1 if dtype.name[0] == "i" else 1)


@pytest.mark.parametrize("element", ELEMENTS)
def test_constants_are_read_as_they_were_written(element):
    dtype = element_dtype(element)
    with mlir.make_ir_context(), ir.Location.unknown():
        type_ = ir.Type.parse(element)
        for array in map(np.asarray, _arrays(dtype)):
            constant = ir.Operation.create(
                "stablehlo.constant",
                results=[ir.RankedTensorType.get(array.shape, type_)],
                attributes={"value": dense_elements(array, type_)},
            )
            found = read_elements(constant)
            assert (found.dtype, found.shape) == (array.dtype, array.shape)
            assert found.tobytes() == array.tobytes(), (array, found)
            repeated = read_splat(constant)
            is_splat = array.size > 0 and len({x.tobytes() for x in array.ravel()}) == 1
            assert (repeated is not None) == is_splat
            assert repeated is None or repeated.tobytes() == array.ravel()[:1].tobytes()


def test_elements_that_numpy_lacks_are_refused():
    with pytest.raises(DtypeError, match=r"elements of type f6Q1, which ml_dtypes .* not have"):
        element_dtype("f6Q1")
