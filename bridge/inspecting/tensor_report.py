"""The report of an input or output of a signature."""

from __future__ import annotations

from dataclasses import dataclass

from xla_call_module.call import TensorSpec
from xla_call_module.dimensions import Shape
from xla_call_module.dtypes import DTYPES

_STRING = 7  # DT_STRING in tensorflow/core/framework/types.proto, which JAX has nothing like
_DTYPE_NAMES = {**{dtype.enum: dtype.name for dtype in DTYPES}, _STRING: "string"}


@dataclass(frozen=True, slots=True)
class TensorReport:
    """An input or output of a signature.

    Attributes:
        name: the name in the signature.
        path: the pytree path in the exported function.
        dtype: the dtype in TensorFlow.
        shape: the shape, with symbolic dimensions as text; None where the rank is unknown.
        element: the dtype in JAX where it is another, such as `key<fry>`; otherwise empty.
        used: whether the module uses the input; True for outputs.
    """

    name: str
    path: str
    dtype: str
    shape: Shape | None
    element: str
    used: bool

    @classmethod
    def of(cls, name: str, spec: TensorSpec, *, used: bool = True) -> TensorReport:
        """Return the report of a spec."""
        return cls(name, spec.path, spec.dtype.name, spec.shape, spec.element, used)


def dtype_name(enum: int) -> str:
    """Return the name of a dtype of TensorFlow, of its number in DataType."""
    return _DTYPE_NAMES.get(enum, f"DataType {enum}")
