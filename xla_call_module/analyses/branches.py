"""The part of a module that runs on one of its platforms.

A module for several platforms takes the index of the one it runs on, and JAX wraps whatever is
lowered differently in a `stablehlo.case` on that index, or on a number that constants derive from
it (`jax.lax.platform_dependent`, and every primitive with rules of its own for some platform).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from xla_call_module.dtypes import Array
from xla_call_module.stablehlo.call_graph import COMPOSITE, named_by
from xla_call_module.stablehlo.constant_evaluation import ConstantValues, evaluate
from xla_call_module.stablehlo.modules import functions_of, result_number, walk
from xla_call_module.stablehlo.rewriting import replace_operation

CASE = "stablehlo.case"
# JAX derives one number from another; with x64 on the platform index has 64 bits.
_FOLLOWED = (CASE, "stablehlo.convert")
_Known = Mapping[Any, int]


def operations_on(module: Any, platform_index: int | None) -> Iterator[Any]:
    """Return the operations of a parsed module that can run on a platform."""
    if platform_index is None:
        yield from walk(module)
        return
    for block, known in _reached(module, platform_index):
        yield from _taken(block, known)


def keep_platform(module: Any, platform_index: int) -> None:
    """Leave of a parsed module, in place, what runs on one of its platforms.

    Branches that are taken there are written out. The platform index stays an argument.
    """
    functions: dict[Any, dict[Any, int]] = {}
    for block, known in _reached(module, platform_index):
        # What a function is given is known where all its calls give the same.
        before = functions.setdefault(block, dict(known))
        for argument in before.keys() - {key for key in before if known.get(key) == before[key]}:
            del before[argument]
    for block, known in functions.items():
        _write_out_taken(block, known)


def keep_chosen(module: Any) -> None:
    """Write out, in place, each branch that a constant chooses, as of what one platform lowers."""
    for function in functions_of(module).values():
        _write_out_taken(function.regions[0].blocks[0], {})


def _reached(module: Any, platform_index: int) -> Iterator[tuple[Any, _Known]]:
    """Return the body of each function that is called, for each set of arguments that are known."""
    functions = functions_of(module)
    pending: list[tuple[str, tuple[int | None, ...]]] = [("main", (platform_index,))]
    seen = set(pending)
    while pending:
        name, arguments = pending.pop()
        block = functions[name].regions[0].blocks[0]
        known = {
            argument: number
            for argument, number in zip(block.arguments, arguments, strict=False)
            if number is not None
        }
        yield block, known
        for operation in _taken(block, known):
            for call in _calls(operation, known):
                if call not in seen:
                    seen.add(call)
                    pending.append(call)


def _taken(block: Any, known: _Known) -> Iterator[Any]:
    """Return the operations of a block and of the regions that are entered from it."""
    for view in block:
        operation = view.operation
        yield operation
        for region in _entered(operation, known):
            for inner in region:
                yield from _taken(inner, known)


def _entered(operation: Any, known: _Known) -> Sequence[Any]:
    """Return the regions of an operation that can be entered."""
    regions: Sequence[Any] = operation.regions
    if operation.name == CASE and (index := _evaluate(operation.operands[0], known)) is not None:
        return [_branch(operation, index)]
    return regions


def _write_out_taken(block: Any, known: _Known) -> None:
    """Replace each case of which one branch is taken by that branch, inner ones first."""
    for operation in [view.operation for view in block]:
        entered = list(_entered(operation, known))
        for region in entered:
            for inner in region:
                _write_out_taken(inner, known)
        if operation.name == CASE and len(entered) == 1:
            _write_out(operation, entered[0])


def _write_out(case: Any, region: Any) -> None:
    *operations, last = [view.operation for view in region.blocks[0]]
    for operation in operations:
        operation.move_before(case)
    replace_operation(case, list(last.operands))


def _calls(operation: Any, known: _Known) -> Iterator[tuple[str, tuple[int | None, ...]]]:
    """Return the functions that an operation names, with what is known of their arguments."""
    passes_on = operation.name in ("func.call", COMPOSITE)
    for name in named_by(operation):
        operands = operation.operands if passes_on else ()
        yield name, tuple(_evaluate(operand, known) for operand in operands)


def _evaluate(value: Any, known: _Known) -> int | None:
    """Return the number that a value is once the platform is known, or None."""

    def follow(value: Any, operands: Sequence[Array]) -> Array | None:
        if value.owner.name != CASE:
            return evaluate(value.owner, operands)
        results = list(_branch(value.owner, int(operands[0])).blocks[0].operations)[-1].operands
        number: Array | None = numbers.of(results[result_number(value)])
        return number

    arrays = {value: np.asarray(number) for value, number in known.items()}
    numbers = ConstantValues(arrays, names=_FOLLOWED, evaluate=follow, fits=lambda shape: not shape)
    found = numbers.of(value)
    return int(found) if found is not None and found.dtype.kind in "iu" else None


def _branch(case: Any, index: int) -> Any:
    """Return the region that is run: the last one for an index that is out of bounds.

    https://openxla.org/stablehlo/spec#case
    """
    regions = list(case.regions)
    return regions[index] if 0 <= index < len(regions) else regions[-1]
