"""One operation of a StableHLO module, as the rules of targets that are graphs see it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from bridge.graphs.tensor_graph import TensorGraph
from bridge.graphs.values import Value, contents_of
from xla_call_module.call import CallModule
from xla_call_module.dtypes import Array
from xla_call_module.errors import DtypeError, UnsupportedError
from xla_call_module.size_polynomials import Dim, Element, is_static, numbers_of, of_atom
from xla_call_module.stablehlo.attributes import Attributes
from xla_call_module.stablehlo.modules import custom_call_target, open_module, tensor_type, walk
from xla_call_module.stablehlo.walking import describe_operation, regions_of

_CUSTOM_CALL = "stablehlo.custom_call"


@dataclass(frozen=True, slots=True)
class ModuleContents:
    """The names of what a module is made of.

    Attributes:
        elements: the element types of all values, by MLIR's names.
    """

    operations: frozenset[str]
    custom_calls: frozenset[str]
    elements: frozenset[str]

    @classmethod
    def of(cls, call: CallModule) -> ModuleContents:
        """Return those of the module of a call."""
        with open_module(call.module) as module:
            operations = list(walk(module))
            types = {str(value.type) for operation in operations for value in _values(operation)}
            return cls(
                frozenset(one.name for one in operations),
                frozenset(custom_call_target(o) for o in operations if o.name == _CUSTOM_CALL),
                frozenset(tensor_type(t).element for t in types if t.startswith("tensor<")),
            )


def _values(operation: Any) -> Iterator[Any]:
    """Yield the results of an operation and the arguments of its blocks."""
    yield from operation.results
    for region in operation.regions:
        for block in region.blocks:
            yield from block.arguments


_PREFIX = "stablehlo."
# What the walk itself goes through.
_STRUCTURE = frozenset(
    f"{_PREFIX}{name}"
    for name in ("composite", "custom_call", "get_tuple_element", "return", "tuple")
)
# Adds a block to a graph: its arguments -> the operands of its last operation.
Walk = Callable[[Any, Any, Sequence[Value]], list[Value]]


@dataclass(frozen=True, slots=True)
class ResultType:
    """The type of a result in the module, with None for a dynamic size."""

    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Region:
    """A region of an operation, which is a function of its block's arguments.

    Attributes:
        block: the only block of the region, as MLIR has it.
        walk: the function that adds the operations of a block to a graph.
        outside: the values that it sees besides its arguments.
    """

    block: Any
    walk: Walk
    outside: Mapping[Any, Value]
    target: GraphTarget

    def apply(self, graph: TensorGraph, arguments: Sequence[Value]) -> list[Value]:
        """Return the results of the region for some arguments.

        A region of scalars is applied to whole tensors, element by element, as well.
        """
        return self.walk(graph, self.block, arguments)

    @property
    def arguments(self) -> tuple[ResultType, ...]:
        """The types of its arguments."""
        return tuple(self.target.type_of(str(one.type)) for one in self.block.arguments)


@dataclass(frozen=True, slots=True)
class Operation(Attributes):
    """An operation whose operands have been walked."""

    name: str
    operands: tuple[Value, ...]
    results: tuple[ResultType, ...]
    regions: tuple[Region, ...]
    target: GraphTarget

    @property
    def result(self) -> ResultType:
        """The type of the only result."""
        (result,) = self.results
        return result

    def shape_like(self, *known: Sequence[Dim]) -> tuple[Dim | None, ...]:
        """The shape of the only result: the numbers of its type, else what is known."""
        shape: list[Dim | None] = list(self.result.shape)
        for candidate in known:
            pairs = zip(shape, candidate, strict=True)
            shape = [new if old is None else old for old, new in pairs]
        return tuple(shape)

    def constant(self, index: int) -> Array:
        """An operand that must be known."""
        value = self.operands[index]
        if value.array is None:
            self.refuse(f"its operand {index} is computed, and {self.target.name} needs a constant")
        return np.broadcast_to(value.array, numbers_of(value.shape))

    def sizes(self, graph: TensorGraph, index: int) -> tuple[Dim, ...]:
        """An operand that says sizes, one for each element."""
        value = self.operands[index]
        contents = contents_of(value)
        if contents is not None:
            return contents
        if value.rank > 1 or not is_static(value.shape):
            self.refuse(f"its operand {index}, which says sizes, is of unknown length")
        vector = graph.cast(graph.expand(value), np.dtype(np.int64))
        if value.rank == 0:
            vector = graph.node("Unsqueeze", [vector, graph.vector([0])], shape=(1,))
        name = graph.reference(vector)
        return tuple(of_atom(Element(name, n)) for n in range(math.prod(numbers_of(value.shape))))

    def refuse(self, reason: str, cure: str = "") -> NoReturn:
        """Refuse the operation, since the target cannot express it."""
        remedy = cure or "compute this part outside the exported function"
        raise UnsupportedError(f"{describe_operation(self.raw)}: {reason}. To do: {remedy}.")


def read(
    raw: Any,
    operands: Sequence[Value],
    walk: Walk,
    outside: Mapping[Any, Value],
    target: GraphTarget,
) -> Operation:
    """The operation that MLIR has, with its operands."""
    return Operation(
        name=str(raw.name),
        operands=tuple(operands),
        results=tuple(target.type_of(str(result.type)) for result in raw.results),
        regions=tuple(
            Region(region.blocks[0], walk, outside, target)
            for region in regions_of(raw)
            if len(region.blocks)
        ),
        target=target,
        raw=raw,
    )


# Adds what an operation computes to the graph and returns its result, or all of them if they are
# several; None where the decomposition of a composite is to be taken.
Emit = Callable[[Any, Operation], Value | Sequence[Value] | None]


def identity(graph: TensorGraph, op: Operation) -> Value:
    """Return the first operand as it is."""
    del graph
    return op.operands[0]


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule by which one operation of StableHLO becomes operations of a graph.

    Attributes:
        emit: the function that adds them to the graph.
        attributes: the names of the attributes that `emit` reads, or that do not matter to it. An
            operation with any other is refused.
        expand: whether the operands are broadcast before; see `Value.unbroadcast_shape`.
    """

    emit: Emit
    attributes: tuple[str, ...] = ()
    expand: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class GraphTarget:
    """A format of graphs that the operations of a module are translated to.

    Attributes:
        composites: those of composites; all others are computed by their decompositions.
        dtype_of: the function that gives the dtype of a StableHLO element type, such as `bf16`, of
            which it is told where it stands (`where`); it raises a `DtypeError` of other ones.
    """

    name: str
    rules: Mapping[str, Rule]
    custom_calls: Mapping[str, Rule]
    composites: Mapping[str, Rule]
    dtype_of: Callable[..., np.dtype[Any]]

    def lacks(self, contents: ModuleContents) -> bool:
        """Return whether a module has operations or element types that the target does not."""
        named = {name for name in contents.operations if name.startswith(_PREFIX)}
        return (
            bool(named - {*self.rules, *_STRUCTURE})
            or bool(contents.custom_calls - {*self.custom_calls})
            or not all(map(self._has_dtype, contents.elements))
        )

    def _has_dtype(self, element: str) -> bool:
        try:
            self.dtype_of(element, where="")
        except DtypeError:
            return False
        return True

    def type_of(self, text: str) -> ResultType:
        """Return the type that MLIR writes so."""
        return _type_of(text, self)


@functools.lru_cache(maxsize=4096)
def _type_of(text: str, target: GraphTarget) -> ResultType:
    if text == "!stablehlo.token":  # a token is a value of no use, as `control_flow` has it
        return ResultType(np.dtype(bool), ())
    tensor = tensor_type(text)
    return ResultType(target.dtype_of(tensor.element, where=text), tensor.shape)
