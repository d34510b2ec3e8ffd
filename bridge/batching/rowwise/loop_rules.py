"""Loops over the rows of a batch, and loops that iterate until all rows are done.

`jax.lax.map` makes the first: their iterations are counted from 0 to the size of the batch, and
each reads one row and writes one. `jax.vmap` makes the others of a loop: as long as one row is not
done, the body computes all of them, and keeps the values of those that are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bridge.batching.rowwise.row_value import Batch, BatchValue, Elements, Rows
from bridge.batching.rowwise.value_numbering import Numbering, captured
from xla_call_module.size_polynomials import Iteration, of_atom
from xla_call_module.stablehlo.attributes import callee_of
from xla_call_module.stablehlo.modules import read_counter, result_number, splat

__all__ = ["Loop", "read_loop"]

# The operations that repeat the flag of each row for all of its elements.
_BROADCASTING = (
    "stablehlo.broadcast_in_dim",
    "stablehlo.dynamic_broadcast_in_dim",
    "stablehlo.dynamic_reshape",
    "stablehlo.reshape",
)


@dataclass(frozen=True, slots=True)
class Loop:
    """A `stablehlo.while`.

    Attributes:
        name: a name that no other loop has.
        condition: the block that says whether there is another iteration.
        body: the block of an iteration.
        counter: the index of the carried value that counts the iterations by 1, if the condition
            compares one with a limit.
        limit: this limit, as MLIR has it.
        flags: the truth values that say which rows go on, if the loop does as long as any row does.
        flags_axes: the dimensions of `flags` that are taken together.
        gate: a truth value that must hold besides for another iteration; None for none.
    """

    name: str
    condition: Any
    body: Any
    counter: int | None
    limit: Any
    flags: Any
    flags_axes: tuple[int, ...]
    gate: Any

    @property
    def returned(self) -> list[Any]:
        """Return the values that the body hands on to the next iteration."""
        return list(_last(self.body).operands)

    def is_kept(self, index: int) -> bool:
        """Return whether a value that is carried is never changed."""
        return bool(self.returned[index] == self.body.arguments[index])

    def begin(self, state: Sequence[BatchValue], batch: Batch) -> list[BatchValue]:
        """Return the first assumption of the values that a loop over the rows carries."""
        values = []
        for index, value in enumerate(state):
            rows = value.rows
            if not batch.names and rows is None and value.shape[:1] == (batch.size,):
                # What is the same for all batches of one size has rows, too.
                rows = None if value.mixing or self.is_kept(index) else Rows(0)
            origin = (self.name, index) if rows else None
            values.append(dataclasses.replace(value, rows=rows, origin=origin))
        if self.counter is not None:
            number = of_atom(Iteration(self.name, batch.size))
            values[self.counter] = BatchValue((), elements=Elements((), (number,)))
        return values

    def carry(
        self, state: Sequence[BatchValue], after: Sequence[BatchValue], where: str
    ) -> list[BatchValue]:
        """Return the values that an iteration of a loop over the rows hands on."""
        values = []
        for index, (old, new) in enumerate(zip(state, after, strict=True)):
            if index == self.counter:
                values.append(old)
            elif new.mixing is None and (
                new.iteration == self.name or (new.rows and new.origin != (self.name, index))
            ):
                text = f"{where} carries something of one row of the batch on to the next one"
                values.append(BatchValue.mixed(text))
            else:
                values.append(new)
        return values

    def end(
        self, taken: Sequence[BatchValue], after: Sequence[BatchValue], where: str
    ) -> list[BatchValue]:
        """Return the results of a loop over the rows."""
        values = []
        for index, value in enumerate(after):
            if self.is_kept(index):
                values.append(taken[index])
            elif value.mixing is not None:
                values.append(value)
            elif value.rows is not None and value.origin == (self.name, index):
                values.append(dataclasses.replace(value, origin=None))
            else:
                text = f"{where} computes something as often as the batch has rows"
                values.append(BatchValue.mixed(text, is_size=True))
        return values

    def unmasked(self, numbering: Numbering) -> tuple[int, ...] | None:
        """The carried values that change in every iteration, also where all rows but one are done.

        None if some decide which rows go on, so that a row that is done could go on again.
        """
        arguments = [numbering.argument("carried", i) for i in range(len(self.body.arguments))]
        before = dict(zip(self.condition.arguments, arguments, strict=True))
        flags = numbering.of_block(self.condition, before)[0][self.flags]
        known, _ = numbering.of_block(
            self.body, dict(zip(self.body.arguments, arguments, strict=True))
        )
        changed = tuple(
            index
            for index in range(len(arguments))
            if not self.is_kept(index)
            and not self._is_masked(index, known, flags, numbering.functions)
        )
        deciding = _taken_for(self.flags, self.condition)
        is_decided = any(self.condition.arguments[index] in deciding for index in changed)
        return None if is_decided else changed

    def _is_masked(
        self, index: int, known: dict[Any, int], flags: int, functions: Mapping[str, Any]
    ) -> bool:
        """Return whether the body leaves a carried value of the rows that do not go on as it is."""
        before = self.body.arguments[index]
        name, operands = _operation_of(self.returned[index], functions)
        match name:
            case "stablehlo.select":
                chosen, _, other = operands
                return bool(other == before) and _is_broadcast_flag(chosen, known, flags)
            case "stablehlo.and":  # what is false stays so
                return before in operands and known[before] == flags
        return False


def _operation_of(value: Any, functions: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """The name and operands of what makes a value, also in a function such as that of `jnp.where`.

    Of an operation in a function that takes something else than its arguments there is no name.
    """
    owner = value.owner
    if getattr(owner, "name", "") != "func.call":
        return getattr(owner, "name", ""), list(getattr(owner, "operands", ()))
    block = functions[callee_of(owner)].regions[0].blocks[0]
    returned = list(_last(block).operands)[result_number(value)]
    taken = dict(zip(block.arguments, owner.operands, strict=True))
    operands = list(getattr(returned.owner, "operands", ()))
    if any(operand not in taken for operand in operands):
        return "", []
    return getattr(returned.owner, "name", ""), [taken[operand] for operand in operands]


def _taken_for(value: Any, block: Any) -> set[Any]:
    """Return all values in a block that a value is computed from, itself included."""
    taken = {
        result: [*op.operation.operands, *captured(op.operation)]
        for op in block.operations
        for result in op.operation.results
    }
    values: set[Any] = set()
    pending = [value]
    while pending:
        current = pending.pop()
        if current not in values:
            values.add(current)
            pending += taken.get(current, ())
    return values


def _is_broadcast_flag(value: Any, known: dict[Any, int], flags: int) -> bool:
    """Return whether a value is the flags, or has the flag of each row in all of its elements."""
    while known.get(value) != flags:
        owner = value.owner
        if getattr(owner, "name", "") not in _BROADCASTING:
            return False
        value = owner.operands[0]
    return True


def read_loop(raw: Any, name: str) -> Loop:
    """Return the form of a `stablehlo.while`, under a name that no other loop has."""
    condition, body = (region.blocks[0] for region in raw.regions)
    counter, limit, step = read_counter(condition, body) or (None, None, None)
    is_one = step is not None and _is_constant(step) and splat(step.owner) == "1"
    if not is_one or limit in list(condition.arguments):
        counter = limit = None
    (going,) = _last(condition).operands
    gate = None
    flags, axes = _read_flags(going)
    if flags is None and getattr(going.owner, "name", "") == "stablehlo.and":
        for one, other in (going.owner.operands, reversed(going.owner.operands)):
            if flags is None:
                (flags, axes), gate = _read_flags(one), other
    return Loop(name, condition, body, counter, limit, flags, axes, gate)


def _is_constant(value: Any) -> bool:
    return getattr(value.owner, "name", "") == "stablehlo.constant"


def _last(block: Any) -> Any:
    return list(block.operations)[-1].operation


def _read_flags(going: Any) -> tuple[Any, tuple[int, ...]]:
    """Return the value that `or` reduces for a condition, and the dimensions."""
    reduced = going.owner
    if getattr(reduced, "name", "") != "stablehlo.reduce" or len(reduced.operands) != 2:
        return None, ()
    block, start = reduced.regions[0].blocks[0], reduced.operands[1]
    inner = [op.operation for op in block.operations]
    names = [op.name for op in inner]
    if names != ["stablehlo.or", "stablehlo.return"] or not _is_constant(start):
        return None, ()
    is_any = splat(start.owner) == "false" and set(inner[0].operands) == set(block.arguments)
    axes = tuple(map(int, reduced.attributes["dimensions"]))
    return (reduced.operands[0], axes) if is_any else (None, ())
