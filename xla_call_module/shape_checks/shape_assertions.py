"""The shape assertions of a call, apart from what it computes: when and how it refuses shapes."""

from __future__ import annotations

from dataclasses import dataclass

from xla_call_module.call import CallModule
from xla_call_module.dtypes import DType

__all__ = ["Number", "Operation", "ShapeCheck", "Size", "Step"]


@dataclass(frozen=True, slots=True)
class Size:
    """A size of one of the check's operands, an int32."""

    operand: int
    axis: int


@dataclass(frozen=True, slots=True)
class Number:
    """A constant."""

    value: int
    dtype: DType


@dataclass(frozen=True, slots=True)
class Operation:
    """A TensorFlow operation on scalars.

    Attributes:
        op: such as `AddV2`.
        inputs: which steps it takes.
        taken: the dtype of the last of them.
        dtype: that of its result.
    """

    op: str
    inputs: tuple[int, ...]
    taken: DType
    dtype: DType


Step = Size | Number | Operation


@dataclass(frozen=True, slots=True)
class ShapeCheck:
    """When and how a call refuses shapes.

    Attributes:
        call: asserts, and returns nothing. Its operands are those of the whole call that have
            unknown sizes.
        kept: for each of them which argument of the whole call it is.
        steps: scalars, each of which is made of those before it; the last one says whether all that
            is asserted is so.
    """

    call: CallModule
    kept: tuple[int, ...]
    steps: tuple[Step, ...]
