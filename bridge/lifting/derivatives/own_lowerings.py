"""Functions of JAX, found in a module by what this JAX lowers them to.

A function is lowered once for its dtypes, and its operations are read as a graph. A module computes
the function where the graph of its operations is the same: their names, attributes and constants,
the functions that they call and their regions. Sizes of dimensions do not matter, so that arrays of
any rank and of unknown sizes are found, too. What is found can be replaced by the function, which
has the derivatives that its author gave it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from bridge.core._jax import outside_meshes
from xla_call_module.dtypes import WIDE
from xla_call_module.stablehlo.attributes import value_attributes
from xla_call_module.stablehlo.call_graph import COMPOSITE, REFERENCES, named_by
from xla_call_module.stablehlo.elements import BROADCASTS, read_elements, read_splat
from xla_call_module.stablehlo.modules import find_main, functions_of, open_module, tensor_type
from xla_call_module.stablehlo.walking import RETURNS

# The shape, with None for an unknown size, and the dtype of an argument.
Aval = tuple[tuple[int | None, ...], np.dtype[Any]]
# Operations that are told the sizes of their results, by what they are if these are known, and how
# many of their operands are no sizes.
_OF_SIZES: Mapping[str, tuple[str, int]] = {
    "stablehlo.dynamic_broadcast_in_dim": ("stablehlo.broadcast_in_dim", 1),
    "stablehlo.dynamic_iota": ("stablehlo.iota", 0),
    "stablehlo.dynamic_pad": ("stablehlo.pad", 2),
    "stablehlo.dynamic_reshape": ("stablehlo.reshape", 1),
    "stablehlo.real_dynamic_slice": ("stablehlo.slice", 1),
}
# The settings of JAX by which its random numbers are drawn.
_RANDOM_OPTIONS = ("jax_default_prng_impl", "jax_threefry_partitionable")
# Attributes that say nothing of what is computed, or are read otherwise.
_IGNORED = (
    *REFERENCES.values(), "known_expanding_dimensions", "known_nonexpanding_dimensions",
    "mhlo.sharding",
)  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class OwnValue:
    """A value of a graph.

    Attributes:
        element: the type of its elements, as MLIR writes it.
        constant: the bytes of the number that it repeats, or of its elements; None if computed.
        operation: the operation that makes it; None of an argument.
        number: which of the results of the operation it is.
    """

    element: str
    constant: bytes | None = None
    operation: OwnOperation | None = None
    number: int = 0

    def before_broadcasts(self) -> OwnValue:
        """Return the value that this one repeats; itself if it repeats none."""
        value = self
        while value.operation is not None and value.operation.kind in BROADCASTS:
            (value,) = value.operation.operands
        return value


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class OwnOperation:
    """An operation of a graph.

    Attributes:
        kind: its name, that of one which is told no sizes.
        attributes: its attributes, as MLIR writes them.
        operands: its operands that are no sizes.
        graphs: its regions, or the function that it calls.
    """

    kind: str
    attributes: Mapping[str, str]
    operands: tuple[OwnValue, ...]
    graphs: tuple[OwnGraph, ...]


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class OwnGraph:
    """A function, or a region, as the graph of its operations.

    Attributes:
        arguments: its arguments that are no sizes.
        results: its results.
    """

    arguments: tuple[OwnValue, ...]
    results: tuple[OwnValue, ...]

    @property
    def kind(self) -> str:
        """The kind of the operation that makes the one result; empty where there is none."""
        made = self.results[0].operation if len(self.results) == 1 else None
        return "" if made is None else made.kind

    def with_definitions(self) -> Iterator[OwnGraph]:
        """Yield the graph, and what defines the composite that it is, if it is one."""
        yield self
        made = self.results[0].operation
        if made is not None and made.kind == COMPOSITE and made.operands == self.arguments:
            yield from made.graphs


def own_graphs(
    function: Callable[..., Any], avals: tuple[Aval, ...], name: str = ""
) -> list[OwnGraph]:
    """Return the graphs of a function as this JAX lowers it; none if it does not take the dtypes.

    There is one more without dtypes of 64 bits where JAX has these: a module that has them
    somewhere does not say how JAX was set.
    """
    is_wide = jnp.result_type(float) == np.float64
    needs_wide = any(str(dtype) in WIDE for _, dtype in avals)
    settings = [True] if needs_wide else [is_wide, False][: 1 + is_wide]
    random = tuple(getattr(jax.config, option) for option in _RANDOM_OPTIONS)
    graphs = (_own_graph(function, avals, name, x64=x64, random=random) for x64 in settings)
    return [graph for graph in graphs if graph is not None]


@functools.lru_cache(maxsize=512)
def _own_graph(
    function: Callable[..., Any],
    avals: tuple[Aval, ...],
    name: str,
    *,
    x64: bool,
    random: tuple[Any, ...],
) -> OwnGraph | None:
    """Return the graph for some settings of JAX, whatever context it is traced in.

    By them sizes and places may have 64 bits, and random numbers are drawn in another way.
    """
    del random
    specs = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in _symbolic(avals)]
    try:
        with jax.enable_x64(x64), jax.disable_jit(disable=False), outside_meshes():
            exported = export.export(jax.jit(lambda *given: function(*given)))(*specs)
    except (NotImplementedError, TypeError, ValueError):  # not for these dtypes
        return None
    with open_module(exported.mlir_module_serialized) as module:
        functions = functions_of(module)
        meant = functions.get(name) if name else _written_out(find_main(module), functions)
        return None if meant is None else _Reader(functions).function(meant)


def _symbolic(avals: Sequence[Aval]) -> Iterator[tuple[tuple[Any, ...], np.dtype[Any]]]:
    """Yield shapes and dtypes, with one dimension variable for the unknown sizes of each axis."""
    scope = export.SymbolicScope()
    for shape, dtype in avals:
        last = len(shape) - 1
        names = (f"d{last - n}" if size is None else str(size) for n, size in enumerate(shape))
        yield tuple(export.symbolic_shape(",".join(names), scope=scope)), dtype


def _written_out(main: Any, functions: Mapping[str, Any]) -> Any:
    """Return the function that `main` calls after its checks of shapes, or `main` itself."""
    return functions.get("_wrapped_jax_export_main", main)


def own_inputs(
    value: Any, graph: OwnGraph, functions: Mapping[str, Any], *, through_broadcasts: bool = False
) -> tuple[Any, ...] | None:
    """Return the values of a module of which another one is what a graph computes; None if of none.

    They have the type of that value, or are broadcast to it.
    """
    match = _Match(functions, through_broadcasts=through_broadcasts)
    if len(graph.results) != 1 or not match.all_same([(graph.results[0], value)]):
        return None
    inputs = [match.arguments.get(argument) for argument in graph.arguments]
    if any(each is None for each in inputs):
        return None
    return tuple(inputs) if _broadcast_to(inputs, value) else None


def _broadcast_to(inputs: Sequence[Any], value: Any) -> bool:
    """Return whether the function of arrays of these types has the type of a value."""
    shape = tensor_type(str(value.type)).shape
    shapes = [tensor_type(str(each.type)).shape for each in inputs]
    if any(len(given) > len(shape) for given in shapes):
        return False
    padded = [(1,) * (len(shape) - len(given)) + tuple(given) for given in shapes]
    return all(
        size in sizes and set(sizes) <= {1, size}
        for size, sizes in zip(shape, zip(*padded, strict=True), strict=True)
    )


def is_own(function: Any, graph: OwnGraph, functions: Mapping[str, Any]) -> bool:
    """Return whether a function of a module computes what a graph does."""
    return _Match(functions).same_block(graph, function.regions[0].blocks[0], function)


def size_arguments(function: Any) -> frozenset[int]:
    """Return which arguments of a function of a module are sizes of dimensions."""
    attributes = value_attributes(function, "arg_attrs")
    return frozenset(n for n, each in enumerate(attributes) if "jax.global_constant" in each)


def without_sizes(operation: Any, functions: Mapping[str, Any]) -> list[Any]:
    """Return the operands of an operation but for the sizes of its result and those of a call."""
    operands = list(operation.operands)
    if operation.name in _OF_SIZES:
        return operands[: _OF_SIZES[operation.name][1]]
    if operation.name == "func.call":
        sizes = size_arguments(functions[next(named_by(operation))])
        return [operand for number, operand in enumerate(operands) if number not in sizes]
    return operands


def kind_of(operation: Any) -> str:
    """Return the name of an operation, that of one which is told no sizes."""
    return _OF_SIZES.get(operation.name, (operation.name,))[0]


def _attributes_of(operation: Any) -> dict[str, str]:
    """Return the attributes as text; none of a constant, whose elements are compared as bytes."""
    if operation.name == "stablehlo.constant":  # of complex numbers jaxlib has no attribute
        return {}
    names = (getattr(each, "name", each) for each in operation.attributes)
    return {name: str(operation.attributes[name]) for name in names if name not in _IGNORED}


def _blocks_of(operation: Any, functions: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """Return the blocks of an operation or of what it calls, each with the function that it is."""
    if operation.name in ("func.call", COMPOSITE):
        called = functions[next(named_by(operation))]
        return [(called.regions[0].blocks[0], called)]
    return [(region.blocks[0], None) for region in operation.regions if len(region.blocks)]


def _arguments_of(block: Any, function: Any) -> list[Any]:
    sizes = frozenset() if function is None else size_arguments(function)
    return [argument for n, argument in enumerate(block.arguments) if n not in sizes]


def _results_of(block: Any) -> list[Any]:
    last = [view.operation for view in block][-1]
    assert last.name in RETURNS
    return list(last.operands)


def unconverted(value: Any) -> Any:
    """Return the value that another one is, converted to its own type or not.

    JAX converts so where a Python number becomes an array of the same dtype.
    """
    while getattr(value.owner, "name", "") == "stablehlo.convert":
        (given,) = value.owner.operands
        if given.type != value.type:
            break
        value = given
    return value


def values_broadcast(value: Any) -> Iterator[Any]:
    """Yield a value, and those that are broadcast to it."""
    yield value
    while getattr(value.owner, "name", "") in BROADCASTS:
        value = unconverted(value.owner.operands[0])
        yield value


def _element_of(value: Any) -> str:
    return tensor_type(str(value.type)).element


def _constant_of(value: Any) -> bytes | None:
    """Return the bytes of the number that a value repeats, or of its elements; None if computed."""
    value = unconverted(value)
    maker = value.owner
    while getattr(maker, "name", "") in BROADCASTS:
        maker = unconverted(maker.operands[0]).owner
    if getattr(maker, "name", "") != "stablehlo.constant":
        return None
    repeated = read_splat(maker)
    if repeated is None:
        return read_elements(maker).tobytes() if maker is value.owner else None
    return repeated.tobytes()


class _Reader:
    """Reads functions of a parsed module as graphs."""

    def __init__(self, functions: Mapping[str, Any]) -> None:
        self._functions = functions

    def function(self, function: Any) -> OwnGraph:
        """Return the graph of a function."""
        return self._block(function.regions[0].blocks[0], function, {})

    def _block(self, block: Any, function: Any, outside: Mapping[Any, OwnValue]) -> OwnGraph:
        arguments = _arguments_of(block, function)
        values = {**outside, **{each: OwnValue(_element_of(each)) for each in block.arguments}}
        for view in block:
            raw = view.operation
            if raw.name not in RETURNS:
                values.update(self._operation(raw, values))
        results = tuple(values[result] for result in _results_of(block))
        return OwnGraph(tuple(values[argument] for argument in arguments), results)

    def _operation(self, raw: Any, values: Mapping[Any, OwnValue]) -> dict[Any, OwnValue]:
        if not len(raw.results) or "tensor" not in str(raw.results[0].type):
            return {}
        if unconverted(raw.results[0]) != raw.results[0]:
            return {raw.results[0]: values[raw.operands[0]]}
        operands = tuple(values[operand] for operand in without_sizes(raw, self._functions))
        graphs = tuple(
            self._block(block, function, {} if function is not None else values)
            for block, function in _blocks_of(raw, self._functions)
        )
        operation = OwnOperation(kind_of(raw), _attributes_of(raw), operands, graphs)
        return {
            result: OwnValue(_element_of(result), _constant_of(result), operation, number)
            for number, result in enumerate(raw.results)
        }


class _Match:
    """Compares a graph with operations of a module, from results to arguments.

    Attributes:
        arguments: the value of the module that each argument of the graph is.
    """

    def __init__(self, functions: Mapping[str, Any], *, through_broadcasts: bool = False) -> None:
        self._functions = functions
        self._through_broadcasts = through_broadcasts
        self._made: dict[OwnOperation, Any] = {}
        self._bound: dict[OwnValue, Any] = {}
        self.arguments: dict[OwnValue, Any] = {}

    def same_block(self, graph: OwnGraph, block: Any, function: Any) -> bool:
        """Return whether a block computes what a graph does, of its arguments in their order."""
        pairs = self._enter(graph, block, function)
        return pairs is not None and self.all_same(pairs)

    def all_same(self, pairs: Sequence[tuple[OwnValue, Any]]) -> bool:
        """Return whether values of a graph are those of the module."""
        pending = list(pairs)
        while pending:
            more = self._same_value(*pending.pop())
            if more is None:
                return False
            pending += more
        return True

    def _same_value(self, own: OwnValue, value: Any) -> list[tuple[OwnValue, Any]] | None:
        """Return what has to be the same besides; None if the value is another one."""
        value = unconverted(value)
        if self._through_broadcasts:
            own = own.before_broadcasts()
        if own.operation is None:
            self.arguments.setdefault(own, value)
        if self._through_broadcasts:
            *_, value = values_broadcast(value)
        known = self._bound.setdefault(own, value)
        if own.element != _element_of(value):
            return None
        if known != value:
            is_repeated = _constant_of(known) is not None
            return [] if is_repeated and _constant_of(known) == _constant_of(value) else None
        if own.constant is not None:
            return [] if own.constant == _constant_of(value) else None
        if own.operation is None:
            return []
        return self._same_operation(own.operation, own.number, value)

    def _same_operation(
        self, own: OwnOperation, number: int, value: Any
    ) -> list[tuple[OwnValue, Any]] | None:
        """Return what has to be the same besides; None if the operation is another one."""
        maker = getattr(value.owner, "operation", value.owner)
        if not hasattr(maker, "operands") or kind_of(maker) != own.kind:
            return None
        if maker.results[number] != value:
            return None
        if own in self._made:
            return [] if self._made[own] == maker else None
        self._made[own] = maker
        operands = without_sizes(maker, self._functions)
        blocks = _blocks_of(maker, self._functions)
        if len(operands) != len(own.operands) or len(blocks) != len(own.graphs):
            return None
        if _attributes_of(maker) != own.attributes:
            return None
        more = list(zip(own.operands, operands, strict=True))
        for graph, (block, function) in zip(own.graphs, blocks, strict=True):
            if function is not None:
                match = _Match(self._functions, through_broadcasts=self._through_broadcasts)
                if not match.same_block(graph, block, function):
                    return None
                continue
            inner = self._enter(graph, block, None)
            if inner is None:
                return None
            more += inner
        return more

    def _enter(
        self, graph: OwnGraph, block: Any, function: Any
    ) -> list[tuple[OwnValue, Any]] | None:
        """Bind the arguments of a block, and return its results beside those of a graph."""
        arguments, results = _arguments_of(block, function), _results_of(block)
        if len(arguments) != len(graph.arguments) or len(results) != len(graph.results):
            return None
        self._bound.update(zip(graph.arguments, arguments, strict=True))
        return list(zip(graph.results, results, strict=True))
