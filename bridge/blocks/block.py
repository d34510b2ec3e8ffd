"""Values, the operations that make them, and blocks of these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from xla_call_module.dtypes import Array
from xla_call_module.size_polynomials import Shape


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """An array that an operation takes or makes.

    Attributes:
        array: its elements, where they are known.
    """

    shape: Shape
    dtype: np.dtype[Any]
    array: Array | None = None

    @property
    def rank(self) -> int:
        """The number of its dimensions."""
        return len(self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """An operation of JAX, by the name of its primitive.

    Attributes:
        parameters: those that say something of the results.
        place: the name stack and the number of what it was traced for, for messages and names.
    """

    name: str
    operands: tuple[Value, ...]
    parameters: Mapping[str, Any]
    results: tuple[Value, ...]
    place: str = ""

    @property
    def result(self) -> Value:
        """The only result."""
        (result,) = self.results
        return result

    @property
    def bodies(self) -> Iterator[Block]:
        """The blocks among its parameters."""
        for parameter in self.parameters.values():
            for part in parameter if type(parameter) is tuple else (parameter,):
                if isinstance(part, Block):
                    yield part


@dataclass(slots=True, eq=False)
class Block:
    """A function, or the body of a loop or a branch."""

    inputs: tuple[Value, ...]
    operations: list[Operation] = field(default_factory=list)
    outputs: tuple[Value, ...] = ()
