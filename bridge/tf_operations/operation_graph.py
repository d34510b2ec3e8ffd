"""The graph of TensorFlow's operations while it is built, of dtypes that have kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bridge.graphs import nodes
from bridge.graphs.tensor_graph import Input, Inputs, Results, TensorGraph
from bridge.graphs.values import Value, constant_array, of_size
from bridge.tf_operations import pooling
from bridge.tf_operations.ranks import within_kernel
from bridge.tf_operations.signatures import computation_dtype, has_kernel, max_rank, signature_of
from xla_call_module.size_polynomials import Dim, Shape, is_static

VARIANT = np.dtype(object)  # of a value that is a list of tensors

_SCATTERS = {"none": "TensorScatterUpdate", "add": "TensorScatterAdd", "max": "TensorScatterMax",
             "min": "TensorScatterMin"}  # fmt: skip
# TensorFlow converts between float8 and these alone.
_FLOAT8_SOURCES = frozenset({"bfloat16", "float16", "float32", "float64"})
_INT64 = np.dtype(np.int64)
_FLAG = np.dtype(bool)


@dataclass(frozen=True, slots=True)
class ListedRow:
    """The row that an iteration writes into an array, which is a list of rows until the end."""

    row: Value
    index: Value

    @property
    def stored(self) -> np.dtype[Any]:
        """The dtype of the rows in the list."""
        return computation_dtype("TensorListStack", self.row.dtype)

    def reserve(self, graph: Graph, array: Value) -> Value:
        """Return a list for all rows of an array."""
        count = nodes.reshape(graph, graph.vector(array.shape[:1]), ())
        inputs = [graph.vector(array.shape[1:]), graph.expand(nodes.cast(graph, count, np.int32))]
        return graph.node(
            "TensorListReserve", inputs, shape=(), dtype=VARIANT, element_dtype=self.stored
        )

    def write(self, graph: Graph, name: str) -> Value:
        """Return the list of a name with the row in it."""
        rows = Value(VARIANT, (), (), name)
        row = graph.cast(self.row, self.stored)
        inputs = [rows, graph.expand(self.index), graph.expand(row)]
        return graph.node("TensorListSetItem", inputs, shape=(), element_dtype=self.stored)

    def stack(self, graph: Graph, rows: Value, array: Value) -> Value:
        """Return an array of the rows in a list."""
        shape = nodes.cast(graph, graph.vector(array.shape[1:]), np.int32)
        made = graph.node(
            "TensorListStack",
            [rows, graph.expand(shape)],
            shape=array.shape,
            dtype=self.stored,
            element_dtype=self.stored,
            num_elements=array.shape[0] if isinstance(array.shape[0], int) else -1,
        )
        return graph.cast(made, array.dtype)


Rows = Callable[[Any, Sequence[Value], Sequence[Value]], Mapping[int, ListedRow]]


class Graph(TensorGraph):
    """A graph of TensorFlow's operations.

    Attributes:
        assertions: the names of the nodes that assert something, on which nothing else depends.
    """

    format = "TensorFlow"
    max_padded_rank = max_rank("Pad")
    zero_copies = False
    assertions: list[str]
    for_converters: bool

    def __init__(
        self, *, outer: Graph | None = None, for_converters: bool = False, exact: bool = True
    ) -> None:
        """Make an empty graph, which may be one inside of another."""
        super().__init__(outer=outer, exact=exact)
        self.assertions = [] if outer is None else outer.assertions
        self.for_converters = for_converters if outer is None else outer.for_converters
        self._dtypes: dict[str, np.dtype[Any]] = {} if outer is None else outer._dtypes

    def dtype_of(self, name: str) -> np.dtype[Any]:
        """Return the dtype of a value of the graph."""
        array = self.initializers.get(name)
        return self._dtypes[name] if array is None else array.dtype

    def add_input(
        self,
        name: str,
        dtype: np.dtype[Any],
        shape: Shape,
        *,
        text: Sequence[int | str] | None = None,
    ) -> Value:
        """Add a new input, as `TensorGraph` does."""
        self._dtypes[name] = dtype
        return super().add_input(name, dtype, shape, text=text)

    def nodes_of(
        self, op_type: str, inputs: Inputs, results: Results, **attributes: Any
    ) -> list[Value]:
        """Return the results of an operation, in a wider dtype where there is no kernel."""
        if op_type == "Div" and "int" in results[0][1].name:
            op_type = "IntegerDiv"
        if op_type == "Reshape" and self.for_converters:
            inputs = _with_computed_shape(self, inputs, results[0][0])
        signature = signature_of(op_type)
        alike = (
            [] if signature is None else [text == "T" for text in _inputs(signature.inputs, inputs)]
        )
        pairs = list(zip(inputs, alike, strict=False))
        own = next((value.dtype for value, is_alike in pairs if value and is_alike), None)
        if signature is None or own is None or has_kernel(op_type, own):
            return self._compute(op_type, inputs, results, attributes)
        wide = computation_dtype(op_type, own)
        given = [self.cast(value, wide) if value and a else value for value, a in pairs]
        kinds = [
            (shape, wide if attribute == "T" else dtype)
            for (shape, dtype), (_, attribute) in zip(results, signature.outputs, strict=True)
        ]
        computed = self._compute(op_type, given, kinds, attributes)
        return [self.cast(v, dtype) for v, (_, dtype) in zip(computed, results, strict=True)]

    def cast(self, value: Value, dtype: np.dtype[Any]) -> Value:
        """Cast as TensorFlow does; the rules have StableHLO's `convert`."""
        names = {value.dtype.name, dtype.name}
        others = [name for name in names if not name.startswith("float8")]
        if len(names) > len(others) and not set(others) <= _FLOAT8_SOURCES:
            value = super().cast(value, np.dtype(np.float32))
        return super().cast(value, dtype)

    def loop(
        self,
        size: Dim,
        inits: Sequence[Value],
        step: Callable[[Any, Value, list[Value]], Sequence[Value]],
        row_shape: Shape | None = None,
    ) -> list[Value]:
        """Return the carried values behind a loop, then the rows of its iterations."""
        if row_shape is None:
            return self.counted(of_size(size), inits, step)
        count = len(inits)
        arrays = [nodes.constant_like(init, 0).broadcast_to((size, *row_shape)) for init in inits]
        made: list[ListedRow] = []

        def with_rows(body: Graph, number: Value, carried: list[Value]) -> list[Value]:
            results = list(step(body, number, carried[:count]))
            index = nodes.cast(body, number, np.int32)
            rows = [body.expand(row.broadcast_to(row_shape)) for row in results[count:]]
            made.extend(ListedRow(row, index) for row in rows)
            return [*results[:count], *carried[count:]]

        def rows(*_: object) -> dict[int, ListedRow]:
            return dict(enumerate(made, 1 + count))  # behind the number of the iteration

        return self.counted(of_size(size), [*inits, *arrays], with_rows, rows)

    def counted(
        self,
        limit: Value,
        inits: Sequence[Value],
        step: Callable[[Any, Value, list[Value]], Sequence[Value]],
        rows: Rows | None = None,
    ) -> list[Value]:
        """Return the carried values behind a loop of a number of iterations, a scalar of int64."""

        def goes_on(body: Graph, values: list[Value]) -> Value:
            return nodes.elementwise(body, "Less", values[0], limit)

        def next_values(body: Graph, values: list[Value]) -> Sequence[Value]:
            number, *carried = values
            following = nodes.elementwise(body, "Add", number, 1)
            return [following, *step(body, number, carried)]

        counted = [constant_array(np.array(0)), *inits]
        return self.while_loop(counted, goes_on, next_values, rows)[1:]

    def while_loop(
        self,
        inits: Sequence[Value],
        condition: Callable[[Graph, list[Value]], Value],
        step: Callable[[Graph, list[Value]], Sequence[Value]],
        rows: Rows | None = None,
    ) -> list[Value]:
        """Return the carried values behind a loop that goes on while a condition holds."""
        cond, body = self.body(), self.body()
        kinds: list[tuple[Shape, np.dtype[Any]]] = [(init.shape, init.dtype) for init in inits]
        tested, carried = (
            [graph.add_input(graph.unique(name), dtype, shape) for shape, dtype in kinds]
            for graph, name in ((cond, "tested"), (body, "carried"))
        )
        cond.add_result(condition(cond, tested))
        results = [
            value.broadcast_to(shape)
            for value, (shape, _) in zip(step(body, carried), kinds, strict=True)
        ]
        lists = {} if rows is None else rows(body, carried, results)
        given = list(inits)
        for number, row in lists.items():
            kinds[number] = ((), VARIANT)
            given[number] = row.reserve(self, inits[number])
            for graph, values in ((cond, tested), (body, carried)):
                graph.retype_input(number, values[number].name)
            results[number] = row.write(body, carried[number].name)
        # TF.js frees what a body makes and does not return, rows in its lists, too
        # (tfjs-converter/src/executor/graph_executor.ts, `_executeAsync`).
        for kept in [each.row for each in lists.values()] if self.for_converters else ():
            kinds.append((kept.shape, kept.dtype))
            given.append(nodes.constant_like(kept, 0).broadcast_to(kept.shape))
            results.append(kept)
            for graph, name in ((cond, "tested"), (body, "carried")):
                graph.add_input(graph.unique(name), kept.dtype, kept.shape)
        for value in results:
            body.add_result(value)
        inputs = [self.expand(init) for init in given]
        made = self.nodes_of("While", inputs, kinds, cond=cond, body=body)
        for number, row in lists.items():
            made[number] = row.stack(self, made[number], inits[number])
        return made[: len(inits)]

    def retype_input(self, number: int, name: str) -> None:
        """Make an input one that is a list of rows."""
        self.inputs[number] = Input(name, VARIANT, ())
        self._dtypes[name] = VARIANT

    def scatter_rows(
        self, matrix: Value, index: Value, updates: Value, reduction: str, *, unique: bool
    ) -> Value:
        """Return a matrix with rows written into it, one after another."""
        del unique
        if reduction == "mul":
            count = nodes.reshape(self, self.vector(matrix.shape[:1]), ())
            inputs = [updates, self.expand(index), count]
            factor = self.node("UnsortedSegmentProd", inputs, shape=matrix.shape)
            return nodes.elementwise(self, "Mul", matrix, factor)
        column = self.expand(nodes.expand_dims(self, index, [1]))
        return self.node(_SCATTERS[reduction], [matrix, column, updates], shape=matrix.shape)

    def pooled(
        self, reducer: str, value: Value, rows: Sequence[tuple[int, int, int, int]]
    ) -> Value | None:
        """Return MaxPool of windows, where it has the same elements."""
        return pooling.pooled(self, reducer, value, rows)

    def _replaced(
        self, op_type: str, inputs: Inputs, results: Results, attributes: Mapping[str, Any]
    ) -> list[Value] | None:
        given = [value for value in inputs if value is not None]
        within = within_kernel(self, op_type, given, results, attributes)
        if within is not None:
            return within
        replacement = _REPLACEMENTS.get(op_type)
        return None if replacement is None else replacement(self, given, results, attributes)

    def _add(
        self, op_type: str, inputs: Inputs, results: Results, attributes: Mapping[str, Any]
    ) -> list[Value]:
        values = super()._add(op_type, inputs, results, attributes)
        self._dtypes.update((value.name, value.dtype) for value in values)
        return values


def _inputs(texts: Sequence[str], inputs: Sequence[object]) -> list[str]:
    """Return the attribute of each input, of which one text may be for a list of any length."""
    expanded: list[str] = []
    for text in texts:
        repeated = text.endswith("*")
        count = len(inputs) - len(texts) + 1 if repeated else 1
        expanded += [text.rstrip("*")] * count
    return [*expanded, *[""] * (len(inputs) - len(expanded))]


def _with_computed_shape(
    graph: Graph, inputs: Sequence[Value | None], shape: Sequence[Dim | None]
) -> Sequence[Value | None]:
    """Return the inputs of Reshape, with all sizes where a converter would take -1 for one.

    Its graphs suggest that the one to TFLite moves a transposition behind a Reshape, with the
    constant as its new shape (`ReorderTransposeReshapeTranspose` in
    tensorflow/compiler/mlir/lite/transforms/optimize_pass.cc), and makes a transposition of a
    product whose first factor alone is a constant.
    """
    value, sizes = inputs
    if value is None or sizes is None or sizes.array is None or not (sizes.array < 0).any():
        return inputs
    source = graph.producer(value)
    is_moved = source is not None and source.op_type == "Transpose"
    if source is not None and source.op_type in ("BatchMatMulV2", "MatMul"):
        left = graph.shape_of(source.inputs[0])
        is_moved = left is not None and is_static(left)
    dims = [dim for dim in shape if dim is not None]
    return [value, graph.vector(dims)] if is_moved and len(dims) == len(shape) else inputs


def _gather_nd(
    graph: Graph, inputs: Sequence[Value], results: Results, attributes: Mapping[str, Any]
) -> list[Value] | None:
    """Return GatherNd with batch dimensions, whose numbers become part of the indices."""
    count = attributes.get("batch_dims", 0)
    if not count:
        return None
    value, indices = inputs
    shape = indices.shape[:-1]
    columns = [
        nodes.broadcast_in_dim(graph, nodes.count_up(graph, shape[axis]), [axis], (*shape, 1))
        for axis in range(count)
    ]
    whole = nodes.concat(graph, [*columns, indices], indices.rank - 1)
    ((result, _),) = results
    return [graph.node("GatherND", [value, whole], shape=result)]


def _matmul(
    graph: Graph, inputs: Sequence[Value], results: Results, attributes: Mapping[str, Any]
) -> list[Value] | None:
    """Return a product of matrices, stacks of them, or of rows of any number of dimensions."""
    del attributes
    (left, right), ((shape, dtype),) = inputs, results
    dims = [dim for dim in shape if dim is not None]
    if right.rank == 1:
        column = graph.expand(nodes.reshape(graph, right, (*right.shape, 1)))
        made = graph.node("MatMul", [left, column], shape=(*dims, 1))
        return [nodes.reshape(graph, made, dims)]
    if left.rank == 1:
        row = graph.expand(nodes.reshape(graph, left, (1, *left.shape)))
        made = graph.node("MatMul", [row, right], shape=(1, *dims))
        return [nodes.reshape(graph, made, dims)]
    if left.rank > right.rank == 2:
        flat = nodes.reshape(graph, left, (_count(left.shape[:-1]), left.shape[-1]))
        made = graph.node("MatMul", [graph.expand(flat), right], shape=(flat.shape[0], dims[-1]))
        return [nodes.reshape(graph, made, dims)]
    op_type = "MatMul" if left.rank == 2 else "BatchMatMulV2"
    names = ("transpose_a", "transpose_b") if left.rank == 2 else ("adj_x", "adj_y")
    pairs = [_untransposed(graph, value) for value in (left, right)]
    flags = {name: True for name, (_, flag) in zip(names, pairs, strict=True) if flag}
    return graph._add(op_type, [value for value, _ in pairs], [(dims, dtype)], flags)


def _count(dims: Shape) -> Dim:
    total: Dim = 1
    for dim in dims:
        total = total * dim
    return total


def _untransposed(graph: Graph, value: Value) -> tuple[Value, bool]:
    """Return a stack of matrices before it was transposed, and whether it was."""
    node = graph.producer(value)
    rank, shape = value.rank, None if node is None else graph.shape_of(node.inputs[0])
    order = [*range(rank - 2), rank - 1, rank - 2]
    if node is None or node.op_type != "Transpose" or list(node.attributes["perm"]) != order:
        return value, False
    if (value.dtype.kind == "c" and rank > 2) or shape is None:  # `adj_x` is the conjugate too
        return value, False
    return Value(value.dtype, shape, shape, node.inputs[0]), True


def _along_last(op_type: str) -> Callable[..., list[Value]]:
    """Return how an operation along a dimension is one along the last."""

    def replace(
        graph: Graph, inputs: Sequence[Value], results: Results, attributes: Mapping[str, Any]
    ) -> list[Value]:
        (value,), axis = inputs, attributes["axis"]
        last = value.rank - 1
        if axis == last:
            (made,) = graph._add(op_type, inputs, results, {})
            keeps_nan = op_type == "LogSoftmax" or not graph.exact
            return [made if keeps_nan else _with_nan(graph, made, value)]
        order = [*(number for number in range(value.rank) if number != axis), axis]
        turned = graph.expand(nodes.transpose(graph, value, order))
        made = graph.node(op_type, [turned], shape=turned.shape, axis=last)
        return [nodes.transpose(graph, made, [order.index(number) for number in range(value.rank)])]

    return replace


def _with_nan(graph: Graph, softmax: Value, value: Value) -> Value:
    """Return NaN for rows with NaN or infinity, of which oneDNN's Softmax makes zeros."""
    axes = graph.vector([value.rank - 1])
    most = graph.node("ReduceMax", [value, axes], shape=(*value.shape[:-1], 1), keepdims=1)
    zero = nodes.constant_like(value, 0)
    nothing = graph.node("Mul", [most, zero], shape=most.shape)
    return nodes.elementwise(graph, "Add", softmax, nothing)


# What is written in another way, before it is a node.
_REPLACEMENTS: Mapping[str, Callable[..., list[Value] | None]] = {
    "GatherND": _gather_nd,
    "LogSoftmax": _along_last("LogSoftmax"),
    "MatMul": _matmul,
    "Softmax": _along_last("Softmax"),
}
