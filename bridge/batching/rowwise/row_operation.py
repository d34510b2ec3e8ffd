"""One operation of a module, as the rules for rows see it."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bridge.batching.rowwise.row_value import Batch, BatchValue, Elements, Mixing, Rows
from xla_call_module.errors import StructureError
from xla_call_module.size_polynomials import Dim, Element, Function, broadcast, of_atom
from xla_call_module.stablehlo.attributes import Attributes
from xla_call_module.stablehlo.modules import tensor_type
from xla_call_module.stablehlo.operation_locations import describe_location, describe_primitive

__all__ = [
    "RowOperation",
    "RowsMixedError",
    "Rule",
    "describe",
    "element_of",
    "read_type",
    "unknown_size",
]

_LOOKED_UP = "takes rows that depend on the loop over the batch, and rows of the whole batch"


class RowsMixedError(Exception):
    """A rule says that its operation mixes rows, or that it cannot tell.

    Attributes:
        mixing: the reason why the results are mixed.
    """

    def __init__(self, mixing: Mixing) -> None:
        """Take the reason of the refusal."""
        super().__init__(mixing.text)
        self.mixing = mixing


@dataclass(frozen=True, slots=True)
class RowOperation(Attributes):
    """An operation, and what is known of its operands.

    Attributes:
        name: the name, such as `stablehlo.add`.
        operands: the abstract values of the operands, none of which is mixed.
        types: the sizes in the type of each result; None for a symbolic one.
        batch: the size of the batch.
        place: a name that no other operation has.
        calls: the calls of the functions that the operation is in, the outermost one first.
    """

    name: str
    operands: tuple[BatchValue, ...]
    types: tuple[tuple[int | None, ...], ...]
    batch: Batch
    place: str
    calls: tuple[Any, ...]

    def mixed(self, reason: str, *, is_size: bool = False) -> RowsMixedError:
        """The error that says why the results are mixed, as the end of a sentence; see `Mixing`."""
        return RowsMixedError(Mixing(is_size, f"{describe(self.raw, self.calls)} {reason}"))

    def data(self, *indices: int) -> tuple[BatchValue, ...]:
        """Return some operands, or all of them, whose elements are used as numbers, not as sizes.

        Raises:
            RowsMixedError: the size of the batch is among them.
        """
        chosen = [self.operands[i] for i in indices] if indices else self.operands
        if any(map(self.batch.is_in_elements, chosen)):
            raise self.mixed("takes the size of the batch as a number", is_size=True)
        return tuple(chosen)

    def plain(self, *indices: int) -> tuple[BatchValue, ...]:
        """Return operands that are the same for all rows.

        Raises:
            RowsMixedError: they are not.
        """
        chosen = self.data(*indices)
        if any(value.rows is not None or value.iteration for value in chosen):
            raise self.mixed("takes rows of the batch where it expects what all rows share")
        return chosen

    def sizes(self, index: int) -> tuple[Dim, ...]:
        """The elements of an operand that says sizes; some name for one that is not known.

        Raises:
            RowsMixedError: one depends on what is in the batch.
        """
        value = self.operands[index]
        if value.rows is not None or value.iteration:
            raise self.mixed("has a shape that depends on what is in the batch")
        if value.dims is not None:
            dims = value.dims
        else:
            self.data(index)
            dims = (None,) * math.prod(dim for dim in value.shape if isinstance(dim, int))
        return tuple(
            unknown_size(f"{self.place}.{index}", i) if dim is None else dim
            for i, dim in enumerate(dims)
        )

    def target_shape(self, index: int) -> tuple[Dim, ...]:
        """The shape of the result: that of its type, or for a dynamic operation an operand's sizes.

        Raises:
            RowsMixedError: a size depends on what is in the batch.
        """
        if self.name.startswith("stablehlo.dynamic_"):
            return self.sizes(index)
        return tuple(dim or 0 for dim in self.types[0])

    def joined(self, values: Sequence[BatchValue] | None = None) -> Rows | None:
        """Return the place of the rows in values of one shape, which are the operands by default.

        Raises:
            RowsMixedError: they are in different places.
        """
        chosen = self.operands if values is None else values
        places = [value.rows for value in chosen if value.rows is not None]
        if not places:
            return None
        if len({rows.axis for rows in places}) > 1:
            raise self.mixed("takes rows of the batch in different dimensions")
        if any(value.iteration for value in chosen):
            raise self.mixed(_LOOKED_UP)
        layouts = {(rows.outer, rows.inner) for rows in places if not rows.is_constant}
        if len(layouts) > 1:
            raise self.mixed("takes rows of the batch in different orders")
        if not layouts:
            others = any(value.rank and value.rows is None for value in chosen)
            constant = places[0]
            return Rows(constant.axis, constant.outer, constant.inner, not others)
        ((outer, inner),) = layouts
        return Rows(places[0].axis, outer, inner)

    def value(
        self,
        shape: Sequence[Dim],
        rows: Rows | None = None,
        *,
        elements: Elements | None = None,
        index: int = 0,
    ) -> BatchValue:
        """The abstract value of a result.

        Args:
            shape: the sizes, which count where the type of the result has no numbers.
            rows: the place of the rows; None where the result is the same for all of them.
            elements: the known elements.
            index: the number of the result.
        """
        known = self.types[index]
        whole = tuple(dim if size is None else size for size, dim in zip(known, shape, strict=True))
        return BatchValue(whole, rows, elements, iteration=self.iteration)

    @property
    def element(self) -> str:
        """The element type of the first result, such as `i32`."""
        return element_of(self.raw.results[0])

    @property
    def iteration(self) -> str | None:
        """The loop over the rows, where an operand depends on the row of its iteration.

        Raises:
            RowsMixedError: operands depend on iterations of different loops.
        """
        iterations = {value.iteration for value in self.operands if value.iteration}
        if len(iterations) > 1:
            raise self.mixed("takes rows of two loops over the batch")
        return next(iter(iterations), None)

    def shape_of(self, values: Sequence[BatchValue]) -> tuple[Dim, ...]:
        """The shape that values have in common, of which scalars count as any."""
        return broadcast([value.shape for value in values])


Rule = Callable[[RowOperation], BatchValue | Sequence[BatchValue]]


def unknown_size(name: str, index: int) -> Dim:
    """A number that no batch changes, and of which nothing else is known, not even its sign."""
    return of_atom(Function("unknown", of_atom(Element(name, index)) * -1, 1))


def element_of(value: Any) -> str:
    """The element type of a value in the module; empty for what is no tensor."""
    return read_type(str(value.type))[1]


@functools.lru_cache(maxsize=4096)
def read_type(text: str) -> tuple[tuple[int | None, ...], str]:
    """The sizes and the element type of what MLIR writes so; none for what is no tensor."""
    try:
        type_ = tensor_type(text)
    except StructureError:  # such as a token
        return (), ""
    return type_.shape, type_.element


def describe(raw: Any, calls: Sequence[Any] = ()) -> str:
    """Return an operation's name and its place in the source, for messages.

    Args:
        raw: the operation.
        calls: the calls of the functions that it is in, the outermost one first. A function that
            JAX has traced once, such as `jnp.remainder`, has the place of its first call.
    """
    primitive, place = describe_primitive(raw), describe_location(raw)
    callers = (describe_location(call) for call in calls)
    caller = next((line for line in callers if re.search(r":\d+$", line)), place)
    called = "" if caller == place else f", called at {caller},"
    return f"{raw.name}{f' ({primitive})' if primitive else ''} at {place}{called}"
