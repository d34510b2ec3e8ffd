"""Shardings, and what each device computes alone: `jax.shard_map`.

Source: https://openxla.org/shardy/sdy_dialect, `manual_computation` and `sharding_constraint`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from bridge.lifting.known_values import TOKEN, Dimension, LiftedValue, as_array, is_known
from bridge.lifting.lifted_operation import LiftedOperation, LiftingRule
from bridge.lifting.shard_axes import (
    JaxMesh,
    ShardAxis,
    manual_axes_at_hand,
    mesh_at_hand,
    mesh_of_context,
    meshes_of_module,
    shard_axes,
    with_common_sizes,
)
from xla_call_module._jax import ir, sdy
from xla_call_module.errors import ShardingError, UnsupportedError
from xla_call_module.shardings.array_sharding import (
    MANUAL,
    MAXIMAL,
    REPLICATED,
    UNKNOWN,
    Sharding,
    name_axes,
)
from xla_call_module.shardings.mesh_placement import DimAxes, Mesh, Placement
from xla_call_module.shardings.sharding_jax import mesh_from_jax
from xla_call_module.shardings.sharding_text import sharding_from_text
from xla_call_module.shardings.shardy import placement_from_shardy
from xla_call_module.stablehlo.attributes import value_attributes
from xla_call_module.stablehlo.operation_locations import describe_location
from xla_call_module.stablehlo.walking import CUSTOM_CALL_ATTRIBUTES

_SHARDY, _GSPMD = "sdy.sharding", "mhlo.sharding"
# Dimensions of which a constraint without names says nothing.
_OPEN_DIMS = re.compile(r"unspecified_dims=\[(\d[\d,]*)\]")


def _constrain(value: LiftedValue, placement: Placement, mesh: JaxMesh | None) -> LiftedValue:
    """Return a value with a placement on a mesh; known numbers have none."""
    if placement.unreduced:
        raise UnsupportedError(
            f"An array is unreduced along {', '.join(placement.unreduced)}: each device has a "
            "summand, which only JAX's explicit sharding types express. To do: export the function "
            "with arrays that are whole or split."
        )
    if is_known(value) or not placement.mesh.axes:
        return value
    if placement.mesh.size == 1 and mesh is None:
        return value
    here = mesh_at_hand(mesh, placement.mesh)
    free = placement.mesh.shape.keys() - manual_axes_at_hand(placement.mesh).keys()
    dims = [*placement.dims, *[DimAxes()] * (np.ndim(value) - len(placement.dims))]
    pairs = zip(np.shape(value), dims, strict=True)
    entries = [_entry(size, dim, {n: here.shape[n] for n in free}) for size, dim in pairs]
    if not free or all(entry is PartitionSpec.UNCONSTRAINED for entry in entries):
        return value
    return lax.with_sharding_constraint(value, NamedSharding(here, PartitionSpec(*entries)))


def _entry(size: Dimension, dim: DimAxes, sizes: Mapping[str, int]) -> Any:
    """Return how a dimension is split; where the mesh at hand does not divide it XLA decides."""
    names = tuple(name for name in dim.names if name in sizes)
    if not names:
        return PartitionSpec.UNCONSTRAINED if dim.is_open else None
    parts = math.prod(sizes[name] for name in names)
    if isinstance(size, int) and size % parts:
        return PartitionSpec.UNCONSTRAINED
    return names


def _constraint(op: LiftedOperation) -> LiftedValue:
    placement = placement_from_shardy(op.raw.attributes["sharding"], meshes_of_module(op.raw))
    return _constrain(op.operands[0], placement, op.mesh)


def with_automatic_axes(
    function: Callable[..., tuple[Any, ...]], operands: Sequence[Any]
) -> tuple[Any, ...]:
    """Return the results of a function in which arrays have no shardings in their types.

    A module says of few of its arrays how they lie, and JAX's explicit types need it of each. Where
    the operands have such types its results are whole on each device.
    """
    meshes = [jax.sharding.get_abstract_mesh()]
    meshes += [jax.typeof(operand).sharding.mesh for operand in operands]
    explicit = [mesh for mesh in meshes if AxisType.Explicit in mesh.axis_types]
    if not explicit:
        return function(*operands)
    whole = NamedSharding(explicit[0], PartitionSpec())
    results: tuple[Any, ...] = jax.sharding.auto_axes(function, out_sharding=whole)(*operands)
    return results


def constrain_values(
    function: Any, key: str, values: Sequence[LiftedValue], mesh: JaxMesh | None
) -> list[LiftedValue]:
    """Return the arguments or the results of a function as its signature says that they lie."""
    meshes = meshes_of_module(function)
    made = []
    for value, attributes in zip(values, value_attributes(function, key), strict=True):
        if _SHARDY in attributes:
            value = _constrain(value, placement_from_shardy(attributes[_SHARDY], meshes), mesh)
        elif _GSPMD in attributes:
            text = str(ir.StringAttr(attributes[_GSPMD]).value)
            value = _constrain_unnamed(function, value, text, (), mesh)
        made.append(value)
    return made


def _constrain_unnamed(
    operation: Any, value: LiftedValue, text: str, open_dims: Sequence[int], mesh: JaxMesh | None
) -> LiftedValue:
    """Return a value that lies as a sharding without names of axes says."""
    sharding = sharding_from_text(text)
    if is_known(value) or sharding.num_devices == 1 or MANUAL in sharding.subgroups:
        return value
    if sharding.kind in (MANUAL, MAXIMAL, UNKNOWN):
        return value
    if sharding.kind == REPLICATED and mesh is None and not mesh_of_context():
        return value
    rank = np.ndim(value)
    here = _mesh_without_names(operation, sharding, mesh)
    placement = name_axes(sharding, mesh_from_jax(here), rank)
    dims = [*placement.dims, *[DimAxes()] * (rank - len(placement.dims))]
    for place in open_dims:
        dims[place] = DimAxes(dims[place].names, is_open=True)
    return _constrain(value, replace(placement, dims=tuple(dims)), here)


def _mesh_without_names(operation: Any, sharding: Sharding, mesh: JaxMesh | None) -> JaxMesh:
    """Return the mesh at hand, whose axes are the names that a sharding lacks."""
    here = mesh_of_context() or mesh
    if here is None or sharding.num_devices not in (None, here.size):
        raise ShardingError(
            f"The sharding {sharding} at {describe_location(operation)} has no names of axes, and "
            f"{'no mesh' if here is None else f'a mesh {dict(here.shape)}'} was given. To do: pass "
            "the mesh that the function was exported for as mesh=, or export it with Shardy."
        )
    return here


def _unnamed_constraint(op: LiftedOperation) -> LiftedValue:
    match = _OPEN_DIMS.search(op.text("backend_config"))
    dims = [int(place) for place in match[1].split(",")] if match else []
    return _constrain_unnamed(op.raw, op.operands[0], op.text(_GSPMD), dims, op.mesh)


@dataclass(frozen=True, slots=True)
class _ShardedValue:
    """An operand or a result of a manual computation.

    Attributes:
        dims: the axes along which each dimension is split, the slowest first.
        mapped: the axes of the mesh of which each device has several shards.
    """

    dims: tuple[tuple[ShardAxis, ...], ...]
    mapped: tuple[ShardAxis, ...]

    @property
    def own(self) -> list[ShardAxis]:
        """Those of `mapped` that split it."""
        used = [axis for axes in self.dims for axis in axes]
        return [axis for axis in self.mapped if axis in used]

    @property
    def spec(self) -> PartitionSpec:
        """The specification for `jax.shard_map` of what `split` returns."""
        names = [tuple(name for axis in axes for name in axis.outer) for axes in self.dims]
        return PartitionSpec(*[None] * len(self.own), *(entry or None for entry in names))

    def split(self, array: Any) -> Any:
        """Return the array with a dimension in front for each of `own`: the shards of a device."""
        if not self.own:
            return array
        parts, order = self._parts(np.shape(array))
        front, size = len(self.own), np.shape(array)
        array = lax.transpose(lax.reshape(array, parts), order)
        each = [math.prod(axis.each for axis in axes) for axes in self.dims]
        rest = [size // count for size, count in zip(size, each, strict=True)]
        return lax.reshape(array, [*np.shape(array)[:front], *rest])

    def join(self, array: Any) -> Any:
        """Return the array of which `split` makes this one."""
        front = len(self.own)
        if not front:
            return array
        each = [math.prod(axis.each for axis in axes) for axes in self.dims]
        size = [n * count for n, count in zip(np.shape(array)[front:], each, strict=True)]
        parts, order = self._parts(size)
        array = lax.reshape(array, [parts[place] for place in order])
        return lax.reshape(lax.transpose(array, np.argsort(order)), size)

    def take(self, array: Any) -> Any:
        """Return the result of all shards of a device: of equal ones the first."""
        own = self.own
        for place, axis in reversed(list(enumerate(self.mapped))):
            if axis not in own:
                array = lax.index_in_dim(array, 0, place, keepdims=False)
        return array

    def _parts(self, shape: Sequence[Dimension]) -> tuple[list[Dimension], list[int]]:
        """Return the sizes of the parts of each dimension, and these in the order of `split`."""
        parts: list[Dimension] = []
        front: dict[str, int] = {}
        rest = []
        for size, axes in zip(shape, self.dims, strict=True):
            for axis in axes:
                front[axis.name] = len(parts) + 1
                rest.append(len(parts))
                parts += [axis.devices, axis.each]
            rest.append(len(parts))
            parts.append(size // math.prod(axis.size for axis in axes))
        own = [front.pop(axis.name) for axis in self.own]
        return parts, [*own, *sorted([*rest, *front.values()])]


def _manual_computation(op: LiftedOperation) -> list[LiftedValue]:
    attribute: Any = sdy.ManualAxesAttr(op.raw.attributes["manual_axes"])
    manual = frozenset(map(str, attribute))
    meshes = meshes_of_module(op.raw)
    given, made = (
        [placement_from_shardy(one, meshes) for one in _shardings(op, end)] for end in ("in", "out")
    )
    used = {placement.mesh for placement in (*given, *made) if placement.mesh.axes}
    if not used or not manual:
        return op.regions[0].apply(*op.operands)
    if len(used) > 1:
        op.refuse("its arrays lie on several meshes")
    (exported,) = used
    mesh = _mesh_of_shards(op, exported)
    axes = shard_axes(exported, mesh, manual)
    mapped = tuple(axis for axis in axes.values() if axis.each > 1)
    operands = [_sharded(placement, axes, mapped) for placement in given]
    results = [_sharded(placement, axes, mapped) for placement in made]
    # XLA takes no partly manual computation along an axis of one device.
    names = frozenset(name for axis in axes.values() for name in axis.outer)
    if names and manual == exported.shape.keys():
        names = frozenset(map(str, mesh.axis_names))
    return _run(op, operands, results, mapped, mesh, names)


def _refuse_manual(op: LiftedOperation) -> LiftedValue:
    op.refuse(
        "it is what jax.shard_map becomes without Shardy, where no axes have names",
        "export it with Shardy, which is the default of JAX",
    )


def _shardings(op: LiftedOperation, end: str) -> Sequence[Any]:
    attribute: Any = sdy.TensorShardingPerValueAttr(op.raw.attributes[f"{end}_shardings"])
    return list(attribute.shardings)


def _mesh_of_shards(op: LiftedOperation, exported: Mesh) -> JaxMesh:
    """Return the mesh that shards are on."""
    mesh = mesh_at_hand(op.mesh, exported)
    # Of a mesh without devices there is one in a program that is exported.
    return mesh if isinstance(mesh, AbstractMesh) else with_common_sizes(mesh, exported)


def _sharded(
    placement: Placement, axes: Mapping[str, ShardAxis], mapped: tuple[ShardAxis, ...]
) -> _ShardedValue:
    dims = (tuple(axes[n] for n in dim.names if n in axes) for dim in placement.dims)
    return _ShardedValue(tuple(dims), mapped)


def _run(
    op: LiftedOperation,
    operands: Sequence[_ShardedValue],
    results: Sequence[_ShardedValue],
    mapped: tuple[ShardAxis, ...],
    mesh: JaxMesh,
    names: frozenset[str],
) -> list[LiftedValue]:
    """Return the results of a manual computation."""
    (region,) = op.regions
    passed = [is_known(v) and not any(o.dims) for v, o in zip(op.operands, operands, strict=True)]
    tokens = ["token" in str(result.type) for result in op.raw.results]

    def one_shard(*arrays: Any) -> list[Any]:
        arrived = iter(arrays)
        pairs = zip(op.operands, passed, strict=True)
        values = region.apply(*(value if known else next(arrived) for value, known in pairs))
        return [as_array(v) for v, token in zip(values, tokens, strict=True) if not token]

    split = [o for o, known in zip(operands, passed, strict=True) if not known]
    joined = [result for result, token in zip(results, tokens, strict=True) if not token]

    def one_device(*arrays: Any) -> list[Any]:
        made = _mapped(one_shard, mapped, split)(*arrays)
        return [result.take(array) for result, array in zip(joined, made, strict=True)]

    run = one_device
    if names:
        run = jax.shard_map(
            one_device,
            mesh=mesh,
            in_specs=tuple(one.spec for one in split),
            out_specs=[one.spec for one in joined],
            axis_names=set(names),
            check_vma=False,
        )
    arrays = [as_array(v) for v, known in zip(op.operands, passed, strict=True) if not known]
    made = run(*(one.split(array) for one, array in zip(split, arrays, strict=True)))
    whole = (result.join(array) for result, array in zip(joined, made, strict=True))
    return [TOKEN if token else next(whole) for token in tokens]


def _mapped(
    shard: Callable[..., list[Any]], mapped: Sequence[ShardAxis], operands: Sequence[_ShardedValue]
) -> Callable[..., list[Any]]:
    """Return the function of all shards of one device, of which `split` puts them in front."""
    for axis in reversed(mapped):
        shard = _mapped_along(shard, axis, [0 if axis in one.own else None for one in operands])
    return shard


def _mapped_along(
    shard: Callable[..., list[Any]], axis: ShardAxis, in_axes: Sequence[int | None]
) -> Callable[..., list[Any]]:
    def with_number(number: Any, *arrays: Any) -> list[Any]:
        del number  # jax.vmap needs one argument that is mapped
        return shard(*arrays)

    run = jax.vmap(with_number, (0, *in_axes), axis_name=axis.mapped_name)
    return lambda *arrays: run(np.arange(axis.each), *arrays)


RULES = {
    "sdy.manual_computation": LiftingRule(
        _manual_computation, ("in_shardings", "manual_axes", "out_shardings")
    ),
    "sdy.sharding_constraint": LiftingRule(_constraint, ("sharding",)),
}
CUSTOM_CALLS = {
    "SPMDFullToShardShape": LiftingRule(_refuse_manual, CUSTOM_CALL_ATTRIBUTES),
    "SPMDShardToFullShape": LiftingRule(_refuse_manual, CUSTOM_CALL_ATTRIBUTES),
    "Sharding": LiftingRule(_unnamed_constraint, CUSTOM_CALL_ATTRIBUTES),
}
