"""Loops: a `stablehlo.while` as `jax.lax.scan` where its number of steps is known, or a size.

JAX lowers `scan`, and `fori_loop` with known bounds, to a loop that counts. What it scans over is
read by `dynamic_slice` at the place of the step, and what it stacks is written by
`dynamic_update_slice`. Both are looked for in what the body traces to, and become inputs and
outputs of the scan again, so that its derivative in reverse mode costs what that of the original
costs. Other loops are `jax.lax.while_loop`.

What is said of symbolic sizes has to hold for all that they may be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

from bridge.core._jax import bind_equation, is_certain
from bridge.lifting.known_values import (
    Dimension,
    LiftedValue,
    Token,
    as_array,
    dimensions_of,
    of_dimensions,
)
from bridge.lifting.lifted_operation import LiftedOperation, LiftedRegion
from bridge.lifting.step_integers import Atom, Line, Lines


def lift_while(
    op: LiftedOperation, condition: LiftedRegion, body: LiftedRegion
) -> list[LiftedValue]:
    """Return the results of a loop."""
    *_, returned = body.block
    arguments, results = list(body.block.arguments), list(returned.operands)
    # What every step passes on as it is; the loop sees it from outside.
    constant = [
        argument == result or isinstance(value, Token)
        for argument, result, value in zip(arguments, results, op.operands, strict=True)
    ]
    start = [as_array(value) for value, same in zip(op.operands, constant, strict=True) if not same]
    start = [jnp.asarray(v) if _is_array(v) else v for v in start]

    def with_constants(values: Sequence[Any]) -> list[LiftedValue]:
        changing = iter(values)
        pairs = zip(op.operands, constant, strict=True)
        return [value if same else next(changing) for value, same in pairs]

    def step(*values: Any) -> tuple[Any, ...]:
        pairs = zip(body.apply(*with_constants(values)), constant, strict=True)
        return tuple(as_array(value) for value, same in pairs if not same)

    def goes_on(*values: Any) -> Any:
        return as_array(condition.apply(*with_constants(values))[0])

    initial = [v for v, same in zip(op.operands, constant, strict=True) if not same]
    finals = _run(goes_on, step, initial, start)
    return with_constants(finals)


def _is_array(value: Any) -> bool:
    return isinstance(value, (np.ndarray, np.generic))


def _run(
    goes_on: Callable[..., Any],
    step: Callable[..., tuple[Any, ...]],
    initial: Sequence[LiftedValue],
    start: Sequence[Any],
) -> Sequence[Any]:
    if not start:
        return ()
    counter = _counter(jax.make_jaxpr(goes_on)(*start), initial)
    if counter is not None:
        traced = jax.make_jaxpr(step)(*start)
        steps = _steps(traced, counter)
        if steps is not None:
            return _Scan(traced, steps).run(start)
        step = core.jaxpr_as_fun(traced)
    return lax.while_loop(
        lambda values: goes_on(*values), lambda values: tuple(step(*values)), tuple(start)
    )


@dataclass(frozen=True, slots=True)
class _Counter:
    """The carried value that a condition compares with a limit.

    Attributes:
        index: its place among the carried values.
        start: what it begins with.
        limit: what it stays less than.
    """

    index: int
    start: Dimension
    limit: Dimension


@dataclass(frozen=True, slots=True)
class _Steps:
    """The steps of a loop that counts.

    Attributes:
        index: the place of the counter among the carried values.
        start: what it begins with.
        stride: what each step adds to it.
        count: the number of steps.
    """

    index: int
    start: Dimension
    stride: int
    count: Dimension


def _counter(condition: Any, initial: Sequence[LiftedValue]) -> _Counter | None:
    """Return which carried value counts up to a known limit; None if none does."""
    jaxpr = condition.jaxpr
    (result,) = jaxpr.outvars
    eqn = next((eqn for eqn in jaxpr.eqns if result in eqn.outvars), None)
    if eqn is None or eqn.primitive.name not in _LIMITS:
        return None
    left, right = eqn.invars
    name = eqn.primitive.name
    if right in jaxpr.invars:
        left, right, name = right, left, _TURNED.get(name, "")
    limit = Lines(condition).of(right)
    if name not in ("lt", "le") or left not in jaxpr.invars or limit is None:
        return None
    index = jaxpr.invars.index(left)
    first = dimensions_of(initial[index])
    if left.aval.shape != () or left.aval.dtype.kind not in "iu" or first is None:
        return None
    return _Counter(index, first[0], limit.offset + (name == "le"))


_TURNED = {"gt": "lt", "ge": "le"}
_LIMITS = ("lt", "le", "gt", "ge")


def _steps(body: Any, counter: _Counter) -> _Steps | None:
    """Return the steps of a loop whose body adds a known number to the counter."""
    jaxpr = body.jaxpr
    result, variable = jaxpr.outvars[counter.index], jaxpr.invars[counter.index]
    eqn = next((e for e in jaxpr.eqns if result in e.outvars), None)
    if eqn is None or eqn.primitive.name != "add" or variable not in eqn.invars:
        return None
    lines = Lines(body)
    added = lines.of(eqn.invars[1 - eqn.invars.index(variable)])
    if added is None or not isinstance(added.offset, int) or added.offset < 1:
        return None
    stride, distance = added.offset, counter.limit - counter.start
    count = distance if stride == 1 else -(-distance // stride)
    if isinstance(count, int):
        count = max(count, 0)
    elif not is_certain(lambda: count >= 1):  # JAX lowers no other scan
        return None
    end = Line(0, counter.start + count * stride)
    if not lines.fits(end, variable.aval.dtype):  # it starts again from the least number
        return None
    return _Steps(counter.index, counter.start, stride, count)


class _Scan:
    """A loop with a known number of steps, of a body that has been traced."""

    def __init__(self, body: Any, steps: _Steps) -> None:
        self._steps = steps
        self._jaxpr = body.jaxpr
        self._constants = dict(zip(self._jaxpr.constvars, body.consts, strict=True))
        self._makers = {made: eqn for eqn in self._jaxpr.eqns for made in eqn.outvars}
        counter = self._jaxpr.invars[steps.index]
        self._lines = Lines(body, {counter: Line(steps.stride, steps.start)}, steps.count)
        self._uses = self._count_uses()
        self._reads = dict(self._find_reads())
        self._writes = dict(self._find_writes())
        self._taken = {eqn.outvars[0]: eqn for eqn in self._jaxpr.eqns if self._takes_row(eqn)}
        self._updates = {n: self._row_of(eqn.invars[1]) for n, (eqn, _) in self._writes.items()}
        accesses = (*self._reads.values(), *self._writes.values())
        skipped = {id(eqn) for eqn, _ in accesses} | {id(eqn) for eqn in self._taken.values()}
        left = {*self._writes, self._steps.index}
        atoms = [atom for number, atom in enumerate(self._jaxpr.outvars) if number not in left]
        atoms += [row for row, _ in self._updates.values()]
        # The variables that a step returns.
        self._kept = {atom for atom in atoms if isinstance(atom, core.Var)}
        self._eqns = self._needed(skipped)
        slopes = [line.slope for _, line in (*self._reads.values(), *self._writes.values())]
        self._backwards = bool(slopes) and all(slope < 0 for slope in slopes)

    def run(self, start: Sequence[Any]) -> list[Any]:
        """Return what the carried values are at the end."""
        carried = [
            number
            for number in range(len(start))
            if number not in self._writes and number != self._steps.index
        ]
        steps = self._steps
        counter = self._jaxpr.invars[steps.index]
        is_counted = any(counter in eqn.invars for eqn in self._eqns) or counter in self._kept
        stride = np.array(steps.stride, jnp.result_type(start[steps.index]))

        def step(carry: Any, rows: Any) -> Any:
            number, values = carry
            rows = rows[: len(self._reads)]
            given = dict(zip(carried, values, strict=True))
            given[steps.index] = number
            results = self._evaluate(given, dict(zip(self._reads, rows, strict=True)))
            written = [results(row) for row, _ in self._updates.values()]
            following = None if number is None else lax.add(number, stride)
            outputs = self._jaxpr.outvars
            return (following, [results(outputs[n]) for n in carried]), written

        rows = [self._rows(read) for read in self._reads]
        length = steps.count if isinstance(steps.count, int) else None
        if length is None and not rows:  # JAX takes a symbolic length of arrays alone
            rows = [lax.iota(np.int32, steps.count)]
        (_, last), stacked = lax.scan(
            step,
            (start[steps.index] if is_counted else None, [start[n] for n in carried]),
            rows,
            length,
            self._backwards,
        )
        finals = dict(zip(carried, last, strict=True))
        end = steps.start + steps.count * steps.stride
        finals[steps.index] = of_dimensions(np.array(end, object), stride.dtype)
        for number, rows in zip(self._writes, stacked, strict=True):
            finals[number] = self._written(number, start[number], rows)
        return [finals[number] for number in range(len(start))]

    def _count_uses(self) -> dict[Any, int]:
        uses: dict[Any, int] = {}
        atoms = [atom for eqn in self._jaxpr.eqns for atom in eqn.invars]
        for atom in (*atoms, *self._jaxpr.outvars):
            if isinstance(atom, core.Var):
                uses[atom] = uses.get(atom, 0) + 1
        return uses

    def _place(self, indices: Sequence[Atom], sizes: Sequence[int], whole: Any) -> Line | None:
        """Return where along the first dimension a row is, if each step reads one."""
        if not sizes or sizes[0] != 1 or tuple(sizes[1:]) != tuple(whole[1:]):
            return None
        line = self._lines.of(indices[0])
        if line is None or abs(line.slope) != 1 or self._steps.count == 0:
            return None
        least, most = self._lines.bounds(line)
        is_inside = is_certain(lambda: least >= 0) and is_certain(lambda: most < whole[0])
        return line if is_inside else None

    def _find_reads(self) -> Iterator[tuple[Any, tuple[Any, Line]]]:
        """Yield the results that are rows of arrays from outside the loop, one in each step."""
        for eqn in self._jaxpr.eqns:
            if eqn.primitive.name != "dynamic_slice":
                continue
            array, *indices = eqn.invars
            if isinstance(array, core.Literal) or array not in self._constants:
                continue
            line = self._place(indices, eqn.params["slice_sizes"], array.aval.shape)
            if line is not None:
                yield eqn.outvars[0], (eqn, line)

    def _find_writes(self) -> Iterator[tuple[int, tuple[Any, Line]]]:
        """Yield the carried arrays of which each step writes one row, and does nothing else."""
        places = {variable: number for number, variable in enumerate(self._jaxpr.invars)}
        for eqn in self._jaxpr.eqns:
            if eqn.primitive.name != "dynamic_update_slice":
                continue
            array, update, *indices = eqn.invars
            number = None if isinstance(array, core.Literal) else places.get(array)
            result = eqn.outvars[0]
            if number is None or self._jaxpr.outvars[number] is not result:
                continue
            if self._uses[array] != 1 or self._uses[result] != 1:
                continue
            line = self._place(indices, np.shape(update.aval), array.aval.shape)
            if line is not None:
                yield number, (eqn, line)

    def _maker_of(self, atom: Atom) -> Any:
        """Return the equation that makes an atom; None for a literal and an argument."""
        return None if isinstance(atom, core.Literal) else self._makers.get(atom)

    def _takes_row(self, eqn: Any) -> bool:
        """Return whether an equation leaves out the first dimension of what is read, of size 1."""
        read: Any = eqn.invars[0] if eqn.primitive.name == "reshape" else None
        if isinstance(read, core.Literal) or read not in self._reads:
            return False
        return bool(np.shape(eqn.outvars[0].aval) == np.shape(read.aval)[1:])

    def _row_of(self, update: Atom) -> tuple[Atom, bool]:
        """Return what is written without its first dimension, if it has got that to be written."""
        maker = self._maker_of(update)
        if maker is None or maker.primitive.name not in ("broadcast_in_dim", "reshape"):
            return update, False
        row = maker.invars[0]
        shape = np.shape(row.aval)
        dimensions = maker.params.get("broadcast_dimensions", tuple(range(1, len(shape) + 1)))
        is_row = np.shape(update.aval) == (1, *shape)
        is_row = is_row and tuple(dimensions) == tuple(range(1, len(shape) + 1))
        return (row, True) if is_row else (update, False)

    def _needed(self, skipped: set[int]) -> list[Any]:
        """Return the equations that something still needs."""
        taken = set(self._kept)
        kept = []
        for eqn in reversed(self._jaxpr.eqns):
            if id(eqn) in skipped or not (eqn.effects or taken & set(eqn.outvars)):
                continue
            kept.append(eqn)
            taken.update(atom for atom in eqn.invars if isinstance(atom, core.Var))
        return kept[::-1]

    def _rows(self, read: Any) -> Any:
        """Return what a read takes of its array in all steps, in the order of the scan."""
        eqn, line = self._reads[read]
        array = self._constants[eqn.invars[0]]
        least, most = self._lines.bounds(line)
        if (least, most) != (0, array.shape[0] - 1):
            array = lax.slice_in_dim(array, least, most + 1)
        return lax.rev(array, [0]) if (line.slope < 0) != self._backwards else array

    def _written(self, number: int, start: Any, rows: Any) -> Any:
        """Return an array after all steps have written their rows."""
        _, line = self._writes[number]
        rows = rows if self._updates[number][1] else lax.squeeze(rows, [1])
        if (line.slope < 0) != self._backwards:
            rows = lax.rev(rows, [0])
        least, most = self._lines.bounds(line)
        if (least, most) == (0, start.shape[0] - 1):
            return rows
        first = as_array(of_dimensions(np.array(least, object), np.dtype(np.int32)))
        return lax.dynamic_update_slice_in_dim(start, rows, first, 0)

    def _evaluate(self, given: Mapping[int, Any], rows: Mapping[Any, Any]) -> Callable[[Atom], Any]:
        """Compute the equations of one step, and return what looks up a variable."""
        values: dict[Any, Any] = dict(self._constants)
        values.update((self._jaxpr.invars[number], value) for number, value in given.items())
        values.update((taken, rows[eqn.invars[0]]) for taken, eqn in self._taken.items())
        used = {atom for eqn in self._eqns for atom in eqn.invars if isinstance(atom, core.Var)}
        used |= {atom for atom in self._jaxpr.outvars if isinstance(atom, core.Var)}
        used |= {row for row, _ in self._updates.values() if isinstance(row, core.Var)}
        values.update((v, lax.expand_dims(row, [0])) for v, row in rows.items() if v in used)

        def read(atom: Atom) -> Any:
            return atom.val if isinstance(atom, core.Literal) else values[atom]

        for eqn in self._eqns:
            values.update(zip(eqn.outvars, bind_equation(eqn, map(read, eqn.invars)), strict=True))
        return read
