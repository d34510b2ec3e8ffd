"""What the calls of a file run: a module that XLA compiles, or TensorFlow's own operations.

The options are `operations` and, for the second, `for_converters` and `exact`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from xla_call_module.errors import StructureError

# The default, and what the verbs take besides.
OperationsOption = Literal["xla", "tensorflow"]
OPERATIONS: tuple[OperationsOption, ...] = get_args(OperationsOption)
XLA: OperationsOption = "xla"
PLAIN: OperationsOption = "tensorflow"


def parse_operations(
    operations: object, *, for_converters: bool = False, exact: bool = True
) -> bool:
    """Return whether calls run as TensorFlow's own operations."""
    if operations not in OPERATIONS:
        raise StructureError(
            f"operations is {operations!r}; expected one of {', '.join(map(repr, OPERATIONS))}. "
            "To do: pass one of these."
        )
    if for_converters and operations == XLA:
        raise StructureError(
            f"for_converters=True is for a file of TensorFlow's own operations, and operations is "
            f"{operations!r}, a module that no converter reads. To do: pass "
            'operations="tensorflow", or leave out for_converters.'
        )
    if not exact and operations == XLA:
        raise StructureError(
            f"exact=False is for a file of TensorFlow's own operations, and operations is "
            f"{operations!r}, a module that XLA compiles as JAX does. To do: pass "
            'operations="tensorflow", or leave out exact.'
        )
    return operations != XLA


def resolve_order(gradient_order: int | None, *, for_converters: bool) -> int:
    """Return the order of the gradients of a file, where it need not be given."""
    if gradient_order is None:
        return 0 if for_converters else 1
    return gradient_order


def refuse_for_converters(options: Mapping[str, Any], verb: str) -> None:
    """Refuse `for_converters` where TensorFlow runs what is written."""
    if options.get("for_converters"):
        raise StructureError(
            f"{verb} writes files that TensorFlow runs, and its optimizer may change the numbers "
            "of files for converters (for_converters=True). To do: leave out for_converters, or "
            "write a file for converters with bridge.save."
        )
