"""Branches, loops, and what orders operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax

from bridge.lifting.known_values import TOKEN, LiftedValue, PlatformChoice, Token, as_array
from bridge.lifting.lifted_operation import LiftedOperation, LiftedRegion, LiftingRule
from bridge.lifting.loops import lift_while
from bridge.lifting.platform_branches import common_branch

_Branch = Callable[..., tuple[Any, ...]]


def _case(op: LiftedOperation) -> Any:
    index, branches = op.operands[0], op.regions
    last = len(branches) - 1
    if isinstance(index, PlatformChoice):
        return _of_platforms(op, index)
    if isinstance(index, np.ndarray):
        return branches[_in_range(int(index), last)].apply()
    if not _is_clamped(op):  # beyond its branches a case takes the last one
        beyond = lax.bitwise_or(lax.lt(index, _like(0, index)), lax.gt(index, _like(last, index)))
        index = lax.select(beyond, _like(last, index), index)
    return _without_tokens(branches, lambda taken: lax.switch(index, taken))


def _in_range(index: int, last: int) -> int:
    return index if 0 <= index <= last else last


def _like(number: int, index: Any) -> np.ndarray[Any, Any]:
    return np.array(number, index.dtype)


def _is_clamped(op: LiftedOperation) -> bool:
    """Return whether the index of a case comes from a clamp, as JAX writes it."""
    return getattr(op.raw.operands[0].owner, "name", "") == "stablehlo.clamp"


def _if(op: LiftedOperation) -> Any:
    chosen, (then, other) = op.operands[0], op.regions
    if isinstance(chosen, np.ndarray):
        return (then if chosen else other).apply()
    return _without_tokens([then, other], lambda taken: lax.cond(chosen, *taken))


def _without_tokens(
    branches: Sequence[LiftedRegion], run: Callable[[list[_Branch]], Sequence[Any]]
) -> list[LiftedValue]:
    """Return the results of one of some branches, with a token where they have one."""
    tokens = _tokens_of(branches[0])
    results = iter(run([_arrays_of(branch) for branch in branches]))
    return [TOKEN if is_token else next(results) for is_token in tokens]


def _tokens_of(region: LiftedRegion) -> list[bool]:
    *_, returned = region.block
    return ["token" in str(operand.type) for operand in returned.operands]


def _arrays_of(region: LiftedRegion) -> _Branch:
    """Return a branch as JAX has it, of no arguments, which returns arrays only."""

    def branch() -> tuple[Any, ...]:
        values = region.apply()
        return tuple(as_array(value) for value in values if not isinstance(value, Token))

    return branch


def _of_platforms(op: LiftedOperation, index: PlatformChoice) -> Any:
    """Return what the branch of the platform computes on which the program will run."""
    last = len(op.regions) - 1
    taken = {
        name: op.regions[_in_range(int(number), last)] for name, number in index.values.items()
    }
    if len({id(region) for region in taken.values()}) == 1:
        return next(iter(taken.values())).apply()
    shared = common_branch(op.raw, taken)
    if shared is not None:
        return shared.apply()
    known = {name: _constants_of(region) for name, region in taken.items()}
    if all(values is not None for values in known.values()):
        columns = zip(*(values or [] for values in known.values()), strict=True)
        return [PlatformChoice(dict(zip(known, column, strict=True))) for column in columns]

    def choose(branches: list[_Branch]) -> Sequence[Any]:
        per_platform: Any = dict(zip(taken, branches, strict=True))
        results: Sequence[Any] = lax.platform_dependent(**per_platform)
        return results

    return _without_tokens(list(taken.values()), choose)


def _constants_of(region: LiftedRegion) -> list[np.ndarray[Any, Any]] | None:
    """Return what a region returns where it is nothing but scalar constants."""
    if {view.operation.name for view in region.block} - {"stablehlo.constant", "stablehlo.return"}:
        return None
    values = region.apply()
    return values if all(np.shape(value) == () for value in values) else None


def _while(op: LiftedOperation) -> Any:
    condition, body = op.regions
    return lift_while(op, condition, body)


def _token(op: LiftedOperation) -> Any:
    del op
    return TOKEN


def _barrier(op: LiftedOperation) -> Any:
    arrays = [as_array(value) for value in op.operands if not isinstance(value, Token)]
    kept = iter(lax.optimization_barrier(tuple(arrays)) if arrays else ())
    return [value if isinstance(value, Token) else next(kept) for value in op.operands]


RULES = {
    "stablehlo.after_all": LiftingRule(_token),
    "stablehlo.case": LiftingRule(_case),
    "stablehlo.create_token": LiftingRule(_token),
    "stablehlo.if": LiftingRule(_if),
    "stablehlo.optimization_barrier": LiftingRule(_barrier),
    "stablehlo.while": LiftingRule(_while),
}
