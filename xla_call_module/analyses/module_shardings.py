"""The shardings that a module says of its own arguments and results.

JAX writes them in Shardy's dialect, which becomes attributes of StableHLO when the module is
written once more, or with the older partitioner as XLA's text.

Source: https://openxla.org/shardy; xla/service/spmd/shardy/constants.h.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xla_call_module._jax import ir
from xla_call_module.errors import InteropError
from xla_call_module.shardings.array_sharding import Sharding, place
from xla_call_module.shardings.mesh_placement import Mesh
from xla_call_module.shardings.sharding_text import sharding_from_text
from xla_call_module.shardings.shardy import mesh_from_shardy, placement_from_shardy
from xla_call_module.stablehlo.attributes import dictionary, symbol_name, value_attributes
from xla_call_module.stablehlo.modules import TensorType, find_main, read_main
from xla_call_module.stablehlo.serialized_shardings import (
    MESHES,
    SHARDING,
    shardy_meshes,
    shardy_texts,
)

_DEVICES = "mhlo.num_partitions"
_TEXT = "mhlo.sharding"


@dataclass(frozen=True, slots=True)
class ModuleShardings:
    """The shardings that a module states.

    Attributes:
        arguments: the sharding of each argument but the platform index; None where it says nothing,
            or nothing that this package has a value for.
        results: the sharding of each result; None as above.
        argument_texts: XLA's text of the sharding of each argument; empty where there is none.
        result_texts: XLA's text of the sharding of each result; empty where there is none.
        meshes: the meshes that it names, but for those that JAX does not make.
    """

    nr_devices: int
    arguments: tuple[Sharding | None, ...]
    results: tuple[Sharding | None, ...]
    argument_texts: tuple[str, ...]
    result_texts: tuple[str, ...]
    meshes: tuple[Mesh, ...]


def read_module_shardings(module: Any) -> ModuleShardings:
    """Return the shardings of a parsed module's `main`."""
    main, types = find_main(module), read_main(module)
    attributes = module.operation.attributes
    devices = int(ir.IntegerAttr(attributes[_DEVICES]).value) if _DEVICES in attributes else 1
    meshes = _meshes(module)
    arguments = value_attributes(main, "arg_attrs")[int(types.has_platform_index) :]
    results = value_attributes(main, "res_attrs")
    return ModuleShardings(
        nr_devices=devices,
        arguments=_read_all(arguments, types.args, meshes),
        results=_read_all(results, types.results, meshes),
        argument_texts=tuple(_text(value) for value in arguments),
        result_texts=tuple(_text(value) for value in results),
        meshes=tuple(meshes.values()),
    )


def _read_all(
    attributes: Sequence[Any], types: Sequence[TensorType], meshes: Mapping[str, Mesh]
) -> tuple[Sharding | None, ...]:
    pairs = zip(attributes, types, strict=True)
    return tuple(_read(value, len(type_.shape), meshes) for value, type_ in pairs)


def _meshes(module: Any) -> dict[str, Mesh]:
    """Return the meshes of a module by their names, but for those that JAX does not make."""
    declared = {symbol_name(mesh): mesh.attributes["mesh"] for mesh in shardy_meshes(module)}
    if (written := _parse_shardy(module.operation.attributes, MESHES)) is not None:
        with contextlib.suppress(ValueError):  # it is damaged
            declared |= dictionary(written)
    meshes = {}
    for name, attribute in declared.items():
        with contextlib.suppress(InteropError):
            meshes[name] = mesh_from_shardy(attribute)
    return meshes


def _read(attributes: Any, rank: int, meshes: Mapping[str, Mesh]) -> Sharding | None:
    """Return the sharding among the attributes of a value; None where none can be read."""
    shardy = _parse_shardy(attributes, SHARDING)
    if "sdy.sharding" in attributes:
        shardy = attributes["sdy.sharding"]
    if shardy is not None:
        with contextlib.suppress(InteropError):
            return place(placement_from_shardy(shardy, meshes), rank)
    if text := _text(attributes):
        with contextlib.suppress(InteropError):
            return sharding_from_text(text)
    return None


def _parse_shardy(attributes: Any, name: str) -> Any:
    """Return an attribute of Shardy's that is written as a text; None where there is none."""
    try:
        texts = shardy_texts(attributes)
        return ir.Attribute.parse(texts[name]) if name in texts else None
    except (ir.MLIRError, ValueError):  # damaged
        return None


def _text(attributes: Any) -> str:
    """Return XLA's text of a sharding; empty where there is none, or something else."""
    try:
        return str(ir.StringAttr(attributes[_TEXT]).value) if _TEXT in attributes else ""
    except ValueError:
        return ""
