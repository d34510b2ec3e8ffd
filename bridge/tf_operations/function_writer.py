"""The functions of TensorFlow's operations for a graph that has been built.

Nodes have the operations of `bridge.graphs` until here. Most are one of TensorFlow's; what nobody
uses is left out. The bodies of loops and branches become functions, which take what they see of the
graph around them as arguments.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bridge.graphs.tensor_graph import Node, TensorGraph
from bridge.tf_operations.linear_algebra import PACKED, PackedRead
from bridge.tf_operations.liveness import free_names, live_nodes
from bridge.tf_operations.operation_graph import VARIANT, Graph
from bridge.tf_operations.signatures import signature_of
from savedmodel.tensorflow_graph import FunctionName, GraphFunction, GraphNode, GraphTensor
from xla_call_module.dtypes import Array, DType, dtype_from_name
from xla_call_module.size_polynomials import is_static, numbers_of

# A constant of no more elements is in each function that needs it, and is no argument of it.
_MAX_REPEATED = 16
# What TensorFlow's own loops carry first, and tf2onnx takes every loop to carry: the number
# of the iteration, and the greatest number of them, which -1 leaves open. With what they begin.
_COUNTS: Mapping[str, int] = {"loop_counter": 0, "maximum_iterations": -1}
_STRING, _VARIANT = DType("string", 7, ""), DType("variant", 21, "")
_FLAG, _INT32, _INT64 = (dtype_from_name(n, where="") for n in ("bool", "int32", "int64"))
_NO_MASKS: Mapping[str, Any] = dict.fromkeys(
    ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"), 0
)


class FunctionWriter:
    """Writes the functions of one graph.

    Attributes:
        functions: those of the bodies of its loops and branches.
    """

    functions: list[GraphFunction]
    for_converters: bool

    def __init__(self, name: str, *, for_converters: bool = False) -> None:
        """Begin with the functions of a graph."""
        self.functions, self.for_converters = [], for_converters
        self._name = re.sub(r"\W", "_", name, flags=re.ASCII)
        self._names: set[str] = set()

    def main(self, graph: Graph) -> GraphFunction:
        """Return the function of the graph inside the outermost one."""
        outermost = graph.outer
        assert outermost is not None, "the graph is in an outermost one"
        inputs = [(one.name, one.dtype, one.shape) for one in outermost.inputs]
        nodes = [*outermost.nodes, *graph.nodes]
        return self._function(self.unique("main"), graph, nodes, inputs, graph.assertions)

    def body(
        self,
        kind: str,
        graph: Graph,
        inputs: Sequence[tuple[str, np.dtype[Any], Any]],
        captured: Sequence[tuple[str, np.dtype[Any], Any]],
        *,
        carries: bool = False,
        counts: bool = False,
    ) -> FunctionName:
        """Return the name of the function of a body, which is written."""
        name = self.unique(kind)
        arguments = [*inputs, *captured]
        passed = captured if carries else ()
        function = self._function(name, graph, graph.nodes, arguments, (), passed)
        if counts:
            function = _counting(function, returns=carries)
        self.functions.append(function)
        return FunctionName(name)

    def unique(self, kind: str) -> str:
        """Return a name of a function that no other one has."""
        name, number = f"{self._name}_{kind}", 0
        while name in self._names:
            number += 1
            name = f"{self._name}_{kind}_{number}"
        self._names.add(name)
        return name

    def _function(
        self,
        name: str,
        graph: Graph,
        nodes: Sequence[Node],
        inputs: Sequence[tuple[str, np.dtype[Any], Any]],
        assertions: Sequence[str],
        passed: Sequence[tuple[str, np.dtype[Any], Any]] = (),
    ) -> GraphFunction:
        results = [result.reference for result in graph.results]
        writer = _NodeWriter(self, graph)
        arguments = [writer.argument(*one) for one in inputs]
        for node in live_nodes(nodes, [*results, *assertions]):
            writer.write(node)
        controls = tuple(f"^{writer.node_of(each)}" for each in assertions)
        returned = [(writer.tensor(r.reference), r.dtype, r.shape) for r in graph.results]
        returned += [(writer.tensor(one), dtype, shape) for one, dtype, shape in passed]
        ends = [
            GraphTensor(
                f"result_{n}", _dtype(dtype), _static(shape), writer.end(source, dtype, controls)
            )
            for n, (source, dtype, shape) in enumerate(returned)
        ]
        return GraphFunction(name, tuple(arguments), tuple(writer.nodes), tuple(ends))


def _dtype(dtype: np.dtype[Any]) -> DType:
    if dtype == VARIANT:
        return _VARIANT
    return dtype_from_name(dtype.name, where="a node")


def _static(shape: Sequence[Any] | None) -> tuple[int | None, ...] | None:
    """Return a shape with None for dynamic sizes."""
    if shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else None for dim in shape)


class _NodeWriter:
    """Writes the nodes of one function."""

    functions: FunctionWriter
    graph: Graph
    nodes: list[GraphNode]

    def __init__(self, functions: FunctionWriter, graph: Graph) -> None:
        self.functions, self.graph, self.nodes = functions, graph, []
        self._tensors: dict[str, str] = {}
        self._constants: dict[Any, str] = {}
        self._names: set[str] = set()

    def argument(self, name: str, dtype: np.dtype[Any], shape: Any) -> GraphTensor:
        """Return an argument, to which the value of a name is."""
        text = self._unique(re.sub(r"\W", "_", name, flags=re.ASCII).strip("_") or "argument")
        self._tensors[name] = text
        return GraphTensor(text, _dtype(dtype), _static(shape))

    def tensor(self, name: str) -> str:
        """Return the tensor of a value, a constant if need be."""
        if name not in self._tensors:
            self._tensors[name] = self.constant(self.graph.initializers[name], name)
        return self._tensors[name]

    def node_of(self, name: str) -> str:
        """Return the name of the node of a value."""
        return self._tensors[name].split(":")[0]

    def constant(self, array: Any, name: str = "constant", dtype: DType | None = None) -> str:
        """Return a constant."""
        array = np.asarray(array)
        kind = _dtype(array.dtype) if dtype is None else dtype
        key = (
            (kind.name, array.shape, array.tobytes())
            if dtype is None and (array.nbytes < 64 or name == "constant")
            else name
        )
        if key not in self._constants:
            attributes = {"dtype": kind, "value": array}
            self._constants[key] = self.add("Const", name, (), "output", attributes)
        return self._constants[key]

    def vector(self, numbers: Sequence[int]) -> str:
        """Return a vector of int64."""
        return self.constant(np.array(numbers, np.int64))

    def number(self, number: int) -> str:
        """Return a scalar of int32, such as an axis."""
        return self.constant(np.array(number, np.int32))

    def add(
        self, op: str, name: str, inputs: Sequence[str], output: str, attributes: Mapping[str, Any]
    ) -> str:
        """Add a node; return its first output."""
        if op == "Const" and self.functions.for_converters:
            # In functions TensorFlow.js's converter renames what begins with a constant's name.
            name = f"Const/{name}"
        node = self._unique(re.sub(r"[^\w./-]", "_", name, flags=re.ASCII).lstrip("_/.-") or op)
        self.nodes.append(GraphNode(op, node, tuple(inputs), attributes))
        return f"{node}:{output}:0"

    def end(self, source: str, dtype: np.dtype[Any], controls: Sequence[str]) -> str:
        """Return a tensor that is the result of a function, after some nodes have run."""
        if not controls:
            return source
        return self.add("Identity", "result", (source, *controls), "output", {"T": _dtype(dtype)})

    def write(self, node: Node) -> None:
        """Add the nodes of a node of the graph."""
        special = _SPECIAL.get(node.op_type)
        if special is not None:
            special(self, node)
            return
        self.plain(node, [self.tensor(name) for name in node.inputs], node.attributes)

    def plain(self, node: Node, inputs: Sequence[str], attributes: Mapping[str, Any]) -> None:
        """Add the one operation that a node is."""
        signature = signature_of(node.op_type)
        assert signature is not None, f"{node.op_type} has a signature"
        dtypes = [self.graph.dtype_of(name) for name in node.inputs]
        bound: dict[str, Any] = {}
        if signature.inputs and signature.inputs[0].endswith("*"):
            repeated, *others = signature.inputs
            bound = {repeated[:-1]: _dtype(dtypes[0]), "N": len(dtypes)}
            pairs = [(text, np.dtype(np.int32)) for text in others]
        else:  # what is taken besides the inputs of the node is an axis
            more = [np.dtype(np.int32)] * (len(signature.inputs) - len(dtypes))
            pairs = list(zip(signature.inputs, [*dtypes, *more], strict=True))
        made = zip(signature.outputs, node.outputs, strict=False)
        pairs += [(text, self.graph.dtype_of(name)) for (_, text), name in made]
        for text, dtype in pairs:
            if not text.startswith("["):
                bound.setdefault(text, _dtype(dtype))
        extra = {
            key: _dtype(value) if isinstance(value, np.dtype) else value
            for key, value in attributes.items()
        }
        outputs = [output for output, _ in signature.outputs]
        self.named(node, signature.op, inputs, bound | extra, outputs)

    def named(
        self,
        node: Node,
        op: str,
        inputs: Sequence[str],
        attributes: Mapping[str, Any],
        outputs: Sequence[str],
    ) -> None:
        """Add an operation whose outputs are those of a node."""
        first = self.add(op, node.name, inputs, outputs[0] if outputs else "", attributes)
        text = first.split(":")[0]
        for output, name in zip(outputs or [""], node.outputs, strict=False):
            self._tensors[name] = f"{text}:{output}:0"

    def listed(
        self, node: Node, op: str, inputs: Sequence[str], attributes: Any, *, first: int = 0
    ) -> None:
        """Add an operation with one list of outputs, of which the node's begin somewhere."""
        text = self.add(op, node.name, inputs, "output", attributes).split(":")[0]
        for number, name in enumerate(node.outputs, first):
            self._tensors[name] = f"{text}:output:{number}"

    def alias(self, node: Node, tensor: str) -> None:
        """Let the output of a node be a tensor that is there."""
        self._tensors[node.outputs[0]] = tensor

    def captured(self, bodies: Sequence[Graph]) -> list[str]:
        """Return the names of what bodies take from outside, but for small constants."""
        names = dict.fromkeys(name for body in bodies for name in free_names(body))
        arrays = self.graph.initializers
        return [n for n in names if n not in arrays or arrays[n].size > _MAX_REPEATED]

    def _unique(self, name: str) -> str:
        candidate, number = name, 0
        while candidate.lower() in self._names:
            number += 1
            candidate = f"{name}_{number}"
        self._names.add(candidate.lower())
        return candidate


def _types(writer: _NodeWriter, names: Sequence[str]) -> list[tuple[str, np.dtype[Any], Any]]:
    """Return the names, dtypes and shapes of values."""
    graph = writer.graph
    rows = []
    for name in names:
        array = graph.initializers.get(name)
        shape = graph.shape_of(name) if array is None else array.shape
        rows.append((name, graph.dtype_of(name), shape))
    return rows


def _while(writer: _NodeWriter, node: Node) -> None:
    cond, body = node.attributes["cond"], node.attributes["body"]
    counts = writer.functions.for_converters
    captured = _types(writer, writer.captured([cond, body]))
    shapes = [_static(each.shape) for each in body.inputs]
    functions = {
        "cond": writer.functions.body("cond", cond, _inputs_of(cond), captured, counts=counts),
        "body": writer.functions.body(
            "body", body, _inputs_of(body), captured, carries=True, counts=counts
        ),
    }
    dtypes = [_dtype(dtype) for _, dtype, _ in [*_inputs_of(body), *captured]]
    attributes: dict[str, Any] = {
        **functions,
        "T": dtypes,
        "output_shapes": [*shapes, *(_static(shape) for *_, shape in captured)],
        "parallel_iterations": 10,
    }
    inputs = [writer.tensor(name) for name in (*node.inputs, *(name for name, *_ in captured))]
    if counts:
        attributes["T"] = [*[_INT32] * len(_COUNTS), *dtypes]
        attributes["output_shapes"] = [*[()] * len(_COUNTS), *attributes["output_shapes"]]
        inputs = [*map(writer.number, _COUNTS.values()), *inputs]
    # TensorFlow computes what is stateless and depends on constants alone when it prepares a
    # function, and there each iteration of a loop is a call inside of the one before, until the
    # stack ends (tensorflow/core/common_runtime/constant_folding.cc). What is stateful it leaves.
    writer.listed(node, "While", inputs, attributes, first=len(_COUNTS) if counts else 0)


def _counting(function: GraphFunction, *, returns: bool) -> GraphFunction:
    """Return a function of a loop that takes what TensorFlow's own loops have first."""
    taken = tuple(GraphTensor(name, _INT32, ()) for name in _COUNTS)
    nodes, ends = function.nodes, function.results
    if returns:
        counter, limit = _COUNTS
        one = GraphNode(
            "Const", f"Const/{counter}_one", (), {"dtype": _INT32, "value": np.array(1, np.int32)}
        )
        following = GraphNode(
            "AddV2", f"{counter}_next", (counter, f"{one.name}:output:0"), {"T": _INT32}
        )
        nodes = (*nodes, one, following)
        sources = (f"{following.name}:z:0", limit)
        ends = (
            *(GraphTensor(f"result_{n}", _INT32, (), source) for n, source in enumerate(sources)),
            *(
                dataclasses.replace(end, name=f"result_{n}")
                for n, end in enumerate(ends, len(sources))
            ),
        )
    return dataclasses.replace(
        function, arguments=(*taken, *function.arguments), nodes=nodes, results=ends
    )


def _inputs_of(graph: TensorGraph) -> list[tuple[str, np.dtype[Any], Any]]:
    return [(one.name, one.dtype, one.shape) for one in graph.inputs]


def _if(writer: _NodeWriter, node: Node) -> None:
    branches = {key: node.attributes[key] for key in ("then_branch", "else_branch")}
    captured = _types(writer, writer.captured(list(branches.values())))
    functions = {
        key: writer.functions.body(key, branch, (), captured) for key, branch in branches.items()
    }
    attributes = {
        **functions,
        "Tcond": _FLAG,
        "Tin": [_dtype(dtype) for _, dtype, _ in captured],
        "Tout": [_dtype(writer.graph.dtype_of(name)) for name in node.outputs],
        "output_shapes": [_static(writer.graph.shape_of(name)) for name in node.outputs],
    }
    inputs = [writer.tensor(name) for name in (*node.inputs, *(name for name, *_ in captured))]
    writer.listed(node, "If", inputs, attributes)  # a branch may have loops


def _slice(writer: _NodeWriter, node: Node) -> None:
    """Write StridedSlice, of which dimensions that stay whole are masked."""
    data, *names = node.inputs
    given = [writer.graph.initializers.get(name) for name in names]
    axes = given[2]
    assert axes is not None, "the axes of a slice are constants"
    steps = given[3] if len(given) > 3 else np.ones(len(axes), np.int64)
    assert steps is not None, "the steps of a slice are constants"
    positions = [int(axis) for axis in axes]
    dtype = _dtype(writer.graph.dtype_of(data))
    is_reversed = given[0] is not None and bool((given[0] == -1).all() and (steps == -1).all())
    if is_reversed and not dtype.name.startswith("float8"):
        inputs = [writer.tensor(data), writer.vector(positions)]
        writer.named(node, "ReverseV2", inputs, {"T": dtype, "Tidx": _INT64}, ["output"])
        return
    count = max(positions) + 1
    mask = sum(1 << axis for axis in range(count) if axis not in positions)
    begin, end = (
        _along_axes(writer, name, array, positions, count)
        for name, array in zip(names[:2], given[:2], strict=True)
    )
    strides = np.ones(count, np.int64)
    strides[positions] = steps
    if is_reversed:
        mask = (1 << count) - 1
    inputs = [writer.tensor(data), begin, end, writer.vector(strides.tolist())]
    attributes: dict[str, Any] = {
        "T": dtype,
        "Index": _INT64,
        **_NO_MASKS,
        "begin_mask": mask,
        "end_mask": mask,
    }
    writer.named(node, "StridedSlice", inputs, attributes, ["output"])


def _along_axes(
    writer: _NodeWriter, name: str, array: Array | None, axes: Sequence[int], count: int
) -> str:
    """Return numbers for all of the first dimensions, of which only those of some axes matter."""
    if array is not None:
        numbers = np.zeros(count, np.int64)
        numbers[list(axes)] = array
        return writer.vector(numbers.tolist())
    if list(axes) == list(range(count)):
        return writer.tensor(name)
    places = [axes.index(axis) if axis in axes else 0 for axis in range(count)]
    return _gather(writer, writer.tensor(name), places)


def _gather(writer: _NodeWriter, vector: str, places: Sequence[int]) -> str:
    inputs = [vector, writer.vector(places), writer.number(0)]
    attributes = {"Tparams": _INT64, "Tindices": _INT64, "Taxis": _INT32, "batch_dims": 0}
    return writer.add("GatherV2", "sizes/GatherV2", inputs, "output", attributes)


def _shape(writer: _NodeWriter, node: Node) -> None:
    (name,) = node.inputs
    key = f"shape of {name}"
    if key not in writer._tensors:
        attributes = {"T": _dtype(writer.graph.dtype_of(name)), "out_type": _INT64}
        inputs = [writer.tensor(name)]
        writer._tensors[key] = writer.add("Shape", node.name, inputs, "output", attributes)
    whole = writer._tensors[key]
    shape = writer.graph.shape_of(name)
    start, end = node.attributes["start"], node.attributes["end"]
    if shape is not None and (start, end) == (0, len(shape)):
        writer.alias(node, whole)
        return
    inputs = [whole, *(writer.vector([number]) for number in (start, end, 1))]
    attributes = {"T": _INT64, "Index": _INT64, **_NO_MASKS}
    writer.named(node, "StridedSlice", inputs, attributes, ["output"])


def _unsqueeze(writer: _NodeWriter, node: Node) -> None:
    data, axes = node.inputs
    positions = writer.graph.initializers[axes].tolist()
    shape = writer.graph.shape_of(node.outputs[0])
    dtype = _dtype(writer.graph.dtype_of(data))
    tensor = writer.tensor(data)
    if len(positions) > 1 and shape is not None and is_static(shape):
        inputs = [tensor, writer.vector(numbers_of(shape))]
        attributes = {"T": dtype, "Tshape": _INT64}
        writer.named(node, "Reshape", inputs, attributes, ["output"])
        return
    for axis in sorted(positions):
        inputs = [tensor, writer.number(axis)]
        tensor = writer.add("ExpandDims", node.name, inputs, "output", {"T": dtype, "Tdim": _INT32})
    writer.alias(node, tensor)


def _pad(writer: _NodeWriter, node: Node) -> None:
    """Write PadV2, whose paddings are a matrix with a row for each dimension."""
    data, sizes, *fillings = node.inputs
    dtype = writer.graph.dtype_of(data)
    filling = writer.tensor(fillings[0]) if fillings else writer.constant(np.zeros((), dtype))
    known = writer.graph.initializers.get(sizes)
    if known is not None:
        paddings = writer.constant(
            np.ascontiguousarray(known.reshape(2, -1).T), f"{sizes}/paddings"
        )
    else:
        inputs = [writer.tensor(sizes), writer.vector([2, -1])]
        attributes = {"T": _INT64, "Tshape": _INT64}
        rows = writer.add("Reshape", "paddings/Reshape", inputs, "output", attributes)
        inputs = [rows, writer.constant(np.array([1, 0], np.int32))]
        attributes = {"T": _INT64, "Tperm": _INT32}
        paddings = writer.add("Transpose", "paddings/Transpose", inputs, "y", attributes)
    inputs = [writer.tensor(data), paddings, filling]
    attributes = {"T": _dtype(dtype), "Tpaddings": _INT64}
    writer.named(node, "PadV2", inputs, attributes, ["output"])


def _scatter_nd(writer: _NodeWriter, node: Node) -> None:
    inputs = [writer.tensor(name) for name in node.inputs]
    dtypes = [_dtype(writer.graph.dtype_of(name)) for name in node.inputs]
    attributes = {"T": dtypes[0], "Tindices": dtypes[1]}
    writer.named(node, "TensorScatterUpdate", inputs, attributes, ["output"])


def _axis_input(key: str) -> Callable[[_NodeWriter, Node], None]:
    """Write an operation that takes an axis, or an order of axes, as its last input."""

    def write(writer: _NodeWriter, node: Node) -> None:
        axis = writer.constant(np.array(node.attributes[key], np.int32))
        rest = {name: value for name, value in node.attributes.items() if name != key}
        writer.plain(node, [*map(writer.tensor, node.inputs), axis], rest)

    return write


def _gather_elements(writer: _NodeWriter, node: Node) -> None:
    """Write GatherV2, of one element in each row of the last dimension."""
    batch = node.attributes["axis"]
    inputs = [*map(writer.tensor, node.inputs), writer.number(batch)]
    data, index = (_dtype(writer.graph.dtype_of(name)) for name in node.inputs)
    attributes = {"Tparams": data, "Tindices": index, "Taxis": _INT32, "batch_dims": batch}
    writer.named(node, "GatherV2", inputs, attributes, ["output"])


def _cast(writer: _NodeWriter, node: Node) -> None:
    writer.plain(node, [writer.tensor(node.inputs[0])], {"Truncate": False})


def _reduction(writer: _NodeWriter, node: Node) -> None:
    data, axes = node.inputs
    rest = {"keep_dims": bool(node.attributes.get("keepdims", 0)), "Tidx": _INT32}
    # TensorFlow's converter to TFLite knows no other axes.
    positions = writer.constant(writer.graph.initializers[axes].astype(np.int32))
    writer.plain(node, [writer.tensor(data), positions], rest)


def _reshape(writer: _NodeWriter, node: Node) -> None:
    writer.plain(node, list(map(writer.tensor, node.inputs)), {})


def _squeeze(writer: _NodeWriter, node: Node) -> None:
    """Write Squeeze, whose dimensions are an attribute."""
    data, *axes = node.inputs
    dims = [int(axis) for name in axes for axis in writer.graph.initializers[name]]
    attributes = {"T": _dtype(writer.graph.dtype_of(data)), "squeeze_dims": dims}
    writer.named(node, "Squeeze", [writer.tensor(data)], attributes, ["output"])


def _cumulative(writer: _NodeWriter, node: Node) -> None:
    rest = {"reverse": bool(node.attributes.get("reverse", 0)), "exclusive": False}
    writer.plain(node, list(map(writer.tensor, node.inputs)), rest)


def _assert(writer: _NodeWriter, node: Node) -> None:
    """Write Assert, which prints values behind the message, where they are #1, #2 and so on."""
    condition, *values = map(writer.tensor, node.inputs)
    dtypes = [_dtype(writer.graph.dtype_of(name)) for name in node.inputs[1:]]
    message, count = re.subn(
        r"\{(\d+)\}", lambda match: f"#{int(match[1]) + 1}", node.attributes["message"]
    )
    if count:
        message += f" In this call {', '.join(f'#{n + 1}' for n in range(len(values)))} are:"
    text = np.array(message.encode(), object)
    inputs = [condition, writer.constant(text, f"{node.name}/message", _STRING), *values]
    writer.named(node, "Assert", inputs, {"T": [_STRING, *dtypes], "summarize": 3}, [])


def _packed(writer: _NodeWriter, node: Node) -> None:
    del writer, node
    raise PackedRead


_SPECIAL: Mapping[str, Callable[[_NodeWriter, Node], None]] = {
    "All": _reduction,
    "Any": _reduction,
    "ArgMax": _axis_input("axis"),
    "ArgMin": _axis_input("axis"),
    "Assert": _assert,
    "Cast": _cast,
    "Concat": _axis_input("axis"),
    "CumProd": _cumulative,
    "CumSum": _cumulative,
    "Gather": _axis_input("axis"),
    "GatherElements": _gather_elements,
    "If": _if,
    "Pad": _pad,
    PACKED: _packed,
    "ReduceMax": _reduction,
    "ReduceMin": _reduction,
    "ReduceProd": _reduction,
    "ReduceSum": _reduction,
    "Reshape": _reshape,
    "ScatterND": _scatter_nd,
    "Shape": _shape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Transpose": _axis_input("perm"),
    "Unsqueeze": _unsqueeze,
    "While": _while,
}
