"""Gathers, scatters and slices at places that are computed, in the forms that the kernels have."""

from __future__ import annotations

from collections.abc import Mapping

from jax import lax

from bridge.blocks.block import Operation, Value
from bridge.litert.emitting.block_emitter import INT, BlockEmitter, Emit
from xla_call_module.size_polynomials import Dim, is_static

_MODES = lax.GatherScatterMode
# The operation in the graph that combines an element with an update.
_COMBINED = {
    "scatter": "",
    "scatter-add": "STABLEHLO_ADD",
    "scatter-max": "STABLEHLO_MAXIMUM",
    "scatter-min": "STABLEHLO_MINIMUM",
    "scatter-mul": "STABLEHLO_MULTIPLY",
}


def _gather(emitter: BlockEmitter, op: Operation) -> int:
    """Return the entries of one dimension, or one window."""
    value, indices = op.operands
    numbers, sizes = op.parameters["dimension_numbers"], op.parameters["slice_sizes"]
    mapped, collapsed = numbers.start_index_map, numbers.collapsed_slice_dims
    if numbers.operand_batching_dims or op.parameters["mode"] == _MODES.FILL_OR_DROP:
        emitter.refuse(op, "LiteRT has no such gather")
    others = [axis for axis in range(value.rank) if axis not in mapped]
    is_whole = all(sizes[axis] == value.shape[axis] for axis in others)
    if len(mapped) == 1 and collapsed == mapped and is_whole:
        return _entries(emitter, op, mapped[0])
    if indices.rank != 1:
        emitter.refuse(op, "LiteRT has no such gather")
    return _window(emitter, op)


def _entries(emitter: BlockEmitter, op: Operation, axis: int) -> int:
    value, indices = op.operands
    numbers = op.parameters["dimension_numbers"]
    places = Value(indices.shape[:-1], indices.dtype)
    tensor = emitter.reshape(emitter.read(indices), places)
    tensor = emitter.cast(tensor, places, INT)
    if op.parameters["mode"] == _MODES.CLIP:
        like = Value(places.shape, INT)
        zero, one = emitter.size(0), emitter.size(1)
        last = emitter.make("SUB", [emitter.size(value.shape[axis]), one], Value((), INT))
        tensor = emitter.make("MAXIMUM", [tensor, zero], like)
        tensor = emitter.make("MINIMUM", [tensor, last], like)
    shape = (*value.shape[:axis], *places.shape, *value.shape[axis + 1 :])
    like = Value(shape, value.dtype)
    made = emitter.make("GATHER", [emitter.read(value), tensor], like, axis=axis)
    windows = iter([*range(axis), *range(axis + places.rank, len(shape))])
    batch = iter(range(axis, axis + places.rank))
    offsets = numbers.offset_dims
    order = [next(windows if n in offsets else batch) for n in range(len(shape))]
    return emitter.transpose(made, like, order)


def _window(emitter: BlockEmitter, op: Operation) -> int:
    """Return one window, moved to where it is inside."""
    value, indices = op.operands
    numbers, sizes = op.parameters["dimension_numbers"], op.parameters["slice_sizes"]
    mapped = numbers.start_index_map
    given = emitter.cast(emitter.read(indices), indices, INT)
    scalars = emitter.make_several(
        "UNPACK", [given], [Value((), INT)] * len(mapped), num=len(mapped), axis=0
    )
    starts = []
    for axis in range(value.rank):
        if axis not in mapped:
            starts.append(emitter.size(0))
            continue
        most = value.shape[axis] - sizes[axis]
        starts.append(_inside(emitter, scalars[mapped.index(axis)], most))
    window = Value(tuple(sizes), value.dtype)
    made = emitter.make(
        "SLICE", [emitter.read(value), _packed(emitter, starts), emitter.shape(sizes)], window
    )
    if window.shape == op.result.shape:
        return made
    return emitter.reshape(made, op.result)


def _inside(emitter: BlockEmitter, start: int, most: Dim) -> int:
    like = Value((), INT)
    start = emitter.make("MAXIMUM", [start, emitter.size(0)], like)
    return emitter.make("MINIMUM", [start, emitter.size(most)], like)


def _packed(emitter: BlockEmitter, scalars: list[int]) -> int:
    like = Value((len(scalars),), INT)
    return emitter.make("PACK", scalars, like, axis=0, valuesCount=len(scalars))


def _starts(emitter: BlockEmitter, starts: tuple[Value, ...]) -> int:
    """Return starts that are scalars as a vector of int32."""
    if all(start.array is not None for start in starts):
        return emitter.ints(int(start.array) for start in starts)  # type: ignore[arg-type]
    return _packed(emitter, [emitter.cast(emitter.read(one), one, INT) for one in starts])


def _dynamic_slice(emitter: BlockEmitter, op: Operation) -> int:
    value, *starts = op.operands
    tensor = emitter.read(value)
    if not starts:
        return tensor
    sizes = op.parameters["slice_sizes"]
    if is_static(sizes):
        places = _starts(emitter, tuple(starts))
    else:  # as JAX has it, whose own operation keeps them inside
        most = [dim - size for dim, size in zip(value.shape, sizes, strict=True)]
        scalars = [emitter.cast(emitter.read(one), one, INT) for one in starts]
        places = _packed(emitter, [_inside(emitter, *p) for p in zip(scalars, most, strict=True)])
    return emitter.make("SLICE", [tensor, places, emitter.shape(sizes)], op.result)


def _dynamic_update_slice(emitter: BlockEmitter, op: Operation) -> int:
    value, update, *starts = op.operands
    if not starts:
        return emitter.read(update)
    inputs = [emitter.read(value), emitter.read(update), _starts(emitter, tuple(starts))]
    return emitter.make("DYNAMIC_UPDATE_SLICE", inputs, op.result)


def _scatter(emitter: BlockEmitter, op: Operation) -> int:
    """Combine elements with updates by a graph of one operator, which is all the kernel knows."""
    value, indices, updates = op.operands
    numbers = op.parameters["dimension_numbers"]
    inner = emitter.inner(op.name.replace("-", "_"))
    pair = [Value((), value.dtype) for _ in "ab"]
    tensors = [inner.input(one, name) for one, name in zip(pair, "ab", strict=True)]
    combined = _COMBINED[op.name]
    made = inner.make(combined, tensors, pair[0]) if combined else tensors[1]
    inner.graph.table.outputs = [made]
    return emitter.make(
        "STABLEHLO_SCATTER",
        [emitter.read(value), emitter.cast(emitter.read(indices), indices, INT),
         emitter.read(updates)],
        op.result,
        updateWindowDims=[*numbers.update_window_dims],
        insertedWindowDims=[*numbers.inserted_window_dims],
        scatterDimsToOperandDims=[*numbers.scatter_dims_to_operand_dims],
        indexVectorDim=indices.rank - 1,
        updateComputationSubgraphIndex=inner.graph.number,
    )  # fmt: skip


EMITTERS: Mapping[str, Emit] = {
    **dict.fromkeys(_COMBINED, _scatter),
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
}
