"""The report of what a SavedModel computes besides calls of modules: TensorFlow's own operations.

It is made of the messages of the file, whose graphs are counted and not followed any further, so
that there is one for the file of any writer.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bridge.inspecting.order_report import OrderReport
from bridge.inspecting.tensor_report import TensorReport, dtype_name
from bridge.inspecting.written_file import plain_signature
from bridge.loading.signature_calls import with_inferred_signature
from savedmodel.files.model_folder import ModelFolder
from savedmodel.gradient_orders import called_functions, order_of_functions
from savedmodel.model import INTERNAL_SIGNATURE
from savedmodel.protos.schema import Proto
from savedmodel.read import read_proto, served_graphs
from xla_call_module.call import CallModule
from xla_call_module.dtypes import DTYPES
from xla_call_module.errors import FormatError
from xla_call_module.node import decode_node, description_allowance, is_call

__all__ = [
    "GraphCall",
    "GraphReport",
    "GraphSignature",
    "GraphVariable",
    "operations_behind_signatures",
    "report_of_graph",
    "variables_of_graph",
]

# Nodes that compute nothing: they name tensors, call functions or read variables.
_STRUCTURE = frozenset({
    "Identity", "IdentityN", "NoOp", "PartitionedCall", "Placeholder", "ReadVariableOp",
    "StatefulPartitionedCall", "VarHandleOp", "Variable", "VariableV2",
})  # fmt: skip
_VARIABLES = frozenset({"VarHandleOp", "Variable", "VariableV2"})
_SIZES = {dtype.enum: dtype.numpy.itemsize for dtype in DTYPES}


@dataclass(frozen=True, slots=True)
class GraphSignature:
    """A signature that computes something besides calls of modules.

    Attributes:
        key: the key of the signature.
        inputs: the inputs, sorted by name.
        outputs: the outputs, sorted by name.
        operations: the number of each of TensorFlow's operations behind it, in each function once,
            the most frequent first.
    """

    key: str
    inputs: tuple[TensorReport, ...]
    outputs: tuple[TensorReport, ...]
    operations: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class GraphCall:
    """An XlaCallModule node that is among other operations.

    Attributes:
        node: the name of the node.
        place: the function that holds it; empty for the main graph.
        gradient_order: the order of the gradient that it is in; 0 for none.
        module: the report of its module.
    """

    node: str
    place: str
    gradient_order: int
    module: OrderReport


@dataclass(frozen=True, slots=True)
class GraphVariable:
    """A variable, as the graph describes it.

    Attributes:
        name: the name that TensorFlow gave it.
        dtype: the dtype in TensorFlow, also one that JAX does not have.
        shape: the shape; 0 for what is unknown.
        bytes: the number of bytes of its value; 0 where a dtype has no size.
        trainable: whether it is among TensorFlow's trainable variables.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    trainable: bool


@dataclass(frozen=True, slots=True)
class GraphReport:
    """The graph of a file that has other operations than calls of modules.

    Attributes:
        signatures: the signatures that compute something besides calls of modules.
        operations: the number of each operation in all graphs and functions.
        functions: for each function the number of its nodes, the largest first.
        calls: the XlaCallModule nodes that are in no other signature.
    """

    signatures: tuple[GraphSignature, ...]
    operations: Mapping[str, int]
    functions: Mapping[str, int]
    calls: tuple[GraphCall, ...]


def report_of_graph(
    folder: ModelFolder,
    report_order: Callable[[CallModule], OrderReport],
    *,
    known: Collection[str] = (),
) -> GraphReport:
    """Return the report of the graph of a SavedModel."""
    meta_graph = _served(folder)
    library = meta_graph.graph_def.library
    bodies = {function.signature.name: function.node_def for function in library.function}
    counts = {name: Counter(str(node.op) for node in nodes) for name, nodes in bodies.items()}
    main = Counter(str(node.op) for node in meta_graph.graph_def.node)
    below = {name: called_functions(nodes, bodies) for name, nodes in bodies.items()}
    signatures = []
    for key, total in operations_behind_signatures(meta_graph, known=known).items():
        plain = plain_signature(key, meta_graph.signature_def[key])
        signatures.append(
            GraphSignature(key, plain.inputs, plain.outputs, _computing(total, bodies))
        )
    taken = _reached(_functions_of(meta_graph, known, bodies), below)
    calls = _calls(meta_graph, report_order, without=taken if known else ())
    return GraphReport(
        signatures=tuple(signatures),
        operations=_computing(sum(counts.values(), main), bodies),
        functions=dict(sorted(((n, len(b)) for n, b in bodies.items()), key=lambda i: -i[1])),
        calls=tuple(sorted(calls, key=lambda call: call.gradient_order)),
    )


def operations_behind_signatures(
    meta_graph: Proto, *, known: Collection[str] = ()
) -> dict[str, Counter[str]]:
    """Return the number of each operation behind a signature, in each function once."""
    library = meta_graph.graph_def.library
    bodies = {function.signature.name: function.node_def for function in library.function}
    below = {name: called_functions(nodes, bodies) for name, nodes in bodies.items()}
    operations: dict[str, Counter[str]] = {}
    for key, definition in sorted(meta_graph.signature_def.items()):
        if key in known or key.startswith(INTERNAL_SIGNATURE):
            continue
        nodes = _behind(meta_graph.graph_def.node, definition)
        reached = _reached(called_functions(nodes, bodies), below)
        several = [nodes, *(bodies[name] for name in reached)]
        operations[key] = Counter(str(node.op) for nodes in several for node in nodes)
    return operations


def _served(folder: ModelFolder) -> Proto:
    graphs = served_graphs(read_proto(folder))
    if not graphs:
        raise FormatError(f"{folder.path} has no graph with the tag 'serve'.")
    return graphs[0]


def _behind(nodes: Sequence[Proto], definition: Proto) -> list[Proto]:
    """Return the nodes of the main graph that the outputs of a signature depend on."""
    by_name = {node.name: node for node in nodes}
    pending = [_node_of(info.name) for info in definition.outputs.values()]
    functions: dict[str, Proto] = {}
    while pending:
        name = pending.pop()
        if name in by_name and name not in functions:
            functions[name] = by_name[name]
            pending.extend(_node_of(reference) for reference in by_name[name].input)
    return [*functions.values()]


def _node_of(reference: str) -> str:
    return reference.removeprefix("^").partition(":")[0]


def _functions_of(
    meta_graph: Proto, keys: Collection[str], bodies: Mapping[str, object]
) -> set[str]:
    """Return the functions that the signatures of some keys call in the main graph."""
    nodes = [
        node
        for key in keys
        if key in meta_graph.signature_def
        for node in _behind(meta_graph.graph_def.node, meta_graph.signature_def[key])
    ]
    return called_functions(nodes, bodies)


def _reached(names: Collection[str], below: Mapping[str, set[str]]) -> set[str]:
    """Return functions and all that they call."""
    reached: set[str] = set()
    pending = [*names]
    while pending:
        name = pending.pop()
        if name not in reached:
            reached.add(name)
            pending.extend(below[name])
    return reached


def _computing(counts: Mapping[str, int], functions: Collection[str]) -> dict[str, int]:
    """Return the counts of operations that compute something, the most frequent first."""
    items = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return {name: n for name, n in items if name not in _STRUCTURE and name not in functions}


def _calls(
    meta_graph: Proto,
    report_order: Callable[[CallModule], OrderReport],
    *,
    without: Collection[str],
) -> Iterator[GraphCall]:
    """Yield the XlaCallModule nodes of functions and of the main graph; equal ones once."""
    orders, allowance = order_of_functions(meta_graph), description_allowance()
    infer = functools.cache(with_inferred_signature)
    places: list[tuple[str, Sequence[Proto]]] = [("", meta_graph.graph_def.node)]
    library = meta_graph.graph_def.library
    places += [(function.signature.name, function.node_def) for function in library.function]
    seen: set[tuple[CallModule, int]] = set()
    for place, nodes in places:
        for node in nodes if place not in without else ():
            if not is_call(node):
                continue
            call, order = decode_node(node, allowance=allowance), orders.get(place, 0)
            # Saving a model writes each of its functions several times.
            if not call.results or (call, order) in seen:
                continue
            seen.add((call, order))
            module = dataclasses.replace(report_order(infer(call)), order=order)
            yield GraphCall(str(node.name), place, order, module)


def variables_of_graph(folder: ModelFolder) -> list[GraphVariable]:
    """Return the variables of a SavedModel of any writer, as its graphs say of them."""
    meta_graph = _served(folder)
    if meta_graph.HasField("object_graph_def"):
        objects = [n.variable for n in meta_graph.object_graph_def.nodes if n.HasField("variable")]
        return [_variable(v.name, v.dtype, v.shape, trainable=v.trainable) for v in objects]
    handles = [node for node in meta_graph.graph_def.node if node.op in _VARIABLES]
    return [
        _variable(h.name, h.attr["dtype"].type, h.attr["shape"].shape, trainable=True)
        for h in handles
    ]


def _variable(name: str, dtype: int, proto: Proto, *, trainable: bool) -> GraphVariable:
    shape = tuple(max(int(dim.size), 0) for dim in proto.dim)
    size = math.prod(shape) * _SIZES.get(dtype, 0)
    return GraphVariable(str(name), dtype_name(dtype), shape, size, bool(trainable))
