"""Convolutions: Conv2D, DepthwiseConv2dNative and Conv3D, with the features last."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from bridge.core_ops.convolution_windows import (
    MAX_PLACES,
    ConvolutionWindow,
    by_products,
    convolution_rules,
    reversed_dimensions,
)
from bridge.core_ops.dots import product_operands, to_result
from bridge.core_ops.slicing import pad
from bridge.core_ops.stablehlo_operation import Operation
from bridge.core_ops.windows import count_windows
from bridge.graphs import layouts, nodes
from bridge.graphs.values import Value
from bridge.tf_operations.operation_graph import Graph
from bridge.tf_operations.signatures import has_kernel
from xla_call_module.size_polynomials import Dim, floordiv, is_static, numbers_of, product
from xla_call_module.stablehlo.dimension_numbers import read_convolution_dimensions

_MAX_SPATIAL = 3
_INTEGERS = ("int8", "int16", "int32", "uint8", "uint16")  # which are convolved as int32
# The orders of dimensions in the gradient of a kernel: of a convolution of the images, with the
# batch as features, by the cotangents.
_OF_KERNEL_GRADIENT = ([3, 1, 2, 0], [1, 2, 0, 3], [2, 0, 1, 3])


def _convolve(graph: Graph, op: Operation, low: Sequence[Dim], high: Sequence[Dim]) -> Value:
    inputs, kernels, outputs = _dimensions(op)
    x, w = product_operands(graph, op)
    if x.dtype == bool:
        x, w = (nodes.cast(graph, value, np.int32) for value in (x, w))
    window = ConvolutionWindow.of(op, low, high)
    groups, batches = op.integer("feature_group_count", 1), op.integer("batch_group_count", 1)
    turned = (inputs, kernels, outputs)
    is_gradient = turned == _OF_KERNEL_GRADIENT and (groups, batches) == (1, 1)
    if is_gradient and not reversed_dimensions(op):
        gradient = _kernel_gradient(graph, x, w, window)
        if gradient is not None:
            return to_result(graph, op, gradient)
    x, w = nodes.transpose(graph, x, inputs), nodes.transpose(graph, w, kernels)
    w = nodes.reverse(graph, w, reversed_dimensions(op))
    _check_places(op, x, w, window)
    if batches > 1:
        x, groups = _batches_as_features(graph, x, batches), batches
    result = to_result(graph, op, _complex(graph, x, w, window, groups))
    return layouts.transpose(graph, result, [outputs.index(axis) for axis in range(len(outputs))])


def _check_places(op: Operation, x: Value, w: Value, window: ConvolutionWindow) -> None:
    """Refuse a kernel that has too many places for a product of each."""
    places = product(w.shape[:-2])
    is_large = not isinstance(places, int) or places > MAX_PLACES
    if is_large and not _has_kernel(x, window):
        op.refuse(
            f"TensorFlow has no such convolution of {x.dtype.name} along {x.rank - 2} dimensions, "
            f"so that each place of its kernel would be a product, and there are {places}",
            "export it with a small kernel, or in float32 along at most three dimensions",
        )


def _has_kernel(x: Value, window: ConvolutionWindow) -> bool:
    """Return whether TensorFlow has a convolution of images, in a wider dtype as it may be.

    Where Conv3D is dilated it takes the dilation of one dimension for another one.
    """
    count = x.rank - 2
    if x.is_float:
        return count <= 2 or (count == _MAX_SPATIAL and set(window.dilations) == {1})
    return count <= 2 and x.dtype.name in _INTEGERS


def _kernel_gradient(
    graph: Graph, x: Value, cotangent: Value, window: ConvolutionWindow
) -> Value | None:
    """Return Conv2DBackpropFilter of images; None where it would be of another window.

    The strides of the convolution that it is the gradient of are the dilations here.
    """
    places = (*x.shape[1:3], *cotangent.shape[1:3], *window.low, *window.high)
    is_plain = is_static(places) and set(window.base_dilations) | set(window.strides) == {1}
    if not is_plain or not has_kernel("Conv2DBackpropFilter", x.dtype):
        return None
    pads, sizes = [0, 0], []
    for axis, (stride, low, high) in enumerate(
        zip(window.dilations, numbers_of(window.low), numbers_of(window.high), strict=True)
    ):
        length, count = numbers_of((x.shape[axis + 1], cotangent.shape[axis + 1]))
        size = length + low + high - (count - 1) * stride
        behind = max((count - 1) * stride + size - length - low, 0)
        if min(low, size, count) < 0 or (length + low + behind - size) // stride + 1 != count:
            return None
        pads += [low, behind]
        sizes.append(size)
    shape = (*sizes, x.shape[3], cotangent.shape[3])
    if product((*shape, *places[:4])) == 0:
        return None
    filter_sizes = nodes.cast(graph, graph.vector(shape), np.int32)
    inputs = [graph.expand(value) for value in (x, filter_sizes, cotangent)]
    moves: dict[str, Any] = {"padding": "VALID"}
    if any(pads):
        moves = {"padding": "EXPLICIT", "explicit_paddings": [*pads, 0, 0]}
    strides = [1, *window.dilations, 1]
    ones = [1] * 4
    return graph.node(
        "Conv2DBackpropFilter", inputs, shape=shape, strides=strides, dilations=ones, **moves
    )


def _dimensions(op: Operation) -> tuple[list[int], list[int], list[int]]:
    """Return the dimensions of input, kernel and result in TensorFlow's order."""
    inputs, kernels, outputs = read_convolution_dimensions(op)
    spatial = [str(number) for number in range(len(inputs) - 2)]
    return (
        [inputs.index(name) for name in ("b", *spatial, "f")],
        [kernels.index(name) for name in (*spatial, "i", "o")],
        [outputs.index(name) for name in ("b", *spatial, "f")],
    )


def _batches_as_features(graph: Graph, x: Value, groups: int) -> Value:
    """Return groups of the batch as groups of features, each with kernels of its own."""
    batch, *spatial, features = x.shape
    each = floordiv(batch, groups)
    apart = nodes.reshape(graph, x, [groups, each, *spatial, features])
    last = apart.rank - 1
    turned = nodes.transpose(graph, apart, [*range(1, last), 0, last])
    return nodes.reshape(graph, turned, [each, *spatial, features * groups])


def _complex(graph: Graph, x: Value, w: Value, window: ConvolutionWindow, groups: int) -> Value:
    """Return the convolution, of complex numbers by those of their parts."""
    if x.dtype.kind != "c":
        return _of_any_rank(graph, x, w, window, groups)
    kind, do = np.dtype(f"f{x.dtype.itemsize // 2}"), partial(nodes.elementwise, graph)
    (a, b), (c, d) = (
        [graph.node(name, [value], shape=value.shape, dtype=kind) for name in ("Real", "Imag")]
        for value in map(graph.expand, (x, w))
    )
    ac, bd, ad, bc = (
        _of_any_rank(graph, left, right, window, groups)
        for left, right in ((a, c), (b, d), (a, d), (b, c))
    )
    parts = [graph.expand(do("Sub", ac, bd)), graph.expand(do("Add", ad, bc))]
    return graph.node("Complex", parts, shape=parts[0].shape, dtype=x.dtype)


def _of_any_rank(graph: Graph, x: Value, w: Value, window: ConvolutionWindow, groups: int) -> Value:
    """Return the convolution, along one dimension at least two by those along two."""
    if x.rank - 2 < 2:
        x, w = nodes.expand_dims(graph, x, [1]), nodes.expand_dims(graph, w, [0])
        made = _of_any_rank(graph, x, w, window.with_dimension(), groups)
        return nodes.squeeze(graph, made, [1])
    x, window = _padded(graph, x, window)
    sizes = [
        count_windows(x.shape[axis + 1] + low + high, w.shape[axis], stride, dilation)
        for axis, (low, high, stride, dilation) in enumerate(
            zip(window.low, window.high, window.strides, window.dilations, strict=True)
        )
    ]
    shape = [x.shape[0], *sizes, w.shape[-1]]
    if product((*x.shape, *w.shape)) == 0 or 0 in sizes:
        return graph.expand(nodes.constant_like(x, 0).broadcast_to(tuple(shape)))
    if not _has_kernel(x, window):
        return _by_products(graph, x, w, window, groups)
    if x.rank - 2 > 2 and groups > 1:
        return _in_groups(graph, x, w, window, groups)
    inputs = [graph.expand(x), graph.expand(w)]
    moves = _attributes(x, w, window, sizes)
    if groups > 1 and groups == x.shape[-1] and x.is_float and _is_depthwise(window):
        kernel = nodes.reshape(graph, w, [*w.shape[:-2], groups, floordiv(w.shape[-1], groups)])
        inputs = [inputs[0], graph.expand(kernel)]
        return graph.node("DepthwiseConv2dNative", inputs, shape=shape, **moves)
    return graph.node("Conv2D" if x.rank == 4 else "Conv3D", inputs, shape=shape, **moves)


def _by_products(graph: Graph, x: Value, w: Value, window: ConvolutionWindow, groups: int) -> Value:
    """Return the sum of a product for each place in the kernel, with the features last."""
    last = x.rank - 1
    first = nodes.transpose(graph, x, [0, last, *range(1, last)])
    rows = nodes.transpose(graph, w, [last, last - 1, *range(last - 1)])
    made = by_products(graph, first, rows, window, groups)
    return nodes.transpose(graph, made, [0, *range(2, last + 1), 1])


def _padded(graph: Graph, x: Value, window: ConvolutionWindow) -> tuple[Value, ConvolutionWindow]:
    """Return the input with what an operation cannot put around and between its elements."""
    sizes = [*window.low, *window.high]
    plain = is_static(sizes) and all(int(str(n)) >= 0 for n in sizes)
    # Conv3D has no padding of its own.
    is_padded = (x.rank - 2 > 2 or not _has_kernel(x, window)) and any(sizes)
    if plain and not is_padded and all(step == 1 for step in window.base_dilations):
        return x, window
    between = (0, *(step - 1 for step in window.base_dilations), 0)
    zero = nodes.constant_like(x, 0)
    x = pad(graph, x, zero, (0, *window.low, 0), (0, *window.high, 0), between)
    return x, window.unpadded()


def _attributes(
    x: Value, w: Value, window: ConvolutionWindow, sizes: Sequence[Dim]
) -> dict[str, Any]:
    """Return strides, dilations and the padding: VALID or SAME where it is that."""
    moves: dict[str, Any] = {
        "strides": [1, *window.strides, 1],
        "dilations": [1, *window.dilations, 1],
    }
    low, high = numbers_of(window.low), numbers_of(window.high)
    if not any((*low, *high)):
        return {**moves, "padding": "VALID"}
    if _is_same(x, w, window, sizes):
        return {**moves, "padding": "SAME"}
    pads = [0, 0, *(n for pair in zip(low, high, strict=True) for n in pair), 0, 0]
    return {**moves, "padding": "EXPLICIT", "explicit_paddings": pads}


def _is_same(x: Value, w: Value, window: ConvolutionWindow, sizes: Sequence[Dim]) -> bool:
    """Return whether the padding is what TensorFlow computes for SAME."""
    whole = (*x.shape[1:-1], *w.shape[:-2], *sizes)
    if not is_static(whole):
        return False
    rows = zip(
        numbers_of(x.shape[1:-1]), numbers_of(w.shape[:-2]), numbers_of(sizes), window.strides,
        window.dilations, window.low, window.high, strict=True,
    )  # fmt: skip
    for length, reach, count, stride, dilation, low, high in rows:
        extent = (reach - 1) * dilation + 1
        total = max((-(-length // stride) - 1) * stride + extent - length, 0)
        if (low, high) != (total // 2, total - total // 2) or count != -(-length // stride):
            return False
    return True


def _is_depthwise(window: ConvolutionWindow) -> bool:
    return len(set(window.strides)) == 1 and set(window.dilations) == {1}


def _in_groups(graph: Graph, x: Value, w: Value, window: ConvolutionWindow, groups: int) -> Value:
    """Return the convolutions of each group of features side by side."""
    parts = []
    for group in range(groups):
        features, kernels = (_group(graph, value, group, groups) for value in (x, w))
        parts.append(_of_any_rank(graph, features, kernels, window, 1))
    return nodes.concat(graph, parts, x.rank - 1)


def _group(graph: Graph, value: Value, group: int, groups: int) -> Value:
    """Return one group of the last dimension."""
    each = floordiv(value.shape[-1], groups)
    start, limit = each * group, each * (group + 1)
    return nodes.slice_along(graph, value, value.rank - 1, start, limit)


RULES = convolution_rules(_convolve)
