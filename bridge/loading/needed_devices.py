"""A function of several devices, refused by name where JAX lowers its call for another number.

How many devices there are is known when a program is lowered, and not before: under `jax.jit` the
arguments of a call do not tell. So something that does nothing goes along with an argument, and
looks where it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jax import export
from jax.extend.core import Primitive
from jax.interpreters import mlir

from bridge.core._jax import devices_of_lowering
from bridge.loading.exported_on_mesh import mesh_at_export
from xla_call_module.errors import ShardingError

__all__ = ["NeededDevices", "needed_devices", "require_devices"]


@dataclass(frozen=True, slots=True)
class NeededDevices:
    """How many devices a function needs.

    Attributes:
        name: of the function.
        count: of the devices.
        mesh: the axes of the mesh that it was exported for, as text; empty where unknown.
    """

    name: str
    count: int
    mesh: str

    def refusal(self) -> ShardingError:
        """The error where there are others."""
        return ShardingError(
            f"{self.name} was exported for {self.count} devices{self.mesh}, and was loaded for "
            "one. To do: load it with mesh=, for example that of bridge.meshes.mesh_of; a mesh "
            "whose axes have the size 1 runs it on one device."
        )


def needed_devices(name: str, exported: export.Exported) -> NeededDevices:
    """What an `Exported` needs.

    Raises:
        FormatError: its module is damaged.
    """
    mesh = mesh_at_export(exported)
    axes = "" if mesh is None else f", on a mesh with the axes {dict(mesh.shape)}"
    return NeededDevices(name, exported.nr_devices, axes)


def require_devices(arguments: Sequence[Any], needed: NeededDevices) -> list[Any]:
    """The arguments; a program that takes them cannot be lowered for other devices.

    Raises:
        ShardingError: when it is lowered.
    """
    if not arguments:
        return []
    return [_REQUIRED.bind(arguments[0], needed=needed), *arguments[1:]]


def _lower(context: Any, value: Any, *, needed: NeededDevices) -> list[Any]:
    if devices_of_lowering(context) not in (None, needed.count):
        raise needed.refusal()
    return [value]


def _same(value: Any, *, needed: NeededDevices) -> Any:
    del needed
    return value


def _define() -> Primitive:
    """The primitive, which is neither differentiated nor mapped where it is used."""
    primitive = Primitive("devices_of_exported")
    primitive.def_impl(_same)
    primitive.def_abstract_eval(_same)
    mlir.register_lowering(primitive, _lower)
    return primitive


_REQUIRED = _define()
