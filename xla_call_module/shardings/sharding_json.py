"""Shardings in the description that a node carries of its call.

A call may have thousands of arguments and has few shardings, so each is written once.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from xla_call_module.shardings.array_sharding import Sharding
from xla_call_module.shardings.mesh_placement import DimAxes, Mesh, MeshAxis, Placement
from xla_call_module.shardings.sharding_text import sharding_from_text, sharding_to_text

_SETS = ("replicated", "unreduced", "reduced")


def encode_shardings(lists: Mapping[str, Sequence[Sharding | None]]) -> dict[str, Any]:
    """Return a JSON object of named lists of shardings, which `decode_shardings` reads.

    Empty where there is no sharding at all.
    """
    given = (sharding for members in lists.values() for sharding in members)
    unique = list(dict.fromkeys(sharding for sharding in given if sharding is not None))
    if not unique:
        return {}
    numbers = {sharding: number for number, sharding in enumerate(unique)}
    members = {
        key: [None if sharding is None else numbers[sharding] for sharding in shardings]
        for key, shardings in lists.items()
    }
    return {"unique": [_to_json(sharding) for sharding in unique], **members}


def decode_shardings(
    fields: Mapping[str, Any], counts: Mapping[str, int]
) -> dict[str, list[Sharding | None]]:
    """Return the named lists of shardings, each of which has as many members as `counts` says."""
    unique = dict(enumerate(map(_from_json, fields.get("unique", ()))))
    decoded: dict[str, list[Sharding | None]] = {}
    for key, count in counts.items():
        numbers = fields.get(key, [None] * count)
        if len(numbers) != count:
            raise ValueError(f"{len(numbers)} shardings of {count} {key}")
        decoded[key] = [None if number is None else unique[number] for number in numbers]
    return decoded


def _to_json(sharding: Sharding) -> dict[str, Any]:
    fields: dict[str, Any] = {"hlo": sharding_to_text(sharding)}
    if sharding.memory:
        fields["memory"] = sharding.memory
    if (placement := sharding.placement) is None:
        return fields
    mesh = placement.mesh
    fields["mesh"] = [[axis.name, axis.size, axis.kind] for axis in mesh.axes]
    fields["dims"] = [[*dim.names, *([None] if dim.is_open else [])] for dim in placement.dims]
    optional = {"devices": mesh.devices} | {key: getattr(placement, key) for key in _SETS}
    return fields | {key: list(value) for key, value in optional.items() if value}


def _from_json(fields: Mapping[str, Any]) -> Sharding:
    sharding = replace(sharding_from_text(str(fields["hlo"])), memory=str(fields.get("memory", "")))
    if "mesh" not in fields:
        return sharding
    axes = tuple(
        MeshAxis(str(name), operator.index(size), str(kind)) for name, size, kind in fields["mesh"]
    )
    mesh = Mesh(axes, tuple(map(operator.index, fields.get("devices", ()))))
    dims = tuple(
        DimAxes(tuple(str(name) for name in dim if name is not None), None in dim)
        for dim in fields["dims"]
    )
    sets = {key: tuple(map(str, fields.get(key, ()))) for key in _SETS}
    return replace(sharding, placement=Placement(mesh, dims, **sets))
