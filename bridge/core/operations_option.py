"""The option `operations`: whether XLA compiles a module, or TensorFlow's own operations run."""

from __future__ import annotations

from typing import Literal, get_args

from xla_call_module.errors import StructureError

__all__ = ["OPERATIONS", "XLA", "OperationsOption", "parse_operations"]

# The default, and what the verbs take besides.
OperationsOption = Literal["xla", "tensorflow"]
OPERATIONS: tuple[OperationsOption, ...] = get_args(OperationsOption)
XLA: OperationsOption = "xla"


def parse_operations(operations: object) -> bool:
    """Return whether calls run as TensorFlow's own operations.

    Raises:
        StructureError: it is none of `OPERATIONS`.
    """
    if operations not in OPERATIONS:
        raise StructureError(
            f"operations is {operations!r}; expected one of {', '.join(map(repr, OPERATIONS))}."
        )
    return operations != XLA
