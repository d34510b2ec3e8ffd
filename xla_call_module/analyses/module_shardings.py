"""Which shardings a module says of its own arguments and results.

JAX writes them in Shardy's dialect, which becomes attributes of StableHLO when the module is
written once more, or with the older partitioner as XLA's text.

Source: https://openxla.org/shardy; xla/service/spmd/shardy/constants.h.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xla_call_module._jax import ir
from xla_call_module.errors import InteropError
from xla_call_module.shardings.array_sharding import Mesh, Sharding, place
from xla_call_module.shardings.sharding_text import sharding_from_text
from xla_call_module.shardings.shardy import MESH_TEXT, mesh_from_shardy, placement_from_shardy
from xla_call_module.stablehlo.modules import TensorType, find_main, read_main

__all__ = ["ModuleShardings", "read_module_shardings"]

_DEVICES = "mhlo.num_partitions"
_TEXT = "mhlo.sharding"
_FRONTEND = "mhlo.frontend_attributes"
_NAMED_MESH = re.compile(rf'([\w.$]+|"[^"]*") = (#sdy\.{MESH_TEXT})')


@dataclass(frozen=True, slots=True)
class ModuleShardings:
    """The shardings that a module states.

    Attributes:
        nr_devices: for how many devices it is.
        arguments: for each argument but the platform index; None where it says nothing, or nothing
            that this package has a value for.
        results: the same.
        argument_texts: for each argument XLA's text of its sharding; empty where there is none.
        result_texts: the same.
        meshes: those that it names, but for what JAX does not make.
    """

    nr_devices: int
    arguments: tuple[Sharding | None, ...]
    results: tuple[Sharding | None, ...]
    argument_texts: tuple[str, ...]
    result_texts: tuple[str, ...]
    meshes: tuple[Mesh, ...]


def read_module_shardings(module: Any) -> ModuleShardings:
    """The shardings of a parsed module's `main`."""
    main, types = find_main(module), read_main(module)
    attributes = module.operation.attributes
    devices = int(ir.IntegerAttr(attributes[_DEVICES]).value) if _DEVICES in attributes else 1
    meshes = _meshes(module)
    offset = int(types.has_platform_index)
    arguments = _of_each(main, "arg_attrs", offset + len(types.args))[offset:]
    results = _of_each(main, "res_attrs", len(types.results))
    return ModuleShardings(
        nr_devices=devices,
        arguments=_read_all(arguments, types.args, meshes),
        results=_read_all(results, types.results, meshes),
        argument_texts=tuple(_text(value, _TEXT) for value in arguments),
        result_texts=tuple(_text(value, _TEXT) for value in results),
        meshes=tuple(meshes.values()),
    )


def _of_each(main: Any, key: str, count: int) -> list[Any]:
    """The attributes of each argument or result."""
    if key not in main.attributes:
        return [{}] * count
    return [ir.DictAttr(value) for value in main.attributes[key]]


def _read_all(
    attributes: Sequence[Any], types: Sequence[TensorType], meshes: Mapping[str, Mesh]
) -> tuple[Sharding | None, ...]:
    pairs = zip(attributes, types, strict=True)
    return tuple(_read(value, len(found.shape), meshes) for value, found in pairs)


def _meshes(module: Any) -> dict[str, Mesh]:
    """The meshes of a module by their names, but for those that JAX does not make."""
    texts = {
        str(op.attributes["sym_name"]).strip('"'): str(op.attributes["mesh"])
        for op in module.body.operations
        if op.operation.name == "sdy.mesh"
    }
    listed = _text(_frontend(module.operation.attributes), "xla.sdy.meshes")
    texts |= {found[1].strip('"'): found[2] for found in _NAMED_MESH.finditer(listed)}
    meshes = {}
    for name, text in texts.items():
        with contextlib.suppress(InteropError):
            meshes[name] = mesh_from_shardy(text)
    return meshes


def _read(attributes: Any, rank: int, meshes: Mapping[str, Mesh]) -> Sharding | None:
    shardy = str(attributes["sdy.sharding"]) if "sdy.sharding" in attributes else ""
    shardy = shardy or _text(_frontend(attributes), "xla.sdy.sharding")
    if shardy:
        with contextlib.suppress(InteropError):
            return place(placement_from_shardy(shardy, meshes), rank)
    if text := _text(attributes, _TEXT):
        with contextlib.suppress(InteropError):
            return sharding_from_text(text)
    return None


def _frontend(attributes: Any) -> Any:
    return ir.DictAttr(attributes[_FRONTEND]) if _FRONTEND in attributes else {}


def _text(attributes: Any, key: str) -> str:
    """A text among attributes; empty where there is none, or something else."""
    try:
        return str(ir.StringAttr(attributes[key]).value) if key in attributes else ""
    except ValueError:
        return ""
