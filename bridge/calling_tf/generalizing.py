"""One function compiled for several sizes -> one StableHLO module for symbolic sizes.

TensorFlow's compiler gives modules of fixed sizes. What it makes of two sizes has the same
operations, and the numbers in their types and attributes follow from the sizes. So the operations
are walked side by side, and each is written once: as it is, with `?` in the types, or as the one of
StableHLO that takes its shape as an operand. Whatever else is different is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func, stablehlo

from bridge.calling_tf.dynamic_calls import (
    WINDOW,
    attributes_of,
    reducer_of,
    write_custom_call,
    write_random_bits,
    write_window,
)
from bridge.calling_tf.sampled_sizes import Size, SizeSamples, sizes_text
from xla_call_module._jax import dense_elements
from xla_call_module.errors import StructureError, shown_as_base
from xla_call_module.stablehlo.elements import read_elements
from xla_call_module.stablehlo.modules import functions_of

__all__ = ["NumberError", "generalize"]

# Its results have shapes that do not follow from those of their operands.
_SHAPED = frozenset({"rng"})
# The number of elements of a constant that are computed one by one where they depend on sizes.
_MAX_COMPUTED = 16


@shown_as_base
class NumberError(StructureError):
    """A number in what is compiled does not follow from the sizes as at other sizes."""


def generalize(modules: Sequence[Any], samples: SizeSamples, *, name: str) -> tuple[Any, list[str]]:
    """Return the module for symbolic sizes, and the expressions that its functions take first.

    Args:
        modules: parsed in one context, one for each of `samples.sizes`.
        samples: the sizes.
        name: of the function, for messages.

    Raises:
        StructureError: the modules differ in a way that does not follow from the sizes.
        NumberError: they do so in a number only.
    """
    return _Generalizer(samples, name).run(modules)


class _Generalizer:
    """Writes operations of which it sees one version for each size."""

    def __init__(self, samples: SizeSamples, name: str) -> None:
        self._samples = samples
        self._name = name
        self._terms = [*samples.names, *samples.declared, *samples.products]
        self._scalars: list[Any] = []
        self._values: dict[Any, Any] = {}
        self._numbers: list[dict[Any, int]] = []
        self._functions: list[list[str]] = []
        self._module: Any = None
        self._at: Any = None
        self._i32 = ir.IntegerType.get_signless(32)

    def run(self, modules: Sequence[Any]) -> tuple[Any, list[str]]:
        self._numbers = [{} for _ in modules]
        self._functions = [list(functions_of(module)) for module in modules]
        general = ir.Module.create(modules[0].operation.location)
        self._module = general
        with ir.InsertionPoint(general.body), modules[0].operation.location:
            for functions in self.together(module.body.operations for module in modules):
                self._function(functions)
        try:
            general.operation.verify()
        except ir.MLIRError as error:
            raise self.refusal(
                f"what is written for all sizes is wrong: {str(error)[:400]}"
            ) from error
        return general, self._terms

    def _function(self, functions: Sequence[Any]) -> None:
        if functions[0].operation.name != "func.func":
            raise self.refusal(f"it has a {functions[0].operation.name}")
        types = [
            self._types([f.type.inputs for f in functions]),
            self._types([f.type.results for f in functions]),
        ]
        scalars = [ir.RankedTensorType.get([], self._i32)] * len(self._terms)
        new: Any = func.FuncOp(
            functions[0].name.value, ir.FunctionType.get([*scalars, *types[0]], types[1])
        )
        if "sym_visibility" in functions[0].attributes:
            new.attributes["sym_visibility"] = functions[0].attributes["sym_visibility"]
        block = new.regions[0].blocks.append(*new.type.inputs)
        self._scalars = list(block.arguments)[: len(scalars)]
        self._block([f.regions[0].blocks[0] for f in functions], block, len(scalars))

    def _block(self, blocks: Sequence[Any], new: Any, skipped: int = 0) -> None:
        self._bind([list(block.arguments) for block in blocks], list(new.arguments)[skipped:])
        versions = [[view.operation for view in block.operations] for block in blocks]
        self._at = next((os[0] for os in zip(*versions, strict=False) if _differ(os)), self._at)
        with ir.InsertionPoint(new):
            for operations in self.together(versions):
                self._at = operations[0]
                self._operation(operations)

    def _bind(self, values: Sequence[Sequence[Any]], new: Sequence[Any]) -> None:
        """Note the numbers of values in each module, and their new values."""
        for versions, value in zip(zip(*values, strict=True), new, strict=True):
            for numbers, version in zip(self._numbers, versions, strict=True):
                numbers[version] = len(numbers)
            self._values[versions[0]] = value

    def _operation(self, operations: Sequence[Any]) -> None:
        first = operations[0]
        if _differ(operations):
            raise self.refusal(
                f"it is compiled to {', '.join(sorted({o.name for o in operations}))}"
            )
        for operands in self.together(operation.operands for operation in operations):
            if len({n[value] for n, value in zip(self._numbers, operands, strict=True)}) > 1:
                raise self.refusal(f"the operands of {first.name} depend on the size")
        given = [self._values[operand] for operand in first.operands]
        with first.location:
            self._bind([o.results for o in operations], self._write(operations, given))

    def _write(self, operations: Sequence[Any], operands: list[Any]) -> Sequence[Any]:
        name = operations[0].name.removeprefix("stablehlo.")
        types = self._types([[result.type for result in o.results] for o in operations])
        differing = self._differing(operations)
        if differing or any(map(_is_dynamic, types)):
            writer = _WRITERS.get(name)
            if writer is not None and (writer.sizes is None or set(differing) <= writer.sizes):
                return writer.write(_Versions(self, operations, operands, types))
            if differing or name in _SHAPED:
                which = f"{', '.join(differing)} of " if differing else "the shape of "
                raise self.refusal(
                    f"{which}{name} depends on the size, and StableHLO has no form of it"
                )
        return self._copy(operations, operands, types)

    def _differing(self, operations: Sequence[Any]) -> list[str]:
        """Return the attributes that depend on the size; the names of functions do not matter."""
        versions = [attributes_of(operation) for operation in operations]
        if operations[0].name == "func.call":
            names = [ir.FlatSymbolRefAttr(version.pop("callee")).value for version in versions]
            places = zip(self._functions, names, strict=True)
            if len({functions.index(name) for functions, name in places}) > 1:
                return ["callee"]
        keys = dict.fromkeys(key for version in versions for key in version)
        return [key for key in keys if len({version.get(key) for version in versions}) > 1]

    def _copy(
        self, operations: Sequence[Any], operands: list[Any], types: list[Any]
    ) -> Sequence[Any]:
        first = operations[0]
        if first.name == "func.call":
            operands = [*self._scalars, *operands]
        new = ir.Operation.create(
            first.name, types, operands, attributes_of(first), regions=len(first.regions)
        )
        for regions in zip(*(operation.regions for operation in operations), strict=True):
            region = new.regions[len([*regions]) and list(first.regions).index(regions[0])]
            for blocks in self.together(region_.blocks for region_ in regions):
                arguments = [[argument.type for argument in block.arguments] for block in blocks]
                self._block(blocks, region.blocks.append(*self._types(arguments)))
        return list(new.results)

    def together(self, versions: Any) -> list[tuple[Any, ...]]:
        """Return the items of all versions side by side, where there are as many in each."""
        lists = [list(version) for version in versions]
        if len({len(version) for version in lists}) > 1:
            raise self.refusal("the number of its operations depends on the size")
        return list(zip(*lists, strict=True))

    def _types(self, versions: Sequence[Sequence[Any]]) -> list[Any]:
        return [self._type(types) for types in self.together(versions)]

    def _type(self, types: Sequence[Any]) -> Any:
        if len(set(map(str, types))) == 1:
            return types[0]
        sizes = [size if not size.terms else None for size in self.shape(types)]
        unknown = ir.ShapedType.get_dynamic_size()
        shape = [unknown if size is None else size.constant for size in sizes]
        return ir.RankedTensorType.get(shape, ir.RankedTensorType(types[0]).element_type)

    def shape(self, types: Sequence[Any]) -> list[Size]:
        """Return the sizes of a tensor."""
        tensors = [ir.RankedTensorType(type_) for type_ in types]
        return [self.size(dims) for dims in self.together(tensor.shape for tensor in tensors)]

    def size(self, values: Sequence[int]) -> Size:
        """Return the size that has these values at the sampled sizes."""
        if (size := self._samples.fit(values)) is None:
            sizes = "; ".join(map(sizes_text, self._samples.sizes))
            raise NumberError(
                self._explain(
                    f"a size is {', '.join(map(str, values))} with {sizes}, which is not linear"
                )
            )
        return size

    def scalar(self, size: Size) -> Any:
        """Return a size as a value in the program."""
        total = self.constant(size.constant)
        for term, factor in size.terms:
            value = self._scalars[self._terms.index(term)]
            if factor != 1:
                value = stablehlo.multiply(value, self.constant(factor))
            total = (
                stablehlo.add(total, value) if size.constant or term != size.terms[0][0] else value
            )
        return total

    def constant(self, value: int) -> Any:
        array = np.asarray(value, np.int32)
        return stablehlo.constant(dense_elements(array, self._i32))

    def vector(self, sizes: Sequence[Size]) -> Any:
        """Return several sizes as a vector in the program."""
        one = ir.RankedTensorType.get([1], self._i32)
        parts = [stablehlo.reshape(one, self.scalar(size)) for size in sizes]
        if not parts:
            empty = np.zeros(0, np.int32)
            return stablehlo.constant(dense_elements(empty, self._i32))
        return stablehlo.concatenate(parts, _int64(0))

    def reducer(self, operation: Any) -> str:
        """Return the name of a function of the module that does what a region does."""
        if (name := reducer_of(operation, self._module)) is None:
            raise self.refusal(f"the region of {operation.name} calls functions")
        return name

    def numbers(self, arrays: Sequence[Any], element: Any) -> Any:
        """Return a constant of a fixed shape, with few numbers that depend on the size."""
        first = arrays[0]
        if all(_is_same(array, first) for array in arrays):
            return stablehlo.constant(dense_elements(first, element))
        if first.size > _MAX_COMPUTED:
            raise self.refusal("a constant depends on the size")
        one = ir.RankedTensorType.get([1], element)
        flat = [
            stablehlo.reshape(one, self._number(values, element))
            for values in zip(*(array.ravel() for array in arrays), strict=True)
        ]
        whole = stablehlo.concatenate(flat, _int64(0))
        return stablehlo.reshape(ir.RankedTensorType.get(first.shape, element), whole)

    def _number(self, values: Sequence[Any], element: Any) -> Any:
        """Return one number of a constant: the same for every size, or an integer of the size."""
        if all(_is_same(value, values[0]) for value in values):
            return stablehlo.constant(dense_elements(np.asarray(values[0]), element))
        scalar = ir.RankedTensorType.get([], element)
        whole = [number for value in values if (number := _to_integer(value)) is not None]
        if len(whole) < len(values):
            raise NumberError(self._explain(f"a constant is {', '.join(map(str, values))}"))
        return stablehlo.convert(scalar, self.scalar(self.size(whole)))

    def range(self, arrays: Sequence[Any], size: Size, element: Any) -> Any:
        """Return numbers that rise by the same step."""
        start, step = _steps(max(arrays, key=len))
        if any((array != start + step * np.arange(array.size)).any() for array in arrays):
            raise self.refusal("a constant depends on the size")
        type_ = ir.RankedTensorType.get([ir.ShapedType.get_dynamic_size()], element)
        numbers = stablehlo.dynamic_iota(type_, self.vector([size]), _int64(0))
        none = ir.DenseI64ArrayAttr.get([])
        for combine, number in ((stablehlo.multiply, step), (stablehlo.add, start)):
            scalar = stablehlo.constant(dense_elements(np.asarray(number), element))
            shape = self.vector([size])
            whole = stablehlo.dynamic_broadcast_in_dim(type_, scalar, shape, none)
            numbers = combine(numbers, whole)
        return numbers

    def refusal(self, what: str) -> StructureError:
        """Return the error for what depends on the size in another way."""
        return StructureError(self._explain(what))

    def _explain(self, what: str) -> str:
        where = _node_of(self._at)
        return (
            f"{self._name} is not compiled for symbolic sizes: {where}{what}. To do: pass "
            "graph=True, which leaves compiling it to the TensorFlow that runs what is exported; "
            "or constrain the symbols to sizes that it treats alike, as in symbolic_shape('b, 3', "
            "constraints=['b >= 16']); or export it once for each size."
        )


def _int64(value: int) -> Any:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def _differ(operations: Sequence[Any]) -> bool:
    return len({operation.name for operation in operations}) > 1


def _to_integer(value: Any) -> int | None:
    """Return the integer that a number of any dtype is; None of others."""
    if np.imag(value) or not np.isfinite(np.real(value).astype(np.float64)):
        return None
    whole = int(np.real(value))
    return whole if whole == value else None


def _steps(array: Any) -> tuple[Any, Any]:
    """Return the first number and the step to the next one, which is 0 where there is none.

    Of booleans there is none: they are added otherwise.
    """
    if array.size < 2 or array.dtype == np.bool_:
        return array[0], np.zeros((), array.dtype)
    return array[0], array[1] - array[0]


def _node_of(operation: Any) -> str:
    """Return the node of TensorFlow's graph that an operation comes from, if it says so."""
    node = re.search(
        r'^loc\((?:fused\[)?"([^"]*/[^"/]*|[A-Z]\w*)"', str(operation and operation.location)
    )
    return f"in {node[1]} " if node else ""


def _is_dynamic(type_: Any) -> bool:
    return isinstance(type_, ir.RankedTensorType) and not type_.has_static_shape


class _Versions(NamedTuple):
    """One operation as it is at each of the sampled sizes, and what it is written with.

    Attributes:
        module: the module in the making.
        operations: the versions of the operation.
        operands: its operands in the new module.
        types: the types of its results there.
    """

    module: _Generalizer
    operations: Sequence[Any]
    operands: list[Any]
    types: list[Any]

    @property
    def first(self) -> Any:
        """The operation at the first of the sizes."""
        return self.operations[0]

    def result_sizes(self, index: int = 0) -> list[Size]:
        """Return the sizes of a result."""
        return self.module.shape([operation.results[index].type for operation in self.operations])

    def result_shape(self) -> Any:
        """Return the shape of the first result as a vector."""
        return self.module.vector(self.result_sizes())

    def sizes(self, name: str, default: Sequence[int] = ()) -> list[Size]:
        """Return the sizes in an attribute, in the order in which they lie there."""
        arrays = [
            np.array(operation.attributes[name]).ravel().tolist()
            if name in operation.attributes
            else default
            for operation in self.operations
        ]
        return [self.module.size(values) for values in self.module.together(arrays)]

    def vectors(self, *names: str) -> list[Any]:
        """Return the sizes in several attributes as vectors."""
        return [self.module.vector(self.sizes(name)) for name in names]


def _write_iota(op: _Versions) -> list[Any]:
    dimension = op.first.attributes["iota_dimension"]
    return [stablehlo.dynamic_iota(op.types[0], op.result_shape(), dimension)]


def _write_broadcast(op: _Versions) -> list[Any]:
    dimensions = op.first.attributes["broadcast_dimensions"]
    shape = op.result_shape()
    return [stablehlo.dynamic_broadcast_in_dim(op.types[0], op.operands[0], shape, dimensions)]


def _write_reshape(op: _Versions) -> list[Any]:
    return [stablehlo.dynamic_reshape(op.types[0], op.operands[0], op.result_shape())]


def _write_slice(op: _Versions) -> list[Any]:
    vectors = op.vectors("start_indices", "limit_indices", "strides")
    return [stablehlo.real_dynamic_slice(op.types[0], op.operands[0], *vectors)]


def _write_pad(op: _Versions) -> list[Any]:
    vectors = op.vectors("edge_padding_low", "edge_padding_high", "interior_padding")
    return [stablehlo.dynamic_pad(op.types[0], *op.operands, *vectors)]


def _write_dynamic_slice(op: _Versions) -> list[Any]:
    """Write a slice whose indices are moved so that it lies inside, as the operation says."""
    module, (operand, *indices) = op.module, op.operands
    sizes = op.sizes("slice_sizes")
    whole = module.shape([operation.operands[0].type for operation in op.operations])
    i32 = ir.IntegerType.get_signless(32)
    one, scalar = ir.RankedTensorType.get([1], i32), ir.RankedTensorType.get([], i32)
    starts = []
    for index, size, total in zip(indices, sizes, whole, strict=True):
        last = stablehlo.subtract(module.scalar(total), module.scalar(size))
        start = stablehlo.clamp(module.constant(0), stablehlo.convert(scalar, index), last)
        starts.append(stablehlo.reshape(one, start))
    start = stablehlo.concatenate(starts, _int64(0))
    limit = stablehlo.add(start, module.vector(sizes))
    strides = module.vector([Size(1)] * len(sizes))
    return [stablehlo.real_dynamic_slice(op.types[0], operand, start, limit, strides)]


def _write_gather(op: _Versions) -> list[Any]:
    attributes = attributes_of(op.first)
    attributes.pop("slice_sizes")
    operands = [*op.operands, *op.vectors("slice_sizes")]
    created = ir.Operation.create("stablehlo.dynamic_gather", op.types[:1], operands, attributes)
    return list(created.results)


def _write_constant(op: _Versions) -> list[Any]:
    """Write a constant; along dimensions of symbolic size it is the same or rises by a step."""
    module, type_ = op.module, op.types[0]
    arrays = [read_elements(operation) for operation in op.operations]
    if not all(array.size for array in arrays):
        raise module.refusal("a constant depends on the size")
    element = ir.RankedTensorType(type_).element_type
    if not _is_dynamic(type_):
        return [module.numbers(arrays, element)]
    sizes = op.result_sizes()
    axes = range(len(sizes))
    same = {axis for axis in axes if all(_is_same_along(array, axis) for array in arrays)}
    kept = [axis for axis in axes if axis not in same]
    parts = [array[tuple(0 if axis in same else slice(None) for axis in axes)] for array in arrays]
    if not any(sizes[axis].terms for axis in kept):
        part = module.numbers(parts, element)
    elif len(kept) == 1:
        part = module.range(parts, sizes[kept[0]], element)
    else:
        raise module.refusal("a constant depends on the size")
    dimensions = ir.DenseI64ArrayAttr.get(kept)
    return [stablehlo.dynamic_broadcast_in_dim(type_, part, module.vector(sizes), dimensions)]


def _is_same_along(array: Any, axis: int) -> bool:
    return _is_same(array, np.broadcast_to(np.take(array, [0], axis), array.shape))


def _is_same(array: Any, other: Any) -> bool:
    """Return whether all bits are; NaN is the same as itself, and the zeros are two."""
    return bool(array.dtype == other.dtype and array.tobytes() == other.tobytes())


def _write_window(op: _Versions) -> list[Any]:
    rank = ir.RankedTensorType(op.types[0]).rank
    lists = [op.module.vector(op.sizes(name, (1,) * rank)) for name in WINDOW]
    pairs = ir.RankedTensorType.get([rank, 2], ir.IntegerType.get_signless(32))
    padding = op.module.vector(op.sizes("padding", (0,) * (2 * rank)))
    lists.append(stablehlo.reshape(pairs, padding))
    return write_window(op.types, op.operands, lists, op.module.reducer(op.first))


def _write_random_bits(op: _Versions) -> list[Any]:
    shape = op.module.vector(op.result_sizes(1))
    return write_random_bits(op.types, op.operands[0], shape, op.first.attributes["rng_algorithm"])


def _write_custom_call(op: _Versions) -> list[Any]:
    shapes = [op.module.vector(op.result_sizes(index)) for index in range(len(op.types))]
    return write_custom_call(op.types, op.operands, shapes, attributes_of(op.first))


class _Writer(NamedTuple):
    """The form of an operation that takes its sizes as operands.

    Attributes:
        write: the function that makes the results.
        sizes: the attributes that may depend on the size; None for any.
    """

    write: Callable[[_Versions], list[Any]]
    sizes: frozenset[str] | None = None


_WRITERS: Mapping[str, _Writer] = {
    "broadcast_in_dim": _Writer(_write_broadcast),
    "constant": _Writer(_write_constant),
    "custom_call": _Writer(_write_custom_call, frozenset()),
    "dynamic_slice": _Writer(_write_dynamic_slice),
    "gather": _Writer(_write_gather),
    "iota": _Writer(_write_iota),
    "pad": _Writer(_write_pad),
    "reduce_window": _Writer(_write_window, frozenset({*WINDOW, "padding"})),
    "reshape": _Writer(_write_reshape),
    "rng_bit_generator": _Writer(_write_random_bits, frozenset()),
    "slice": _Writer(_write_slice),
}
