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
from xla_call_module.errors import StructureError
from xla_call_module.stablehlo.elements import read_elements
from xla_call_module.stablehlo.modules import functions_of

__all__ = ["NumberError", "generalize"]

# Its results have shapes that do not follow from those of their operands.
_SHAPED = frozenset({"rng"})
# The number of elements of a constant that are computed one by one where they depend on sizes.
_MAX_COMPUTED = 16


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
            for functions in self._together(module.body.operations for module in modules):
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
            for operations in self._together(versions):
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
        for operands in self._together(operation.operands for operation in operations):
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
            if (write := _WRITERS.get(name)) is not None:
                return [write(self, operations, operands, types[0])]
            if (call := _CALLS.get(name)) is not None and set(differing) <= call.sizes:
                return call.write(self, operations, operands, types)
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
            for blocks in self._together(region_.blocks for region_ in regions):
                arguments = [[argument.type for argument in block.arguments] for block in blocks]
                self._block(blocks, region.blocks.append(*self._types(arguments)))
        return list(new.results)

    def _together(self, versions: Any) -> list[tuple[Any, ...]]:
        lists = [list(version) for version in versions]
        if len({len(version) for version in lists}) > 1:
            raise self.refusal("the number of its operations depends on the size")
        return list(zip(*lists, strict=True))

    def _types(self, versions: Sequence[Sequence[Any]]) -> list[Any]:
        return [self._type(types) for types in self._together(versions)]

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
        return [self.size(dims) for dims in self._together(tensor.shape for tensor in tensors)]

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

    def shape_of_result(self, operations: Sequence[Any]) -> Any:
        """Return the shape of the first result as a vector."""
        return self.vector(self.shape([operation.results[0].type for operation in operations]))

    def attribute(
        self, operations: Sequence[Any], name: str, default: Sequence[int] = ()
    ) -> list[Size]:
        """Return the sizes in an attribute, in the order in which they lie there."""
        arrays = [
            np.array(operation.attributes[name]).ravel().tolist()
            if name in operation.attributes
            else default
            for operation in operations
        ]
        return [self.size(values) for values in self._together(arrays)]

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


def _write_iota(self: _Generalizer, operations: Sequence[Any], _: list[Any], type_: Any) -> Any:
    dimension = operations[0].attributes["iota_dimension"]
    return stablehlo.dynamic_iota(type_, self.shape_of_result(operations), dimension)


def _write_broadcast(
    self: _Generalizer, operations: Sequence[Any], operands: list[Any], type_: Any
) -> Any:
    dimensions = operations[0].attributes["broadcast_dimensions"]
    shape = self.shape_of_result(operations)
    return stablehlo.dynamic_broadcast_in_dim(type_, operands[0], shape, dimensions)


def _write_reshape(
    self: _Generalizer, operations: Sequence[Any], operands: list[Any], type_: Any
) -> Any:
    return stablehlo.dynamic_reshape(type_, operands[0], self.shape_of_result(operations))


def _write_slice(
    self: _Generalizer, operations: Sequence[Any], operands: list[Any], type_: Any
) -> Any:
    names = ("start_indices", "limit_indices", "strides")
    vectors = [self.vector(self.attribute(operations, name)) for name in names]
    return stablehlo.real_dynamic_slice(type_, operands[0], *vectors)


def _write_pad(
    self: _Generalizer, operations: Sequence[Any], operands: list[Any], type_: Any
) -> Any:
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    vectors = [self.vector(self.attribute(operations, name)) for name in names]
    return stablehlo.dynamic_pad(type_, *operands, *vectors)


def _write_dynamic_slice(
    self: _Generalizer, operations: Sequence[Any], operands: list[Any], type_: Any
) -> Any:
    """Write a slice whose indices are moved so that it lies inside, as the operation says."""
    operand, *indices = operands
    sizes = self.attribute(operations, "slice_sizes")
    whole = self.shape([operation.operands[0].type for operation in operations])
    one = ir.RankedTensorType.get([1], self._i32)
    scalar = ir.RankedTensorType.get([], self._i32)
    starts = []
    for index, size, total in zip(indices, sizes, whole, strict=True):
        last = stablehlo.subtract(self.scalar(total), self.scalar(size))
        start = stablehlo.clamp(self.constant(0), stablehlo.convert(scalar, index), last)
        starts.append(stablehlo.reshape(one, start))
    zero = _int64(0)
    start = stablehlo.concatenate(starts, zero)
    limit = stablehlo.add(start, self.vector(sizes))
    strides = self.vector([Size(1)] * len(sizes))
    return stablehlo.real_dynamic_slice(type_, operand, start, limit, strides)


def _write_gather(
    self: _Generalizer, operations: Sequence[Any], operands: list[Any], type_: Any
) -> Any:
    sizes = self.vector(self.attribute(operations, "slice_sizes"))
    attributes = {
        name: value for name, value in attributes_of(operations[0]).items() if name != "slice_sizes"
    }
    created = ir.Operation.create(
        "stablehlo.dynamic_gather", [type_], [*operands, sizes], attributes
    )
    return created.results[0]


def _write_constant(self: _Generalizer, operations: Sequence[Any], _: list[Any], type_: Any) -> Any:
    """Write a constant; along dimensions of symbolic size it is the same or rises by a step."""
    arrays = [read_elements(operation) for operation in operations]
    if not all(array.size for array in arrays):
        raise self.refusal("a constant depends on the size")
    element = ir.RankedTensorType(type_).element_type
    if not _is_dynamic(type_):
        return self.numbers(arrays, element)
    sizes = self.shape([operation.results[0].type for operation in operations])
    axes = range(len(sizes))
    same = {axis for axis in axes if all(_is_same_along(array, axis) for array in arrays)}
    kept = [axis for axis in axes if axis not in same]
    parts = [array[tuple(0 if axis in same else slice(None) for axis in axes)] for array in arrays]
    if not any(sizes[axis].terms for axis in kept):
        part = self.numbers(parts, element)
    elif len(kept) == 1:
        part = self.range(parts, sizes[kept[0]], element)
    else:
        raise self.refusal("a constant depends on the size")
    dimensions = ir.DenseI64ArrayAttr.get(kept)
    return stablehlo.dynamic_broadcast_in_dim(type_, part, self.vector(sizes), dimensions)


def _is_same_along(array: Any, axis: int) -> bool:
    return _is_same(array, np.broadcast_to(np.take(array, [0], axis), array.shape))


def _is_same(array: Any, other: Any) -> bool:
    """Return whether all bits are; NaN is the same as itself, and the zeros are two."""
    return bool(array.dtype == other.dtype and array.tobytes() == other.tobytes())


def _call_window(
    self: _Generalizer, operations: Sequence[Any], operands: list[Any], types: list[Any]
) -> list[Any]:
    rank = ir.RankedTensorType(types[0]).rank
    ones, zeros = (1,) * rank, (0,) * (2 * rank)
    lists = [self.vector(self.attribute(operations, name, ones)) for name in WINDOW]
    pairs = ir.RankedTensorType.get([rank, 2], ir.IntegerType.get_signless(32))
    padding = stablehlo.reshape(pairs, self.vector(self.attribute(operations, "padding", zeros)))
    return write_window(types, operands, [*lists, padding], self.reducer(operations[0]))


def _call_random_bits(
    self: _Generalizer, operations: Sequence[Any], operands: list[Any], types: list[Any]
) -> list[Any]:
    shape = self.vector(self.shape([operation.results[1].type for operation in operations]))
    algorithm = operations[0].attributes["rng_algorithm"]
    return write_random_bits(types, operands[0], shape, algorithm)


def _call_custom_call(
    self: _Generalizer, operations: Sequence[Any], operands: list[Any], types: list[Any]
) -> list[Any]:
    results = self._together([result.type for result in o.results] for o in operations)
    shapes = [self.vector(self.shape(versions)) for versions in results]
    return write_custom_call(types, operands, shapes, attributes_of(operations[0]))


class _Call(NamedTuple):
    """The form of an operation as a call.

    Attributes:
        write: the function that makes the results.
        sizes: the attributes that may depend on the size.
    """

    write: Callable[[_Generalizer, Sequence[Any], list[Any], list[Any]], list[Any]]
    sizes: frozenset[str] = frozenset()


_CALLS: Mapping[str, _Call] = {
    "custom_call": _Call(_call_custom_call),
    "reduce_window": _Call(_call_window, frozenset({*WINDOW, "padding"})),
    "rng_bit_generator": _Call(_call_random_bits),
}
_WRITERS: Mapping[str, Callable[[_Generalizer, Sequence[Any], list[Any], Any], Any]] = {
    "broadcast_in_dim": _write_broadcast,
    "constant": _write_constant,
    "dynamic_slice": _write_dynamic_slice,
    "gather": _write_gather,
    "iota": _write_iota,
    "pad": _write_pad,
    "reshape": _write_reshape,
    "slice": _write_slice,
}
