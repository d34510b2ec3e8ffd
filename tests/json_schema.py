"""The JSON Schema of descriptions of `Exported`s, and as much of a validator as it takes.

Source: https://json-schema.org/draft/2020-12/json-schema-validation
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_FILE = Path(__file__).parents[1] / "docs" / "internals" / "exported-description.schema.json"
SCHEMA = json.loads(_FILE.read_text(encoding="utf-8"))
_TYPES = {
    "array": list, "boolean": bool, "integer": int, "null": type(None), "number": (int, float),
    "object": dict, "string": str,
}  # fmt: skip
_TEXTS = {"$schema", "title", "description", "$defs"}


def violations(value: Any) -> list[str]:
    """Return what in a value is not as the schema says, with its place."""
    return list(_violations(value, SCHEMA, "$"))


def _violations(value: Any, schema: dict[str, Any], where: str) -> Iterator[str]:
    for keyword in schema.keys() - _TEXTS:
        yield from _CHECKS[keyword](value, schema, where)


def _is(value: Any, name: str) -> bool:
    is_bool = isinstance(value, bool)
    return isinstance(value, _TYPES[name]) and (not is_bool or name == "boolean")


def _type(value: Any, schema: dict[str, Any], where: str) -> Iterator[str]:
    names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not any(_is(value, name) for name in names):
        yield f"{where}: {value!r:.40} is none of {names}"


def _reference(value: Any, schema: dict[str, Any], where: str) -> Iterator[str]:
    yield from _violations(value, SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]], where)


def _any_of(value: Any, schema: dict[str, Any], where: str) -> Iterator[str]:
    if all(any(_violations(value, one, where)) for one in schema["anyOf"]):
        yield f"{where}: {value!r:.40} is of no known form"


def _items(value: Any, schema: dict[str, Any], where: str) -> Iterator[str]:
    for index, item in enumerate(value if isinstance(value, list) else ()):
        yield from _violations(item, schema["items"], f"{where}[{index}]")


def _properties(value: Any, schema: dict[str, Any], where: str) -> Iterator[str]:
    for key, one in schema["properties"].items() if isinstance(value, dict) else ():
        if key in value:
            yield from _violations(value[key], one, f"{where}.{key}")


def _required(value: Any, schema: dict[str, Any], where: str) -> Iterator[str]:
    for key in schema["required"] if isinstance(value, dict) else ():
        if key not in value:
            yield f"{where} lacks {key}"


def _additional(value: Any, schema: dict[str, Any], where: str) -> Iterator[str]:
    assert schema["additionalProperties"] is False
    if isinstance(value, dict) and (unknown := value.keys() - schema["properties"].keys()):
        yield f"{where} has {unknown}"


def _equals(value: Any, schema: dict[str, Any], where: str) -> Iterator[str]:
    known = schema["enum"] if "enum" in schema else [schema["const"]]
    if value not in known:
        yield f"{where}: {value!r:.40} is none of {known}"


def _limits(value: Any, schema: dict[str, Any], where: str) -> Iterator[str]:
    size = len(value) if isinstance(value, list) else value if _is(value, "integer") else None
    low = schema.get("minItems" if isinstance(value, list) else "minimum")
    high = schema.get("maxItems" if isinstance(value, list) else "maximum")
    if size is not None and not (low or 0) <= size <= (size if high is None else high):
        yield f"{where}: {value!r:.40} is beyond its limits"


def _pattern(value: Any, schema: dict[str, Any], where: str) -> Iterator[str]:
    if isinstance(value, str) and not re.search(schema["pattern"], value):
        yield f"{where}: {value!r:.40} is not {schema['pattern']}"


_CHECKS = {
    "$ref": _reference, "additionalProperties": _additional, "anyOf": _any_of, "const": _equals,
    "enum": _equals, "items": _items, "maxItems": _limits, "maximum": _limits, "minItems": _limits,
    "minimum": _limits, "pattern": _pattern, "properties": _properties, "required": _required,
    "type": _type,
}  # fmt: skip
