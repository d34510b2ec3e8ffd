"""`BatchBuckets`: the sizes that the batches of a function are padded to."""

from __future__ import annotations

from dataclasses import dataclass

from xla_call_module.call import TensorSpec
from xla_call_module.errors import StructureError

__all__ = ["BatchBuckets"]


@dataclass(frozen=True, slots=True)
class BatchBuckets:
    """Sizes of batches, each of which XLA compiles a program for.

    A batch goes to the smallest of them that holds it, with its last row repeated, and of the
    results the rows that were added are cut off. A batch that is larger than all, and an empty one,
    is passed as it is.

    Attributes:
        symbol: the dimension variable that leads the shapes of what is padded and cut.
        sizes: ascending.
    """

    symbol: str
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse sizes that are none, or not in order."""
        if not self.sizes or self.sizes[0] < 1 or list(self.sizes) != sorted(set(self.sizes)):
            raise StructureError(
                f"{self.sizes} are no sizes of batches; expected ascending numbers from 1 on."
            )

    def lead(self, spec: TensorSpec) -> bool:
        """Whether the rows of an argument or result are those of the batch."""
        return bool(spec.shape) and spec.shape is not None and spec.shape[0] == self.symbol
