"""A block becomes the operators of a subgraph."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, NoReturn

import numpy as np

from bridge.blocks.block import Block, Operation, Value
from bridge.litert.emitting.flatbuffer_file import TYPES, FlatbufferFile, Subgraph, tensor_name
from xla_call_module.dimensions import linear_form
from xla_call_module.errors import StructureError, UnsupportedError
from xla_call_module.size_polynomials import Dim, Function, Shape, Size, Symbol, is_static

INT = np.dtype(np.int32)
_SIZES = "sizes"
# Of an operator as it has been since its first version, if it is not in here.
_VERSIONS = {
    "BATCH_MATMUL": 1, "BROADCAST_TO": 2, "CONV_2D": 5, "FULLY_CONNECTED": 5, "SLICE": 1,
}  # fmt: skip
_SIZE_FUNCTIONS = {"floordiv": "FLOOR_DIV", "max": "MAXIMUM", "min": "MINIMUM", "mod": "FLOOR_MOD"}
_NUMBER = re.compile(r"@(\d+)")

# Appends what an operation is; the tensors of its results.
Emit = Callable[["BlockEmitter", Operation], "int | Sequence[int]"]
# The tensor, and the axis, whose size gives a dimension variable, with slope and offset.
Sources = Mapping[str, tuple[Value, int, int, int]]


class BlockEmitter:
    """Writes one subgraph.

    Attributes:
        graph: the subgraph.
        outer: the emitter of the graph around it; None for that of a signature.
        users: the operations that take a value, of all blocks that are written.
        returned: what blocks return.
        homes: the block in which a value is made.
    """

    def __init__(
        self,
        file: FlatbufferFile,
        name: str,
        table: Mapping[str, Emit],
        outer: BlockEmitter | None = None,
        places: Sequence[str] = (),
    ) -> None:
        """Have an empty subgraph."""
        self.file, self.graph, self.outer = file, Subgraph(file, name), outer
        self.main: BlockEmitter = outer.main if outer is not None else self
        self.users: dict[Value, list[Operation]] = {} if outer is None else outer.users
        self.returned: set[Value] = set() if outer is None else outer.returned
        self.homes: dict[Value, Block] = {} if outer is None else outer.homes
        self.captured: list[Value] = []
        self._table, self._places = table, places
        self._tensors: dict[Value, int] = {}
        self._emitted: set[Operation] = set()
        self._sources: dict[str, tuple[Value, int, int, int]] = {}
        self._of_sizes: dict[Any, Value] = {}
        self._place = ""
        self._inner: list[BlockEmitter] = []

    def inner(self, name: str) -> BlockEmitter:
        """Return the emitter of a graph inside this one."""
        made = BlockEmitter(self.file, name, self._table, self)
        self._inner.append(made)
        return made

    def all_inner(self) -> Iterator[BlockEmitter]:
        """Yield the emitters of all graphs inside this one."""
        for inner in self._inner:
            yield inner
            yield from inner.all_inner()

    # --- values

    def input(self, value: Value, name: str) -> int:
        """Let a value be an input."""
        tensor = self.graph.tensor(value.shape, value.dtype, name=name)
        self.graph.table.inputs.append(tensor)
        self._tensors[value] = tensor
        return tensor

    def bind(self, value: Value, tensor: int) -> None:
        """Let a value be a tensor that is there."""
        self._tensors[value] = tensor

    def read(self, value: Value) -> int:
        """Return the tensor of a value, which is captured if a graph around has it."""
        if value.array is not None:
            return self._constant(value)
        if value not in self._tensors:
            assert self.outer is not None, "what is read has been made"
            self.captured.append(value)
            self.input(value, f"captured_{len(self.captured)}")
        return self._tensors[value]

    def _constant(self, value: Value) -> int:
        array = value.array
        assert array is not None, "it is a constant"
        return self.graph.constant(array) if array.size else self._without_elements(value)

    def _without_elements(self, value: Value) -> int:
        """Return a tensor without elements.

        XNNPACK makes one with some of it, and the interpreter for Python reads no such constant.
        """
        zero = self.graph.constant(np.zeros((), value.dtype))
        return self.make("FILL", [self.shape(value.shape), zero], value)

    def ints(self, numbers: Iterable[int]) -> int:
        """Return the tensor of a vector of int32."""
        return self.graph.constant(np.array([*numbers], np.int32))

    def make(
        self, operator: str, inputs: Sequence[int], like: Value, *, options: str = "", **values: Any
    ) -> int:
        """Return the only result of an operator, of the shape and dtype of a value."""
        tensor = self.graph.tensor(like.shape, like.dtype, name=self._name(operator))
        version = _VERSIONS.get(operator, 1)
        self.graph.operator(operator, inputs, [tensor], options, version, **values)
        return tensor

    def make_several(
        self, operator: str, inputs: Sequence[int], like: Sequence[Value], **values: Any
    ) -> list[int]:
        """Return the results of an operator."""
        name = self._name(operator)
        tensors = [self.graph.tensor(one.shape, one.dtype, name=name) for one in like]
        self.graph.operator(operator, inputs, tensors, **values)
        return tensors

    def _name(self, operator: str) -> str:
        return f"{self._place}/{operator}" if self._place else operator

    def cast(self, tensor: int, value: Value, dtype: Any) -> int:
        """Return the tensor of a value as one of another dtype."""
        wanted = np.dtype(dtype)
        if value.dtype == wanted:
            return tensor
        kinds: dict[str, Any] = {
            "inDataType": TYPES[value.dtype.name], "outDataType": TYPES[wanted.name]
        }  # fmt: skip
        return self.make("CAST", [tensor], Value(value.shape, wanted), **kinds)

    def reshape(self, tensor: int, like: Value) -> int:
        """Return a tensor in the shape of a value."""
        unknown = [n for n, size in enumerate(like.shape) if not isinstance(size, int)]
        known = len(unknown) == 1 and 0 not in like.shape
        sizes = [-1 if known and n in unknown else size for n, size in enumerate(like.shape)]
        return self.make("RESHAPE", [tensor, self.shape(sizes)], like)

    def transpose(self, tensor: int, value: Value, order: Sequence[int]) -> int:
        """Return the tensor of a value with its dimensions in another order."""
        if [*order] == sorted(order):
            return tensor
        like = Value(tuple(value.shape[axis] for axis in order), value.dtype)
        return self.make("TRANSPOSE", [tensor, self.ints(order)], like)

    def copy(self, tensor: int) -> int:
        """Return a copy. LiteRT has no identity; the kernel of TILE takes every dtype and rank.

        That of a constant is another constant, since kernels write what they compute of constants
        alone before the model runs, and neither `CompiledModel` nor branches in branches read it.
        """
        copied = self.graph.alike(tensor, "copy")
        rank = len(self.graph.table.tensors[tensor].shape)
        if self.graph.is_constant(tensor):
            return copied
        if rank == 0:  # of which TILE makes zeros
            line = self.graph.alike(tensor, "copy", (1,))
            self.graph.operator("RESHAPE", [tensor, self.ints([1])], [line])
            self.graph.operator("RESHAPE", [self.copy(line), self.ints([])], [copied])
        else:
            self.graph.operator("TILE", [tensor, self.ints([1] * rank)], [copied])
        return copied

    # --- sizes, which are scalars and vectors of the graph of the signature

    def measure(self, inputs: Sequence[Value]) -> None:
        """Let the sizes of the inputs be what dimension variables are computed from."""
        for value in inputs:
            for axis, size in enumerate(value.shape):
                form = None if isinstance(size, int) else linear_form(str(size))
                if form is None:
                    continue
                name, slope, offset = form
                known = self._sources.get(name)
                if known is None or ((slope, offset) == (1, 0) and known[2:] != (1, 0)):
                    self._sources[name] = (value, axis, slope, offset)

    def size(self, size: Dim) -> int:
        """Return the tensor of a size, a scalar of int32."""
        if isinstance(size, int):
            return self.graph.constant(np.int32(size))
        return self.read(self.main._size(size))

    def shape(self, shape: Sequence[Dim]) -> int:
        """Return the tensor of sizes, a vector of int32."""
        if is_static(shape):
            return self.ints(int(size) for size in shape)  # type: ignore[arg-type]
        return self.read(self.main._vector(tuple(shape)))

    def _size(self, size: Size) -> Value:
        if size not in self._of_sizes:
            with_place, self._place = self._place, _SIZES
            made = Value((), INT)
            terms = [self._term(atoms, count) for atoms, count in size.terms]
            self.bind(made, reduce(lambda one, other: self._of("ADD", one, other), terms))
            self._of_sizes[size] = made
            self._place = with_place
        return self._of_sizes[size]

    def _term(self, atoms: Sequence[Any], count: int) -> int:
        factors = [self._atom(atom) for atom in atoms]
        if count != 1 or not factors:
            factors.append(self.size(count))
        return reduce(lambda one, other: self._of("MUL", one, other), factors)

    def _of(self, operator: str, left: int, right: int) -> int:
        return self.make(operator, [left, right], Value((), INT))

    def _atom(self, atom: Any) -> int:
        match atom:
            case Symbol(name):
                if name not in self._sources:
                    raise StructureError(
                        f"The dimension variable {name} does not follow from the shape of any "
                        "input. To do: export the function with an argument that has this "
                        "dimension."
                    )
                value, axis, slope, offset = self._sources[name]
                size = self._dimension(value, axis)
                size = self._of("SUB", size, self.size(offset)) if offset else size
                return size if slope == 1 else self._of("FLOOR_DIV", size, self.size(slope))
            case Function(function, left, right):
                return self._of(_SIZE_FUNCTIONS[function], self.size(left), self.size(right))
        raise AssertionError(f"a function has no size {atom}")

    def _dimension(self, value: Value, axis: int) -> int:
        if value not in self._of_sizes:
            shape = Value((value.rank,), INT)
            self.bind(shape, self.make("SHAPE", [self.read(value)], shape, outType=TYPES["int32"]))
            self._of_sizes[value] = shape
        ends = [self.ints([axis]), self.ints([axis + 1]), self.ints([1])]
        shape = self._of_sizes[value]
        return self.make(
            "STRIDED_SLICE", [self.read(shape), *ends], Value((), INT), shrinkAxisMask=1
        )

    def _vector(self, shape: Shape) -> Value:
        if shape not in self._of_sizes:
            with_place, self._place = self._place, _SIZES
            parts = [self.size(size) for size in shape]
            made = Value((len(shape),), INT)
            self.bind(made, self.make("PACK", parts, made, axis=0, valuesCount=len(parts)))
            self._of_sizes[shape] = made
            self._place = with_place
        return self._of_sizes[shape]

    # --- operations

    def block(self, block: Block, inputs: Sequence[Value] = ()) -> list[int]:
        """Append what a block computes, and return the tensors of its results.

        Args:
            block: the block.
            inputs: what its inputs are, if these are no inputs of this graph.
        """
        for own, given in zip(block.inputs, inputs, strict=False):
            self.bind(own, self.read(given))
        if self.outer is None:
            self._note_users(block)
        for operation in block.operations:
            if operation not in self._emitted:
                self._place = _scope(operation.place)
                made = self._emit(operation)
                tensors = [made] if isinstance(made, int) else made
                self._tensors.update(zip(operation.results, tensors, strict=True))
        return [self.read(value) for value in block.outputs]

    def _note_users(self, block: Block) -> None:
        for operation in block.operations:
            for operand in operation.operands:
                self.users.setdefault(operand, []).append(operation)
            self.homes.update(dict.fromkeys(operation.results, block))
            for body in operation.bodies:
                self._note_users(body)
        self.returned.update(block.outputs)

    def _emit(self, operation: Operation) -> int | Sequence[int]:
        if all(0 in result.shape for result in operation.results):
            return [self._without_elements(result) for result in operation.results]
        if operation.name not in self._table:
            self.refuse(operation, f"LiteRT has no operator for {operation.name}")
        return self._table[operation.name](self, operation)

    def only_user(self, value: Value) -> Operation | None:
        """Return the operation of the same block that alone takes a value; None if there is none.

        What a block returns is taken by more.
        """
        users = self.users.get(value, [])
        if len(users) != 1 or value in self.returned or len(users[0].results) != 1:
            return None
        return users[0] if self.homes[users[0].result] is self.homes.get(value) else None

    def absorb(self, operation: Operation, tensor: int) -> None:
        """Let the result of an operation be that of one before it."""
        self._emitted.add(operation)
        self.bind(operation.result, tensor)

    def refuse(self, operation: Operation, reason: str) -> NoReturn:
        """Refuse an operation, with the place in the user's program."""
        numbers = _NUMBER.findall(operation.place)
        known = self.main._places
        where = known[int(numbers[-1])] if numbers and known else operation.name
        raise UnsupportedError(
            f"{where}: {reason}. To do: leave it out of what is exported, or compute it otherwise."
        )


def _scope(place: str) -> str:
    """Return the parts of a name stack that a user has named, for the names of tensors."""
    parts = [part for part in place.split("/") if part and not _NUMBER.match(part)]
    return "/".join(tensor_name(part) for part in parts)
