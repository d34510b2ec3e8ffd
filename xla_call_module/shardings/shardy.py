"""A sharding as Shardy writes it: attributes of the MLIR dialect `sdy`, as text.

The meshes of a module are named in it; in what is written here each sharding has its mesh inside.
Shardy knows neither the types of a mesh's axes nor kinds of memory.

Source: https://openxla.org/shardy/sdy_dialect, `TensorShardingAttr`, `MeshAttr`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from xla_call_module.errors import FormatError
from xla_call_module.shardings.array_sharding import DimAxes, Mesh, MeshAxis, Placement

__all__ = [
    "MESH_TEXT",
    "mesh_from_shardy",
    "mesh_to_shardy",
    "placement_from_shardy",
    "placement_to_shardy",
]

_NAME = r'"(?:[^"\\]|\\.)*"'
_NAMES = rf"(?:{_NAME}(?:, ?{_NAME})*)?"
# As in `#sdy.mesh<["a"=2]>`, without the groups.
MESH_TEXT = (
    rf"mesh<\[(?:{_NAME}=\d{{1,9}}(?:, ?{_NAME}=\d{{1,9}})*)?\]"
    r"(?:, device_ids=\[\d{1,9}(?:, ?\d{1,9})*\])?>"
)
_MESH = re.compile(rf"(?:#sdy\.)?{MESH_TEXT}")
_DEVICES = re.compile(r"device_ids=\[([\d, ]*)\]>$")
_AXIS = re.compile(rf"({_NAME})=(\d{{1,9}})")
_DIM = re.compile(rf"\{{({_NAMES})(?:(?:, )?(\?))?\}}")
_SHARDING = re.compile(
    rf'(?:#sdy\.sharding)?<(@[\w.$]+|@"[^"]*"|{MESH_TEXT}), '
    rf"\[((?:\{{{_NAMES}(?:(?:, )?\?)?\}}(?:, ?)?)*)\]"
    rf"(?:, replicated=\{{({_NAMES})\}})?(?:, unreduced=\{{({_NAMES})\}})?>"
)


def mesh_to_shardy(mesh: Mesh) -> str:
    """The attribute of a mesh, such as `#sdy.mesh<["data"=4, "model"=2]>`."""
    return f"#sdy.{_mesh(mesh)}"


def mesh_from_shardy(text: str) -> Mesh:
    """The mesh that an attribute says.

    Raises:
        FormatError: it is no mesh.
        ShardingError: it is none that JAX has.

    Example:
        >>> str(mesh_from_shardy('#sdy.mesh<["data"=4, "model"=2]>'))
        'data 4 x model 2'
    """
    if _MESH.fullmatch(text) is None:
        raise FormatError(f"{text[:200]} is no mesh of Shardy's. To do: export the function again.")
    axes = tuple(MeshAxis(_unquote(name), int(size)) for name, size in _AXIS.findall(text))
    devices = _DEVICES.search(text)
    return Mesh(axes, tuple(map(int, devices[1].split(","))) if devices else ())


def placement_to_shardy(placement: Placement, rank: int) -> str:
    """The attribute of a sharding of an array, its mesh inside.

    Example:
        >>> mesh = mesh_from_shardy('#sdy.mesh<["a"=2, "b"=4]>')
        >>> placement_to_shardy(Placement(mesh, (DimAxes(("b",)),)), rank=2)
        '#sdy.sharding<mesh<["a"=2, "b"=4]>, [{"b"}, {}]>'
    """
    dims = [*placement.dims, *[DimAxes()] * (rank - len(placement.dims))]
    parts = [_mesh(placement.mesh), f"[{', '.join(map(_dim, dims))}]"]
    for key, names in (("replicated", placement.replicated), ("unreduced", placement.unreduced)):
        # In the mesh's order, in which Shardy has them.
        listed = [_quote(axis.name) for axis in placement.mesh.axes if axis.name in names]
        parts += [f"{key}={{{', '.join(listed)}}}"] if listed else []
    return f"#sdy.sharding<{', '.join(parts)}>"


def placement_from_shardy(text: str, meshes: Mapping[str, Mesh]) -> Placement:
    """The sharding that an attribute says.

    Args:
        text: with or without `#sdy.sharding` before it.
        meshes: the meshes of the module by their names.

    Raises:
        FormatError: it has another form, such as parts of axes or priorities, or names a mesh that
            is not there.
        ShardingError: it is none that JAX has.

    Example:
        >>> mesh = mesh_from_shardy('#sdy.mesh<["a"=2, "b"=4]>')
        >>> placement_from_shardy('#sdy.sharding<@mesh, [{"b", ?}, {}]>', {"mesh": mesh}).dims[0]
        DimAxes(names=('b',), is_open=True)
    """
    match = _SHARDING.fullmatch(text)
    if match is None:
        raise FormatError(
            f"{text[:200]} is no sharding of whole axes of a mesh. To do: export the function "
            "again."
        )
    if match[1].startswith("@"):
        name = match[1][1:].strip('"')
        if name not in meshes:
            raise FormatError(f"{text[:200]} is on the mesh {name}; known are {sorted(meshes)}.")
        mesh = meshes[name]
    else:
        mesh = mesh_from_shardy(match[1])
    dims = tuple(DimAxes(_names(d[1]), bool(d[2])) for d in _DIM.finditer(match[2]))
    return Placement(mesh, dims, _names(match[3]), _names(match[4]))


def _mesh(mesh: Mesh) -> str:
    axes = ", ".join(f"{_quote(axis.name)}={axis.size}" for axis in mesh.axes)
    devices = f", device_ids=[{', '.join(map(str, mesh.devices))}]" if mesh.devices else ""
    return f"mesh<[{axes}]{devices}>"


def _dim(dim: DimAxes) -> str:
    return "{" + ", ".join([*map(_quote, dim.names), *(["?"] if dim.is_open else [])]) + "}"


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(_unquote(name) for name in re.findall(_NAME, text or ""))


def _quote(name: str) -> str:
    """The name as MLIR prints a string: in ASCII, all else as bytes in hexadecimal."""
    shown = {byte: chr(byte) for byte in range(0x20, 0x7F)} | {ord('"'): r"\22", ord("\\"): r"\\"}
    return '"' + "".join(shown.get(byte, f"\\{byte:02X}") for byte in name.encode()) + '"'


def _unquote(text: str) -> str:
    escapes = {b"n": b"\n", b"t": b"\t"}
    data = re.sub(
        rb"\\(?:([0-9a-fA-F]{2})|(.))",
        lambda match: bytes([int(match[1], 16)]) if match[1] else escapes.get(match[2], match[2]),
        text[1:-1].encode(),
    )
    return data.decode(errors="replace")
