"""A mesh of devices by the names of its axes, and the placement of an array on these.

Source: `jax.sharding.Mesh` and `PartitionSpec`;
https://openxla.org/shardy/sharding_representation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xla_call_module.errors import ShardingError

AXIS_KINDS = ("auto", "explicit", "manual")


@dataclass(frozen=True, slots=True)
class MeshAxis:
    """One axis of a mesh.

    Attributes:
        name: the name; empty where it is not known.
        kind: `auto`, `explicit` or `manual`, as `jax.sharding.AxisType`.
    """

    name: str
    size: int
    kind: str = "auto"

    def __post_init__(self) -> None:
        """Refuse what is no axis."""
        if self.size < 1 or self.kind not in AXIS_KINDS:
            raise ShardingError(
                f"The axis {self.name!r} of a mesh has the size {self.size} and the type "
                f"{self.kind!r}; expected a positive size and one of {', '.join(AXIS_KINDS)}."
            )


@dataclass(frozen=True, slots=True)
class Mesh:
    """A mesh of devices.

    Attributes:
        axes: its axes, the slowest first.
        devices: their numbers in the mesh's order; empty for 0, 1, 2, ….
    """

    axes: tuple[MeshAxis, ...]
    devices: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a mesh that no framework has."""
        names = [axis.name for axis in self.axes if axis.name]
        if len(set(names)) < len(names):
            raise ShardingError(f"The axes of a mesh are named {names}; expected each name once.")
        numbered = sorted(self.devices) == list(range(len(self.devices)))
        if self.devices and self.axes and not (numbered and len(self.devices) == self.size):
            raise ShardingError(
                f"The mesh {self} has {self.size} devices, but these are numbered "
                f"{list(self.devices)[:16]}. To do: number each device once, from 0 on."
            )

    @property
    def size(self) -> int:
        """The number of its devices."""
        return math.prod(axis.size for axis in self.axes)

    @property
    def shape(self) -> dict[str, int]:
        """The size of each axis by its name."""
        return {axis.name: axis.size for axis in self.axes}

    def __str__(self) -> str:
        """Return the axes as `data 4 x model 2`."""
        return " x ".join(f"{axis.name or '?'} {axis.size}" for axis in self.axes)


@dataclass(frozen=True, slots=True)
class DimAxes:
    """The axes that split one dimension of an array.

    Attributes:
        names: the axes, the slowest first.
        is_open: whether the partitioner may split it further. With no names it is JAX's
            `PartitionSpec.UNCONSTRAINED`.
    """

    names: tuple[str, ...] = ()
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class Placement:
    """An array on the axes of a mesh.

    Attributes:
        dims: the axes that split each dimension; those after the last are whole.
        replicated: the axes that the partitioner must not split it along.
        unreduced: the axes along which each device has a summand of it.
        reduced: the axes along which its cotangent is so (JAX's explicit types).
    """

    mesh: Mesh
    dims: tuple[DimAxes, ...] = ()
    replicated: tuple[str, ...] = ()
    unreduced: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse axes that the mesh does not have, or that are used twice."""
        used = [*self._splitting(), *self.unreduced]
        known = self.mesh.shape
        unknown = sorted({*used, *self.replicated, *self.reduced} - known.keys())
        twice = sorted({name for name in used if used.count(name) > 1})
        if unknown or twice:
            raise ShardingError(
                f"A sharding by the axes {used} on the mesh {self.mesh}: "
                + (f"{unknown} are none of its axes." if unknown else f"{twice} are named twice.")
                + " To do: name each axis of the mesh once at most."
            )

    def _splitting(self) -> Iterator[str]:
        for dim in self.dims:
            yield from dim.names

    @property
    def parts(self) -> tuple[int, ...]:
        """The number of parts that each of `dims` is split into."""
        sizes = self.mesh.shape
        return tuple(math.prod(sizes[name] for name in dim.names) for dim in self.dims)

    def special(self) -> dict[str, str]:
        """Return the axes that neither split nor replicate, as `manual` or `unreduced`."""
        free = [axis for axis in self.mesh.axes if axis.name not in set(self._splitting())]
        kinds = {axis.name: "manual" for axis in free if axis.kind == "manual"}
        return kinds | dict.fromkeys(self.unreduced, "unreduced")

    def order(self, tail: Sequence[str]) -> tuple[int, ...]:
        """Return the numbers of the axes: those that split, dimension by dimension, then `tail`."""
        number = {axis.name: index for index, axis in enumerate(self.mesh.axes)}
        return tuple(number[name] for name in [*self._splitting(), *tail])
