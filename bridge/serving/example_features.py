"""The features that a signature reads from serialized `tf.Example`s, found in its graph."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from savedmodel.protos.schema import Proto

__all__ = ["ExampleFeature", "features_of", "serialize_example"]

# tensorflow/core/framework/types.proto
_FLOAT, _INT64 = 1, 9
_PARSE = "ParseExampleV2"
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_LENGTH_DELIMITED = 2
# The fields of Feature in tensorflow/core/example/feature.proto.
_FLOAT_LIST, _INT64_LIST = 2, 3


@dataclass(frozen=True, slots=True)
class ExampleFeature:
    """A feature of a row.

    Attributes:
        key: in the `tf.Example`.
        enum: the number of its dtype in TensorFlow's `DataType`: float32, int64 or strings.
        count: how many elements a row has; one where that is free.
    """

    key: str
    enum: int
    count: int

    @property
    def is_float(self) -> bool:
        """Whether it has float32."""
        return self.enum == _FLOAT

    @property
    def is_number(self) -> bool:
        """Whether numbers can be made up for it."""
        return self.enum in (_FLOAT, _INT64)


def features_of(graph: Proto, tensor: str) -> tuple[ExampleFeature, ...] | None:
    """The features that are parsed from a string tensor; None where it goes elsewhere.

    Args:
        graph: the GraphDef.
        tensor: its name there, such as `serving_default_examples:0`.
    """
    functions = {function.signature.name: function for function in graph.library.function}
    return _follow(graph.node, tensor.partition(":")[0], functions)


def _follow(
    nodes: Sequence[Proto], source: str, functions: Mapping[str, Proto]
) -> tuple[ExampleFeature, ...] | None:
    """The features of what is parsed from a node, or an argument, of one body."""
    for node in nodes:
        for position in _positions(node, source):
            found = None
            if node.op == _PARSE and position == 0:
                found = _read(node, {other.name: other for other in nodes})
            elif node.op == "Identity":
                found = _follow(nodes, node.name, functions)
            elif node.op in _CALLS and (inner := functions.get(node.attr["f"].func.name)):
                argument = inner.signature.input_arg[position].name
                found = _follow(inner.node_def, argument, functions)
            if found is not None:
                return found
    return None


def _positions(node: Proto, source: str) -> Iterator[int]:
    given = (name.partition(":")[0] for name in node.input if not name.startswith("^"))
    return (position for position, name in enumerate(given) if name == source)


def _read(node: Proto, nodes: Mapping[str, Proto]) -> tuple[ExampleFeature, ...] | None:
    """What a ParseExampleV2 parses (tensorflow/core/ops/parsing_ops.cc)."""
    keys = [_strings(nodes.get(name.partition(":")[0])) for name in node.input[2:5]]
    sparse, dense, ragged = keys
    if sparse is None or dense is None or ragged is None:
        return None
    shapes = [
        math.prod(max(dim.size, 1) for dim in shape.dim)
        for shape in node.attr["dense_shapes"].list.shape
    ]
    free = [*sparse, *ragged]
    types = [
        t for name in ("sparse_types", "ragged_value_types") for t in node.attr[name].list.type
    ]
    found = [ExampleFeature(key, enum, 1) for key, enum in zip(free, types, strict=True)]
    fixed = zip(dense, node.attr["Tdense"].list.type, shapes, strict=True)
    return (*found, *(ExampleFeature(*feature) for feature in fixed))


def _strings(node: Proto | None) -> list[str] | None:
    """The values of a constant."""
    if node is None or node.op != "Const":
        return None
    return [value.decode() for value in node.attr["value"].tensor.string_val]


def serialize_example(values: Mapping[ExampleFeature, Sequence[Any]]) -> bytes:
    """A serialized `tf.Example` of numbers (tensorflow/core/example/example.proto)."""
    features = b"".join(
        _field(1, _field(1, feature.key.encode()) + _field(2, _encode(feature, numbers)))
        for feature, numbers in sorted(values.items(), key=lambda item: item[0].key)
    )
    return _field(1, features)


def _encode(feature: ExampleFeature, numbers: Sequence[Any]) -> bytes:
    if feature.enum == _FLOAT:
        return _field(_FLOAT_LIST, _field(1, struct.pack(f"<{len(numbers)}f", *numbers)))
    return _field(_INT64_LIST, _field(1, b"".join(map(_varint, numbers))))


def _field(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(len(payload)) + payload


def _varint(number: int) -> bytes:
    number, encoded = int(number), bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
