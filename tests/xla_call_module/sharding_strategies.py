"""Random shardings, in JAX's form and in XLA's, and what their devices have."""

from __future__ import annotations

import itertools
import math

import numpy as np
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from xla_call_module.shardings.array_sharding import tiled
from xla_call_module.shardings.device_order import iota_order, listed_order

_NAMES = ("a", "b", "c", "d")
_TYPES = (AxisType.Auto, AxisType.Explicit)


@st.composite
def meshes(draw, most=4):
    """The sizes, names and types of a mesh's axes."""
    sizes = draw(st.lists(st.sampled_from([1, 2, 2, 3, 4]), min_size=1, max_size=most))
    kinds = [draw(st.sampled_from(_TYPES)) for _ in sizes]
    return tuple(sizes), _NAMES[: len(sizes)], tuple(kinds)


@st.composite
def specs(draw, names, *, can_be_open):
    """A `PartitionSpec` by some of the axes, each used once at most."""
    left = list(draw(st.permutations(names)))
    entries = []
    for _ in range(draw(st.integers(0, 4))):
        taken = [left.pop() for _ in range(min(len(left), draw(st.integers(0, 2))))]
        nothing = [None, PartitionSpec.UNCONSTRAINED] if can_be_open else [None]
        one = taken[0] if len(taken) == 1 else tuple(taken)
        entries.append(one if taken else draw(st.sampled_from(nothing)))
    return PartitionSpec(*entries)


@st.composite
def named_shardings(draw, mesh=None):
    """A `NamedSharding` on no devices in particular."""
    sizes, names, kinds = mesh if mesh is not None else draw(meshes())
    memory = draw(st.sampled_from([None, None, "device", "pinned_host"]))
    spec = draw(specs(names, can_be_open=AxisType.Auto in kinds))
    placed = AbstractMesh(sizes, names, axis_types=kinds)
    return NamedSharding(placed, spec, memory_kind=memory)


@st.composite
def pairs_of_named_shardings(draw):
    """Two on one mesh."""
    mesh = draw(meshes())
    return draw(named_shardings(mesh)), draw(named_shardings(mesh))


@st.composite
def tilings(draw):
    """A tiled value as somebody may write it, with subgroups in any order."""
    tiles = draw(st.lists(st.sampled_from([1, 2, 2, 3, 4]), min_size=1, max_size=5))
    count = draw(st.integers(0, min(3, len(tiles))))
    kinds = st.sampled_from(["replicated", "manual", "unreduced"])
    subgroups = [draw(kinds) for _ in range(count)]
    total = math.prod(tiles)
    if draw(st.booleans()):
        return tiled(tiles, listed_order(draw(st.permutations(range(total)))), subgroups)
    factors = list(draw(st.permutations(tiles)))
    if len(factors) > 1 and draw(st.booleans()):
        factors = [factors[0] * factors[1], *factors[2:]]
    axes = draw(st.permutations(range(len(factors))))
    return tiled(tiles, iota_order(factors, axes), subgroups)


def array_of(sharding, rank):
    """A shape that a `NamedSharding` splits evenly."""
    sizes = dict(zip(sharding.mesh.axis_names, sharding.mesh.axis_sizes, strict=True))
    shape = []
    for entry in (*sharding.spec, *[None] * (rank - len(sharding.spec))):
        names = entry if isinstance(entry, tuple) else (entry,)
        shape.append(2 * int(np.prod([sizes.get(name, 1) for name in names])))
    return tuple(shape)


def shard_shape(sharding, shape):
    """The shape of one device's part."""
    return tuple(
        size // count for size, count in zip(shape, sharding.parts(len(shape)), strict=True)
    )


def device_indices(sharding, shape):
    """The part of each device, as `jax.sharding.Sharding.devices_indices_map` has it."""
    slices = [
        [slice(None)] if count == 1 else [slice(i * size, (i + 1) * size) for i in range(count)]
        for count, size in zip(
            sharding.parts(len(shape)), shard_shape(sharding, shape), strict=True
        )
    ]
    numbers = sharding.order.devices() if sharding.order else range(sharding.num_devices)
    copies = len(numbers) // math.prod(map(len, slices))
    indices = (index for index in itertools.product(*slices) for _ in range(copies))
    return dict(sorted(zip(numbers, indices, strict=True)))
