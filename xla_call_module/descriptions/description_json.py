"""The description of an `Exported` as JSON, which nodes carry.

`docs/internals/exported-description.schema.json` is the schema. The text is canonical: the same
`Exported` has the same bytes. An array type that many arguments share is written once, as is a
sharding.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from xla_call_module.descriptions.exported_description import (
    AbstractDevice,
    AvalDescription,
    ExportedDescription,
)
from xla_call_module.descriptions.serialized_exported import read_serialized
from xla_call_module.errors import FormatError, InteropError, VersionError, refusing_damage
from xla_call_module.pytrees.tree_nodes import TreeNode
from xla_call_module.shardings.array_sharding import Sharding
from xla_call_module.shardings.sharding_json import decode_shardings, encode_shardings

# A minor version adds fields at the root, which older releases keep and pass on. A major one is
# refused by them; it has the field `read_by`, the first release that reads it.
SCHEMA_VERSION = (1, 0)

_REQUIRED = frozenset({
    "avals", "calling_convention_version", "fun_name", "in_avals", "in_tree", "kept", "nr_devices",
    "out_avals", "out_tree", "platforms", "uses_global_constants", "version",
})  # fmt: skip
_OPTIONAL = frozenset({
    "constraints", "device", "disabled_checks", "ordered_effects", "shardings",
    "unordered_effects",
})  # fmt: skip
_KEPT = frozenset({"read_by"})
_LISTS_OF_TEXT = ("constraints", "disabled_checks", "ordered_effects", "unordered_effects")
_SHARDED = ("in", "out", "avals")
_AVAL_FIELDS = frozenset({"dtype", "memory", "shape", "weak_type"})
_WHERE = "the description of an Exported"

Item = TypeVar("Item")


def read_description(data: bytes, *, where: str) -> ExportedDescription:
    """Return the description of the `Exported` that a node carries, of any release."""
    with refusing_damage(f"The description that {where} carries"):
        if data[:1] == b"{":
            return description_from_json(data)
        return read_serialized(data).description


def description_to_json(description: ExportedDescription) -> bytes:
    """Return the canonical JSON text of a description, as UTF-8.

    Example:
        >>> from xla_call_module.pytrees.tree_nodes import LEAF, TreeNode
        >>> aval = AvalDescription((2, "b"), "float32")
        >>> args = TreeNode("tuple", children=(TreeNode("tuple", children=(LEAF,)),
        ...                                    TreeNode("dict")))
        >>> text = description_to_json(ExportedDescription(
        ...     "f", args, LEAF, (aval,), (aval,), (None,), (None,), (), 1, ("cpu",), (), (), (),
        ...     9, (0,), True))
        >>> json.loads(text)["avals"]
        [{'dtype': 'float32', 'shape': [2, 'b']}]
    """
    avals = list(dict.fromkeys([*description.in_avals, *description.out_avals]))
    numbers = {aval: number for number, aval in enumerate(avals)}
    fields: dict[str, Any] = {
        "avals": [_aval_to_json(aval) for aval in avals],
        "calling_convention_version": description.calling_convention_version,
        "fun_name": str(description.fun_name),
        "in_avals": [numbers[aval] for aval in description.in_avals],
        "in_tree": description.in_tree.to_json(),
        "kept": _to_ranges(description.kept),
        "nr_devices": description.nr_devices,
        "out_avals": [numbers[aval] for aval in description.out_avals],
        "out_tree": description.out_tree.to_json(),
        "platforms": list(description.platforms),
        "uses_global_constants": description.uses_global_constants,
        "version": list(SCHEMA_VERSION),
    }
    optional: dict[str, Any] = {key: list(getattr(description, key)) for key in _LISTS_OF_TEXT}
    optional["shardings"] = encode_shardings(
        {
            "in": description.in_shardings,
            "out": description.out_shardings,
            "avals": [aval.sharding for aval in avals],
        }
    )
    if (device := description.device) is not None:
        optional["device"] = [device.kind, device.num_cores, device.platform]
    fields |= {key: value for key, value in optional.items() if value}
    if description.unknown:
        fields |= json.loads(description.unknown)
    return _canonical(fields).encode()


def description_from_json(text: bytes) -> ExportedDescription:
    """Return the description that `description_to_json` wrote, here or in another release."""
    try:
        fields = json.loads(text, parse_constant=_refuse_constant)
        return _read(fields)
    except InteropError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(
            f"{_WHERE} is damaged ({type(error).__name__}: {str(error)[:120]}): {text[:80]!s}… To "
            "do: write the file again."
        ) from error


def _read(fields: Mapping[str, Any]) -> ExportedDescription:
    unknown = _unknown_fields(fields)
    if missing := sorted(_REQUIRED - fields.keys()):
        raise FormatError(f"{_WHERE} lacks {missing}. To do: write the file again.")
    known = {key: fields[key] for key in fields.keys() & (_REQUIRED | _OPTIONAL)}
    in_numbers, out_numbers = known["in_avals"], known["out_avals"]
    counts = {"in": len(in_numbers), "out": len(out_numbers), "avals": len(known["avals"])}
    shardings = decode_shardings(known.get("shardings", {}), counts)
    avals = tuple(map(_aval_from_json, known["avals"], shardings["avals"]))
    texts = {key: _texts(known.get(key, []), key) for key in (*_LISTS_OF_TEXT, "platforms")}
    if not isinstance(known["uses_global_constants"], bool):
        raise FormatError(f"uses_global_constants of {_WHERE} is neither true nor false.")
    return ExportedDescription(
        fun_name=_text(known["fun_name"], "fun_name"),
        in_tree=TreeNode.from_json(known["in_tree"], where=_WHERE),
        out_tree=TreeNode.from_json(known["out_tree"], where=_WHERE),
        in_avals=_members(avals, in_numbers),
        out_avals=_members(avals, out_numbers),
        in_shardings=tuple(shardings["in"]),
        out_shardings=tuple(shardings["out"]),
        nr_devices=_index(known["nr_devices"]),
        calling_convention_version=_index(known["calling_convention_version"]),
        kept=_from_ranges(known["kept"], len(in_numbers)),
        uses_global_constants=known["uses_global_constants"],
        device=_device_from_json(known.get("device")),
        unknown=unknown,
        **texts,
    )


def _unknown_fields(fields: Any) -> str:
    """Return the fields that a newer minor version has, with its version; refuse a major one."""
    if not isinstance(fields, Mapping) or not isinstance(fields.get("version"), list):
        raise FormatError(f"{_WHERE} says no version of its schema. To do: write the file again.")
    major, minor = map(_index, fields["version"])
    if major > SCHEMA_VERSION[0] or major < 1:
        needed = _text(fields.get("read_by", "a newer jax-tf-bridge"), "read_by")
        raise VersionError(
            f"{_WHERE} is of version {major}.{minor} of its schema; understood is "
            f"{SCHEMA_VERSION[0]}. To do: read it with {needed:.80} or newer."
        )
    unknown = {key: fields[key] for key in fields.keys() - _REQUIRED - _OPTIONAL - _KEPT}
    if (major, minor) <= SCHEMA_VERSION and unknown:
        raise FormatError(f"{_WHERE} has the fields {sorted(unknown)[:8]}, which are unknown.")
    if (major, minor) <= SCHEMA_VERSION:
        return ""
    kept = {key: fields[key] for key in fields.keys() & _KEPT}
    return _canonical({**unknown, **kept, "version": [major, minor]})


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _aval_to_json(aval: AvalDescription) -> dict[str, Any]:
    fields: dict[str, Any] = {"dtype": aval.dtype, "shape": list(aval.shape)}
    if aval.weak_type:
        fields["weak_type"] = True
    if aval.memory != "device":
        fields["memory"] = aval.memory
    return fields


def _aval_from_json(fields: Any, sharding: Sharding | None) -> AvalDescription:
    if unknown := sorted(fields.keys() - _AVAL_FIELDS):
        raise FormatError(f"An aval in {_WHERE} has the fields {unknown[:8]}, which are unknown.")
    weak_type = fields.get("weak_type", False)
    if not isinstance(fields["shape"], list) or not isinstance(weak_type, bool):
        raise FormatError(f"{str(fields)[:200]} in {_WHERE} does not describe an aval.")
    return AvalDescription(
        shape=tuple(dim if isinstance(dim, str) else _index(dim) for dim in fields["shape"]),
        dtype=_text(fields["dtype"], "dtype"),
        weak_type=weak_type,
        memory=_text(fields.get("memory", "device"), "memory"),
        sharding=sharding,
    )


def _device_from_json(fields: Any) -> AbstractDevice | None:
    if fields is None:
        return None
    kind, num_cores, platform = fields
    cores = None if num_cores is None else _index(num_cores)
    return AbstractDevice(_text(kind, "device"), cores, _text(platform, "device"))


def _to_ranges(indices: Sequence[int]) -> list[Any]:
    """Return ascending numbers with each run of three or more as `[first, last]`."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and runs[-1][-1] + 1 == index:
            runs[-1][1:] = [index]
        else:
            runs.append([index])
    return [
        part for run in runs for part in ([run] if len(run) == 2 and run[1] - run[0] > 1 else run)
    ]


def _from_ranges(parts: Any, count: int) -> tuple[int, ...]:
    """Return the numbers, which are all below a count."""
    if not isinstance(parts, list):
        raise FormatError(f"kept in {_WHERE} is {str(parts)[:40]}; expected a list.")
    indices: list[int] = []
    for part in parts:
        first, last = map(_index, part if isinstance(part, list) else (part, part))
        if not 0 <= first <= last < count:
            raise FormatError(f"kept in {_WHERE} has {part}; there are {count} arguments.")
        indices.extend(range(first, last + 1))
        if len(indices) > count:
            raise FormatError(f"kept in {_WHERE} has more than the {count} arguments.")
    return tuple(indices)


def _members(items: Sequence[Item], numbers: Any) -> tuple[Item, ...]:
    if not isinstance(numbers, list) or not all(0 <= _index(n) < len(items) for n in numbers):
        raise FormatError(f"{_WHERE} has numbers of avals that it does not have.")
    return tuple(items[number] for number in numbers)


def _index(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError("a bool where a number is expected")
    return operator.index(value)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise FormatError(f"{name} in {_WHERE} is {str(value)[:40]!r}; expected a text.")
    return value


def _texts(values: Any, name: str) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise FormatError(f"{name} in {_WHERE} is {str(values)[:40]!r}; expected a list of texts.")
    return tuple(_text(value, name) for value in values)


def _refuse_constant(name: str) -> Callable[[], None]:
    raise FormatError(f"{_WHERE} has the number {name}, which JSON does not have.")
