"""Value numbering: which values of two regions are computed in the same way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from xla_call_module.stablehlo.attributes import callee_of

__all__ = ["Numbering", "captured"]


class Numbering:
    """Numbers for values, equal for those that the same operations make of equal values.

    Attributes:
        functions: the functions of the module, by name.
    """

    def __init__(self, functions: Mapping[str, Any]) -> None:
        """Begin without any numbers."""
        self.functions = functions
        self._known: dict[Any, int] = {}

    def of_block(self, block: Any, numbers: Mapping[Any, int]) -> tuple[dict[Any, int], list[int]]:
        """The numbers of the values in a block, given those around it, and of what it returns."""
        known = dict(numbers)
        for operation in block.operations:
            raw = operation.operation
            taken = tuple(known.get(v) or self._number(("outside", v)) for v in raw.operands)
            if raw.name in ("func.return", "stablehlo.return"):
                return known, list(taken)
            known.update(zip(raw.results, self._results(raw, taken, known), strict=True))
        return known, []

    def _results(self, raw: Any, taken: tuple[int, ...], known: Mapping[Any, int]) -> list[int]:
        if raw.name == "func.call":
            block = self.functions[callee_of(raw)].regions[0].blocks[0]
            inner = dict(zip(block.arguments, taken, strict=True))
            return self.of_block(block, inner)[1]
        names = sorted(getattr(item, "name", item) for item in raw.attributes)
        attributes = tuple((name, str(raw.attributes[name])) for name in names)
        regions = tuple(
            tuple(self._region(block, known)) for region in raw.regions for block in region
        )
        types = tuple(str(result.type) for result in raw.results)
        what = (raw.name, attributes, types, taken, regions)
        return [self._number((what, i)) for i in range(len(raw.results))]

    def _region(self, block: Any, known: Mapping[Any, int]) -> list[int]:
        arguments = {v: self._number(("argument", i)) for i, v in enumerate(block.arguments)}
        return self.of_block(block, {**known, **arguments})[1]

    def _number(self, what: Any) -> int:
        return self._known.setdefault(what, len(self._known) + 1)

    def argument(self, name: str, index: int) -> int:
        """The number of an argument that several blocks have."""
        return self._number((name, index))


def captured(raw: Any) -> Iterator[Any]:
    """The values around an operation that its regions take."""
    own: set[Any] = set()
    taken: list[Any] = []
    pending = [block for region in raw.regions for block in region]
    while pending:
        block = pending.pop()
        own.update(block.arguments)
        for operation in block.operations:
            inner = operation.operation
            own.update(inner.results)
            taken += inner.operands
            pending += [b for region in inner.regions for b in region]
    yield from (value for value in taken if value not in own)
