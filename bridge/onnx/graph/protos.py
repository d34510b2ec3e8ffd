"""The messages of ONNX for a graph that has been built, rewritten by how its values are used."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper

from bridge.graphs.tensor_graph import Node
from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.graph.kernels import elem_type
from xla_call_module.dtypes import Array
from xla_call_module.size_polynomials import Dim, Element, Measured, atoms_of

_CONVOLUTIONS = ("Conv", "ConvTranspose")
_SLICE = ("starts", "ends", "axes", "steps")


def to_graph(graph: Graph, name: str) -> tuple[onnx.GraphProto, dict[str, Array]]:
    """The message of the graph inside the outermost one, and the initializers that it is to have.

    Each result is the output of a node, or an initializer, under the result's name.
    """
    outermost = graph.outer
    assert outermost is not None, "the graph is in an outermost one"
    nodes = [*outermost.nodes, *graph.nodes]
    made = {output for node in nodes for output in node.outputs}
    names: dict[str, str] = {}
    copies: list[Node] = []
    for result in graph.results:
        if result.reference in made and result.reference not in names:
            names[result.reference] = result.name
        else:
            copies.append(Node("Identity", result.name, (result.reference,), (result.name,), {}))
    writer = _Writer(names)
    results = [result.name for result in graph.results]
    live = _split(graph, writer.live([*nodes, *copies], results))
    uses = (name for node in live for name in writer.uses(node))
    finished, arrays = _finish(graph, live, uses)
    live = writer.live(finished, results)
    proto = helper.make_graph(
        [writer.node(node) for node in live],
        name,
        [_value_info(i.name, i.dtype, i.shape) for i in outermost.inputs],
        [_value_info(r.name, r.dtype, r.shape) for r in graph.results],
    )
    used = {name for node in live for name in writer.uses(node)}
    return proto, {key: array for key, array in arrays.items() if key in used}


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes nodes.

    Attributes:
        names: the names of the values that are outputs.
    """

    names: Mapping[str, str]

    def uses(self, node: Node) -> Iterator[str]:
        """Yield every value that a node takes, or that a graph in it takes from outside."""
        yield from (self.names.get(name, name) for name in node.inputs)
        for body in (value for value in node.attributes.values() if isinstance(value, Graph)):
            for inner in self.live_in(body):
                yield from self.uses(inner)
            yield from (self.names.get(r.reference, r.reference) for r in body.results)

    def live_in(self, body: Graph) -> list[Node]:
        """The nodes of a body that are used."""
        return _split(body, self.live(body.nodes, [result.reference for result in body.results]))

    def live(self, nodes: Sequence[Node], results: Sequence[str]) -> list[Node]:
        """The nodes that some results depend on, in their order."""
        needed = {self.names.get(name, name) for name in results}
        live = []
        for node in reversed(nodes):
            if any(self.names.get(output, output) in needed for output in node.outputs):
                live.append(node)
                needed.update(self.uses(node))
        return live[::-1]

    def node(self, node: Node) -> onnx.NodeProto:
        """The message of a node."""
        made = helper.make_node(
            node.op_type,
            [self.names.get(name, name) for name in node.inputs],
            [self.names.get(name, name) for name in node.outputs],
            node.name,
        )
        shaped = node.op_type == "Scan"  # of which the runtime asks for the rank of all results
        made.attribute.extend(
            self._attribute(*pair, shaped=shaped) for pair in sorted(node.attributes.items())
        )
        return made

    def _attribute(self, key: str, value: Any, *, shaped: bool) -> onnx.AttributeProto:
        if isinstance(value, Graph):
            return helper.make_attribute(key, self._body(key, value, shaped=shaped))
        if isinstance(value, np.dtype):
            return helper.make_attribute(key, elem_type(value))
        if isinstance(value, np.ndarray):
            return helper.make_attribute(key, to_tensor("", value))
        if isinstance(value, Sequence) and not len(value):
            return helper.make_attribute(key, value, attr_type=AttributeProto.INTS)
        return helper.make_attribute(key, value)

    def _body(self, name: str, body: Graph, *, shaped: bool) -> onnx.GraphProto:
        """The message of a body, each of whose results is an output of a node of its own."""
        nodes = self.live_in(body)
        made = {output for node in nodes for output in node.outputs}
        messages, outputs = [self.node(node) for node in nodes], []
        for number, result in enumerate(body.results):
            reference = self.names.get(result.reference, result.reference)
            output = reference
            if result.reference not in made:
                output = body.unique(f"{reference}/{name}_{number}")
                messages.append(helper.make_node("Identity", [reference], [output], output))
            made.discard(result.reference)
            shape = [n if isinstance(n, int) else None for n in result.shape] if shaped else None
            outputs.append(helper.make_tensor_value_info(output, elem_type(result.dtype), shape))
        inputs = [_value_info(i.name, i.dtype, i.shape) for i in body.inputs]
        return helper.make_graph(messages, name, inputs, outputs)


def to_tensor(name: str, array: Array) -> TensorProto:
    """The message of an array."""
    return TensorProto(
        name=name,
        dims=array.shape,
        data_type=elem_type(array.dtype),
        raw_data=np.ascontiguousarray(array).tobytes(),
    )


def _value_info(name: str, dtype: np.dtype[Any], shape: Sequence[Dim | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem_type(dtype), [_dim(dim) for dim in shape])


def _dim(dim: Dim | str) -> int | str | None:
    """A number, or the text of what follows from the dimension variables."""
    if isinstance(dim, int | str):
        return dim
    return None if any(isinstance(atom, Measured | Element) for atom in atoms_of(dim)) else str(dim)


def _finish(
    graph: Graph, nodes: Sequence[Node], uses: Iterable[str]
) -> tuple[list[Node], dict[str, Array]]:
    """The nodes and the initializers, of which those that are only used transposed are so.

    The names in `uses` are those of all values that nodes and graphs in them take.
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


def _split(graph: Graph, nodes: Sequence[Node]) -> list[Node]:
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
