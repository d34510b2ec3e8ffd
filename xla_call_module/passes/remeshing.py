"""A module for a mesh of other sizes: its arrays stay whole, and are split along the same axes.

A module that XLA partitions by itself computes on whole arrays. How many devices there are is said
in one place, the mesh, whose axes its shardings name; so another mesh is another attribute. What
runs on each device alone (`jax.shard_map`) has the shapes of the parts in it and is for one mesh.

Source: https://openxla.org/shardy/sharding_representation.
"""

from __future__ import annotations

from typing import Any

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy

from xla_call_module.analyses.several_devices import name_of_several_devices
from xla_call_module.call import read_artifact_version
from xla_call_module.errors import ShardingError
from xla_call_module.shardings.array_sharding import name_axes, place
from xla_call_module.shardings.mesh_placement import Mesh, Placement
from xla_call_module.shardings.sharding_text import sharding_from_text, sharding_to_text
from xla_call_module.shardings.shardy import mesh_from_shardy
from xla_call_module.stablehlo.attributes import dictionary
from xla_call_module.stablehlo.modules import (
    first_line,
    open_module,
    serialize_module,
    tensor_type,
    walk,
)
from xla_call_module.stablehlo.operation_locations import describe_location
from xla_call_module.stablehlo.serialized_shardings import import_shardings_into, shardy_meshes

# The same mesh once more.
_STABLEHLO_MESH = "stablehlo.mesh"
_PARTITIONS = "mhlo.num_partitions"
_HLO_SHARDING = "mhlo.sharding"


def read_meshes(artifact: bytes) -> tuple[Mesh, ...]:
    """Return the meshes with named axes of a module's shardings; none without Shardy."""
    with open_module(artifact) as module:
        import_shardings_into(module)
        meshes = [mesh_from_shardy(op.attributes["mesh"]) for op in shardy_meshes(module)]
    return tuple(dict.fromkeys(mesh for mesh in meshes if mesh.axes))


def remesh_module(artifact: bytes, saved: Mesh, mesh: Mesh, *, where: str) -> bytes:
    """Return the same computation on a mesh whose axes have other sizes, or another order."""
    version = read_artifact_version(artifact)
    with open_module(artifact) as module:
        import_shardings_into(module)
        for operation in walk(module):
            _check(operation, where)
            _write_unnamed(operation, saved, mesh, where)
        for operation in shardy_meshes(module):
            _write(operation, mesh, where)
        if _PARTITIONS in module.operation.attributes:
            number = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), mesh.size)
            module.operation.attributes[_PARTITIONS] = number
        try:
            module.operation.verify()
            return serialize_module(module, version, mixed=True)
        except (ir.MLIRError, ValueError, RuntimeError) as error:
            raise ShardingError(
                f"{where} cannot be put on the mesh {mesh}: {first_line(error)}. To do: take the "
                "mesh that it was exported for."
            ) from error


def _write(operation: Any, mesh: Mesh, where: str) -> None:
    """Write other axes into a mesh; one without names means one device, or all, on any mesh."""
    old = mesh_from_shardy(operation.attributes["mesh"])
    if not old.axes:
        return
    if old.devices or not old.shape.keys() <= mesh.shape.keys():
        raise ShardingError(
            f"{where} has shardings on the mesh {old}, which do not fit the mesh {mesh}. To do: "
            "take a mesh with axes of these names."
        )
    axes = [sdy.MeshAxisAttr.get(axis.name, axis.size) for axis in mesh.axes]
    operation.attributes["mesh"] = sdy.MeshAttr.get(axes)
    if _STABLEHLO_MESH in operation.attributes:
        del operation.attributes[_STABLEHLO_MESH]


def _check(operation: Any, where: str) -> None:
    if (name := name_of_several_devices(operation)) is not None:
        raise ShardingError(
            f"{where} has a part that runs on each device by itself: {name} at "
            f"{describe_location(operation)}. Its shapes are those of one mesh. To do: take the "
            "mesh that it was exported for, or export it for this one."
        )


def _write_unnamed(operation: Any, saved: Mesh, mesh: Mesh, where: str) -> None:
    """Write other devices into the shardings of an operation, its arguments and its results."""
    attributes = operation.attributes
    if _HLO_SHARDING in attributes:
        if len(operation.results) != 1:
            raise ShardingError(
                f"{where} has an operation of several results ({operation.name} at "
                f"{describe_location(operation)}) with GSPMD's shardings, which have no names of "
                "axes. To do: take the mesh that it was exported for, or export it with Shardy."
            )
        kind = operation.results[0].type
        attributes[_HLO_SHARDING] = _moved(attributes[_HLO_SHARDING], kind, saved, mesh)
    if operation.name != "func.func":
        return
    signature = ir.FunctionType(ir.TypeAttr(attributes["function_type"]).value)
    for key, types in (("arg_attrs", signature.inputs), ("res_attrs", signature.results)):
        if key in attributes:
            pairs = zip(ir.ArrayAttr(attributes[key]), types, strict=True)
            moved = [_moved_value(ir.DictAttr(value), kind, saved, mesh) for value, kind in pairs]
            attributes[key] = ir.ArrayAttr.get(moved)


def _moved_value(attributes: Any, kind: Any, saved: Mesh, mesh: Mesh) -> Any:
    """Return the attributes of an argument or result of a function, on the other mesh."""
    if _HLO_SHARDING not in attributes:
        return attributes
    kept = dictionary(attributes)
    kept[_HLO_SHARDING] = _moved(kept[_HLO_SHARDING], kind, saved, mesh)
    return ir.DictAttr.get(kept)


def _moved(attribute: Any, kind: Any, saved: Mesh, mesh: Mesh) -> Any:
    """Return a sharding as text, on the other mesh."""
    rank = len(tensor_type(str(kind)).shape)
    old = name_axes(sharding_from_text(str(ir.StringAttr(attribute).value)), saved, rank)
    return ir.StringAttr.get(sharding_to_text(place(Placement(mesh, old.dims), rank)))
