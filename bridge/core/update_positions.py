"""`updates=`: where in the results of a function the new values of its parameters stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jax import tree_util

from bridge.core.trees import key_names
from savedmodel.model import DEFAULT_SIGNATURE
from xla_call_module.errors import StructureError

__all__ = ["UpdatePositions", "Updates", "is_bare", "parse_updates"]

Updates = int | Mapping[str, "int | Mapping[str, int]"]
# For a part of the parameters, by the path to it, the position of its new value in the results.
UpdatePositions = Mapping[tuple[str, ...], int]

_HOW = (
    "To do: pass the position of the new parameters in the results, as in updates=0; or positions "
    "by the keys of params, as in updates={'cache': 1}; with several signatures a mapping from "
    "their keys to these."
)


def parse_updates(updates: Any, model: Any) -> dict[str, UpdatePositions]:
    """Return for each signature that assigns parameters where their new values stand.

    Args:
        updates: a position, or positions by keys of the parameters, such as `opt/mu`; or a mapping
            from signature keys to these. None for signatures that only read.
        model: the function, or a mapping from signature keys to functions, by whose keys `updates`
            is then, too.

    Raises:
        StructureError: it is nothing of that kind, or names another signature.
    """
    if updates is None:
        return {}
    by_signature = isinstance(model, Mapping)
    keys = [*model] if by_signature else [DEFAULT_SIGNATURE]
    if not by_signature or not isinstance(updates, Mapping):
        return {key: _parse_positions(updates) for key in keys}
    if unknown := [key for key in updates if key not in keys]:
        raise StructureError(
            f"updates has {unknown[0]!r}; the signatures are {', '.join(keys)}. To do: name some "
            "of these."
        )
    return {key: _parse_positions(value) for key, value in updates.items()}


def _parse_positions(value: Any) -> UpdatePositions:
    if not isinstance(value, Mapping):
        return {(): _parse_position(value)}
    if not value or not all(isinstance(key, str) and key for key in value):
        raise StructureError(f"updates has {value!r}. {_HOW}")
    return {tuple(key.split("/")): _parse_position(p) for key, p in value.items()}


def _parse_position(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise StructureError(f"updates has {value!r}; expected a position from 0 on. {_HOW}")
    return value


def is_bare(tree: Any, paths: Sequence[tuple[str, ...]], positions: UpdatePositions) -> bool:
    """Return whether a function returns nothing but the new parameters, in no tuple of results.

    Args:
        tree: the structure of what it returns.
        paths: the paths of the parameters' arrays.
        positions: where the new values stand.
    """
    if set(positions.values()) != {0}:
        return False
    filled = tree_util.tree_unflatten(tree, range(tree.num_leaves))
    return not isinstance(filled, (tuple, list)) or set(key_names(tree)) == set(paths)
