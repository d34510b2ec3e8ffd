"""An `Exported` on the mesh at hand, which may be another than it was exported for.

What TensorFlow made around calls for several devices is exported for one device. Where an argument
or result of it is one of a call, it lies as that call's module has it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import export
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from bridge.core._jax import Shardings, map_orders, outside_meshes, replace_shardings
from bridge.core.mesh_text import axes_text, draw_mesh
from bridge.core.narrowing import x64_if_needed
from savedmodel.model import Cast, Output, Signature, Value
from xla_call_module._jax import named_shardings
from xla_call_module.analyses.module_shardings import read_module_shardings
from xla_call_module.analyses.several_devices import name_of_several_devices
from xla_call_module.call import CallModule
from xla_call_module.errors import ShardingError
from xla_call_module.exported import argument_paths, from_exported, result_paths
from xla_call_module.passes.remeshing import read_meshes, remesh_module
from xla_call_module.shardings import mesh_placement
from xla_call_module.shardings.array_sharding import REPLICATED, TILED, Sharding, name_axes, place
from xla_call_module.shardings.sharding_jax import mesh_from_jax, sharding_to_jax
from xla_call_module.stablehlo.modules import open_module, walk
from xla_call_module.stablehlo.serialized_shardings import import_shardings

_Shardings = tuple[Sharding | None, ...]


def mesh_at_export(exported: export.Exported) -> AbstractMesh | None:
    """Return the mesh that an `Exported` was exported for; None where it has no names of axes.

    Its shardings, its avals and its module are asked, in this order; the module does not tell the
    types of the axes, which are then taken to be `Auto`.
    """
    for known in (*_meshes_of(named_shardings(exported)), *_meshes_of_avals(exported)):
        if known is not None and known.axis_names:
            return known
    for mesh in read_meshes(exported.mlir_module_serialized):
        names, sizes = zip(*mesh.shape.items(), strict=True)
        return AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * len(names))
    return None


def remesh(exported: export.Exported, mesh: Mesh | None) -> export.Exported:
    """Return the same function, and its VJPs of every order, on a mesh.

    Where the mesh is the one that it was exported for, nothing is changed. Otherwise each array is
    split along the axes of the same names, whatever their sizes now are, and lies whole along axes
    that are new. What was exported for one device runs on any mesh, on each device the same.
    """
    if mesh is None:
        return map_orders(exported, _imported) if exported.nr_devices > 1 else exported
    return map_orders(exported, partial(_remesh_order, mesh=mesh))


def _remesh_order(exported: export.Exported, *, mesh: Mesh, lifts: bool = True) -> export.Exported:
    saved = mesh_at_export(exported)
    if saved is None:
        _check_count(exported, mesh)
        return exported
    if _is_same(saved, mesh.abstract_mesh):
        return _imported(exported)
    if not set(saved.axis_names) <= set(mesh.axis_names):
        raise _missing_axes(exported, saved, mesh)
    changed = _to_mesh(exported, saved, mesh, lifts=lifts)
    for avals, paths, shardings in zip(
        (exported.in_avals, exported.out_avals),
        (argument_paths(exported.in_tree), result_paths(exported.out_tree)),
        shardings_on(changed, mesh.abstract_mesh),
        strict=True,
    ):
        for aval, path, sharding in zip(avals, paths, shardings, strict=True):
            check_divides(exported.fun_name, path, aval.shape, sharding)
    return changed


def to_one_device(exported: export.Exported) -> export.Exported:
    """Return the function on a mesh of JAX's first device; unchanged if its mesh has no names."""
    saved = mesh_at_export(exported) if exported.nr_devices > 1 else None
    if saved is None:
        return exported
    device = np.array(jax.devices()[:1]).reshape([1] * len(saved.axis_names))
    mesh = Mesh(device, saved.axis_names, axis_types=saved.axis_types)
    return map_orders(exported, partial(_remesh_order, mesh=mesh, lifts=False))


def shardings_on(exported: export.Exported, mesh: AbstractMesh) -> tuple[Shardings, Shardings]:
    """Return the shardings of the arguments and of the results on the mesh of the export.

    They are by names. Older versions of JAX keep none, and find them when they are given the mesh.
    """
    named = named_shardings(exported)
    if any(sharding is not None for side in named for sharding in side):
        return named
    given: Any = exported  # in the types of older versions the mesh has devices
    return tuple(given.in_shardings_jax(mesh)), tuple(given.out_shardings_jax(mesh))


def check_divides(
    name: str, path: str, shape: Sequence[Any], sharding: NamedSharding | None
) -> None:
    """Refuse a shape that a sharding cannot split evenly, as JAX does."""
    if sharding is None:
        return
    sizes = dict(zip(sharding.mesh.axis_names, sharding.mesh.axis_sizes, strict=True))
    for index, entry in enumerate(sharding.spec):
        if entry is None or entry is PartitionSpec.UNCONSTRAINED:
            continue
        names: tuple[Any, ...] = (entry,) if isinstance(entry, str) else tuple(entry)
        parts = math.prod(sizes[axis] for axis in names)
        if isinstance(shape[index], int) and shape[index] % parts:
            axes = axes_text([(axis, sizes[axis]) for axis in names])
            raise ShardingError(
                f"{path} of {name} has shape {list(shape)}, and dimension {index} is split along "
                f"the mesh's {axes}, which do not divide {shape[index]}. To do: pad it to a "
                "multiple, or take a mesh with smaller axes."
            )


def draw_mesh_lines(mesh: AbstractMesh | Mesh) -> list[str]:
    """Return a mesh as lines of text: its axes, then the devices by their place in it."""
    return draw_mesh(_axes(mesh))


def _imported(exported: export.Exported) -> export.Exported:
    module = import_shardings(exported.mlir_module_serialized)
    if module is exported.mlir_module_serialized:
        return exported
    return dataclasses.replace(exported, mlir_module_serialized=module)


def _to_mesh(
    exported: export.Exported, saved: AbstractMesh, devices: Mesh, *, lifts: bool
) -> export.Exported:
    mesh = devices.abstract_mesh
    arguments, results = (
        tuple(_moved(sharding, mesh) for sharding in shardings)
        for shardings in shardings_on(exported, saved)
    )
    changed = replace_shardings(exported, arguments, results)
    if _axes(saved) == _axes(mesh):
        module = import_shardings(exported.mlir_module_serialized)
    elif lifts and _is_alone_on_devices(exported):
        changed = _lifted(exported, changed, devices)
        module = changed.mlir_module_serialized
    else:
        module = _remeshed_module(exported, saved, mesh)
    return dataclasses.replace(
        changed,
        mlir_module_serialized=module,
        nr_devices=math.prod(mesh.axis_sizes),
        in_avals=tuple(_with_mesh(aval, mesh) for aval in exported.in_avals),
        out_avals=tuple(_with_mesh(aval, mesh) for aval in exported.out_avals),
    )


def _is_alone_on_devices(exported: export.Exported) -> bool:
    """Return whether some part of a function is computed by each device alone."""
    with open_module(exported.mlir_module_serialized) as module:
        return any(name_of_several_devices(operation) for operation in walk(module))


def has_dynamic_shards(exported: export.Exported) -> bool:
    """Return whether a function has parts for each device alone, and symbolic dimensions."""
    dims = (dim for aval in exported.in_avals for dim in aval.shape)
    if exported.nr_devices == 1 or all(isinstance(dim, int) for dim in dims):
        return False
    return _is_alone_on_devices(exported)


def _lifted(exported: export.Exported, changed: export.Exported, mesh: Mesh) -> export.Exported:
    """Return the same function, written for the shards on another mesh."""
    from bridge.lifting.lifted_function import lift_call

    call = from_exported(exported, allow_flat_trees=True)
    specs = []
    for position in call.kept:
        aval, spec = exported.in_avals[position], call.args[position]
        data = (spec.shape or ())[len(aval.shape) :]  # of typed PRNG keys
        shape = (*aval.shape, *(int(size or 0) for size in data))
        specs.append(jax.ShapeDtypeStruct(shape, spec.dtype.numpy))
    wide = x64_if_needed(spec.dtype.name for spec in (*call.args, *call.results))
    function: Any = lift_call(call, mesh.abstract_mesh)
    with outside_meshes(), wide:
        made = export.export(
            function,
            platforms=exported.platforms,
            disabled_checks=exported.disabled_safety_checks,
        )(*specs)
    return dataclasses.replace(
        changed,
        mlir_module_serialized=import_shardings(made.mlir_module_serialized),
        calling_convention_version=made.calling_convention_version,
        module_kept_var_idx=tuple(call.kept[index] for index in made.module_kept_var_idx),
        uses_global_constants=made.uses_global_constants,
    )


def _remeshed_module(exported: export.Exported, saved: AbstractMesh, mesh: AbstractMesh) -> bytes:
    old, new = (
        mesh_placement.Mesh(tuple(mesh_placement.MeshAxis(name, size) for name, size in _axes(one)))
        for one in (saved, mesh)
    )
    try:
        return remesh_module(exported.mlir_module_serialized, old, new, where=exported.fun_name)
    except ShardingError as error:
        raise ShardingError(f"{error}\n{_both(saved, mesh)}") from error


def _moved(sharding: NamedSharding | None, mesh: AbstractMesh) -> NamedSharding | None:
    if sharding is None:
        return None
    return NamedSharding(mesh, sharding.spec, memory_kind=sharding.memory_kind)


def _with_mesh(aval: Any, mesh: AbstractMesh) -> Any:
    """Return an aval with its sharding, if JAX's explicit types have one, on another mesh."""
    sharding = getattr(aval, "sharding", None)
    if sharding is None or not sharding.mesh.axis_names:
        return aval
    return aval.update(sharding=NamedSharding(mesh, sharding.spec))


def _is_same(saved: AbstractMesh, mesh: AbstractMesh) -> bool:
    types = tuple(saved.axis_types) == tuple(mesh.axis_types)
    return _axes(saved) == _axes(mesh) and types


def _axes(mesh: AbstractMesh | Mesh) -> list[tuple[str, int]]:
    pairs = zip(mesh.axis_names, mesh.axis_sizes, strict=True)
    return [(str(name), int(size)) for name, size in pairs]


def _check_count(exported: export.Exported, mesh: Mesh) -> None:
    if exported.nr_devices not in (1, mesh.size):
        raise ShardingError(
            f"{exported.fun_name} was exported for {exported.nr_devices} devices, without names "
            f"for the axes of their mesh, and is to run on a "
            + "\n".join(draw_mesh_lines(mesh))
            + f"\nTo do: take a mesh of {exported.nr_devices} devices, or export it with Shardy."
        )


def _missing_axes(exported: export.Exported, saved: AbstractMesh, mesh: Mesh) -> ShardingError:
    missing = [str(name) for name in saved.axis_names if name not in mesh.axis_names]
    return ShardingError(
        f"{exported.fun_name} cannot run on this mesh, whose axes have other names: "
        f"{', '.join(missing)} missing.\n"
        f"{_both(saved, mesh)}\nTo do: give the mesh axes of these names, of any size, which may "
        "be 1; bridge.meshes.mesh_of makes the mesh of the export."
    )


def _both(saved: AbstractMesh, mesh: AbstractMesh | Mesh) -> str:
    drawn = ["It was exported for a " + "\n".join(draw_mesh_lines(saved))]
    return "\n".join([*drawn, "It is to run on a " + "\n".join(draw_mesh_lines(mesh))])


def _meshes_of(shardings: tuple[Shardings, Shardings]) -> list[AbstractMesh]:
    known = [sharding for side in shardings for sharding in side if sharding is not None]
    return [sharding.mesh.abstract_mesh for sharding in known]


def _meshes_of_avals(exported: export.Exported) -> list[AbstractMesh | None]:
    avals: tuple[Any, ...] = (*exported.in_avals, *exported.out_avals)
    return [getattr(getattr(aval, "sharding", None), "mesh", None) for aval in avals]


def without_shardings(exported: export.Exported) -> export.Exported:
    """Return the same function for one device, where its module's shardings have no meaning."""
    return exported if exported.nr_devices == 1 else map_orders(exported, _without_shardings)


def _without_shardings(exported: export.Exported) -> export.Exported:
    nothing = ((None,) * len(exported.in_avals), (None,) * len(exported.out_avals))
    return dataclasses.replace(replace_shardings(exported, *nothing), nr_devices=1)


def with_shardings_of_calls(
    exported: export.Exported,
    arguments: Sequence[Value],
    results: Sequence[Value],
    signature: Signature,
    mesh: AbstractMesh,
) -> export.Exported:
    """Return the same function for the devices that the calls in it are for."""
    shardings = [_shardings_of(function.call) for function in signature.functions]
    count = max(number for number, _, _ in shardings)
    if count == 1:
        return exported
    known: dict[Value, Sharding | None] = {}
    called = zip(signature.functions, shardings, strict=True)
    for number, (function, (_, of_operands, of_results)) in enumerate(called):
        for value, sharding in zip(function.operands, of_operands, strict=True):
            known.setdefault(_source(value), sharding)
        known |= {Output(number, index): sharding for index, sharding in enumerate(of_results)}
    arguments_on, results_on = (
        tuple(_to_named(known.get(_source(v)), exported.fun_name, count, mesh) for v in values)
        for values in (arguments, results)
    )
    _check_one_mesh(exported.fun_name, (*arguments_on, *results_on))
    changed = replace_shardings(exported, arguments_on, results_on)
    return dataclasses.replace(changed, nr_devices=count)


def _shardings_of(call: CallModule) -> tuple[int, _Shardings, _Shardings]:
    """Return the number of devices of a call, and the shardings of its operands and results."""
    if call.exported:
        operands = tuple(spec.sharding for spec in call.operands)
        return call.nr_devices, operands, tuple(spec.sharding for spec in call.results)
    with open_module(call.module) as module:
        shardings = read_module_shardings(module)
    return shardings.nr_devices, shardings.arguments, shardings.results


def _source(value: Value) -> Value:
    """Return the value that was cast, or the value itself."""
    while isinstance(value, Cast):
        value = value.source
    return value


def _to_named(
    sharding: Sharding | None, where: str, count: int, mesh: AbstractMesh
) -> NamedSharding | None:
    if sharding is None or sharding.kind not in (REPLICATED, TILED):
        return None
    placement = sharding.placement
    if placement is None or not placement.mesh.axes:
        placement = _placement_on(mesh, sharding, where, count)
    # JAX has no word for what is split and may be split further.
    dims = tuple(mesh_placement.DimAxes(dim.names) for dim in placement.dims)
    return sharding_to_jax(place(dataclasses.replace(placement, dims=dims), len(dims)))


def _placement_on(
    mesh: AbstractMesh, sharding: Sharding, where: str, count: int
) -> mesh_placement.Placement:
    try:
        if mesh.size == count:
            return name_axes(sharding, mesh_from_jax(mesh), sharding.rank or 0)
    except ShardingError as error:
        raise _other_mesh(where, count, mesh) from error
    raise _other_mesh(where, count, mesh)


def _other_mesh(where: str, count: int, mesh: AbstractMesh) -> ShardingError:
    axes = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    return ShardingError(
        f"{where} was exported for {count} devices, without names for the axes of their mesh, and "
        f"its shardings do not fit the axes of the mesh {axes}. To do: take a mesh of {count} "
        "devices with axes of the sizes that it was exported for, in their order; or load it "
        "without a mesh, for one device."
    )


def _check_one_mesh(where: str, shardings: Shardings) -> None:
    meshes = {sharding.mesh for sharding in shardings if sharding is not None}
    if len(meshes) > 1:
        texts = " and ".join(str(dict(mesh.shape)) for mesh in meshes)
        raise ShardingError(
            f"The calls in {where} are for the meshes {texts}. To do: load it without a mesh, for "
            "one device."
        )
