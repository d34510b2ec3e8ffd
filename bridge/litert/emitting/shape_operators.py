"""Operations that move elements, and number them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from bridge.blocks.block import Operation, Value
from bridge.blocks.block_builder import aligned
from bridge.litert.emitting.block_emitter import INT, BlockEmitter, Emit
from xla_call_module.size_polynomials import Dim, is_static, maximum

# What RANGE counts in.
_COUNTED = ("float32", "int32", "int64")


def _reshape(emitter: BlockEmitter, op: Operation) -> int:
    return emitter.reshape(emitter.read(op.operands[0]), op.result)


def _transpose(emitter: BlockEmitter, op: Operation) -> int:
    (value,) = op.operands
    return emitter.transpose(emitter.read(value), value, op.parameters["permutation"])


def _broadcast(emitter: BlockEmitter, op: Operation) -> int:
    (value,), result = op.operands, op.result
    shape = aligned(value, op.parameters["broadcast_dimensions"], result.rank)
    tensor = emitter.read(value)
    if (1,) * (result.rank - value.rank) + value.shape != shape:
        tensor = emitter.reshape(tensor, Value(shape, value.dtype))
    return emitter.make("BROADCAST_TO", [tensor, emitter.shape(result.shape)], result)


def _iota(emitter: BlockEmitter, op: Operation) -> int:
    result, axis = op.result, op.parameters["dimension"]
    counted = result.dtype if result.dtype.name in _COUNTED else INT
    line = Value((result.shape[axis],), counted)
    start, step = (emitter.graph.constant(np.array(number, counted)) for number in (0, 1))
    if isinstance(line.shape[0], int):
        size = emitter.graph.constant(np.array(line.shape[0], counted))
    else:
        size = emitter.cast(emitter.size(line.shape[0]), Value((), INT), counted)
    made = emitter.make("RANGE", [start, size, step], line)
    made = emitter.cast(made, line, result.dtype)
    if result.rank == 1:
        # Numbers are there before a model runs, and `CompiledModel` does not read such results.
        return emitter.reshape(made, result) if result in emitter.returned else made
    column = Value(aligned(line, [axis], result.rank), result.dtype)
    made = emitter.reshape(made, column)
    return emitter.make("BROADCAST_TO", [made, emitter.shape(result.shape)], result)


def _slice(emitter: BlockEmitter, op: Operation) -> int:
    parameters, (value,) = op.parameters, op.operands
    strides = parameters["strides"] or (1,) * value.rank
    return slice_(
        emitter, value, parameters["start_indices"], parameters["limit_indices"], strides, op.result
    )


def slice_(
    emitter: BlockEmitter,
    value: Value,
    starts: Sequence[Dim],
    limits: Sequence[Dim],
    strides: Sequence[int],
    result: Value,
) -> int:
    """Return every so many elements of a value from a start up to a limit, along each dimension."""
    if is_static((*value.shape, *starts, *limits)) and {*strides} <= {1}:
        vectors = [emitter.shape(part) for part in (starts, result.shape)]
        return emitter.make("SLICE", [emitter.read(value), *vectors], result)
    whole = [limit == size for limit, size in zip(limits, value.shape, strict=True)]
    mask = sum(1 << axis for axis, is_whole in enumerate(whole) if is_whole)
    ends = [0 if is_whole else limit for limit, is_whole in zip(limits, whole, strict=True)]
    vectors = [emitter.shape(part) for part in (starts, ends, strides)]
    return emitter.make("STRIDED_SLICE", [emitter.read(value), *vectors], result, endMask=mask)


def _reverse(emitter: BlockEmitter, op: Operation) -> int:
    inputs = [emitter.read(op.operands[0]), emitter.ints(op.parameters["dimensions"])]
    return emitter.make("REVERSE_V2", inputs, op.result)


def _pad(emitter: BlockEmitter, op: Operation) -> int:
    """Return an array with a number around it and between its elements, or less of its ends."""
    value, fill = op.operands
    config = op.parameters["padding_config"]
    tensor, shape, dtype = emitter.read(value), list(value.shape), value.dtype
    inner = [between for _, _, between in config]
    if any(inner):
        shape = [
            size if not between else size + (size - 1) * between
            for size, between in zip(shape, inner, strict=True)
        ]
        steps = emitter.ints(between + 1 for between in inner)
        like = Value(tuple(shape), dtype)
        tensor = emitter.make("DILATE", [tensor, steps, emitter.read(fill)], like)
    around = [maximum(0, end) for low, high, _ in config for end in (low, high)]
    if any(around):
        pairs = zip(shape, around[::2], around[1::2], strict=True)
        shape = [size + low + high for size, low, high in pairs]
        if is_static(around):
            widths = emitter.graph.constant(np.array(around, np.int32).reshape(-1, 2))
        else:
            widths = emitter.reshape(emitter.shape(around), Value((value.rank, 2), INT))
        like = Value(tuple(shape), dtype)
        tensor = emitter.make("PADV2", [tensor, widths, emitter.read(fill)], like)
    starts, cut = ([maximum(0, -end[side]) for end in config] for side in (0, 1))
    if not any((*starts, *cut)):
        return tensor
    padded = Value(tuple(shape), dtype)
    emitter.bind(padded, tensor)
    limits = [size - less for size, less in zip(shape, cut, strict=True)]
    return slice_(emitter, padded, starts, limits, [1] * value.rank, op.result)


def _concatenate(emitter: BlockEmitter, op: Operation) -> int:
    axis = op.parameters["dimension"]
    parts = [value for value in op.operands if 0 not in value.shape] or op.operands[:1]
    if len(parts) == 1:
        return emitter.read(parts[0])
    tensors = [emitter.read(part) for part in parts]
    return emitter.make("CONCATENATION", tensors, op.result, axis=axis)


def _stack(emitter: BlockEmitter, op: Operation) -> int:
    tensors = [emitter.read(value) for value in op.operands]
    axis = op.parameters["axis"]
    return emitter.make("PACK", tensors, op.result, axis=axis, valuesCount=len(tensors))


def _split(emitter: BlockEmitter, op: Operation) -> list[int]:
    sizes, axis = op.parameters["sizes"], op.parameters["axis"]
    inputs = [emitter.read(op.operands[0]), emitter.shape(sizes), emitter.size(axis)]
    return emitter.make_several("SPLIT_V", inputs, op.results, numSplits=len(sizes))


def _unstack(emitter: BlockEmitter, op: Operation) -> list[int]:
    (value,), axis = op.operands, op.parameters["axis"]
    count = len(op.results)
    return emitter.make_several("UNPACK", [emitter.read(value)], op.results, num=count, axis=axis)


def _tile(emitter: BlockEmitter, op: Operation) -> int:
    inputs = [emitter.read(op.operands[0]), emitter.shape(op.parameters["reps"])]
    return emitter.make("TILE", inputs, op.result)


def _size(emitter: BlockEmitter, op: Operation) -> int:
    return emitter.cast(emitter.size(op.parameters["dim"]), Value((), INT), op.result.dtype)


EMITTERS: Mapping[str, Emit] = {
    "broadcast_in_dim": _broadcast,
    "concatenate": _concatenate,
    "dim_as_value": _size,
    "iota": _iota,
    "pad": _pad,
    "reshape": _reshape,
    "rev": _reverse,
    "slice": _slice,
    "split": _split,
    "stack": _stack,
    "tile": _tile,
    "transpose": _transpose,
    "unstack": _unstack,
}
