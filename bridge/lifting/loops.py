"""Loops: a `stablehlo.while` as `jax.lax.scan` where its number of steps is known.

JAX lowers `scan`, and `fori_loop` with known bounds, to a loop that counts. What it scans over is
read by `dynamic_slice` at the place of the step, and what it stacks is written by
`dynamic_update_slice`. Both are looked for in what the body traces to, and become inputs and
outputs of the scan again, so that its derivative in reverse mode costs what that of the original
costs. Other loops are `jax.lax.while_loop`.
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

from bridge.core._jax import bind_equation
from bridge.lifting.known_values import LiftedValue, Token, as_array
from bridge.lifting.lifted_operation import LiftedOperation, LiftedRegion

Atom = Any  # a variable or a literal of a jaxpr


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
    start: int
    limit: int


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
    start: int
    stride: int
    count: int


def _counter(condition: Any, initial: Sequence[LiftedValue]) -> _Counter | None:
    """Return which carried value counts up to a known limit; None if none does."""
    jaxpr = condition.jaxpr
    (result,) = jaxpr.outvars
    constants = dict(zip(jaxpr.constvars, condition.consts, strict=True))
    made = {eqn.outvars[0]: eqn for eqn in jaxpr.eqns}
    eqn = made.get(result) if isinstance(result, core.Var) else None
    if eqn is None or eqn.primitive.name not in _LIMITS or len(jaxpr.eqns) != 1:
        return None
    left, right = eqn.invars
    name = eqn.primitive.name
    if right in jaxpr.invars:
        left, right, name = right, left, _TURNED.get(name, "")
    limit = _number(right, constants)
    if name not in ("lt", "le") or left not in jaxpr.invars or limit is None:
        return None
    index = jaxpr.invars.index(left)
    first = initial[index]
    if not isinstance(first, np.ndarray) or first.shape != () or first.dtype.kind not in "iu":
        return None
    return _Counter(index, int(first), limit + (name == "le"))


_TURNED = {"gt": "lt", "ge": "le"}
_LIMITS = ("lt", "le", "gt", "ge")
# Of integers these make of lines others.
_LINEAR = ("add", "clamp", "convert_element_type", "mul", "select_n", "sub")


def _number(atom: Atom, constants: Mapping[Any, Any]) -> int | None:
    """Return an atom that is a known integer."""
    value = atom.val if isinstance(atom, core.Literal) else constants.get(atom)
    if value is None or not isinstance(value, (int, np.integer, np.ndarray, jax.Array)):
        return None
    if isinstance(value, jax.core.Tracer) or np.shape(value) != ():
        return None
    number = np.asarray(value)
    return int(number) if number.dtype.kind in "iu" else None


def _steps(body: Any, counter: _Counter) -> _Steps | None:
    """Return the steps of a loop whose body adds a known number to the counter."""
    jaxpr = body.jaxpr
    constants = dict(zip(jaxpr.constvars, body.consts, strict=True))
    result = jaxpr.outvars[counter.index]
    eqn = next((e for e in jaxpr.eqns if result in e.outvars), None)
    variable = jaxpr.invars[counter.index]
    if eqn is None or eqn.primitive.name != "add" or variable not in eqn.invars:
        return None
    other = eqn.invars[1 - eqn.invars.index(variable)]
    stride = _number(other, constants)
    if stride is None or stride < 1:
        return None
    count = max(0, -((counter.start - counter.limit) // stride))
    return _Steps(counter.index, counter.start, stride, count)


@dataclass(frozen=True, slots=True)
class _Line:
    """An integer that is `slope * step + offset`."""

    slope: int
    offset: int

    def bounds(self, count: int) -> tuple[int, int]:
        """Return the least and the greatest value in some steps."""
        last = self.slope * (count - 1) + self.offset
        return min(self.offset, last), max(self.offset, last)


class _Scan:
    """A loop with a known number of steps, of a body that has been traced."""

    def __init__(self, body: Any, steps: _Steps) -> None:
        self._steps = steps
        self._jaxpr = body.jaxpr
        self._constants = dict(zip(self._jaxpr.constvars, body.consts, strict=True))
        self._makers = {made: eqn for eqn in self._jaxpr.eqns for made in eqn.outvars}
        self._lines = dict(self._find_lines())
        self._uses = self._count_uses()
        self._reads = dict(self._find_reads())
        self._writes = dict(self._find_writes())
        self._taken = {eqn.outvars[0]: eqn for eqn in self._jaxpr.eqns if self._takes_row(eqn)}
        self._updates = {n: self._row_of(eqn.invars[1]) for n, (eqn, _) in self._writes.items()}
        accesses = (*self._reads.values(), *self._writes.values())
        skipped = {id(eqn) for eqn, _ in accesses} | {id(eqn) for eqn in self._taken.values()}
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
        is_counted = any(self._jaxpr.invars[steps.index] in eqn.invars for eqn in self._eqns)
        stride = np.array(steps.stride, jnp.result_type(start[steps.index]))

        def step(carry: Any, rows: Any) -> Any:
            number, values = carry
            given = dict(zip(carried, values, strict=True))
            given[steps.index] = number
            results = self._evaluate(given, dict(zip(self._reads, rows, strict=True)))
            written = [results(row) for row, _ in self._updates.values()]
            following = None if number is None else lax.add(number, stride)
            outputs = self._jaxpr.outvars
            return (following, [results(outputs[n]) for n in carried]), written

        (_, last), stacked = lax.scan(
            step,
            (start[steps.index] if is_counted else None, [start[n] for n in carried]),
            [self._rows(read) for read in self._reads],
            length=steps.count,
            reverse=self._backwards,
        )
        finals = dict(zip(carried, last, strict=True))
        end = steps.start + steps.count * steps.stride
        finals[steps.index] = np.array(end, stride.dtype)
        for number, rows in zip(self._writes, stacked, strict=True):
            finals[number] = self._written(number, start[number], rows)
        return [finals[number] for number in range(len(start))]

    def _find_lines(self) -> Iterator[tuple[Any, _Line]]:
        """Yield the integers of the body that follow from the number of the step alone."""
        steps = self._steps
        lines = {self._jaxpr.invars[steps.index]: _Line(steps.stride, steps.start)}
        for eqn in self._jaxpr.eqns:
            line = self._line_of(eqn, lines)
            if line is not None:
                lines[eqn.outvars[0]] = line
        yield from lines.items()

    def _line_of(self, eqn: Any, lines: Mapping[Any, _Line]) -> _Line | None:
        name = eqn.primitive.name
        if name not in _LINEAR or any(np.shape(v.aval) != () for v in eqn.invars):
            return None

        def line(atom: Atom) -> _Line | None:
            number = _number(atom, self._constants)
            if number is not None:
                return _Line(0, number)
            return None if isinstance(atom, core.Literal) else lines.get(atom)

        if name == "select_n":
            return self._chosen(eqn, line)
        operands = [line(atom) for atom in eqn.invars]
        known = [operand for operand in operands if operand is not None]
        return self._combined(eqn, known) if len(known) == len(operands) else None

    def _combined(self, eqn: Any, lines: list[_Line]) -> _Line | None:
        """Return what a linear operation makes of integers that are known in each step."""
        match eqn.primitive.name, lines:
            case "convert_element_type", [one] if eqn.outvars[0].aval.dtype.kind in "iu":
                return one
            case "clamp", [low, one, high] if self._steps.count:
                least, most = one.bounds(self._steps.count)
                return one if low.offset <= least and most <= high.offset else None
            case "add", [one, other]:
                return _Line(one.slope + other.slope, one.offset + other.offset)
            case "sub", [one, other]:
                return _Line(one.slope - other.slope, one.offset - other.offset)
            case "mul", [one, other] if 0 in (one.slope, other.slope):
                factor, scaled = (one, other) if one.slope == 0 else (other, one)
                return _Line(factor.offset * scaled.slope, factor.offset * scaled.offset)
        return None

    def _chosen(self, eqn: Any, line: Any) -> _Line | None:
        """Return which of two integers a comparison chooses in all steps, such as `i < 0`."""
        compared = self._maker_of(eqn.invars[0])
        if compared is None or compared.primitive.name != "lt" or len(eqn.invars) != 3:
            return None
        left, right = (line(atom) for atom in compared.invars)
        if left is None or right is None or self._steps.count == 0:
            return None
        least, most = _Line(left.slope - right.slope, left.offset - right.offset).bounds(
            self._steps.count
        )
        if least < 0 <= most:
            return None
        chosen: _Line | None = line(eqn.invars[2 if most < 0 else 1])
        return chosen

    def _count_uses(self) -> dict[Any, int]:
        uses: dict[Any, int] = {}
        atoms = [atom for eqn in self._jaxpr.eqns for atom in eqn.invars]
        for atom in (*atoms, *self._jaxpr.outvars):
            if isinstance(atom, core.Var):
                uses[atom] = uses.get(atom, 0) + 1
        return uses

    def _place(self, indices: Sequence[Atom], sizes: Sequence[int], whole: Any) -> _Line | None:
        """Return where along the first dimension a row is, if each step reads one."""
        if not sizes or sizes[0] != 1 or tuple(sizes[1:]) != tuple(whole[1:]):
            return None
        first = indices[0]
        line = None if isinstance(first, core.Literal) else self._lines.get(first)
        if line is None or abs(line.slope) != 1 or self._steps.count == 0:
            return None
        least, most = line.bounds(self._steps.count)
        return line if least >= 0 and most < whole[0] else None

    def _find_reads(self) -> Iterator[tuple[Any, tuple[Any, _Line]]]:
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

    def _find_writes(self) -> Iterator[tuple[int, tuple[Any, _Line]]]:
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
        left = {*self._writes, self._steps.index}
        atoms = [atom for number, atom in enumerate(self._jaxpr.outvars) if number not in left]
        atoms += [row for row, _ in self._updates.values()]
        taken = {atom for atom in atoms if isinstance(atom, core.Var)}
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
        least, most = line.bounds(self._steps.count)
        if (least, most) != (0, array.shape[0] - 1):
            array = lax.slice_in_dim(array, least, most + 1)
        return lax.rev(array, [0]) if (line.slope < 0) != self._backwards else array

    def _written(self, number: int, start: Any, rows: Any) -> Any:
        """Return an array after all steps have written their rows."""
        _, line = self._writes[number]
        rows = rows if self._updates[number][1] else lax.squeeze(rows, [1])
        if (line.slope < 0) != self._backwards:
            rows = lax.rev(rows, [0])
        least, most = line.bounds(self._steps.count)
        if (least, most) == (0, start.shape[0] - 1):
            return rows
        return lax.dynamic_update_slice_in_dim(start, rows, least, 0)

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
