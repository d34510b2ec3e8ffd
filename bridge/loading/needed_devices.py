"""The number of devices that an exported function needs, which is checked when it is lowered.

Under `jax.jit` the arguments of a call do not tell where they are. So something that does nothing
goes along with an argument, and looks how many devices there are when a program is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jax import export
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from bridge.core._jax import devices_of_lowering
from bridge.loading.exported_on_mesh import mesh_at_export
from xla_call_module.errors import ShardingError


@dataclass(frozen=True, slots=True)
class NeededDevices:
    """The number of devices that a function needs.

    Attributes:
        mesh: the axes of the mesh that it was exported for, as text; empty where unknown.
    """

    name: str
    count: int
    mesh: str

    def refusal(self) -> ShardingError:
        """Return the error for another number of devices."""
        return ShardingError(
            f"{self.name} was exported for {self.count} devices{self.mesh}, and was loaded for "
            "one. To do: load it with mesh=, for example that of bridge.meshes.mesh_of; a mesh "
            "whose axes have the size 1 runs it on one device."
        )


def needed_devices(name: str, exported: export.Exported) -> NeededDevices:
    """Return how many devices an `Exported` needs."""
    mesh = mesh_at_export(exported)
    axes = "" if mesh is None else f", on a mesh with the axes {dict(mesh.shape)}"
    return NeededDevices(name, exported.nr_devices, axes)


def require_devices(arguments: Sequence[Any], needed: NeededDevices) -> list[Any]:
    """Return the arguments such that a program cannot be lowered for other devices."""
    if not arguments:
        return []
    return [_REQUIRED.bind(arguments[0], needed=needed), *arguments[1:]]


def _lower(context: Any, value: Any, *, needed: NeededDevices) -> list[Any]:
    if devices_of_lowering(context) not in (None, needed.count):
        raise needed.refusal()
    return [value]


def _define() -> Primitive:
    """Return the primitive, of which the derivative is the identity, as of what it computes."""
    primitive = Primitive("devices_of_exported")
    primitive.def_impl(lambda value, **_: value)
    primitive.def_abstract_eval(lambda value, **_: value)
    mlir.register_lowering(primitive, _lower)
    ad.deflinear2(primitive, lambda cotangent, _, **__: [cotangent])
    batching.primitive_batchers[primitive] = lambda values, axes, **params: (
        primitive.bind(*values, **params),
        axes[0],
    )
    return primitive


_REQUIRED = _define()
