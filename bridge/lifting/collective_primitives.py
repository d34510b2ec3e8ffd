"""Collectives: what the devices of a manual computation compute together, by names of axes.

A module numbers the devices; the groups of numbers are matched with the axes of the mesh that it
was exported for.

Source: https://openxla.org/stablehlo/spec, `all_gather` and the others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import combinations, permutations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bridge.lifting.known_values import DeviceNumber
from bridge.lifting.lifted_operation import LiftedOperation, LiftingRule
from bridge.lifting.shard_axes import ShardAxis, scope_of
from xla_call_module._jax import ir
from xla_call_module.shardings.mesh_placement import Mesh
from xla_call_module.stablehlo.combiners import block_dtypes, combiner_of

_GROUPS = "replica_groups"
# JAX 0.12 names the axes themselves.
_NAMED_GROUPS = "replica_group_mesh_axes"
_AXIS = re.compile(r"axis_ref<name = \"([^\"\\]*)\"(, sub_axis_info[^>]*)?>")
# Axes beyond which groups are not matched with them; each order of each choice of them is tried.
_MAX_AXES = 6
_REDUCE: Mapping[str, Callable[..., Any]] = {
    "add": lax.reduce_sum, "maximum": lax.reduce_max, "minimum": lax.reduce_min,
}  # fmt: skip
_COMBINE: Mapping[str, Callable[[Any, Any], Any]] = {
    "and": lax.bitwise_and, "maximum": lax.max, "minimum": lax.min, "multiply": lax.mul,
    "or": lax.bitwise_or, "xor": lax.bitwise_xor,
}  # fmt: skip


def _axes_of(op: LiftedOperation) -> tuple[ShardAxis, ...]:
    """Return the axes along which an operation goes, the slowest first."""
    mesh, axes = scope_of(op)
    text = op.text(_GROUPS)
    if _NAMED_GROUPS in text:
        named = _AXIS.findall(text)
        if any(part for _, part in named) or not {name for name, _ in named} <= axes.keys():
            op.refuse(f"its groups {text} are none along whole axes of jax.shard_map")
        return tuple(axes[name] for name, _ in named)
    return _match(op, _groups(op), mesh, axes)


def _groups(op: LiftedOperation) -> list[tuple[int, ...]]:
    attribute: Any = ir.DenseIntElementsAttr(op.raw.attributes[_GROUPS])
    return [tuple(map(int, group)) for group in np.array(attribute)]


def _match(
    op: LiftedOperation,
    groups: Sequence[tuple[int, ...]],
    mesh: Mesh,
    axes: Mapping[str, ShardAxis],
) -> tuple[ShardAxis, ...]:
    """Return the axes along which each group of devices lies, in the order of its members."""
    wanted = sorted(groups)
    fitting = (names for names in _choices(mesh, axes) if _groups_along(mesh, names) == wanted)
    match = next(fitting, None)
    if match is None:
        op.refuse(
            f"its groups of devices {str(wanted)[:200]} lie along no axes of jax.shard_map, which "
            f"has {', '.join(axes)} on the mesh {mesh}",
            "call the collective with names of axes, without axis_index_groups",
        )
    return tuple(axes[name] for name in match)


def _choices(mesh: Mesh, axes: Mapping[str, ShardAxis]) -> Iterator[tuple[str, ...]]:
    """Yield the axes that a collective may be along, in each order of them."""
    names = [name for name in axes if axes[name].size > 1]
    if mesh.devices or len(names) > _MAX_AXES:
        return
    for count in range(len(names) + 1):
        for chosen in combinations(names, count):
            yield from permutations(chosen)


def _groups_along(mesh: Mesh, names: Sequence[str]) -> list[tuple[int, ...]]:
    places = [axis.name for axis in mesh.axes]
    numbers = np.arange(mesh.size).reshape([axis.size for axis in mesh.axes])
    along = [places.index(name) for name in names]
    others = [place for place in range(len(places)) if place not in along]
    size = math.prod(mesh.shape[name] for name in names)
    rows = numbers.transpose([*others, *along]).reshape(-1, size)
    return sorted(tuple(map(int, row)) for row in rows)


def _names(axes: Sequence[ShardAxis]) -> tuple[str, ...]:
    return tuple(name for axis in axes for name in axis.names)


def _size(axes: Sequence[ShardAxis]) -> int:
    return math.prod(axis.size for axis in axes)


def _all_reduce(op: LiftedOperation) -> Any:
    axes = _axes_of(op)
    return [_reduced(op, array, axes) for array in op.arrays]


def _reduced(op: LiftedOperation, array: Any, axes: Sequence[ShardAxis]) -> Any:
    (region,) = op.regions
    name = combiner_of(region.block)
    if jnp.result_type(array) != block_dtypes(region.block)[0]:
        op.refuse("it combines in another dtype than its operand has")
    if not _names(axes):
        return array
    if name in _REDUCE and not _is_bool(array):
        outer, shards = _outer(axes), _shards_here(array, axes)
        array = array if shards is None else _REDUCE[name](shards, (0,))
        if not outer:
            return array
        return lax.psum(array, outer) if name == "add" else _extreme(name, outer)(array)
    if name == "add":  # of bool
        name = "or"
    if name not in _COMBINE:
        op.refuse("JAX has no sum of this kind over devices")
    return reduce(_COMBINE[name], list(_gathered(array, axes)))


def _is_bool(array: Any) -> bool:
    return jnp.result_type(array).kind == "b"


def _extreme(name: str, names: tuple[str, ...]) -> Callable[[Any], Any]:
    """Return the greatest or least of all devices; JAX has no derivative of it.

    The derivative is that of `jax.numpy.max`: shared by the devices that have the extreme.
    """
    find: Any = lax.pmax if name == "maximum" else lax.pmin
    extreme: Any = jax.custom_jvp(lambda array: find(array, names))

    def derivative(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
        (array,), (tangent,) = primals, tangents
        extremum = extreme(array)
        has = (array == extremum).astype(tangent.dtype)
        return extremum, lax.psum(has * tangent, names) / lax.psum(has, names)

    extreme.defjvp(derivative)
    function: Callable[[Any], Any] = extreme
    return function


def _gathered(array: Any, axes: Sequence[ShardAxis]) -> Any:
    """Return the arrays of all devices, along a new first dimension."""
    return _gather(lax.expand_dims(array, [0]), axes, 0)


def _gather(array: Any, axes: Sequence[ShardAxis], dimension: int) -> Any:
    for names in _steps(axes)[::-1]:
        array = lax.all_gather(array, names, axis=dimension, tiled=True)
    return array


def _steps(axes: Sequence[ShardAxis]) -> list[tuple[str, ...]]:
    """Return the names along which a collective goes at once; under `jax.vmap` one by one."""
    names = _names(axes)
    if any(axis.inner for axis in axes):
        return [(name,) for name in names]
    return [names] if names else []


def _outer(axes: Sequence[ShardAxis]) -> tuple[str, ...]:
    return tuple(name for axis in axes for name in axis.outer)


def _shards_here(array: Any, axes: Sequence[ShardAxis]) -> Any | None:
    """Return the arrays of all shards of a device, along a new first dimension; None if it is one.

    JAX's collectives along the axes of `jax.vmap` cannot be exported with symbolic shapes, but for
    this one.
    """
    inner = [axis.mapped_name for axis in axes if axis.each > 1]
    if not inner:
        return None
    array = lax.expand_dims(array, [0])
    for name in reversed(inner):
        array = lax.all_gather(array, name, axis=0, tiled=True)
    return array


def _all_gather(op: LiftedOperation) -> Any:
    axes, dimension = _axes_of(op), op.integer("all_gather_dim")
    return [_gather(array, axes, dimension) for array in op.arrays]


def _reduce_scatter(op: LiftedOperation) -> Any:
    axes, dimension = _axes_of(op), op.integer("scatter_dimension")
    array = op.array(0)
    if combiner_of(op.regions[0].block) == "add" and not _is_bool(array):
        return _scattered_sum(array, axes, dimension)
    array = _reduced(op, array, axes)
    size = np.shape(array)[dimension] // _size(axes)
    place = lax.axis_index(_names(axes)) if _names(axes) else 0
    return lax.dynamic_slice_in_dim(array, place * size, size, dimension)


def _scattered_sum(array: Any, axes: Sequence[ShardAxis], dimension: int) -> Any:
    if not any(axis.inner for axis in axes):
        names = _names(axes)
        if not names:
            return array
        return lax.psum_scatter(array, names, scatter_dimension=dimension, tiled=True)
    for axis in axes:
        if axis.outer:
            array = lax.psum_scatter(array, axis.name, scatter_dimension=dimension, tiled=True)
        shards = _shards_here(array, [axis])
        if shards is not None:
            array = lax.reduce_sum(shards, (0,))
            size = np.shape(array)[dimension] // axis.each
            start = lax.axis_index(axis.mapped_name) * size
            array = lax.dynamic_slice_in_dim(array, start, size, dimension)
    return array


def _all_to_all(op: LiftedOperation) -> Any:
    axes = _axes_of(op)
    split, joined = op.integer("split_dimension"), op.integer("concat_dimension")
    return [_exchanged(array, axes, split, joined) for array in op.arrays]


def _exchanged(array: Any, axes: Sequence[ShardAxis], split: int, joined: int) -> Any:
    steps = _steps(axes)
    if len(steps) <= 1:
        for names in steps:
            array = lax.all_to_all(array, names, split, joined, tiled=True)
        return array
    # Of each name a dimension of its own: where the part goes to, and then where it came from.
    sizes = [n for axis in axes for n in (axis.devices, axis.each) if n > 1]
    shape = list(np.shape(array))
    shape[split] //= _size(axes)
    count = len(sizes)
    array = lax.reshape(array, [*shape[:split], *sizes, *shape[split:]])
    for place, names in enumerate(steps, split):
        array = lax.all_to_all(array, names, place, place, tiled=True)
    moved = range(split, split + count)
    rest = [place for place in range(len(shape) + count) if place not in moved]
    array = lax.transpose(array, [*rest[:joined], *moved, *rest[joined:]])
    shape[joined] *= _size(axes)
    return lax.reshape(array, shape)


def _collective_broadcast(op: LiftedOperation) -> Any:
    mesh, axes = scope_of(op)
    if _NAMED_GROUPS in op.text(_GROUPS):
        return lax.index_in_dim(_gathered(op.array(0), _axes_of(op)), 0, keepdims=False)
    groups = _groups(op)
    along = _match(op, [tuple(sorted(group)) for group in groups], mesh, axes)
    sources = {sorted(group).index(group[0]) for group in groups}
    if len(sources) > 1:
        op.refuse("the devices that it is from have different places in their groups")
    return lax.index_in_dim(_gathered(op.array(0), along), sources.pop(), keepdims=False)


def _collective_permute(op: LiftedOperation) -> Any:
    mesh, axes = scope_of(op)
    attribute: Any = ir.DenseIntElementsAttr(op.raw.attributes["source_target_pairs"])
    pairs = np.array(attribute).reshape(-1, 2).tolist()
    wanted = {(source, target) for source, target in pairs}
    tried = ((names, _pairs_along(mesh, names, wanted)) for names in _choices(mesh, axes))
    fitting = ((names, along) for names, along in tried if along is not None)
    match = next(fitting, None)
    if match is None:
        op.refuse(
            f"its pairs of devices {str(sorted(wanted))[:200]} are along no axes of jax.shard_map, "
            f"which has {', '.join(axes)} on the mesh {mesh}"
        )
    names, pairs_along = match
    return _permuted(op.array(0), [axes[name] for name in names], pairs_along)


def _pairs_along(
    mesh: Mesh, names: Sequence[str], wanted: set[tuple[int, int]]
) -> list[tuple[int, int]] | None:
    """Return the pairs by places along some axes; None if they differ along the others."""
    groups = _groups_along(mesh, names)
    places = {number: (group, place) for group in groups for place, number in enumerate(group)}
    if not all(number in places for pair in wanted for number in pair):
        return None
    along = {(places[source][1], places[target][1]) for source, target in wanted}
    made = {(group[source], group[target]) for group in groups for source, target in along}
    return sorted(along) if made == wanted else None


def _permuted(array: Any, axes: Sequence[ShardAxis], pairs: Sequence[tuple[int, int]]) -> Any:
    outer, shards = _outer(axes), _shards_here(array, axes)
    if shards is None:
        return lax.ppermute(array, outer, pairs) if outer else _kept(array, pairs)
    places = _places(axes)
    count = math.prod(axis.each for axis in axes)
    made = []
    for target in range(count):
        result = jnp.zeros_like(array)
        for source in range(count):
            moves = [
                (places[s][0], places[t][0])
                for s, t in pairs
                if (places[s][1], places[t][1]) == (source, target)
            ]
            if moves:
                result = _put(result, shards[source], outer, moves)
        made.append(result)
    inner = lax.axis_index(tuple(name for axis in axes for name in axis.inner))
    return lax.dynamic_index_in_dim(jnp.stack(made), inner, keepdims=False)


def _kept(array: Any, pairs: Sequence[tuple[int, int]]) -> Any:
    """Return what a device that is alone sends itself."""
    return array if pairs else jnp.zeros_like(array)


def _places(axes: Sequence[ShardAxis]) -> list[tuple[int, int]]:
    """Return for each shard its place among groups of devices, and that on the device."""
    sizes = [axis.size for axis in axes]
    coordinates = np.unravel_index(np.arange(math.prod(sizes)), sizes)
    outer = inner = np.zeros(math.prod(sizes), int)
    for coordinate, axis in zip(coordinates, axes, strict=True):
        outer = outer * axis.devices + coordinate // axis.each
        inner = inner * axis.each + coordinate % axis.each
    return list(zip(outer.tolist(), inner.tolist(), strict=True))


def _put(result: Any, array: Any, outer: tuple[str, ...], moves: Sequence[tuple[int, int]]) -> Any:
    """Return a result with what some devices are sent."""
    if not outer:
        return array
    sent = lax.ppermute(array, outer, moves)
    targets = np.array([target for _, target in moves])
    is_target = (lax.axis_index(outer) == targets).any()
    return lax.select(jnp.broadcast_to(is_target, np.shape(result)), sent, result)


def _partition_id(op: LiftedOperation) -> DeviceNumber:
    mesh, axes = scope_of(op)
    if mesh.devices:
        op.refuse("the devices of the mesh have other numbers than its places")
    sizes = [(axis.name, axis.size) for axis in mesh.axes if axis.size > 1]
    named = ((axes[name].names if name in axes else (name,), size) for name, size in sizes)
    return DeviceNumber(tuple(named), op.dtype)


def _replica_id(op: LiftedOperation) -> Any:
    scope_of(op)  # JAX numbers partitions, of one replica
    return np.zeros((), op.dtype)


_COMMON = ("channel_handle", "channel_id", _GROUPS, "use_global_device_ids")

RULES = {
    "stablehlo.all_gather": LiftingRule(_all_gather, ("all_gather_dim", *_COMMON)),
    "stablehlo.all_reduce": LiftingRule(_all_reduce, _COMMON),
    "stablehlo.all_to_all": LiftingRule(
        _all_to_all, ("concat_dimension", "split_count", "split_dimension", *_COMMON)
    ),
    "stablehlo.collective_broadcast": LiftingRule(_collective_broadcast, _COMMON),
    "stablehlo.collective_permute": LiftingRule(
        _collective_permute, ("source_target_pairs", *_COMMON)
    ),
    "stablehlo.partition_id": LiftingRule(_partition_id),
    "stablehlo.reduce_scatter": LiftingRule(_reduce_scatter, ("scatter_dimension", *_COMMON)),
    "stablehlo.replica_id": LiftingRule(_replica_id),
}
