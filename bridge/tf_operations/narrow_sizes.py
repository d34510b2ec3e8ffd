"""Functions whose sizes and indices are of 32 bits, as converters want them.

A graph computes sizes as int64. Tensors to which an operation, a loop or a branch gives the same
dtype are narrowed together, or not at all where one of them may be anything but a size: what a
caller passes or gets, bits, what was an unsigned integer or a float, and numbers beyond int32.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from bridge.tf_operations.signatures import input_attributes, operation_signature
from savedmodel.tensorflow_graph import FunctionName, GraphFunction, GraphNode, TensorFlowGraph
from xla_call_module.dtypes import DType, dtype_from_name

_INT64, _INT32 = (dtype_from_name(name, where="") for name in ("int64", "int32"))
_WIDE, _NARROW = np.iinfo(np.int64), np.iinfo(np.int32)
# Integers of these dtypes stay what they are, whatever integers they become.
_SMALL = frozenset({"bool", "int8", "int16", "uint8", "uint16"})
# Of operations that call functions: what their inputs and their outputs are of, and how many inputs
# come before those.
_CALLS: Mapping[str, tuple[str, str, int]] = {"While": ("T", "T", 0), "If": ("Tin", "Tout", 1)}
# Where a dtype stands: the function, the node or nothing, the attribute or `argument` and `result`,
# and the position in a list.
_Place = tuple[str, str, str, int]


def narrow_sizes(graph: TensorFlowGraph, *, is_wide: bool) -> TensorFlowGraph:
    """Return a graph with int32 in the place of int64 where these are sizes."""
    functions = {function.name: function for function in (graph.main, *graph.functions)}
    groups = _Groups(functions, is_wide=is_wide)
    for function in functions.values():
        groups.add(function)
    for kind, ends in (("argument", graph.main.arguments), ("result", graph.main.results)):
        for index in range(len(ends)):
            groups.keep((graph.main.name, "", kind, index))
    main, *others = (_narrowed(function, groups) for function in functions.values())
    return dataclasses.replace(graph, main=main, functions=tuple(others))


class _Groups:
    """The places of dtypes, of which those of one group have the same one."""

    def __init__(self, functions: Mapping[str, GraphFunction], *, is_wide: bool) -> None:
        self._functions, self._is_wide = functions, is_wide
        self._parents: dict[_Place, _Place] = {}
        self._kept: set[_Place] = set()

    def add(self, function: GraphFunction) -> None:
        """Add the places of a function."""
        tensors = {
            one.name: (function.name, "", "argument", index)
            for index, one in enumerate(function.arguments)
        }
        for node in function.nodes:
            tensors.update(_outputs(function.name, node))
        for node in function.nodes:
            self._add_node(function.name, node, tensors)
        for index, one in enumerate(function.results):
            self._join((function.name, "", "result", index), tensors.get(one.source))

    def is_narrow(self, place: _Place) -> bool:
        """Return whether what has its dtype at a place is a size."""
        return place in self._parents and self._find(place) not in self._kept

    def keep(self, place: _Place) -> None:
        """Let what has its dtype at a place be as wide as it is."""
        self._kept.add(self._find(place))

    def _add_node(self, function: str, node: GraphNode, tensors: Mapping[str, _Place]) -> None:
        inputs = [name for name in node.inputs if not name.startswith("^")]
        for name, place in zip(inputs, _inputs(function, node), strict=False):
            self._join(tensors.get(name), place)
        for place in (place for _, place in _outputs(function, node)):
            self._find(place)
        if node.op in _CALLS:
            arguments, results, _ = _CALLS[node.op]
            self._add_bodies(function, node, arguments, results)
        for key in self._kept_attributes(node):
            self.keep((function, node.name, key, 0))

    def _add_bodies(self, function: str, node: GraphNode, arguments: str, results: str) -> None:
        for key, value in node.attributes.items():
            if not isinstance(value, FunctionName):
                continue
            body = self._functions[value.name]
            for index in range(len(body.arguments)):
                place = (function, node.name, arguments, index)
                self._join((body.name, "", "argument", index), place)
            if key != "cond":
                for index in range(len(body.results)):
                    place = (function, node.name, results, index)
                    self._join((body.name, "", "result", index), place)

    def _kept_attributes(self, node: GraphNode) -> Iterator[str]:
        """Yield the attributes of a node that are no dtypes of sizes."""
        if operation_signature(node.op) is None and node.op not in _CALLS:
            yield from node.attributes
        if node.op == "Bitcast":
            yield from ("T", "type")
        if node.op.startswith("TensorList"):
            yield "element_dtype"
        if node.op == "Const" and not _fits(node.attributes["value"]):
            yield "dtype"
        if node.op == "Cast" and not self._is_size(node.attributes["SrcT"]):
            yield "DstT"
        if self._is_wide and node.op in ("Range", "ArgMax", "ArgMin", "TopKV2"):
            yield from ("Tidx", "output_type", "index_type")

    def _is_size(self, dtype: DType) -> bool:
        """Return whether what is cast to int64 has the numbers of sizes."""
        return dtype.name in _SMALL or (dtype == _INT32 and not self._is_wide)

    def _join(self, first: _Place | None, second: _Place | None) -> None:
        if first is None or second is None:
            return
        one, other = self._find(first), self._find(second)
        if one != other:
            self._parents[one] = other
            if one in self._kept:
                self._kept.add(other)

    def _find(self, place: _Place) -> _Place:
        self._parents.setdefault(place, place)
        while self._parents[place] != place:
            self._parents[place] = self._parents[self._parents[place]]
            place = self._parents[place]
        return place


def _inputs(function: str, node: GraphNode) -> list[_Place | None]:
    """Return the place of the dtype of each input of a node; None where it has no place."""
    if node.op in _CALLS:
        key, _, first = _CALLS[node.op]
        count = len(node.inputs) - first
        return [*[None] * first, *((function, node.name, key, index) for index in range(count))]
    return [
        None if key is None else (function, node.name, key, 0)
        for key in input_attributes(node.op, len(node.inputs))
    ]


def _outputs(function: str, node: GraphNode) -> Iterator[tuple[str, _Place]]:
    """Yield the outputs of a node by which others name them, with the places of their dtypes."""
    if node.op in _CALLS:
        key = _CALLS[node.op][1]
        for index in range(len(node.attributes[key])):
            yield f"{node.name}:output:{index}", (function, node.name, key, index)
        return
    signature = operation_signature(node.op)
    for output, key in () if signature is None else signature.outputs:
        if not key.startswith("["):
            yield f"{node.name}:{output}:0", (function, node.name, key, 0)


def _fits(value: Any) -> bool:
    """Return whether a constant is one of int32, or stands for the end of an array."""
    array = np.asarray(value)
    if array.dtype != np.int64:
        return True
    ends = (array == _WIDE.min) | (array == _WIDE.max)
    return bool((ends | ((array >= _NARROW.min) & (array <= _NARROW.max))).all())


def _narrowed(function: GraphFunction, groups: _Groups) -> GraphFunction:
    """Return a function with the dtypes of its groups, and without casts that change none."""
    same: dict[str, str] = {}
    nodes = []
    for node in function.nodes:
        inputs = tuple(same.get(name, name) for name in node.inputs)
        attributes = _narrowed_attributes(function.name, node, groups)
        if node.op == "Cast" and attributes["SrcT"] == attributes["DstT"]:
            same[f"{node.name}:y:0"] = inputs[0]
            continue
        nodes.append(dataclasses.replace(node, inputs=inputs, attributes=attributes))
    ends = {
        kind: tuple(
            dataclasses.replace(
                one,
                dtype=_dtype(one.dtype, (function.name, "", kind, index), groups),
                source=same.get(one.source, one.source),
            )
            for index, one in enumerate(given)
        )
        for kind, given in (("argument", function.arguments), ("result", function.results))
    }
    return dataclasses.replace(
        function, arguments=ends["argument"], nodes=tuple(nodes), results=ends["result"]
    )


def _narrowed_attributes(function: str, node: GraphNode, groups: _Groups) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for key, value in node.attributes.items():
        if isinstance(value, list):
            attributes[key] = [
                _dtype(one, (function, node.name, key, index), groups)
                for index, one in enumerate(value)
            ]
        else:
            attributes[key] = _dtype(value, (function, node.name, key, 0), groups)
    if node.op == "Const" and attributes["dtype"] != node.attributes["dtype"]:
        value = np.clip(attributes["value"], _NARROW.min, _NARROW.max)
        attributes["value"] = np.asarray(value, np.int32)
    return attributes


def _dtype(value: Any, place: _Place, groups: _Groups) -> Any:
    is_wide = isinstance(value, DType) and value == _INT64
    return _INT32 if is_wide and groups.is_narrow(place) else value
