"""`updates=`: which results of a function are new values of its parameters.

A position in the tuple of results, such as 0 for `(new_state, metrics)`, becomes a mapping from the
indices of flat results to those of parameters: leaves belong together by their pytree paths.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from jax import tree_util

from bridge.core.trees import key_names, to_structure
from savedmodel.model import DEFAULT_SIGNATURE, Variable
from savedmodel.protos.structures import Structure
from xla_call_module.call import TensorSpec
from xla_call_module.errors import DtypeError, StructureError

Updates = int | Mapping[str, "int | Mapping[str, int]"]
# For a part of the parameters, by the path to it, the position of its new value in the results.
UpdatePositions = Mapping[tuple[str, ...], int]

_MAX_SHOWN = 8
_HOW = (
    "To do: pass the position of the new parameters in the results, as in updates=0; or positions "
    "by the keys of params, as in updates={'cache': 1}; with several signatures a mapping from "
    "their keys to these."
)


def parse_updates(updates: Any, model: Any) -> dict[str, UpdatePositions]:
    """Return for each signature that assigns parameters where their new values stand."""
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
    """Return whether a function returns nothing but the new parameters, in no tuple of results."""
    if set(positions.values()) != {0}:
        return False
    filled = tree_util.tree_unflatten(tree, range(tree.num_leaves))
    return not isinstance(filled, (tuple, list)) or set(key_names(tree)) == set(paths)


def find_assigned(
    name: str,
    results: Sequence[TensorSpec],
    tree: tree_util.PyTreeDef,
    params: tree_util.PyTreeDef | None,
    positions: UpdatePositions,
    variables: Sequence[Variable],
) -> dict[int, int]:
    """Return for the index of each result that is a new value the index of its parameter."""
    if not positions:
        return {}
    if params is None:
        raise StructureError(
            f"{name} has no parameters that updates= could assign. To do: pass params=, and a "
            "function that takes them first."
        )
    places = {path: index for index, path in enumerate(key_names(params))}
    paths = key_names(tree)
    depth = 0 if is_bare(tree, [*places], positions) else 1
    assigned: dict[int, int] = {}
    for prefix, position in positions.items():
        for index in _leaves_at(name, tree, position) if depth else range(len(paths)):
            path = (*prefix, *paths[index][depth:])
            if path not in places:
                raise _no_parameter(name, position, path, [*places])
            _check_spec(name, results[index], variables[places[path]])
            if places[path] in assigned.values():
                raise StructureError(
                    f"{name} has two new values for {'/'.join(path)}, by updates="
                    f"{_shown(positions)}. To do: name each part of params once."
                )
            if index in assigned:
                other = "/".join([*places][assigned[index]])
                raise StructureError(
                    f"{name} has one new value for {other} and {'/'.join(path)}, by updates="
                    f"{_shown(positions)}. To do: return it once for each, at positions of its own."
                )
            assigned[index] = places[path]
    if not assigned:
        raise StructureError(
            f"{name} returns no array at updates={_shown(positions)}. To do: return the new "
            "parameters there."
        )
    return assigned


def _leaves_at(name: str, tree: Any, position: int) -> list[int]:
    """Return the indices of the leaves of one of several results."""
    numbered = tree_util.tree_unflatten(tree, range(tree.num_leaves))
    is_tuple = isinstance(numbered, (tuple, list))
    if not is_tuple or position >= len(numbered):
        returned = f"a tuple of {len(numbered)}" if is_tuple else "no tuple"
        raise StructureError(
            f"updates has position {position}, and {name} returns {returned}. To do: name the "
            "position of the new parameters in what it returns, or 0 where it returns these alone."
        )
    return tree_util.tree_leaves(numbered[position])


def _check_spec(name: str, spec: TensorSpec, variable: Variable) -> None:
    if spec.dtype != variable.dtype:
        raise DtypeError(
            f"{name} returns {spec} as the new value of the parameter {variable.name}, which is "
            f"{variable.dtype.name}{list(variable.shape)}. To do: cast it in the function; the "
            "optimizer's state may need it, too."
        )
    if spec.shape != variable.shape:
        raise StructureError(
            f"{name} returns {spec} as the new value of the parameter {variable.name}, which has "
            f"shape {variable.shape}. To do: return one of the same shape."
        )


def _no_parameter(
    name: str, position: int, path: Sequence[str], known: Sequence[tuple[str, ...]]
) -> StructureError:
    shown = ", ".join("/".join(place) for place in known[:_MAX_SHOWN])
    more = ", …" if len(known) > _MAX_SHOWN else ""
    return StructureError(
        f"{name} returns {'/'.join(path) or 'an array'!r} at position {position}, and params has "
        f"no such leaf; it has {shown}{more}. To do: return the new parameters in the structure of "
        "params, or a part of them; or say which part it is, as in updates={'cache': 1}."
    )


def _shown(positions: UpdatePositions) -> Any:
    if () in positions:
        return positions[()]
    return {"/".join(path): position for path, position in positions.items()}


def without_updates(tree: Any, leaves: Sequence[Any], assigned: Collection[int]) -> Any:
    """Return what a function returns besides the new values of its parameters.

    What is left of a tuple of results is a tuple, or if it is one that alone, or None; of a named
    tuple a dict.
    """
    if not assigned:
        return tree_util.tree_unflatten(tree, leaves)
    if len(assigned) == tree.num_leaves:
        return None
    numbered = tree_util.tree_unflatten(tree, range(tree.num_leaves))
    fields = getattr(numbered, "_fields", range(len(numbered)))
    left = {
        field: child
        for field, child in zip(fields, numbered, strict=True)
        if not (numbers := tree_util.tree_leaves(child)) or numbers[0] not in assigned
    }
    rest: Any = left if hasattr(numbered, "_fields") else type(numbered)(left.values())
    if len(left) == 1:
        (rest,) = left.values()
    return tree_util.tree_map(leaves.__getitem__, rest)


def structure_without(tree: tree_util.PyTreeDef, assigned: Collection[int]) -> Structure:
    """Return the structure of the results that are not assigned; the leaves are their indices."""
    if not assigned:
        return to_structure(tree)
    rest = without_updates(tree, range(tree.num_leaves), assigned)
    indices, structure = tree_util.tree_flatten(rest)
    return to_structure(structure, indices)
