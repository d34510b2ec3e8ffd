"""JAX's own serialization of an `Exported`, also one that JAX refuses as expired.

JAX reads what it has written for six months
(https://docs.jax.dev/en/latest/export/export.html#compatibility-guarantees); files are kept longer.
The numbers of tables' fields and of enumerations are those of jax/_src/export/serialization.fbs,
which only grows: version 2 of December 2023 is the oldest that this reads, 12 of July 2026 the
newest.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeVar

from xla_call_module.descriptions.exported_description import (
    AbstractDevice,
    AvalDescription,
    ExportedDescription,
    SerializedExported,
)
from xla_call_module.descriptions.flatbuffer import FlatTable, read_root
from xla_call_module.dimensions import Dim
from xla_call_module.errors import FormatError, VersionError
from xla_call_module.pytrees.tree_nodes import LEAF, MAX_TREE_DEPTH, TreeNode
from xla_call_module.shardings.array_sharding import Sharding, place
from xla_call_module.shardings.mesh_placement import DimAxes, Mesh, MeshAxis, Placement
from xla_call_module.shardings.sharding_protos import sharding_from_proto

_OLDEST, NEWEST_SERIALIZATION = 2, 12
_MAX_ORDERS = 50

_LEAF, _NONE, _TUPLE, _LIST, _DICT, _CUSTOM = range(6)
_DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "float32", "float64", "complex64", "complex128", "bfloat16", "int4", "uint4",
    "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    "float0", "float8_e4m3", "float8_e3m4", "float8_e8m0fnu", "float4_e2m1fn", "key<fry>",
    "key<rbg>", "key<urbg>",
)  # fmt: skip
# 0 is that the version of the writer had no such field.
_MEMORIES = ("device", "device", "host", "any")
_AXIS_KINDS = {1: "auto", 2: "explicit", 3: "manual"}
_CHECKS = {0: "platform", 1: "custom_call"}  # 2 has had no effect since 2024

Item = TypeVar("Item")


def serialization_version(data: bytes) -> int:
    """Return the version of a serialization; JAX wrote 2 or 3 for all up to 11."""
    return read_root(data).number(0, "H")


def read_serialized(data: bytes) -> SerializedExported:
    """Return what `Exported.serialize` wrote, in any version of JAX."""
    return _read_order(read_root(data), 0)


def _read_order(table: FlatTable, order: int) -> SerializedExported:
    if order > _MAX_ORDERS:
        raise FormatError(f"An Exported is serialized with more than {_MAX_ORDERS} VJPs.")
    version, jax = table.number(0, "H"), table.text(26)
    if not _OLDEST <= version <= NEWEST_SERIALIZATION:
        raise VersionError(
            f"An Exported is serialized in version {version}{f' by JAX {jax}' if jax else ''}; "
            f"understood are {_OLDEST} to {NEWEST_SERIALIZATION}. To do: take a newer "
            "jax-tf-bridge, or serialize it again."
        )
    vjp = table.table(17)
    return SerializedExported(
        description=_Reader(table).description(),
        module=table.block(13),
        vjp=None if vjp is None else _read_order(vjp, order + 1),
        version=version,
        jax=jax,
    )


class _Reader:
    """The reader of one order: of the objects that its arguments and results share."""

    def __init__(self, table: FlatTable) -> None:
        self._table = table
        self._devices: list[AbstractDevice] = []
        self._meshes = [self._mesh(mesh) for mesh in table.tables(20)]
        self._avals = list(map(_read_aval, table.tables(19)))
        self._named = table.tables(21)
        self._placed: dict[tuple[int, int], Sharding] = {}

    def description(self) -> ExportedDescription:
        """Return all fields but the module and the VJP."""
        table = self._table
        in_avals, in_shardings = self._side(avals=3, numbers=22, shardings=7, sharding_numbers=24)
        out_avals, out_shardings = self._side(avals=5, numbers=23, shardings=8, sharding_numbers=25)
        return ExportedDescription(
            fun_name=table.text(1),
            in_tree=_read_tree(_required(table.table(2), "structure of arguments"), 0),
            out_tree=_read_tree(_required(table.table(4), "structure of results"), 0),
            in_avals=in_avals,
            out_avals=out_avals,
            in_shardings=in_shardings,
            out_shardings=out_shardings,
            constraints=(),  # JAX does not serialize them
            nr_devices=table.number(18, "I") or table.number(6, "h"),
            platforms=table.texts(9),
            ordered_effects=tuple(_read_effect(effect) for effect in table.tables(10)),
            unordered_effects=tuple(_read_effect(effect) for effect in table.tables(11)),
            disabled_checks=tuple(_read_checks(table.tables(12))),
            calling_convention_version=table.number(14, "H"),
            kept=table.numbers(15, "H"),
            uses_global_constants=bool(table.number(16, "B")),
            device=self._devices[0] if self._devices else None,
        )

    def _side(
        self, *, avals: int, numbers: int, shardings: int, sharding_numbers: int
    ) -> tuple[tuple[AvalDescription, ...], tuple[Sharding | None, ...]]:
        """Return the avals and the shardings of the arguments, or of the results."""
        if indices := self._table.numbers(numbers, "I"):
            types = [_member(self._avals, index, "avals") for index in indices]
        else:
            types = list(map(_read_aval, self._table.tables(avals)))
        decoded: Sequence[Sharding | None]
        if indices := self._table.numbers(sharding_numbers, "I"):
            pairs = zip(indices, types, strict=False)
            decoded = [self._numbered(index, aval) for index, aval in pairs]
        else:
            tables = self._table.tables(shardings)
            decoded = [self._sharding(*pair) for pair in zip(tables, types, strict=False)]
        if not decoded:
            decoded = [None] * len(types)
        if len(decoded) != len(types):
            raise FormatError(f"An Exported has {len(types)} avals and {len(decoded)} shardings.")
        return tuple(map(_with_sharding, types, decoded)), tuple(decoded)

    def _numbered(self, number: int, aval: AvalDescription) -> Sharding | None:
        if number == 0:
            return None
        key = number, len(aval.shape)
        if key not in self._placed:
            table = _member(self._named, number - 1, "shardings")
            self._placed[key] = self._named_sharding(table, aval)
        return self._placed[key]

    def _sharding(self, table: FlatTable, aval: AvalDescription) -> Sharding | None:
        if (named := table.table(2)) is not None:
            return self._named_sharding(named, aval)
        return sharding_from_proto(table.block(1)) if table.has(1) else None

    def _named_sharding(self, table: FlatTable, aval: AvalDescription) -> Sharding:
        if self._meshes:
            mesh = _member(self._meshes, table.number(3, "I"), "meshes")
        else:
            mesh = self._mesh(_required(table.table(0), "mesh"))
        spec = _required(table.table(1), "PartitionSpec")
        reduced, unreduced = (
            tuple(name for name in mesh.shape if name in names)
            for names in (frozenset(spec.texts(1)), frozenset(spec.texts(2)))
        )
        dims = tuple(DimAxes(dim.texts(0)) for dim in spec.tables(0))
        placement = Placement(mesh, dims, unreduced=unreduced, reduced=reduced)
        return place(placement, len(aval.shape), memory=table.text(2))

    def _mesh(self, table: FlatTable) -> Mesh:
        sizes, names, kinds = table.numbers(0, "I"), table.texts(1), table.numbers(2, "b")
        if not len(sizes) == len(names) == len(kinds):
            raise FormatError(f"A mesh has axes of {len(sizes)} sizes and {len(names)} names.")
        axes = zip(names, sizes, kinds, strict=True)
        if (device := table.table(3)) is not None:
            cores = device.number(1, "I") if device.has(1) else None
            self._devices.append(AbstractDevice(device.text(0), cores, device.text(2)))
        return Mesh(
            tuple(MeshAxis(name, size, _known(_AXIS_KINDS, kind)) for name, size, kind in axes)
        )


def _read_aval(table: FlatTable) -> AvalDescription:
    return AvalDescription(
        shape=tuple(map(_read_dim, table.texts(1))),
        dtype=_known(dict(enumerate(_DTYPES)), table.number(2, "b")),
        memory=_known(dict(enumerate(_MEMORIES)), table.number(3, "b")),
    )


def _read_dim(text: str) -> Dim:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else text


def _with_sharding(aval: AvalDescription, sharding: Sharding | None) -> AvalDescription:
    """Return an aval as JAX has it that has a sharding by names: with an entry for each dimension.

    Source: jax/_src/core.py, `update_aval_with_sharding`.
    """
    if sharding is None or (placement := sharding.placement) is None or not placement.mesh.axes:
        return aval
    rank = len(aval.shape)
    dims = (*placement.dims, *[DimAxes()] * (rank - len(placement.dims)))
    placement = dataclasses.replace(placement, dims=dims)
    return dataclasses.replace(aval, sharding=place(placement, rank))


def _read_tree(table: FlatTable, depth: int) -> TreeNode:
    if depth > MAX_TREE_DEPTH:
        raise FormatError(f"A serialized pytree is more than {MAX_TREE_DEPTH} levels deep.")
    kind = table.number(0, "b")
    children = tuple(_read_tree(child, depth + 1) for child in table.tables(1))
    if kind in (_LEAF, _NONE) and not children:
        return LEAF if kind == _LEAF else TreeNode("none")
    if kind in (_TUPLE, _LIST):
        return TreeNode("tuple" if kind == _TUPLE else "list", children=children)
    if kind == _DICT:
        names = tuple(TreeNode("value", value=name) for name in table.texts(2))
        if len(names) == len(children):
            return TreeNode("dict", "", names, children)
    if kind == _CUSTOM and (name := table.text(3)):
        data = base64.b64encode(table.block(4)).decode()
        return TreeNode("registered", name, children=children, value=data)
    raise FormatError(f"A serialized pytree has a node of kind {kind} with {len(children)} parts.")


def _read_effect(table: FlatTable) -> str:
    """Return the name of a type, which JAX writes as `<class 'module.name'>`."""
    return table.text(0).removeprefix("<class '").removesuffix("'>")


def _read_checks(tables: Sequence[FlatTable]) -> list[str]:
    checks = []
    for table in tables:
        if (kind := table.number(0, "b")) == 2:
            continue
        name = _known(_CHECKS, kind)
        checks.append(f"{name}:{table.text(1)}" if name == "custom_call" else name)
    return checks


def _known(names: Mapping[int, str], number: int) -> str:
    if number not in names:
        raise FormatError(
            f"An Exported is serialized with the number {number} where {len(names)} are known. To "
            "do: read it with a newer jax-tf-bridge."
        )
    return names[number]


def _member(items: Sequence[Item], index: int, what: str) -> Item:
    if index >= len(items):
        raise FormatError(
            f"An Exported is serialized with {len(items)} {what}, and number {index}."
        )
    return items[index]


def _required(table: FlatTable | None, what: str) -> FlatTable:
    if table is None:
        raise FormatError(f"An Exported is serialized without its {what}.")
    return table
