"""What of a module runs on one of its platforms.

A module for several platforms takes the index of the one it runs on, and JAX wraps whatever is
lowered differently in a `stablehlo.case` on that index, or on a number that constants derive from
it (`jax.lax.platform_dependent`, and every primitive with rules of its own for some platform).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from xla_call_module.composites import COMPOSITE
from xla_call_module.stablehlo import functions_of, result_number, splat, walk

__all__ = ["operations_on"]

_CASE = "stablehlo.case"
_REFERENCES = ("callee", "decomposition", "called_computations")
_Known = Mapping[Any, int]


def operations_on(module: Any, platform_index: int | None) -> Iterator[Any]:
    """The operations of a parsed module that can run on a platform.

    Args:
        module: the parsed module.
        platform_index: the platform's position; None for a module without the argument, or for all
            platforms.
    """
    if platform_index is None:
        yield from walk(module)
        return
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
        for operation in _taken(block, known):
            yield operation
            for call in _calls(operation, known):
                if call not in seen:
                    seen.add(call)
                    pending.append(call)


def _taken(block: Any, known: _Known) -> Iterator[Any]:
    """The operations of a block and of the regions that are entered from it."""
    for view in block:
        operation = view.operation
        yield operation
        regions: Sequence[Any] = operation.regions
        if operation.name == _CASE:
            index = _evaluate(operation.operands[0], known)
            regions = regions if index is None else [_branch(operation, index)]
        for region in regions:
            for inner in region:
                yield from _taken(inner, known)


def _calls(operation: Any, known: _Known) -> Iterator[tuple[str, tuple[int | None, ...]]]:
    """The functions that an operation refers to, with what is known of their arguments."""
    for key in _REFERENCES:
        if key in operation.attributes:
            passes_on = operation.name in ("func.call", COMPOSITE)
            operands = operation.operands if passes_on else ()
            numbers = tuple(_evaluate(operand, known) for operand in operands)
            for name in re.findall(r'@"?([^"\s,\]]+)', str(operation.attributes[key])):
                yield name, numbers


def _evaluate(value: Any, known: _Known) -> int | None:
    """The number that a value is once the platform is known, or None."""
    if value in known:
        return known[value]
    owner = value.owner
    name = getattr(owner, "name", "")  # a block, of which it is an argument, has none
    if name == "stablehlo.convert":  # with x64 on the platform index has 64 bits
        return _evaluate(owner.operands[0], known)
    if name == "stablehlo.constant":
        element = splat(owner) or ""
        return int(element) if re.fullmatch(r"-?[0-9]+", element) else None
    if name == _CASE and (index := _evaluate(owner.operands[0], known)) is not None:
        results = list(list(_branch(owner, index).blocks[0].operations)[-1].operands)
        return _evaluate(results[result_number(value)], known)
    return None


def _branch(case: Any, index: int) -> Any:
    """The region that is run: the last one for an index that is out of bounds.

    https://openxla.org/stablehlo/spec#case
    """
    regions = list(case.regions)
    return regions[index] if 0 <= index < len(regions) else regions[-1]
