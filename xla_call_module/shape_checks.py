"""The sizes that a call asserts of its operands, as values apart from the call.

A `ShapeCheck` has the assertions of a module about its dimension variables. A `SizeAssertion` is
about a size that the module has fixed, and that is known only when a graph runs: where it differs,
TensorFlow's message is one of MLIR's verifier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from xla_call_module.call import CallModule
from xla_call_module.dtypes import DType
from xla_call_module.errors import FormatError

# The operations of TensorFlow that compare sizes, with the number of their inputs.
_INPUTS: Final = {
    "AddV2": 2, "Cast": 1, "Equal": 2, "Greater": 2, "GreaterEqual": 2, "Less": 2, "LessEqual": 2,
    "LogicalAnd": 2, "LogicalNot": 1, "LogicalOr": 2, "Maximum": 2, "Minimum": 2, "Mul": 2,
    "Neg": 1, "NotEqual": 2, "SelectV2": 3, "Sign": 1, "Sub": 2, "TruncateDiv": 2, "TruncateMod": 2,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class OperandSize:
    """A size of one of the check's operands, an int32."""

    operand: int
    axis: int


@dataclass(frozen=True, slots=True)
class ScalarConstant:
    """A constant."""

    value: int
    dtype: DType


@dataclass(frozen=True, slots=True)
class ScalarOperation:
    """A TensorFlow operation on scalars.

    Attributes:
        op: its name, such as `AddV2`.
        inputs: the indices of the steps whose scalars it takes.
        taken: the dtype of the last of its inputs.
        dtype: the dtype of its result.
    """

    op: str
    inputs: tuple[int, ...]
    taken: DType
    dtype: DType

    def __post_init__(self) -> None:
        """Refuse an operation that is not one of those that compare sizes."""
        if _INPUTS.get(self.op) != len(self.inputs):
            raise FormatError(
                f"A shape check has the operation {self.op[:80]!r} of {len(self.inputs)} inputs; "
                f"expected one of {', '.join(_INPUTS)}."
            )


Step = OperandSize | ScalarConstant | ScalarOperation


@dataclass(frozen=True, slots=True)
class ShapeCheck:
    """The assertions of a call about its dimension variables.

    Attributes:
        call: a call that asserts, and returns nothing. Its operands are those of the whole call
            that have unknown sizes.
        kept: for each of its operands the index among the arguments of the whole call.
        steps: scalars, each made of those before it; the last one is true where all assertions
            hold.
    """

    call: CallModule
    kept: tuple[int, ...]
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class SizeAssertion:
    """A size, or the rank, that an operand has to have.

    Attributes:
        operand: the index into `call.operands`.
        axis: the dimension; None for the rank.
        size: the size, or the rank, that is expected.
    """

    operand: int
    axis: int | None
    size: int


def argument_names(call: CallModule) -> dict[int, str]:
    """Return what the Python function calls its arguments, by index, where paths say less."""
    return {i: spec.name for i, spec in enumerate(call.args) if spec.name not in ("", spec.path)}


def refusal_text(call: CallModule) -> str:
    """Return what plain operations say before the shapes that arrived, of a call that asserts."""
    specs = ", ".join(f"{spec.name or spec.path}: {spec}" for spec in call.args)
    return (
        f"Input shapes do not match the polymorphic shapes specification. {call.name} takes "
        f"{specs}; of these the shapes arrived that follow."
    )


def open_assertions(
    call: CallModule, sizes: Sequence[Sequence[int | None] | None]
) -> list[SizeAssertion]:
    """Return the fixed sizes to assert of operands whose own sizes are unknown."""
    assertions: list[SizeAssertion] = []
    for operand, (spec, arrived) in enumerate(zip(call.operands, sizes, strict=True)):
        shape = spec.shape or ()
        if arrived is None and spec.shape is not None:
            assertions.append(SizeAssertion(operand, None, len(shape)))
        known = arrived or ()
        assertions += [
            SizeAssertion(operand, axis, dim)
            for axis, (dim, size) in enumerate(zip(shape, known, strict=False))
            if isinstance(dim, int) and size is None
        ]
    return assertions
