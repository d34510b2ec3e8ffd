"""Tuples, which older modules put arrays into and take them out of: nothing is left of them."""

from __future__ import annotations

from typing import Any, NoReturn

from bridge.onnx.graph.stablehlo_operation import describe
from xla_call_module.errors import UnsupportedError

__all__ = ["PACK", "UNPACK", "element"]

PACK = "stablehlo.tuple"
UNPACK = "stablehlo.get_tuple_element"


def element(value: Any) -> Any:
    """What was put where a value was taken from; the value itself if it is of no tuple.

    Args:
        value: as MLIR has it.

    Raises:
        UnsupportedError: the tuple was made by something else, or is used by something else.
    """
    found = _origin(value)
    if _maker(found) == PACK:
        _refuse(found.owner)
    return found


def _origin(value: Any) -> Any:
    while _maker(value) == UNPACK:
        packed = _origin(value.owner.operands[0])
        if _maker(packed) != PACK:
            _refuse(value.owner)
        value = packed.owner.operands[int(value.owner.attributes["index"].value)]
    return value


def _refuse(raw: Any) -> NoReturn:
    raise UnsupportedError(
        f"{describe(raw)}: ONNX has no tuples, and this one goes from function to function. To do: "
        "pass its elements one by one."
    )


def _maker(value: Any) -> str:
    """The name of the operation that makes a value; empty for an argument of a block."""
    return str(getattr(value.owner, "name", ""))
