"""Operations on arrays whose sizes are known only when a model runs, in those that LiteRT has.

The converter wants the sizes of what `stablehlo.gather` and `stablehlo.dynamic_slice` read from,
makes no iota of a shape of several dimensions, and knows no greatest elements of dynamic arrays. It
is a part of the program `bridge.litert.worker.worker_program`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from litert_converter.mlir import ir
from litert_converter.mlir.dialects import stablehlo

from bridge.litert.worker.loop_outlining import nested_operations


def lower_dynamic_sizes(module: Any) -> None:
    """Rewrite operations on dynamic arrays, as far as it is known how.

    The context of the module is to be the current one.
    """
    for operation in [*nested_operations(module.operation)]:
        rule = _RULES.get(operation.name)
        if rule is None or not _is_dynamic(operation):
            continue
        with operation.location, ir.InsertionPoint(operation):
            made = rule(operation)
        if made is not None:
            results = made if isinstance(made, list) else [made]
            for old, new in zip(operation.results, results, strict=True):
                old.replace_all_uses_with(new)
            operation.erase()


def _is_dynamic(operation: Any) -> bool:
    values = [*operation.operands, *operation.results]
    return not all(ir.ShapedType(value.type).has_static_shape for value in values)


def _iota(operation: Any) -> Any:
    """Return numbers along a dimension: those along the only one, repeated.

    They are counted in int32, of which the converter takes the size to be.
    """
    shape, kind = operation.operands[0], ir.RankedTensorType(operation.results[0].type)
    dimension = ir.IntegerAttr(operation.attributes["iota_dimension"]).value
    signed = ir.IntegerType.get_signless(32)
    is_wide = kind.element_type == ir.IntegerType.get_signless(64)
    if kind.rank == 1 and not is_wide:
        return None
    element = signed if is_wide else kind.element_type
    line = ir.RankedTensorType.get([ir.ShapedType.get_dynamic_size()], element)
    size = _part(shape, dimension)
    numbers = stablehlo.dynamic_iota(line, size, 0)
    if is_wide:
        numbers = stablehlo.convert(ir.RankedTensorType.get(line.shape, kind.element_type), numbers)
    return stablehlo.dynamic_broadcast_in_dim(kind, numbers, shape, [dimension])


def _dynamic_slice(operation: Any) -> Any:
    """Return a window of static sizes at indices that are scalars."""
    operand, *starts = operation.operands
    sizes = _constant(_integers(operation.attributes["slice_sizes"]))
    indices = stablehlo.concatenate([_vector(_int32(start)) for start in starts], 0)
    return _window(operation.results[0].type, operand, indices, sizes)


def _dot_general(operation: Any) -> Any:
    """Return products of matrices by the kernel; the converter computes shapes around it."""
    left, right = (ir.RankedTensorType(operand.type) for operand in operation.operands)
    if left.rank < 2 or left.rank != right.rank or str(left.element_type) != "f32":
        return None
    text = str(operation.attributes["dot_dimension_numbers"])
    batch = [*range(left.rank - 2)]
    wanted = [batch, batch, [left.rank - 1], [left.rank - 2]]
    if [_listed(text, f"{name}_dimensions") for name in _PRODUCT] != wanted:
        return None
    no = ir.BoolAttr.get(False)
    return ir.Operation.create(
        "tfl.batch_matmul",
        [operation.results[0].type],
        [*operation.operands],
        {"adj_x": no, "adj_y": no},
    ).results[0]


_PRODUCT = ("lhs_batching", "rhs_batching", "lhs_contracting", "rhs_contracting")


def _compare(operation: Any) -> Any:
    """Return a comparison of vectors, reshaped, where there are more than four dimensions.

    The converter takes no other one.
    """
    kind = ir.RankedTensorType(operation.results[0].type)
    if kind.rank <= _MAX_COMPARED:
        return None
    unknown = ir.ShapedType.get_dynamic_size()
    flat = []
    for operand in operation.operands:
        line = ir.RankedTensorType.get([unknown], ir.RankedTensorType(operand.type).element_type)
        made = ir.Operation.create("tfl.reshape", [line], [operand, _constant([-1])]).results[0]
        # The converter compares what two reshaped arrays are made of.
        flat.append(
            ir.Operation.create("stablehlo.optimization_barrier", [line], [made]).results[0]
        )
    line = ir.RankedTensorType.get([unknown], kind.element_type)
    compared = ir.Operation.create(
        operation.name,
        [line],
        flat,
        {name: operation.attributes[name] for name in operation.attributes},
    )
    sizes = [_size(operation.operands[0], dim) for dim in range(kind.rank)]
    return _reshaped(compared.results[0], kind, sizes)


_MAX_COMPARED = 4


def _composite(operation: Any) -> Any:
    if ir.StringAttr(operation.attributes["name"]).value != "chlo.top_k":
        return None
    return _top_k(operation, ir.DictAttr(operation.attributes["composite_attributes"])["k"])


def _custom_call(operation: Any) -> Any:
    match ir.StringAttr(operation.attributes["call_target_name"]).value:
        case "mhlo.topk":
            return _top_k(operation, ir.DictAttr(operation.attributes["mhlo.attributes"])["k"])
        case "stablehlo.dynamic_top_k":
            operand, count = operation.operands
            return _greatest(operation, operand, _int32(count))
    return None


def _top_k(operation: Any, attribute: Any) -> list[Any]:
    count = _scalar(_constant([ir.IntegerAttr(attribute).value]))
    return _greatest(operation, operation.operands[0], count)


def _greatest(operation: Any, operand: Any, count: Any) -> list[Any]:
    """Return the greatest elements of each row, and their places."""
    types = [result.type for result in operation.results]
    return [*ir.Operation.create("tfl.topk_v2", types, [operand, count]).results]


def _gather(operation: Any) -> Any:
    """Return one window, or the entries of one dimension; None for windows that are neither."""
    _, indices, *dynamic_sizes = operation.operands
    numbers = _DimensionNumbers(operation)
    if numbers.batching:
        return None
    sizes = dynamic_sizes[0] if dynamic_sizes else _constant(numbers.slice_sizes)
    sizes, indices = _int32(sizes), _int32(indices)
    if ir.RankedTensorType(indices.type).rank == 1 and numbers.index_vector_dim == 0:
        return _one_window(operation, numbers, indices, sizes)
    is_one = len(numbers.start_index_map) == 1 and numbers.collapsed == numbers.start_index_map
    return _entries(operation, numbers, indices, sizes) if is_one else None


class _DimensionNumbers:
    """The dimension numbers of a gather, as the text of the attribute has them."""

    def __init__(self, operation: Any) -> None:
        text = str(operation.attributes["dimension_numbers"])

        last = re.search(r"index_vector_dim = (\d+)", text)
        self.offset = _listed(text, "offset_dims")
        self.collapsed = _listed(text, "collapsed_slice_dims")
        self.batching = _listed(text, "operand_batching_dims")
        self.start_index_map = _listed(text, "start_index_map")
        self.index_vector_dim = int(last[1]) if last else 0
        has_sizes = "slice_sizes" in operation.attributes
        self.slice_sizes = _integers(operation.attributes["slice_sizes"]) if has_sizes else []


def _listed(text: str, name: str) -> list[int]:
    """Return the dimensions that the text of an attribute has under a name."""
    match = re.search(rf"{name} = \[([\d, ]*)\]", text)
    return [int(one) for one in match[1].split(",")] if match and match[1] else []


def _one_window(operation: Any, numbers: _DimensionNumbers, indices: Any, sizes: Any) -> Any:
    operand, result = operation.operands[0], ir.RankedTensorType(operation.results[0].type)
    rank = ir.RankedTensorType(operand.type).rank
    places = {dim: n for n, dim in enumerate(numbers.start_index_map)}
    zero = _constant([0])
    starts = [_part(indices, places[dim]) if dim in places else zero for dim in range(rank)]
    kept = [dim for dim in range(rank) if dim not in numbers.collapsed]
    shape = [1] * rank
    for dim, size in zip(kept, result.shape, strict=True):
        shape[dim] = size
    kind = ir.RankedTensorType.get(shape, result.element_type)
    window = _window(kind, operand, stablehlo.concatenate(starts, 0), sizes)
    if not numbers.collapsed:
        return window
    return _reshaped(window, result, [_part(sizes, dim) for dim in kept])


def _entries(operation: Any, numbers: _DimensionNumbers, indices: Any, sizes: Any) -> Any:
    """Return the entries at several indices of one dimension, with windows of the others."""
    operand, result = operation.operands[0], ir.RankedTensorType(operation.results[0].type)
    (axis,) = numbers.collapsed
    rank = ir.RankedTensorType(operand.type).rank
    given = ir.RankedTensorType(indices.type)
    places = [dim for dim in range(given.rank) if dim != numbers.index_vector_dim]
    if places != [*range(len(places))]:
        return None
    kind = ir.RankedTensorType.get([given.shape[dim] for dim in places], given.element_type)
    counts = [_size(indices, dim) for dim in places]
    flat = _reshaped(indices, kind, counts)
    last = stablehlo.subtract(_scalar(_size(operand, axis)), _scalar(_constant([1])))
    bounded = stablehlo.clamp(_scalar(_constant([0])), flat, last)
    shape = ir.RankedTensorType(operand.type).shape
    entries = ir.Operation.create(
        "tfl.gather",
        [
            ir.RankedTensorType.get(
                [*shape[:axis], *kind.shape, *shape[axis + 1 :]], result.element_type
            )
        ],
        [operand, bounded],
        {"axis": _i32(axis), "batch_dims": _i32(0)},
    ).results[0]
    # The dimensions of the windows, which begin at 0, among those of the indices.
    windows = [dim if dim < axis else dim + len(places) - 1 for dim in range(rank) if dim != axis]
    order = [0] * result.rank
    for place, dim in zip(numbers.offset, windows, strict=True):
        order[place] = dim
    batch = iter(range(axis, axis + len(places)))
    order = [dim if n in numbers.offset else next(batch) for n, dim in enumerate(order)]
    limits = [_part(sizes, dim) for dim in range(rank) if dim != axis]
    limits[axis:axis] = counts
    sliced = [0] * result.rank
    for n, dim in enumerate(order):
        sliced[dim] = result.shape[n]
    window = _slice(
        ir.RankedTensorType.get(sliced, result.element_type),
        entries,
        _constant([0] * result.rank),
        stablehlo.concatenate(limits, 0),
    )
    return window if order == sorted(order) else stablehlo.transpose(window, order)


def _window(kind: Any, operand: Any, starts: Any, sizes: Any) -> Any:
    """Return a window of an array, moved to where it is inside."""
    rank = ir.RankedTensorType(operand.type).rank
    has = stablehlo.concatenate([_size(operand, dim) for dim in range(rank)], 0)
    starts = stablehlo.clamp(_constant([0] * rank), starts, stablehlo.subtract(has, sizes))
    return _slice(kind, operand, starts, sizes)


def _slice(kind: Any, operand: Any, starts: Any, sizes: Any) -> Any:
    """Return a window; the converter would make a slice of StableHLO one of those here again."""
    return ir.Operation.create("tfl.slice", [kind], [operand, starts, sizes]).results[0]


def _reshaped(value: Any, kind: Any, sizes: Sequence[Any]) -> Any:
    if kind.has_static_shape:
        return stablehlo.reshape(kind, value)
    return stablehlo.dynamic_reshape(kind, value, stablehlo.concatenate([*sizes], 0))


def _size(value: Any, dim: int) -> Any:
    """Return the size of a dimension, as a vector of one number."""
    size = ir.RankedTensorType(value.type).shape[dim]
    if size != ir.ShapedType.get_dynamic_size():
        return _constant([size])
    return _vector(stablehlo.get_dimension_size(value, dim))


def _part(vector: Any, number: int) -> Any:
    """Return one number of a vector, as a vector."""
    return stablehlo.slice(vector, [number], [number + 1], [1])


def _vector(scalar: Any) -> Any:
    kind = ir.RankedTensorType.get([1], ir.RankedTensorType(scalar.type).element_type)
    return stablehlo.reshape(kind, scalar)


def _scalar(vector: Any) -> Any:
    kind = ir.RankedTensorType.get([], ir.RankedTensorType(vector.type).element_type)
    return stablehlo.reshape(kind, vector)


def _int32(value: Any) -> Any:
    given = ir.RankedTensorType(value.type)
    signed = ir.IntegerType.get_signless(32)
    if given.element_type == signed:
        return value
    return stablehlo.convert(ir.RankedTensorType.get(given.shape, signed), value)


def _constant(numbers: Sequence[int]) -> Any:
    return stablehlo.constant(ir.DenseElementsAttr.get(np.array(numbers, np.int32)))


def _i32(number: int) -> Any:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(32), number)


def _integers(attribute: Any) -> list[int]:
    return [*ir.DenseI64ArrayAttr(attribute)]


_RULES: dict[str, Callable[[Any], Any]] = {
    "stablehlo.compare": _compare,
    "stablehlo.composite": _composite,
    "stablehlo.custom_call": _custom_call,
    "stablehlo.dot_general": _dot_general,
    "stablehlo.dynamic_gather": _gather,
    "stablehlo.dynamic_iota": _iota,
    "stablehlo.dynamic_slice": _dynamic_slice,
    "stablehlo.gather": _gather,
}
