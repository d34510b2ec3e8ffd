"""Tuples, which older modules put arrays into and take them out of: nothing is left of them."""

from __future__ import annotations

from typing import Any

from bridge.onnx.operation import describe
from xla_call_module.errors import UnsupportedError

__all__ = ["PACK", "UNPACK", "element"]

PACK = "stablehlo.tuple"
UNPACK = "stablehlo.get_tuple_element"


def element(value: Any) -> Any:
    """What was put where a value was taken from; the value itself if it is of no tuple.

    Args:
        value: as MLIR has it.

    Raises:
        UnsupportedError: the tuple was made by something else.
    """
    while _maker(value) == UNPACK:
        packed = element(value.owner.operands[0])
        if _maker(packed) != PACK:
            raise UnsupportedError(
                f"{describe(value.owner)}: ONNX has no tuples, and this one is made elsewhere than "
                "in the same function. To do: pass its elements one by one."
            )
        value = packed.owner.operands[int(value.owner.attributes["index"].value)]
    return value


def _maker(value: Any) -> str:
    """The name of the operation that makes a value; empty for an argument of a block."""
    return str(getattr(value.owner, "name", ""))
