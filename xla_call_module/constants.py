"""The constants in a module: what makes it large."""

from __future__ import annotations

from dataclasses import dataclass

from xla_call_module.dtypes import DTYPES
from xla_call_module.stablehlo import describe_location, open_module, splat, tensor_type, walk

__all__ = ["Constant", "largest_constants"]


@dataclass(frozen=True, slots=True)
class Constant:
    """One `stablehlo.constant`.

    Attributes:
        type: as StableHLO writes it, such as `tensor<1000x1000xf32>`.
        size: bytes of its elements.
        location: where in the Python source it comes from.
    """

    type: str
    size: int
    location: str

    def __str__(self) -> str:
        """For messages."""
        return f"{self.type} ({self.size:,} bytes) at {self.location}"


def largest_constants(artifact: bytes, count: int) -> list[Constant]:
    """The largest constants that a module stores in full, the largest first.

    Args:
        artifact: the portable artifact.
        count: how many at most.

    Raises:
        FormatError: it is no portable artifact.
    """
    itemsizes = {dtype.mlir: dtype.itemsize for dtype in DTYPES}
    constants = []
    with open_module(artifact) as module:
        for operation in walk(module):
            # A splat is stored once, however large the tensor is.
            if operation.name != "stablehlo.constant" or splat(operation) is not None:
                continue
            found = tensor_type(str(operation.results[0].type))
            size = itemsizes.get(found.element, 1)
            for dim in found.shape:
                size *= dim or 1
            constants.append(Constant(str(found), size, describe_location(operation)))
    return sorted(constants, key=lambda constant: -constant.size)[:count]
