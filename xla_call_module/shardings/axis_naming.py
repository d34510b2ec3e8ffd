"""Which axes of a mesh split an array, where a sharding only says which device has which part."""

from __future__ import annotations

import math

import numpy as np

from xla_call_module.errors import ShardingError
from xla_call_module.shardings.array_sharding import REPLICATED, TILED, Sharding, place
from xla_call_module.shardings.placements import DimAxes, Mesh, Placement

__all__ = ["name_axes"]


def name_axes(sharding: Sharding, mesh: Mesh, rank: int) -> Placement:
    """The sharding by the names of a mesh's axes. Axes of size 1 split nothing.

    Args:
        sharding: tiled or replicated.
        mesh: the one that it is about.
        rank: of the array.

    Raises:
        ShardingError: the axes of this mesh do not make up its parts.

    Example:
        >>> from xla_call_module.shardings.placements import MeshAxis
        >>> from xla_call_module.shardings.sharding_text import sharding_from_text
        >>> mesh = Mesh((MeshAxis("data", 4), MeshAxis("model", 2)))
        >>> found = sharding_from_text("{devices=[1,2,4]<=[4,2]T(1,0) last_tile_dim_replicate}")
        >>> [dim.names for dim in name_axes(found, mesh, rank=2).dims]
        [(), ('model',)]
    """
    if sharding.kind == REPLICATED:
        return Placement(mesh)
    order = sharding.order
    fits = sharding.kind == TILED and sharding.rank == rank and order is not None
    if fits and order is not None and order.count == mesh.size:
        parts = sharding.parts(rank)
        tiles = np.empty(mesh.size, int)
        tiles[list(order.devices())] = np.arange(mesh.size) // (mesh.size // math.prod(parts))
        on_mesh = tiles.reshape([axis.size for axis in mesh.axes])
        coordinates = np.unravel_index(on_mesh, parts) if parts else ()
        dims = tuple(_axes_of(coordinate, mesh) for coordinate in coordinates)
        found = Placement(mesh, dims)
        if place(found, rank).is_equivalent_to(sharding):
            return found
    raise ShardingError(
        f"The sharding {sharding} is none by the axes of the mesh {mesh}. To do: take the mesh "
        "that it was made for."
    )


def _axes_of(coordinate: np.ndarray[tuple[int, ...], np.dtype[np.int64]], mesh: Mesh) -> DimAxes:
    """The axes along which the part of one dimension changes, the slowest first."""
    strides = {
        axis.name: int(np.take(coordinate, 1, axis=i).flat[0] - coordinate.flat[0])
        for i, axis in enumerate(mesh.axes)
        if axis.size > 1
    }
    names = sorted((name for name in strides if strides[name] > 0), key=lambda n: -strides[n])
    return DimAxes(tuple(names))
