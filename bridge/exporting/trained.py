"""Which of the arrays in a pytree the framework that made it trains."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from jax import tree_util

from bridge.core.trees import key_names

__all__ = ["of_parts", "trained_leaves"]

# What linen, and whoever follows it, calls the collection of running averages.
_AVERAGES = "batch_stats"


def trained_leaves(params: Any) -> tuple[bool, ...]:
    """For each leaf whether its framework trains it, as far as its classes and names tell.

    Flax's nnx trains the variables that are `nnx.Param`, and Equinox no `equinox.nn.State`.
    """
    paths = key_names(tree_util.tree_structure(params))
    flags = tuple(_AVERAGES not in path for path in paths)
    for framework, is_untrained in (("flax.nnx", _in_nnx), ("equinox", _in_equinox)):
        module = sys.modules.get(framework)
        if module is not None:
            parts = of_parts(params, lambda part: is_untrained(module, part), trained=False)  # noqa: B023
            flags = tuple(a and b for a, b in zip(flags, parts, strict=True))
    return flags


def _in_nnx(nnx: Any, part: Any) -> bool:
    """Whether it is a variable of another kind; older versions have states of variables instead."""
    kinds = (nnx.Variable, vars(nnx).get("VariableState", nnx.Variable))
    return isinstance(part, kinds) and not issubclass(getattr(part, "type", type(part)), nnx.Param)


def _in_equinox(equinox: Any, part: Any) -> bool:
    return isinstance(part, equinox.nn.State)


def of_parts(tree: Any, is_part: Callable[[Any], bool], *, trained: bool) -> tuple[bool, ...]:
    """For each leaf `trained` if it is in such a part, and the opposite elsewhere."""
    flags: list[bool] = []
    for part in tree_util.tree_leaves(tree, is_leaf=is_part):
        flags += [trained == is_part(part)] * len(tree_util.tree_leaves(part))
    return tuple(flags)
