"""Arrays on the mesh that a signature was loaded for: its parameters from the file, its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import export
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from bridge.core.narrowing import narrow_array
from bridge.loading.derivative_primitives import Flat
from bridge.loading.exported_on_mesh import check_divides
from savedmodel.model import Variable
from xla_call_module.dtypes import Array
from xla_call_module.errors import ShardingError
from xla_call_module.exported import argument_paths

# Start and stop in each dimension.
_Part = tuple[tuple[int | None, int | None], ...]


def place_variable(variable: Variable, sharding: NamedSharding) -> jax.Array:
    """Return a variable on a mesh; of the file only the parts of these devices are read."""
    check_divides("the file", variable.name, variable.shape, sharding)
    return _make(variable.shape, sharding, variable.part)


def _make(
    shape: Sequence[int],
    sharding: NamedSharding,
    part: Callable[[tuple[slice, ...]], Array],
) -> jax.Array:
    """Return an array of the parts of this process's devices; equal parts are made once."""
    made: dict[_Part, Array] = {}

    def get(index: tuple[slice, ...] | None) -> Array:
        # JAX passes None for the whole of a scalar.
        index = index or ()
        key = tuple((s.start, s.stop) for s in index)
        if key not in made:
            made[key] = part(index)
        return made[key]

    return jax.make_array_from_callback(tuple(shape), sharding, get)


def _anywhere(leaf: Any, mesh: Any) -> Any:
    spec = PartitionSpec(*[PartitionSpec.UNCONSTRAINED] * np.ndim(leaf))
    return jax.lax.with_sharding_constraint(leaf, NamedSharding(mesh, spec))


def _typed(leaf: Any, whole: NamedSharding) -> Any:
    """Return an array whose type says how it lies on a mesh; whole if it does not say so yet."""
    return leaf if jax.typeof(leaf).sharding.mesh.axis_names else jax.sharding.reshard(leaf, whole)


class OnMesh:
    """A mesh, and how the arguments of one function lie on it."""

    __slots__ = ("_name", "_paths", "mesh", "shardings")

    def __init__(self, name: str, exported: export.Exported, mesh: Mesh) -> None:
        """Take the sharding of each argument."""
        self.mesh = mesh
        self._name = name
        self._paths = argument_paths(exported.in_tree)
        try:
            self.shardings = tuple(exported.in_shardings_jax(mesh))
        # For the compiler's form, as of JAX 0.8, JAX finds names, or contradicts itself.
        except (ValueError, AssertionError) as error:
            raise ShardingError(
                f"The arguments of {name} do not all lie on the mesh that it was loaded for: "
                f"{error} To do: export it with all its arguments on one mesh."
            ) from error

    def of_parameter(self, position: int) -> NamedSharding:
        """Return the sharding of a parameter; one that has none is whole on each device."""
        sharding: Any = self.shardings[position]
        return NamedSharding(self.mesh, PartitionSpec()) if sharding is None else sharding

    def zeros(self, position: int, aval: Any) -> Any:
        """Return zeros for a parameter whose value nothing depends on."""
        sharding = self.of_parameter(position)
        if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended):
            return jax.device_put(jax.numpy.zeros(aval.shape, aval.dtype), sharding)

        def part(index: tuple[slice, ...]) -> Array:
            sizes = zip(index, aval.shape, strict=True)
            return np.zeros([len(range(*s.indices(size))) for s, size in sizes], aval.dtype)

        return _make(aval.shape, sharding, part)

    def with_devices(self, flat: Flat) -> Flat:
        """Return a function of the arguments that runs on the mesh where no argument says so.

        JAX decides how its arrays lie. Results of a mesh with explicit axes, whose types say that
        of each array, are whole on each device.
        """
        if any(sharding is not None for sharding in self.shardings):
            return flat

        if AxisType.Explicit not in self.mesh.axis_types:
            return lambda *leaves: flat(*(_anywhere(leaf, self.mesh) for leaf in leaves))
        axes = (AxisType.Auto,) * len(self.mesh.axis_names)
        automatic = self.mesh.abstract_mesh.update(axis_types=axes)
        whole = NamedSharding(self.mesh, PartitionSpec())

        def on_devices(*leaves: Any) -> tuple[Any, ...]:
            return flat(*(_anywhere(leaf, automatic) for leaf in leaves))

        def with_types(*leaves: Any) -> tuple[Any, ...]:
            typed = (_typed(leaf, whole) for leaf in leaves)
            made: tuple[Any, ...] = jax.sharding.auto_axes(on_devices, out_sharding=whole)(*typed)
            return made

        return with_types

    def inputs(self, leaves: Sequence[Any], first: int) -> list[Any]:
        """Return arguments on the mesh, or such that JAX puts them there."""
        return [self._input(leaf, index) for index, leaf in enumerate(leaves, first)]

    def _input(self, leaf: Any, index: int) -> Any:
        sharding: Any = self.shardings[index]
        check_divides(self._name, self._paths[index], np.shape(leaf), sharding)
        if isinstance(leaf, jax.core.Tracer):
            return leaf
        is_local = not isinstance(leaf, jax.Array) or leaf.is_fully_addressable
        if sharding is not None and is_local and not sharding.is_fully_addressable:
            value = narrow_array(np.asarray(leaf), self._paths[index])
            return _make(value.shape, sharding, lambda part: value[part])
        if not isinstance(leaf, jax.Array):
            return leaf
        if sharding is None:
            same = leaf.sharding.device_set == set(self.mesh.devices.flat)
            return leaf if same else jax.device_put(leaf, NamedSharding(self.mesh, PartitionSpec()))
        if leaf.sharding.is_equivalent_to(sharding, leaf.ndim):
            return leaf
        return jax.device_put(leaf, sharding)
