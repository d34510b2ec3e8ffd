"""The results of a function that are new values of its parameters, and what it returns besides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax import tree_util

from bridge.core.trees import key_names, to_structure
from bridge.core.update_positions import UpdatePositions, is_bare
from savedmodel.model import Variable
from savedmodel.protos.structures import NONE, Branch, Structure, leaves
from xla_call_module.call import CallModule
from xla_call_module.errors import DtypeError, StructureError

__all__ = ["Updated", "find_updated"]

_MAX_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Updated:
    """The results of a function, some of which are new values of its parameters.

    Attributes:
        assigned: for the index of such a result the index of its variable.
        results: the structure of the other results; of a single one that alone.
    """

    assigned: Mapping[int, int]
    results: Structure


def find_updated(
    call: CallModule,
    tree: tree_util.PyTreeDef,
    params: tree_util.PyTreeDef | None,
    positions: UpdatePositions,
    variables: Sequence[Variable],
) -> Updated:
    """Return which results of a call are new values of which parameters.

    Args:
        call: the call.
        tree: the structure of its results.
        params: the structure of the parameters; None where there are none.
        positions: where the new values stand; empty for a function that only reads.
        variables: the variable of each parameter, in JAX's order.

    Raises:
        StructureError: there is no such position; what stands there is no part of the parameters,
            or has another shape; the message names the path.
        DtypeError: it has another dtype.
    """
    structure = to_structure(tree)
    if not positions:
        return Updated({}, structure)
    if params is None:
        raise StructureError(
            f"{call.name} has no parameters that updates= could assign. To do: pass params=, and a "
            "function that takes them first."
        )
    places = {path: index for index, path in enumerate(key_names(params))}
    paths = key_names(tree)
    if is_bare(tree, [*places], positions):
        parts: dict[int, Structure] = {0: structure}
        rest: Structure = NONE
        depth = 0
    else:
        parts = _children(call, structure, positions)
        rest, depth = _without(structure, parts), 1
    assigned: dict[int, int] = {}
    for prefix, position in positions.items():
        for index in leaves(parts[position]):
            path = (*prefix, *paths[index][depth:])
            if path not in places:
                raise _no_parameter(call, position, path, [*places])
            _check_spec(call, index, variables[places[path]])
            if places[path] in assigned.values():
                raise StructureError(
                    f"{call.name} has two new values for {'/'.join(path)}, by updates="
                    f"{_shown(positions)}. To do: name each part of params once."
                )
            assigned[index] = places[path]
    if not assigned:
        raise StructureError(
            f"{call.name} returns no array at updates={_shown(positions)}. To do: return the new "
            "parameters there."
        )
    return Updated(assigned, rest)


def _children(
    call: CallModule, structure: Structure, positions: UpdatePositions
) -> dict[int, Structure]:
    """Return the results at the positions."""
    is_tuple = isinstance(structure, Branch) and structure.kind in ("tuple", "list", "namedtuple")
    children = structure.children if isinstance(structure, Branch) and is_tuple else ()
    if wrong := [position for position in positions.values() if position >= len(children)]:
        returned = f"a tuple of {len(children)}" if is_tuple else "no tuple"
        raise StructureError(
            f"updates has position {wrong[0]}, and {call.name} returns {returned}. To do: name the "
            "position of the new parameters in what it returns, or 0 where it returns these alone."
        )
    return {position: children[position][1] for position in positions.values()}


def _without(structure: Structure, parts: Mapping[int, Structure]) -> Structure:
    assert isinstance(structure, Branch)
    left = [child for number, child in enumerate(structure.children) if number not in parts]
    if len(left) < 2:
        return left[0][1] if left else NONE
    if structure.kind == "namedtuple":
        return Branch("dict", tuple(left))
    return Branch(structure.kind, tuple((str(n), child) for n, (_, child) in enumerate(left)))


def _check_spec(call: CallModule, index: int, variable: Variable) -> None:
    spec = call.results[index]
    if spec.dtype != variable.dtype:
        raise DtypeError(
            f"The new value of the parameter {variable.name} is {spec} in what {call.name} "
            f"returns, and the parameter {variable.dtype.name}{list(variable.shape)}. To do: cast "
            "it in the function, as the optimizer's state may need it."
        )
    if spec.shape != variable.shape:
        raise StructureError(
            f"The new value of the parameter {variable.name} is {spec} in what {call.name} "
            f"returns, and the parameter has shape {variable.shape}. To do: return one of the "
            "same shape."
        )


def _no_parameter(
    call: CallModule, position: int, path: Sequence[str], known: Sequence[tuple[str, ...]]
) -> StructureError:
    shown = ", ".join("/".join(place) for place in known[:_MAX_SHOWN])
    more = ", …" if len(known) > _MAX_SHOWN else ""
    return StructureError(
        f"What {call.name} returns at position {position} has {'/'.join(path) or 'an array'!r}, "
        f"and params has no such leaf; it has {shown}{more}. To do: return the new parameters in "
        "the structure of params, or a part of them; or say which part it is, as in "
        "updates={'cache': 1}."
    )


def _shown(positions: UpdatePositions) -> Any:
    return (
        {"/".join(path): p for path, p in positions.items()}
        if () not in positions
        else (positions[()])
    )
