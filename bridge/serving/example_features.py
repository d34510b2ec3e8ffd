"""The features that a signature reads from serialized `tf.Example`s, found in its graph."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bridge.serving.messages import Example
from savedmodel.protos.schema import Proto

# tensorflow/core/framework/types.proto
_FLOAT, _INT64 = 1, 9
_PARSE = "ParseExampleV2"
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})


@dataclass(frozen=True, slots=True)
class ExampleFeature:
    """A feature of a `tf.Example`.

    Attributes:
        enum: the number of its dtype in TensorFlow's `DataType`: float32, int64 or string.
        count: the number of elements in a row; 1 where it varies.
    """

    key: str
    enum: int
    count: int

    @property
    def is_float(self) -> bool:
        """Return whether the feature has float32."""
        return self.enum == _FLOAT

    @property
    def is_number(self) -> bool:
        """Return whether numbers can be made up for it."""
        return self.enum in (_FLOAT, _INT64)


def features_of(graph: Proto, tensor: str) -> tuple[ExampleFeature, ...] | None:
    """Return the features that are parsed from a string tensor; None where none are."""
    functions = {function.signature.name: function for function in graph.library.function}
    return _follow(graph.node, tensor.partition(":")[0], functions)


def _follow(
    nodes: Sequence[Proto], source: str, functions: Mapping[str, Proto]
) -> tuple[ExampleFeature, ...] | None:
    """Return the features that are parsed from a node or an argument of one function body."""
    for node in nodes:
        for position in _positions(node, source):
            features = None
            if node.op == _PARSE and position == 0:
                features = _read(node, {other.name: other for other in nodes})
            elif node.op == "Identity":
                features = _follow(nodes, node.name, functions)
            elif node.op in _CALLS and (inner := functions.get(node.attr["f"].func.name)):
                argument = inner.signature.input_arg[position].name
                features = _follow(inner.node_def, argument, functions)
            if features is not None:
                return features
    return None


def _positions(node: Proto, source: str) -> Iterator[int]:
    given = (name.partition(":")[0] for name in node.input if not name.startswith("^"))
    return (position for position, name in enumerate(given) if name == source)


def _read(node: Proto, nodes: Mapping[str, Proto]) -> tuple[ExampleFeature, ...] | None:
    """Return the features of a ParseExampleV2 node (tensorflow/core/ops/parsing_ops.cc)."""
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
    varying = [ExampleFeature(key, enum, 1) for key, enum in zip(free, types, strict=True)]
    fixed = zip(dense, node.attr["Tdense"].list.type, shapes, strict=True)
    return (*varying, *(ExampleFeature(*feature) for feature in fixed))


def _strings(node: Proto | None) -> list[str] | None:
    """Return the strings of a constant."""
    if node is None or node.op != "Const":
        return None
    return [value.decode() for value in node.attr["value"].tensor.string_val]


def serialize_example(values: Mapping[ExampleFeature, Sequence[Any]]) -> bytes:
    """Return a serialized `tf.Example` with numbers for each feature."""
    example: Any = Example()
    for feature, numbers in values.items():
        kind = "float_list" if feature.is_float else "int64_list"
        getattr(example.features.feature[feature.key], kind).value.extend(numbers)
    data: bytes = example.SerializeToString(deterministic=True)
    return data
