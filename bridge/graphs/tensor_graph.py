"""A graph of operations on tensors while it is being built, whatever format it is written in.

A graph takes operations one by one, and is the one place that gives names, folds constants, does
nothing twice, and turns sizes into tensors. What nobody uses is left out when it is written.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from bridge.graphs.folding import fold
from bridge.graphs.size_arithmetic import may_wrap
from bridge.graphs.values import Value, constant_array
from xla_call_module.dtypes import Array
from xla_call_module.errors import StructureError, UnsupportedError
from xla_call_module.size_polynomials import (
    Atom,
    Dim,
    Element,
    Function,
    Iteration,
    Measured,
    Shape,
    Size,
    Symbol,
    atoms_of,
    is_static,
    numbers_of,
    of_atom,
)

# Constants up to so many bytes are broadcast here instead of in the model.
_MAX_BROADCAST_BYTES = 1 << 12
_MAX_NAMED = 4
_SIZES = "sizes"
# How many nodes a graph may have more than its program lets expect (`allow`), and how many
# bytes its constants that are computed here: both as many as take seconds and not minutes.
MAX_NODES = 50_000
MAX_FOLDED = 1 << 26
# The operands of an operation, None for one left out, and the shape and dtype of each result.
Inputs = Sequence[Value | None]
Results = Sequence[tuple[Sequence[Dim | None], np.dtype[Any]]]


@dataclass(frozen=True, slots=True)
class Node:
    """One operation in the graph.

    Attributes:
        name: a name that no other node has.
        inputs: the names of the operands; empty for one that is left out.
        attributes: the attributes: numbers, texts, sequences of them, dtypes, arrays, graphs.
    """

    op_type: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a graph; its shape with texts for sizes that have one."""

    name: str
    dtype: np.dtype[Any]
    shape: Sequence[Dim | str]


@dataclass(frozen=True, slots=True)
class Result:
    """A result of a graph.

    Attributes:
        name: the name of the output; empty where it does not matter.
        reference: the name of the value that is the output.
        shape: the shape, with texts for sizes that have one.
    """

    name: str
    reference: str
    dtype: np.dtype[Any]
    shape: Sequence[Dim | str]


@dataclass(slots=True)
class _Shared:
    """The state that a graph and those inside of it share.

    Attributes:
        names: the names that are taken, with the number that made the last one unique.
        initializers: constants and parameters by their names.
        constants: the names of constants by their contents.
        constant_names: the names in `constants`.
        facts: the facts about values, by their names.
        exact: whether NaN, signs of zeros and what a processor traps at are those of JAX where
            that takes more operations.
        scope: the place in the source that the next nodes come from.
        nodes_left: the number of nodes that may still be added.
        bytes_left: the number of bytes that computed constants may still have.
    """

    names: dict[str, int] = field(default_factory=dict)
    initializers: dict[str, Array] = field(default_factory=dict)
    constants: dict[tuple[str, tuple[int, ...], bytes], str] = field(default_factory=dict)
    constant_names: set[str] = field(default_factory=set)
    facts: dict[str, object] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)
    exact: bool = True
    scope: str = "graph"
    nodes_left: int = MAX_NODES
    bytes_left: int = MAX_FOLDED


class TensorGraph:
    """A graph, or one inside of another, which sees the values of the outer one.

    The outermost graph has the inputs of the model and the nodes that compute sizes from their
    shapes. Everything else is in the one in it, which is written behind it as one graph.

    A format has a subclass, which says by `compose`, `_replaced` and `nodes_of` what its runtime
    computes otherwise. The operations that a graph adds by itself are those of `folding`.

    Attributes:
        format: the name of the format, for messages.
        zero_copies: whether a 0 in the shape of a Reshape stands for the operand's size.
        max_padded_rank: the most dimensions that a Pad takes; None for any number.
        nodes: the nodes in an order in which they can run.
        outer: the graph around it; None for the outermost one.
    """

    inputs: list[Input]
    nodes: list[Node]
    results: list[Result]
    outer: Self | None
    format: ClassVar[str]
    zero_copies: ClassVar[bool] = True
    max_padded_rank: ClassVar[int | None] = None

    def __init__(self, *, outer: Self | None = None, exact: bool = True) -> None:
        """Make an empty graph, which may be one inside of another, and is as exact as that."""
        self.inputs, self.nodes, self.results = [], [], []
        self.outer = outer
        self._shared: _Shared = _Shared(exact=exact) if outer is None else outer._shared
        self._outputs_of_key: dict[Any, tuple[str, ...]] = {}
        self._producers: dict[str, Node] = {}
        self._sources: dict[str, tuple[str, int, int, int]] = {}

    @property
    def initializers(self) -> dict[str, Array]:
        """The constants and parameters by their names."""
        return self._shared.initializers

    @property
    def exact(self) -> bool:
        """Whether NaN, signs of zeros and traps are JAX's where that takes more operations."""
        return self._shared.exact

    @property
    def root(self) -> Self:
        """The outermost graph."""
        return self if self.outer is None else self.outer.root

    def enclosing(self) -> Iterator[Self]:
        """Yield this graph, the one around it, and so on."""
        graph: Self | None = self
        while graph is not None:
            yield graph
            graph = graph.outer

    def producer(self, value: Value) -> Node | None:
        """The node that a value comes from; None for inputs, constants and what is in no graph."""
        return self.source(value.name)

    def source(self, name: str, op_type: str = "") -> Node | None:
        """The node that the value of a name comes from.

        None for inputs, constants, what is in no graph, and a node of another operation than this.
        """
        producers = (g._producers[name] for g in self.enclosing() if name in g._producers)
        node = next(producers, None)
        return node if node is not None and op_type in ("", node.op_type) else None

    def remember(self, value: Value, fact: object) -> None:
        """Keep a fact about a value, for the rules of the operations behind it."""
        if value.name:
            self._shared.facts[value.name] = fact

    def recall(self, name: str) -> object | None:
        """Return the fact about the value of a name; None without."""
        return self._shared.facts.get(name)

    def shape_of(self, name: str) -> Shape | None:
        """Return the shape of a value in the graph, if the graph has it."""
        return self._shared.shapes.get(name)

    def constant(self, name: str) -> Array | None:
        """The constant of the program of a name; None for parameters and what is computed."""
        return self.initializers.get(name) if name in self._shared.constant_names else None

    def enter(self, scope: str) -> str:
        """Name the nodes that follow after a scope of the source; return the scope until now."""
        before, self._shared.scope = self._shared.scope, scope
        return before

    def body(self) -> Self:
        """Return a graph inside of this one, for an attribute of a node such as a loop."""
        return type(self)(outer=self)

    def trial(self) -> Self:
        """A graph inside of this one that nothing is made of, and so does not count as large."""
        graph = self.body()
        graph._shared = dataclasses.replace(self._shared)
        return graph

    def allow(self, count: int) -> None:
        """Raise the number of nodes that the model may have."""
        self._shared.nodes_left += count

    def unique(self, name: str) -> str:
        """A name that nothing else has, as like the given one as can be."""
        names, candidate = self._shared.names, name
        while candidate in names:
            names[name] += 1
            candidate = f"{name}_{names[name]}"
        names[candidate] = 0
        return candidate

    def add_input(
        self,
        name: str,
        dtype: np.dtype[Any],
        shape: Shape,
        *,
        text: Sequence[int | str] | None = None,
    ) -> Value:
        """A new input."""
        self.inputs.append(Input(name, dtype, shape if text is None else text))
        self._shared.shapes[name] = shape
        return Value(dtype, shape, shape, name)

    def define(
        self, symbol: str, source: Value, axis: int, slope: int = 1, offset: int = 0
    ) -> None:
        """A dimension variable, of which an input's size is `slope * variable + offset`."""
        sources = self.root._sources
        earlier = sources.get(symbol)
        if earlier is None or (earlier[2:] != (1, 0) and (slope, offset) == (1, 0)):
            sources[symbol] = (source.name, axis, slope, offset)

    def add_parameter(self, name: str, array: Array) -> Value:
        """An array that is not folded, under a name that `unique` gave."""
        self.initializers[name] = array
        self._shared.shapes[name] = array.shape
        return Value(array.dtype, array.shape, array.shape, name)

    def add_result(
        self, value: Value, name: str = "", text: Sequence[int | str] | None = None
    ) -> None:
        """A new result."""
        whole = self.expand(value)
        shape = whole.shape if text is None else text
        self.results.append(Result(name, self.reference(whole), value.dtype, shape))

    def node(
        self,
        op_type: str,
        inputs: Sequence[Value | None],
        *,
        shape: Sequence[Dim | None],
        dtype: np.dtype[Any] | None = None,
        **attributes: Any,
    ) -> Value:
        """The result of an operation that has one."""
        kind = next(v.dtype for v in inputs if v is not None) if dtype is None else dtype
        return self.nodes_of(op_type, inputs, [(shape, kind)], **attributes)[0]

    def nodes_of(
        self, op_type: str, inputs: Inputs, results: Results, **attributes: Any
    ) -> list[Value]:
        """Return all results of an operation, given the shape and dtype of each; see `node`."""
        return self._compute(op_type, inputs, results, attributes)

    def compose(self, op_type: str, values: Sequence[Value]) -> Value | None:
        """Return what other operations compute of operands that are broadcast.

        None where the operation is to do it itself.
        """
        del op_type, values
        return None

    def loop(
        self,
        size: Dim,
        inits: Sequence[Value],
        step: Callable[[Any, Value, list[Value]], Sequence[Value]],
        row_shape: Shape | None = None,
    ) -> list[Value]:
        """Return the carried values behind a loop, then the rows that its iterations return."""
        raise NotImplementedError

    def scatter_rows(
        self, matrix: Value, index: Value, updates: Value, reduction: str, *, unique: bool
    ) -> Value:
        """Return a matrix with rows written into it, one after another."""
        raise NotImplementedError

    def pooled(
        self, reducer: str, value: Value, rows: Sequence[tuple[int, int, int, int]]
    ) -> Value | None:
        """Return a reduction of windows by one operation; None where there is none."""
        del reducer, value, rows
        return None

    def cast(self, value: Value, dtype: np.dtype[Any]) -> Value:
        """Return the elements in another dtype, as the format casts them."""
        if value.dtype == dtype:
            return value
        if value.sizes is not None and dtype.kind in "iu" and not _may_wrap(value, dtype):
            return Value(dtype, value.shape, value.unbroadcast_shape, sizes=value.sizes)
        made = self._compute("Cast", [value], [(value.unbroadcast_shape, dtype)], {"to": dtype})[0]
        return made.broadcast_to(value.shape)

    def _compute(
        self, op_type: str, inputs: Inputs, results: Results, attributes: Mapping[str, Any]
    ) -> list[Value]:
        arrays = [value.array for value in inputs if value is not None and value.array is not None]
        if len(arrays) == len(inputs) > 0 and len(results) == 1:
            folded = fold(op_type, arrays, attributes)
            if folded is not None and folded.nbytes <= self._shared.bytes_left:
                self._shared.bytes_left -= folded.nbytes
                return [constant_array(folded.astype(results[0][1], copy=False))]
        replaced = self._replaced(op_type, inputs, results, attributes)
        if replaced is not None:
            return replaced
        return self._add(op_type, inputs, results, attributes)

    def _replaced(
        self, op_type: str, inputs: Inputs, results: Results, attributes: Mapping[str, Any]
    ) -> list[Value] | None:
        """Return the results of an operation by what the format has in its place; None for most."""
        del op_type, inputs, results, attributes
        return None

    def _add(
        self, op_type: str, inputs: Inputs, results: Results, attributes: Mapping[str, Any]
    ) -> list[Value]:
        references = tuple("" if value is None else self.reference(value) for value in inputs)
        dtypes = tuple(dtype for _, dtype in results)
        names = self._outputs(op_type, references, dtypes, attributes)
        made = [_made(name, *result) for name, result in zip(names, results, strict=True)]
        self._shared.shapes.update((value.name, value.shape) for value in made)
        return made

    def _outputs(
        self,
        op_type: str,
        inputs: tuple[str, ...],
        dtypes: tuple[np.dtype[Any], ...],
        attributes: Mapping[str, Any],
    ) -> tuple[str, ...]:
        """The names of an operation's results, which are those of an equal one if there is any."""
        key = (op_type, inputs, dtypes, _key(attributes))
        for graph in self.enclosing():
            if key in graph._outputs_of_key:
                return graph._outputs_of_key[key]
        name = self.unique(f"{self._shared.scope}/{op_type}")
        numbers = range(1, len(dtypes))
        outputs = (name, *(self.unique(f"{name}:{number}") for number in numbers))
        self._append(Node(op_type, name, inputs, outputs, attributes))
        if not any(isinstance(value, TensorGraph) for value in attributes.values()):
            self._outputs_of_key[key] = outputs
        return outputs

    def _append(self, node: Node) -> None:
        self._shared.nodes_left -= 1
        if self._shared.nodes_left < 0:
            raise UnsupportedError(
                f"It takes more than {MAX_NODES:,} nodes of {self.format}. To do: compute it in a "
                "loop, or outside the exported function."
            )
        self.nodes.append(node)
        self._producers.update(dict.fromkeys(node.outputs, node))

    def reference(self, value: Value) -> str:
        """The name of what a value holds, which is in the graph from now on."""
        if value.name:
            return value.name
        if value.array is not None:
            return self._constant(value.array)
        return self._sizes(value)

    def _constant(self, array: Array) -> str:
        array = np.ascontiguousarray(array).reshape(array.shape)
        key = (array.dtype.name, array.shape, _content_of(array))
        constants = self._shared.constants
        if key not in constants:
            constants[key] = self.unique(_constant_name(array))
            self.initializers[constants[key]] = array
            self._shared.constant_names.add(constants[key])
        return constants[key]

    def _sizes(self, value: Value) -> str:
        """Return the name of a tensor with the sizes, computed from the shapes of tensors."""
        match value.sizes:
            case (Size(((((Iteration(name, _),)), 1),)),) if not value.unbroadcast_shape:
                return self.reference(self.cast(_named(name), value.dtype))
        before = self.enter(_SIZES)
        vector = self.vector(value.sizes or ())
        if not value.unbroadcast_shape:
            vector = self.node("Squeeze", [vector], shape=())
        elif len(value.unbroadcast_shape) > 1:
            shape = value.unbroadcast_shape
            vector = self.node("Reshape", [vector, self.vector(shape)], shape=shape)
        self.enter(before)
        return self.reference(self.cast(vector, value.dtype))

    def vector(self, dims: Sequence[Dim]) -> Value:
        """Return sizes as a vector of int64, such as Reshape and Expand take."""
        if is_static(dims):
            return constant_array(np.array(dims, np.int64))
        before = self.enter(_SIZES)
        parts: list[Value] = []
        for static, run in itertools.groupby(dims, lambda dim: isinstance(dim, int)):
            sizes = list(run)
            parts += [self.vector(sizes)] if static else map(self.size, sizes)
        self.enter(before)
        if len(parts) == 1:
            return parts[0]
        return self.node("Concat", parts, shape=(len(dims),), axis=0)

    def size(self, dim: Dim) -> Value:
        """A size as a vector of int64 with one element."""
        if isinstance(dim, int):
            return self.vector([dim])
        if self.outer is not None and all(isinstance(a, Symbol | Function) for a in atoms_of(dim)):
            return self.root.size(dim)
        before = self.enter(_SIZES)
        total: Value | None = None
        for atoms, coefficient in dim.terms:
            factors = [self._atom(atom) for atom in atoms]
            if coefficient != 1 or not factors:
                factors.append(self.size(coefficient))
            term = functools.reduce(functools.partial(self._of_sizes, "Mul"), factors)
            total = term if total is None else self._of_sizes("Add", total, term)
        self.enter(before)
        assert total is not None, "a size has terms"
        return total

    def _of_sizes(self, op_type: str, left: Value, right: Value) -> Value:
        return self.node(op_type, [left, right], shape=(1,))

    def _atom(self, atom: Atom) -> Value:
        match atom:
            case Symbol(name):
                return self.root._symbol(name)
            case Measured(name, axis):
                return self._dimension(name, axis)
            case Element(name, index):
                inputs = [_named(name), self.vector([index])]
                return self.node("Gather", inputs, shape=(1,), axis=0)
            case Iteration(name, _):
                return self.node("Unsqueeze", [_named(name), self.vector([0])], shape=(1,))
            case Function(function, left, right):
                whole, other = self.size(left), self.size(right)
                if function != "floordiv":
                    return self._of_sizes(function.capitalize(), whole, other)
                rest = self._of_sizes("Mod", whole, other)  # since Div rounds towards zero
                return self._of_sizes("Div", self._of_sizes("Sub", whole, rest), other)

    def _symbol(self, name: str) -> Value:
        if self.outer is not None:
            return self.root._symbol(name)
        if name not in self._sources:
            raise StructureError(
                f"The dimension variable {name} does not follow from the shape of any input. To "
                "do: export the function with an argument that has this dimension."
            )
        source, axis, slope, offset = self._sources[name]
        size = self._dimension(source, axis)
        if offset:
            size = self._of_sizes("Sub", size, self.size(offset))
        return size if slope == 1 else self._of_sizes("Div", size, self.size(slope))

    def _dimension(self, name: str, axis: int) -> Value:
        return self.node("Shape", [_named(name)], shape=(1,), start=axis, end=axis + 1)

    def expand(self, value: Value) -> Value:
        """The value with nothing left to broadcast."""
        if value.is_expanded:
            return value
        shape, unbroadcast = value.shape, value.unbroadcast_shape
        if value.array is not None and is_static(shape):
            numbers = numbers_of(shape)
            if math.prod(numbers) * value.dtype.itemsize <= _MAX_BROADCAST_BYTES:
                return constant_array(np.broadcast_to(value.array, numbers))
        new = len(shape) - len(unbroadcast)
        if shape == (1,) * new + unbroadcast:
            return self.node("Unsqueeze", [value, self.vector(range(new))], shape=shape)
        return self.node("Expand", [value, self.vector(shape)], shape=shape)


def _named(name: str) -> Value:
    """Return the scalar of int64 of a name, or any value of which only the name matters."""
    return Value(np.dtype(np.int64), (), (), name)


def _made(name: str, shape: Sequence[Dim | None], dtype: np.dtype[Any]) -> Value:
    measured = tuple(
        of_atom(Measured(name, axis)) if dim is None else dim for axis, dim in enumerate(shape)
    )
    return Value(dtype, measured, measured, name)


def _may_wrap(value: Value, dtype: np.dtype[Any]) -> bool:
    """Return whether a conversion may change the number of an iteration."""
    pairs = itertools.product(value.sizes or (), (value.dtype, dtype))
    return any(may_wrap(dim, kind) for dim, kind in pairs)


def _key(attributes: Mapping[str, Any]) -> Any:
    return tuple(sorted((name, repr(value)) for name, value in attributes.items()))


def _content_of(array: Array) -> bytes:
    """The bytes of an array, or a digest that no other array of its kind has."""
    if array.nbytes <= _MAX_BROADCAST_BYTES:
        return array.tobytes()
    return hashlib.sha256(array.reshape(-1).view(np.uint8).data).digest()


def _constant_name(array: Array) -> str:
    """Return a name such as `float32_0.5` and `int64_2_3`."""
    is_short = array.ndim == 1 and array.size <= _MAX_NAMED and array.dtype.kind in "iu"
    if array.ndim == 0 or is_short:
        return "_".join([array.dtype.name, *map(str, array.reshape(-1).tolist())])
    return f"{array.dtype.name}_constant"
