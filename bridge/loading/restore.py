"""A chain of calls that came from a file becomes an `Exported` with its VJPs again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from jax import export

from bridge.core._jax import replace_vjp
from xla_call_module.call import CallModule
from xla_call_module.checks import DisabledCheck, unite
from xla_call_module.exported import carried_kept, to_exported
from xla_call_module.passes.constants import restore_constants
from xla_call_module.passes.residuals import drop_residuals, join_residuals

__all__ = ["restore"]


def restore(
    chain: Sequence[CallModule],
    constant: Callable[[str], np.ndarray[Any, Any]],
    disabled_checks: Sequence[DisabledCheck] = (),
) -> export.Exported:
    """The `Exported` of a chain; its VJPs are made when they are asked for.

    Args:
        chain: a function, its VJP, the VJP of that, ….
        constant: the value of a hoisted constant by its key.
        disabled_checks: safety checks that are not in force besides those of the calls.

    Raises:
        InteropError: a call is damaged, or has a pytree type that is not registered here.
    """
    # What TensorFlow has saved may have no gradient, or one that takes no residuals.
    are_taken = len(chain) > 1 and chain[1].residual_args > 0

    @lru_cache
    def call(order: int) -> CallModule:
        if order < 2 and are_taken:
            return joined()[order]
        found = restore_constants(chain[order], constant)
        return drop_residuals(found, carried_kept(found)) if found.residual_results else found

    @lru_cache
    def joined() -> tuple[CallModule, CallModule]:
        forward, backward = (restore_constants(chain[order], constant) for order in (0, 1))
        # What else the forward pass takes is for the residuals.
        return join_residuals(forward, backward, carried_kept(forward))

    @lru_cache
    def exported(order: int) -> export.Exported:
        found = call(order)
        found = dataclasses.replace(
            found, disabled_checks=unite(found.disabled_checks, disabled_checks)
        )
        made = to_exported(found)
        if order + 1 == len(chain):
            return made
        return replace_vjp(made, lambda: exported(order + 1))

    return exported(0)
