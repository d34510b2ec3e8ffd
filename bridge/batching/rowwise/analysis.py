"""The walk through a module, which gives each value its abstract value, function by function."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from bridge.batching.rowwise.loop_rules import Loop, read_loop
from bridge.batching.rowwise.row_operation import (
    RowOperation,
    RowsMixedError,
    describe,
    read_type,
)
from bridge.batching.rowwise.row_value import Batch, BatchValue, Mixing, Rows, join, join_all
from bridge.batching.rowwise.rule_table import rule_for
from bridge.batching.rowwise.value_numbering import Numbering, captured
from xla_call_module.call import CallModule
from xla_call_module.dimensions import parse_size
from xla_call_module.size_polynomials import Dim
from xla_call_module.stablehlo.modules import find_main, functions_of, open_module, read_main

__all__ = ["results_in_batches"]

_Values = dict[Any, BatchValue]
_RETURNS = ("func.return", "stablehlo.return")
_NAMED = {"func.call": "callee", "stablehlo.composite": "decomposition"}
_UNKNOWN = "is not known to treat each row of the batch for itself"


def results_in_batches(
    call: CallModule, batch: int | str, arguments: Collection[int]
) -> tuple[BatchValue, ...]:
    """Return the place of the rows in each result of a call, or the operation that mixed them.

    Args:
        call: a call.
        batch: the size of the batch, as the shapes of the arguments have it.
        arguments: the indices of those whose first dimension has the rows of the batch. Others
            whose first dimension it is have a row for each as well.

    Raises:
        FormatError: its module is damaged.

    Example:
        >>> import jax
        >>> from xla_call_module import from_exported
        >>> x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 3"), "float32")
        >>> exported = jax.export.export(jax.jit(lambda x: (x + 1, x - x.mean(0))))(x)
        >>> rows, mean = results_in_batches(from_exported(exported), "b", [0])
        >>> rows.mixing, mean.mixing.is_size
        (None, False)
    """
    known = Batch(parse_size(batch))
    values = [_argument(call, known, index, has_rows=index in arguments) for index in call.kept]
    with open_module(call.module) as module:
        index = [BatchValue(())] if read_main(module).has_platform_index else []
        walker = _Walker(functions_of(module), known)
        return tuple(walker.run(find_main(module), [*index, *values]))


def _argument(call: CallModule, batch: Batch, index: int, *, has_rows: bool) -> BatchValue:
    """An argument of the call.

    Sizes that no symbol has, as in a module that another program wrote, are not known.
    """
    spec = call.args[index]
    text = f"the argument {spec.path or index} has the batch in another dimension than the first"
    elsewhere = BatchValue.mixed(text)
    if spec.shape is None:
        return elsewhere
    shape: tuple[Dim, ...] = tuple(parse_size(dim) for dim in spec.shape)
    if any(map(batch.is_in, shape[1:])):
        return elsewhere
    if has_rows or (shape and batch.is_in(shape[0])):
        factor = batch.factor(shape[0]) if shape else None
        return elsewhere if factor != 1 else BatchValue(shape, Rows(0))
    return BatchValue(shape)


class _Walker:
    """The functions of a module, each of which is gone through once for the same arguments."""

    def __init__(self, functions: Mapping[str, Any], batch: Batch) -> None:
        self._functions, self._batch = functions, batch
        self._done: dict[tuple[str, tuple[BatchValue, ...]], list[BatchValue]] = {}
        self._places = itertools.count()
        self._calls: list[Any] = []

    def run(self, function: Any, arguments: Sequence[BatchValue]) -> list[BatchValue]:
        """Return the results of a function as abstract values."""
        return self._block(function.regions[0].blocks[0], arguments, {})[1]

    def _block(
        self, block: Any, arguments: Sequence[BatchValue], around: _Values
    ) -> tuple[_Values, list[BatchValue]]:
        """Return all values in a block, and those that it returns."""
        known = {**around, **dict(zip(block.arguments, arguments, strict=True))}
        for operation in block.operations:
            raw = operation.operation
            taken = [known[value] for value in raw.operands]
            if raw.name in _RETURNS:
                return known, taken
            results = self._results(raw, taken, known)
            known.update(zip(raw.results, results, strict=True))
        return known, []

    def _results(self, raw: Any, taken: list[BatchValue], around: _Values) -> list[BatchValue]:
        if raw.name in _NAMED:
            return self._called(raw, taken)
        if raw.name == "stablehlo.while":
            return self._looped(raw, taken, around)
        mixing = next((value.mixing for value in taken if value.mixing is not None), None)
        if mixing is not None:
            return [BatchValue((), mixing=mixing)] * len(raw.results)
        try:
            return self._ruled(raw, taken, around)
        except RowsMixedError as error:
            return [BatchValue((), mixing=error.mixing)] * len(raw.results)

    def _called(self, raw: Any, taken: list[BatchValue]) -> list[BatchValue]:
        name = str(raw.attributes[_NAMED[raw.name]]).strip('@"')
        case = (name, tuple(taken))
        if case not in self._done:
            self._calls.append(raw)
            self._done[case] = self.run(self._functions[name], taken)
            self._calls.pop()
        return self._done[case]

    def _where(self, raw: Any) -> str:
        return describe(raw, self._calls)

    def _operation(self, raw: Any, taken: Sequence[BatchValue]) -> RowOperation:
        types = tuple(read_type(str(result.type))[0] for result in raw.results)
        place = f"{raw.name}#{next(self._places)}"
        return RowOperation(
            raw, str(raw.name), tuple(taken), types, self._batch, place, tuple(self._calls)
        )

    def _ruled(self, raw: Any, taken: list[BatchValue], around: _Values) -> list[BatchValue]:
        """The results of an operation that has a rule, or no rows among its operands."""
        op = self._operation(raw, taken)
        if raw.name in ("stablehlo.case", "stablehlo.if"):
            return self._chosen(op, around)
        try:
            for value in captured(raw):
                dataclasses.replace(op, operands=(around[value],)).plain(0)
            rule = rule_for(op)
            outcome = self._without_rows(op) if rule is None else rule(op)
            results = [outcome] if isinstance(outcome, BatchValue) else list(outcome)
            for value, known in zip(results, op.types, strict=True):
                self._check(op, value, known)
        except (LookupError, TypeError, ValueError) as error:  # written by another program
            raise op.mixed("is written in a way that is not known") from error
        return results

    def _without_rows(self, op: RowOperation) -> list[BatchValue]:
        """Return the results of an unknown operation of operands that all batches share."""
        if any(value.rows is not None or value.iteration for value in op.operands):
            raise op.mixed(_UNKNOWN)
        op.data()
        if any(dim is None for known in op.types for dim in known):
            raise op.mixed(_UNKNOWN)
        return [op.value(known, index=i) for i, known in enumerate(op.types)]  # type: ignore[arg-type]

    def _check(self, op: RowOperation, value: BatchValue, known: Sequence[int | None]) -> None:
        """Refuse a result that has the batch where its rows are not."""
        if value.rank != len(known) or (value.rows is not None and value.iteration):
            raise op.mixed(_UNKNOWN)
        for axis, dim in enumerate(value.shape):
            rows = value.rows if value.rows is not None and value.rows.axis == axis else None
            if rows is None and self._batch.is_in(dim):
                raise op.mixed("has a shape that depends on the batch in another way", is_size=True)
            if rows is not None and dim != rows.outer * rows.inner * self._batch.size:
                raise op.mixed(_UNKNOWN)

    def _chosen(self, op: RowOperation, around: _Values) -> list[BatchValue]:
        """The results of branches, one of which is taken."""
        (index,), where = op.operands, self._where(op.raw)
        blocks = [region.blocks[0] for region in op.raw.regions]
        number = index.scalar
        if isinstance(number, int):
            if op.name == "stablehlo.if":
                number = 0 if number else 1
            number = number if 0 <= number < len(blocks) else len(blocks) - 1
            return self._block(blocks[number], [], around)[1]
        op.data(0)
        branches = zip(*(self._block(block, [], around)[1] for block in blocks), strict=True)
        joined = [join_all(self._batch, values, where) for values in branches]
        if index.iteration is None:
            return joined
        return [_in_iteration(value, index.iteration, where) for value in joined]

    def _looped(self, raw: Any, taken: list[BatchValue], around: _Values) -> list[BatchValue]:
        """Return the results of a loop: the join of the values that it carries in any iteration."""
        loop = read_loop(raw, f"loop{next(self._places)}")
        if not self._may_be_over_rows(loop, taken, around):
            return self._iterated(loop, raw, taken, around)
        # What is counted to a number may be the rows or something else of as many.
        results = [] if self._batch.names else self._iterated(loop, raw, taken, around)
        before = sum(value.mixing is not None for value in taken)
        if results and sum(value.mixing is not None for value in results) <= before:
            return results
        return self._iterated_over_rows(loop, raw, taken, around)

    def _may_be_over_rows(self, loop: Loop, taken: list[BatchValue], around: _Values) -> bool:
        """Return whether the iterations of a loop are counted from 0 to the size of the batch."""
        if loop.counter is None:
            return False
        inside, _ = self._block(loop.condition, taken, around)
        is_whole = inside[loop.limit].scalar == self._batch.size
        return is_whole and taken[loop.counter].scalar == 0

    def _iterated_over_rows(
        self, loop: Loop, raw: Any, taken: list[BatchValue], around: _Values
    ) -> list[BatchValue]:
        where, state = self._where(raw), loop.begin(taken, self._batch)
        while True:
            after = loop.carry(state, self._block(loop.body, state, around)[1], where)
            joined = self._joined(state, after, where)
            if joined == state:
                return loop.end(taken, after, where)
            state = joined

    def _iterated(
        self, loop: Loop, raw: Any, taken: list[BatchValue], around: _Values
    ) -> list[BatchValue]:
        where, state = self._where(raw), list(taken)
        while True:
            inside, (going,) = self._block(loop.condition, state, around)
            joined = self._joined(state, self._block(loop.body, state, around)[1], where)
            if joined == state:
                return self._after(loop, going, inside, state, taken, where)
            state = joined

    def _joined(
        self, state: list[BatchValue], after: list[BatchValue], where: str
    ) -> list[BatchValue]:
        pairs = zip(state, after, strict=True)
        return [join(self._batch, old, new, where) for old, new in pairs]

    def _after(
        self,
        loop: Loop,
        going: BatchValue,
        inside: _Values,
        state: list[BatchValue],
        taken: list[BatchValue],
        where: str,
    ) -> list[BatchValue]:
        """Return the results of a loop that iterates as long as its condition says."""
        reason = going.mixing
        if reason is None and self._batch.is_in_elements(going):
            reason = Mixing(True, f"{where} has as many iterations as the size of the batch says")
        unmasked = None if reason is None else self._unmasked(loop, inside, state)
        results = []
        for index, value in enumerate(state):
            if loop.is_kept(index):
                results.append(taken[index])
            elif unmasked is not None and index not in unmasked:
                results.append(value)
            elif reason is not None:
                results.append(BatchValue((), mixing=reason))
            elif going.iteration is not None:
                results.append(_in_iteration(value, going.iteration, where))
            else:
                results.append(value)
        return results

    def _unmasked(
        self, loop: Loop, inside: _Values, state: list[BatchValue]
    ) -> tuple[int, ...] | None:
        """Return the carried values that a loop goes on to change for rows that are done.

        None if it is no such loop, or if that could matter to other rows.
        """
        if loop.flags is None:
            return None
        flags, gate = inside[loop.flags], None if loop.gate is None else inside[loop.gate]
        if flags.mixing is not None or flags.rows is None or flags.rows.axis not in loop.flags_axes:
            return None
        if gate is not None and not self._is_shared(gate):
            return None
        changed = loop.unmasked(Numbering(self._functions))
        if changed is None or not all(self._is_shared(state[index]) for index in changed):
            return None
        return changed

    def _is_shared(self, value: BatchValue) -> bool:
        """Return whether a value is the same for all rows, whatever the batch."""
        is_own = value.rows is not None or value.iteration is not None or value.mixing is not None
        return not is_own and not self._batch.is_in_elements(value)


def _in_iteration(value: BatchValue, iteration: str, where: str) -> BatchValue:
    """A value of which the row of a iteration has decided how often it was computed."""
    if value.mixing is not None:
        return value
    if value.rows is not None or value.iteration not in (None, iteration):
        return BatchValue.mixed(f"{where} takes rows of the whole batch as often as one row says")
    return dataclasses.replace(value, iteration=iteration, elements=None)
