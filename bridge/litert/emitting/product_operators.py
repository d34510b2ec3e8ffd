"""Products of matrices, convolutions and pools, with what follows them in the same operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bridge.blocks.block import Operation, Value
from bridge.litert.emitting.block_emitter import BlockEmitter, Emit
from bridge.litert.emitting.element_operators import RELU, activated_operand, is_bounded_by_6
from xla_call_module.dtypes import Array
from xla_call_module.size_polynomials import Dim, is_static

_RELU6 = 3  # of `ActivationFunctionType`
_SAME, _VALID = 0, 1  # of `Padding`
_F = np.dtype(np.float32)


@dataclass(slots=True)
class _Epilogue:
    """What is computed of a product by constants for each of its last dimension, and no more.

    Attributes:
        scale: what it is multiplied with.
        offset: what is added afterwards.
        activation: the number of what comes last.
        absorbed: the operations that all this is.
    """

    scale: Array | None = None
    offset: Array | None = None
    activation: int = 0
    absorbed: list[Operation] = field(default_factory=list)

    @property
    def result(self) -> Value | None:
        """The result of the last operation; None of none."""
        return self.absorbed[-1].result if self.absorbed else None


def _epilogue(emitter: BlockEmitter, op: Operation) -> _Epilogue:
    found, value = _Epilogue(), op.result
    while (user := emitter.only_user(value)) is not None and user.results[0].shape == value.shape:
        if activated_operand(user) is value:
            found.activation = RELU
            found.absorbed.append(user)
            after = emitter.only_user(user.result)
            if after is not None and is_bounded_by_6(after, user.result):
                found.activation = _RELU6
                found.absorbed.append(after)
            break
        if not _is_by_columns(user, value) or not _added(found, user, value):
            break
        found.absorbed.append(user)
        value = user.result
    return found


def _is_by_columns(op: Operation, value: Value) -> bool:
    """Return whether the other operand is a constant for each of the last dimension."""
    if op.name not in ("add", "mul", "sub") or op.result.dtype != _F:
        return False
    others = [operand for operand in op.operands if operand is not value]
    if len(others) != 1 or others[0].array is None:
        return False
    shape = others[0].shape
    return shape[-1:] in ((), (1,), value.shape[-1:]) and all(size == 1 for size in shape[:-1])


def _added(found: _Epilogue, op: Operation, value: Value) -> bool:
    """Add an operation; return whether it could be."""
    (other,) = (one.array for one in op.operands if one is not value)
    assert other is not None, "it is a constant"
    number = other.reshape(-1)
    if op.name == "mul":
        scale = number if found.scale is None else found.scale * number
        if not np.isfinite(scale).all():
            return False
        found.scale = scale
        found.offset = None if found.offset is None else found.offset * number
        return True
    if op.name == "sub":
        if op.operands[0] is not value:
            return False
        number = -number
    found.offset = number if found.offset is None else found.offset + number
    return True


def _with_epilogue(
    emitter: BlockEmitter, op: Operation, write: Callable[[_Epilogue, Value], int]
) -> int:
    """Return the tensor of a product, with what follows it if its weights are constants."""
    known = op.operands[1].array is not None
    found = _epilogue(emitter, op) if known else _Epilogue()
    tensor = write(found, found.result or op.result)
    for absorbed in found.absorbed:
        emitter.absorb(absorbed, tensor)
    return tensor


def _bias(emitter: BlockEmitter, found: _Epilogue, count: Any) -> int:
    if found.offset is None:
        return -1
    bias = np.broadcast_to(found.offset, (count,)).astype(np.float32)
    return emitter.graph.constant(np.ascontiguousarray(bias))


def _scaled(weights: Value, found: _Epilogue) -> Value:
    """Return weights, whose last dimension is that of the results, with the scale."""
    if found.scale is None or weights.array is None:
        return weights
    return Value(weights.shape, weights.dtype, weights.array * found.scale.astype(np.float32))


def _turned(emitter: BlockEmitter, value: Value, order: Sequence[int]) -> int:
    """Return weights with their dimensions in another order; the same ones are in a file once."""
    if value.array is None:
        return emitter.transpose(emitter.read(value), value, order)
    return emitter.graph.constant(emitter.file.turned(value.array, order))


def _dot(emitter: BlockEmitter, op: Operation) -> int:
    left, right = op.operands
    (summed, batch) = op.parameters["dimension_numbers"]
    rank = left.rank
    wanted = (((rank - 1,), (rank - 2,)), (tuple(range(rank - 2)),) * 2)
    given = tuple(tuple(map(tuple, pair)) for pair in (summed, batch))
    if given != wanted or op.result.dtype != _F:
        emitter.refuse(op, "it is no product of matrices of float32")
    if rank == 2 and right.array is not None:
        return _dense(emitter, op)
    return emitter.make("BATCH_MATMUL", [emitter.read(left), emitter.read(right)], op.result)


def _dense(emitter: BlockEmitter, op: Operation) -> int:
    """Return a product with a matrix of weights."""
    return _with_epilogue(emitter, op, lambda found, like: _connected(emitter, op, found, like))


def _connected(emitter: BlockEmitter, op: Operation, found: _Epilogue, like: Value) -> int:
    left, right = op.operands
    weights = _turned(emitter, _scaled(right, found), [1, 0])
    inputs = [emitter.read(left), weights, _bias(emitter, found, right.shape[1])]
    return emitter.make(
        "FULLY_CONNECTED",
        inputs,
        like,
        fusedActivationFunction=found.activation,
        keepNumDims=left.rank != 2,
    )


# --- windows


def _convolution(emitter: BlockEmitter, op: Operation) -> int:
    return _with_epilogue(emitter, op, lambda found, like: _convolve(emitter, op, found, like))


def _convolve(emitter: BlockEmitter, op: Operation, found: _Epilogue, like: Value) -> int:
    """Return a convolution of one to three dimensions, whose channels come last."""
    value, kernel = op.operands
    parameters = op.parameters
    count = value.rank - 2
    spatial, last = tuple(range(1, count + 1)), count + 1
    numbers = parameters["dimension_numbers"]
    if [*map(tuple, numbers)] != [
        (0, last, *spatial), (last, count, *range(count)), (0, last, *spatial)
    ]:  # fmt: skip
        emitter.refuse(op, "its channels do not come last")
    strides, steps = [*parameters["window_strides"]], [*parameters["rhs_dilation"]]
    sizes = kernel.shape[:count]
    padding = [(int(low), int(high)) for low, high in parameters["padding"]]
    is_same = count < 3 and _is_same(value, sizes, strides, steps, padding)
    tensor, value = (emitter.read(value), value) if is_same else _padded(emitter, value, padding, 0)
    weights = _scaled(kernel, found)
    channels = _number(kernel.shape[-1])
    groups = parameters["feature_group_count"]
    bias = _bias(emitter, found, channels)
    if bias == -1:
        bias = emitter.graph.constant(np.zeros(channels, np.float32))
    window = {
        "padding": _SAME if is_same else _VALID,
        "fusedActivationFunction": found.activation,
    }
    if count == 3:
        inputs = [tensor, emitter.read(weights), bias]
        places = dict(zip(("strideD", "strideH", "strideW"), strides, strict=True))
        dilated = [f"dilation{name}Factor" for name in "DHW"]
        places.update(zip(dilated, steps, strict=True))
        return emitter.make("CONV_3D", inputs, like, options="Conv3DOptions", **places, **window)
    if count == 1:  # as one of rows
        value = Value((value.shape[0], 1, *value.shape[1:]), value.dtype)
        tensor = emitter.reshape(tensor, value)
        weights = _reshaped(emitter, weights, (1, *weights.shape))
        strides, steps = [1, *strides], [1, *steps]
    flat = Value((like.shape[0], 1, *like.shape[1:]), like.dtype) if count == 1 else like
    places = dict(zip(("strideH", "strideW"), strides, strict=True))
    places.update(zip(("dilationHFactor", "dilationWFactor"), steps, strict=True))
    if groups == value.shape[-1] and groups > 1:
        one = _reshaped(emitter, weights, (*weights.shape[:2], 1, channels))
        inputs = [tensor, _turned(emitter, one, [2, 0, 1, 3]), bias]
        times = {"depthMultiplier": channels // groups}
        made = emitter.make(
            "DEPTHWISE_CONV_2D", inputs, flat, options="DepthwiseConv2DOptions",
            **places, **window, **times,
        )  # fmt: skip
    else:
        inputs = [tensor, _turned(emitter, weights, [3, 0, 1, 2]), bias]
        made = emitter.make("CONV_2D", inputs, flat, options="Conv2DOptions", **places, **window)
    return emitter.reshape(made, like) if count == 1 else made


def _reshaped(emitter: BlockEmitter, value: Value, shape: Sequence[Any]) -> Value:
    if value.shape == tuple(shape):
        return value
    array = None if value.array is None else value.array.reshape([int(n) for n in shape])
    made = Value(tuple(shape), value.dtype, array)
    if array is None:
        emitter.bind(made, emitter.reshape(emitter.read(value), made))
    return made


def _number(size: Dim) -> int:
    assert isinstance(size, int), "the sizes of weights are known"
    return size


def _is_same(
    value: Value,
    sizes: Sequence[Any],
    strides: Sequence[int],
    steps: Sequence[int],
    padding: Sequence[tuple[int, int]],
) -> bool:
    """Return whether a padding is what LiteRT calls SAME."""
    spatial = value.shape[1:-1]
    if not is_static(spatial):
        return False
    wanted = []
    for size, stride, window, step in zip(spatial, strides, sizes, steps, strict=True):
        count, far = _number(size), (_number(window) - 1) * step + 1
        total = max(0, (-(-count // stride) - 1) * stride + far - count)
        wanted.append((total // 2, total - total // 2))
    return [*padding] == wanted


def _padded(
    emitter: BlockEmitter, value: Value, padding: Sequence[tuple[int, int]], fill: float
) -> tuple[int, Value]:
    """Return an array with a number around its spatial dimensions."""
    tensor = emitter.read(value)
    if not any(map(any, padding)):
        return tensor, value
    pairs = [(0, 0), *padding, (0, 0)]
    shape = tuple(size + sum(pair) for size, pair in zip(value.shape, pairs, strict=True))
    like = Value(shape, value.dtype)
    widths = emitter.graph.constant(np.array(pairs, np.int32))
    if fill == 0:
        return emitter.make("PAD", [tensor, widths], like), like
    number = emitter.graph.constant(np.array(fill, value.dtype))
    return emitter.make("PADV2", [tensor, widths, number], like), like


def _pool(emitter: BlockEmitter, op: Operation) -> int:
    """Return the greatest elements of windows over images."""
    (value,), parameters = op.operands, op.parameters
    sizes, strides = parameters["window_dimensions"], parameters["window_strides"]
    padding = [(int(low), int(high)) for low, high in parameters["padding"]]
    ends = [(one[0], one[-1]) for one in (sizes, strides)]
    if value.rank != 4 or ends != [(1, 1)] * 2 or any(map(any, (padding[0], padding[-1]))):
        emitter.refuse(op, "its windows are not of images")
    is_same = _is_same(value, sizes[1:-1], strides[1:-1], [1, 1], padding[1:-1])
    is_valid = not any(map(any, padding))
    tensor = emitter.read(value)
    if not (is_same or is_valid):
        tensor, _ = _padded(emitter, value, padding[1:-1], -np.inf)
    return emitter.make(
        "MAX_POOL_2D", [tensor], op.result, options="Pool2DOptions",
        padding=_SAME if is_same and not is_valid else _VALID,
        strideH=strides[1], strideW=strides[2], filterHeight=sizes[1], filterWidth=sizes[2],
    )  # fmt: skip


EMITTERS: Mapping[str, Emit] = {
    "conv_general_dilated": _convolution,
    "dense": _dense,
    "dot_general": _dot,
    "reduce_window_max": _pool,
}
