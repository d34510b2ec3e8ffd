"""Shardings as Shardy has them: attributes of the MLIR dialect `sdy` in a parsed module.

Shardy knows neither the types of a mesh's axes nor kinds of memory.

Source: https://openxla.org/shardy/sdy_dialect, `TensorShardingAttr`, `MeshAttr`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from xla_call_module._jax import ir, sdy
from xla_call_module.errors import FormatError, quote
from xla_call_module.shardings.mesh_placement import DimAxes, Mesh, MeshAxis, Placement


def mesh_from_shardy(attribute: Any) -> Mesh:
    """Return the mesh that an attribute such as `#sdy.mesh<["data"=4, "model"=2]>` says.

    Example:
        >>> from xla_call_module._jax import make_ir_context
        >>> with make_ir_context():
        ...     str(mesh_from_shardy(ir.Attribute.parse('#sdy.mesh<["data"=4, "model"=2]>')))
        'data 4 x model 2'
    """
    with _refusing_others(attribute, "mesh of Shardy's"):
        mesh: Any = sdy.MeshAttr(attribute)
        axes = [(axis.name, axis.size) for axis in map(sdy.MeshAxisAttr, mesh.axes)]
        devices = tuple(mesh.device_ids)
    return Mesh(tuple(MeshAxis(name, size) for name, size in axes), devices)


def placement_from_shardy(attribute: Any, meshes: Mapping[str, Mesh]) -> Placement:
    """Return the sharding of an array that an attribute says.

    Example:
        >>> from xla_call_module._jax import make_ir_context
        >>> mesh = Mesh((MeshAxis("a", 2), MeshAxis("b", 4)))
        >>> with make_ir_context():
        ...     attribute = ir.Attribute.parse('#sdy.sharding<@mesh, [{"b", ?}, {}]>')
        ...     placement_from_shardy(attribute, {"mesh": mesh}).dims[0]
        DimAxes(names=('b',), is_open=True)
    """
    with _refusing_others(attribute, "sharding of whole axes of a mesh"):
        sharding: Any = sdy.TensorShardingAttr(attribute)
        _check_sums(sharding)
        dims = tuple(map(_dim, sharding.dimension_shardings))
        sides = (sharding.replicated_axes, sharding.unreduced_axes)
        replicated, unreduced = (tuple(map(_axis, side)) for side in sides)
        reference = sharding.mesh_or_ref
        name = reference.value if isinstance(reference, ir.FlatSymbolRefAttr) else None
    if name is None:
        return Placement(mesh_from_shardy(reference), dims, replicated, unreduced)
    if name not in meshes:
        raise FormatError(f"{attribute} is on the mesh {name}; known are {sorted(meshes)}.")
    return Placement(meshes[name], dims, replicated, unreduced)


def _dim(attribute: Any) -> DimAxes:
    dim: Any = sdy.DimensionShardingAttr(attribute)
    if dim.priority is not None:
        raise ValueError("a dimension has a priority")
    return DimAxes(tuple(map(_axis, dim.axes)), not dim.is_closed)


def _axis(attribute: Any) -> str:
    axis: Any = sdy.AxisRefAttr(attribute)
    if axis.sub_axis_info is not None:
        raise ValueError("a part of an axis is named")
    return str(axis.name)


def _check_sums(sharding: Any) -> None:
    """Refuse unreduced parts of which the largest or the smallest is meant, new in JAX 0.12."""
    reduction = getattr(sharding, "reduction_op", None)
    if reduction is not None and reduction.name != "SUM":
        raise ValueError(f"unreduced parts are not summands, but {reduction.name}")


@contextmanager
def _refusing_others(attribute: Any, expected: str) -> Iterator[None]:
    """Errors of a block that takes an attribute apart become a `FormatError`."""
    try:
        yield
    except (ir.MLIRError, ValueError, RuntimeError) as error:  # a name may be no UTF-8
        raise FormatError(
            f"{str(attribute)[:200]} is no {expected}: {quote(error)}. To do: export the function "
            "again."
        ) from error
