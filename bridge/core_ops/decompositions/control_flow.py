"""Loops and branches over what stands for the arrays of a module, such as pairs of arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bridge.lifting.control_primitives import RULES as OF_JAX
from bridge.lifting.known_values import TOKEN, PlatformChoice, Token
from bridge.lifting.lifted_operation import LiftedOperation, LiftedRegion, LiftingRule


def _switch(chosen: Any, branches: Sequence[Callable[[], Any]]) -> Any:
    """Run the branch that a number chooses, or of two that a truth value does, the false first."""
    if chosen.dtype == np.bool_:
        return lax.cond(chosen, *reversed(branches))
    return lax.switch(chosen, branches)


def _case(op: LiftedOperation) -> Any:
    """Return the results of the branch that an index chooses; beyond the branches, of the last."""
    index, last = op.operands[0], len(op.regions) - 1
    if isinstance(index, (PlatformChoice, np.ndarray)):
        return OF_JAX["stablehlo.case"].lift(op)
    if last == 0:
        return op.regions[0].apply()
    chosen = op.array(0)
    if last == 1:  # what JAX makes of a condition: an index that is converted from it
        chosen = lax.ne(chosen, jnp.zeros_like(chosen))
    else:
        beyond = lax.bitwise_or(chosen < 0, chosen > last)
        chosen = jnp.where(beyond, np.int32(last), chosen)
    return _without_tokens(op.regions, lambda branches: _switch(chosen, branches))


def _if(op: LiftedOperation) -> Any:
    if isinstance(op.operands[0], np.ndarray):
        return OF_JAX["stablehlo.if"].lift(op)
    return _without_tokens(op.regions[::-1], lambda branches: _switch(op.array(0), branches))


def _without_tokens(regions: Sequence[LiftedRegion], run: Callable[[list[Any]], Any]) -> list[Any]:
    """Return the results of one of some branches, with a token where they have one."""
    *_, returned = regions[0].block
    tokens = ["token" in str(operand.type) for operand in returned.operands]

    def arrays_of(region: LiftedRegion) -> Callable[[], tuple[Any, ...]]:
        return lambda: tuple(
            _as_carried(region.to_array(value))
            for value in region.apply()
            if not isinstance(value, Token)
        )

    results = iter(run([arrays_of(region) for region in regions]))
    return [TOKEN if is_token else next(results) for is_token in tokens]


def _while(op: LiftedOperation) -> Any:
    """Return what a loop ends with; what it carries unchanged stays as it is."""
    condition, body = op.regions
    *_, returned = body.block
    pairs = zip(body.block.arguments, returned.operands, strict=True)
    same = [argument == result for argument, result in pairs]
    carried = [
        n for n, value in enumerate(op.operands) if not same[n] and not isinstance(value, Token)
    ]
    start = tuple(_as_carried(op.array(n)) for n in carried)

    def all_of(values: Any) -> list[Any]:
        changing = dict(zip(carried, values, strict=True))
        return [changing.get(n, operand) for n, operand in enumerate(op.operands)]

    def step(values: Any) -> Any:
        results = body.apply(*all_of(values))
        return tuple(_as_carried(body.to_array(results[n])) for n in carried)

    final = lax.while_loop(lambda values: condition(*all_of(values))[0], step, start)
    return all_of(final)


def _as_carried(value: Any) -> Any:
    return jax.tree.map(
        lambda part: jnp.asarray(part) if isinstance(part, (np.ndarray, np.generic)) else part,
        value,
    )


RULES = {
    **OF_JAX,
    "stablehlo.case": LiftingRule(_case),
    "stablehlo.if": LiftingRule(_if),
    "stablehlo.while": LiftingRule(_while),
}
