"""The rewrites of a finished graph, which depend on the uses of each value."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from bridge.onnx.graph.graph_builder import Graph, Node
from xla_call_module.dtypes import Array

__all__ = ["finish", "split"]

_CONVOLUTIONS = ("Conv", "ConvTranspose")
_SLICE = ("starts", "ends", "axes", "steps")


def finish(
    graph: Graph, nodes: Sequence[Node], uses: Iterable[str]
) -> tuple[list[Node], dict[str, Array]]:
    """The nodes, and the initializers, with those turned that are only used so.

    Args:
        graph: the graph that the nodes were built in.
        nodes: the nodes of the outermost graph, in their order.
        uses: the names of all values that nodes and graphs in them take.
    """
    counts = Counter(uses)
    kept, aliases, arrays = _transpose_weights(nodes, counts, graph.initializers)
    renamed = [
        dataclasses.replace(node, inputs=tuple(aliases.get(name, name) for name in node.inputs))
        for node in kept
    ]
    return _with_biases(graph, renamed, counts), arrays


def _transpose_weights(
    nodes: Sequence[Node], counts: Mapping[str, int], initializers: Mapping[str, Array]
) -> tuple[list[Node], dict[str, str], dict[str, Array]]:
    """Transpose weights that are only used so, under their own names."""
    arrays, aliases, kept = dict(initializers), {}, []
    here = Counter(name for node in nodes for name in node.inputs)
    for node in nodes:
        name, output = node.inputs[0] if node.inputs else "", node.outputs[0]
        only_so = node.op_type == "Transpose" and name in arrays and counts[name] == 1
        if only_so and 0 < counts[output] == here[output]:  # nobody in a graph inside knows it
            arrays[name] = np.ascontiguousarray(arrays[name].transpose(node.attributes["perm"]))
            aliases[output] = name
        else:
            kept.append(node)
    return kept, aliases, arrays


def _with_biases(graph: Graph, nodes: Sequence[Node], counts: Mapping[str, int]) -> list[Node]:
    """Join Conv and the Add of a bias behind it."""
    made = {node.outputs[0]: node for node in nodes}
    replaced: dict[str, Node] = {}
    dropped: set[str] = set()
    for node in nodes:
        for place, name in enumerate(node.inputs if node.op_type == "Add" else ()):
            conv = made.get(name)
            if conv is None or counts[name] != 1 or conv.op_type not in _CONVOLUTIONS:
                continue
            bias = _bias(graph, conv, made.get(node.inputs[1 - place]))
            if bias and len(conv.inputs) == 2:
                dropped.add(name)
                replaced[node.outputs[0]] = dataclasses.replace(
                    conv, inputs=(*conv.inputs, bias), outputs=node.outputs
                )
                break
    joined = [replaced.get(node.outputs[0], node) for node in nodes]
    return [node for node in joined if node.outputs[0] not in dropped]


def _bias(graph: Graph, conv: Node, column: Node | None) -> str:
    """Return the name of the bias that is added to each feature; empty for any other sum."""
    if column is None or column.op_type != "Unsqueeze":
        return ""
    row, axes = column.inputs
    of_row, of_conv = graph.shape_of(row), graph.shape_of(conv.outputs[0])
    if of_row is None or of_conv is None or of_row != of_conv[1:2]:
        return ""
    behind = graph.initializers.get(axes)
    if behind is None or behind.tolist() != list(range(1, len(of_conv) - 1)):
        return ""
    return row


def split(graph: Graph, nodes: Sequence[Node]) -> list[Node]:
    """The nodes, with slices that together are all of a value made by one Split."""
    groups: dict[tuple[str, int], list[tuple[int, int, Node]]] = {}
    for node in nodes:
        if (part := _part(graph, node)) is not None:
            axis, start, end = part
            groups.setdefault((node.inputs[0], axis), []).append((start, end, node))
    replaced: dict[str, Node | None] = {}
    for (name, axis), parts in groups.items():
        ordered = sorted(parts, key=lambda part: part[0])
        if not _is_all(graph, name, axis, [(start, end) for start, end, _ in ordered]):
            continue
        sizes = graph.reference(graph.vector([end - start for start, end, _ in ordered]))
        first = parts[0][2]
        outputs = tuple(node.outputs[0] for _, _, node in ordered)
        replaced.update(dict.fromkeys(outputs))
        replaced[first.outputs[0]] = Node(
            "Split", f"{first.name}/Split", (name, sizes), outputs, {"axis": axis}
        )
    changed = [replaced.get(node.outputs[0], node) for node in nodes]
    return [node for node in changed if node is not None]


def _part(graph: Graph, node: Node) -> tuple[int, int, int] | None:
    """The dimension, start and end of a slice along one dimension."""
    if node.op_type != "Slice":
        return None
    arrays = [graph.initializers.get(name) for name in node.inputs[1:]]
    numbers = [array.tolist() for array in arrays if array is not None and array.size == 1]
    if len(numbers) != len(_SLICE) or numbers[-1] != [1]:
        return None
    (start,), (end,), (axis,), _ = numbers
    return axis, start, end


def _is_all(graph: Graph, name: str, axis: int, parts: Sequence[tuple[int, int]]) -> bool:
    """Return whether parts follow on each other from the beginning of a dimension to its end."""
    shape = graph.shape_of(name)
    if shape is None or len(parts) == 1 or not 0 <= axis < len(shape):
        return False
    starts, ends = zip(*parts, strict=True)
    return (*starts, shape[axis]) == (0, *ends)
