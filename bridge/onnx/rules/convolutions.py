"""Convolutions: Conv and ConvTranspose, with their dimensions where ONNX has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bridge.core_ops.convolution_windows import (
    MAX_PLACES,
    ConvolutionWindow,
    by_products,
    convolution_rules,
    output_sizes,
    reversed_dimensions,
)
from bridge.core_ops.dots import product_operands, to_result
from bridge.core_ops.slicing import pad
from bridge.core_ops.stablehlo_operation import Operation
from bridge.graphs import layouts, nodes
from bridge.graphs.values import Value
from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.graph.onnx_runtime import CONV_MAX_SPATIAL_DIMENSIONS
from xla_call_module.size_polynomials import (
    Dim,
    floordiv,
    is_static,
    lower_bound,
    numbers_of,
    product,
)
from xla_call_module.stablehlo.dimension_numbers import read_convolution_dimensions

_DTYPES = ("bfloat16", "float16", "float32")  # computed by a kernel of its own or in float32


def _convolve(graph: Graph, op: Operation, low: Sequence[Dim], high: Sequence[Dim]) -> Value:
    inputs, kernels, outputs = _dimensions(op)
    value, kernel = product_operands(graph, op)
    x = nodes.transpose(graph, value, inputs)
    w = nodes.transpose(graph, kernel, kernels)
    window = ConvolutionWindow.of(op, low, high)
    w = nodes.reverse(graph, w, [2 + axis for axis in reversed_dimensions(op)])
    groups, batches = op.integer("feature_group_count", 1), op.integer("batch_group_count", 1)
    if batches > 1:
        x, groups = _batches_as_features(graph, x, batches), batches
    places = product(w.shape[2:])
    if not (_has_kernel(x) or (isinstance(places, int) and places <= MAX_PLACES)):
        size = f"{places:,} places" if isinstance(places, int) else "a dynamic number of places"
        op.refuse(
            f"its kernel has {size}, and ONNX Runtime has no convolution of {x.dtype} along "
            f"{x.rank - 2} dimensions, so that each place would be a product",
            "export it with a small kernel, or in float32 along at most three dimensions",
        )
    result = to_result(graph, op, _in_order(graph, x, w, window, groups))
    back = [outputs.index(axis) for axis in range(len(outputs))]
    return layouts.transpose(graph, result, back)


def _dimensions(op: Operation) -> tuple[list[int], list[int], list[int]]:
    """Return the dimensions of input, kernel and result in ONNX's order."""
    inputs, kernels, outputs = read_convolution_dimensions(op)
    spatial = [str(number) for number in range(len(inputs) - 2)]
    return (
        [inputs.index(name) for name in ("b", "f", *spatial)],
        [kernels.index(name) for name in ("o", "i", *spatial)],
        [outputs.index(name) for name in ("b", "f", *spatial)],
    )


def _batches_as_features(graph: Graph, x: Value, groups: int) -> Value:
    """Return groups of the batch as groups of features, each with kernels of its own."""
    batch, features, *spatial = x.shape
    each = floordiv(batch, groups)
    apart = nodes.reshape(graph, x, [groups, each, features, *spatial])
    turned = nodes.transpose(graph, apart, [1, 0, *range(2, apart.rank)])
    return nodes.reshape(graph, turned, [each, features * groups, *spatial])


def _has_kernel(x: Value) -> bool:
    """Return whether ONNX Runtime has a kernel for convolutions of such images."""
    return x.rank - 2 <= CONV_MAX_SPATIAL_DIMENSIONS and x.dtype.name in _DTYPES


def _in_order(graph: Graph, x: Value, w: Value, window: ConvolutionWindow, groups: int) -> Value:
    """The convolution with batch and features in front, rows of kernels likewise."""
    count = x.rank - 2
    if count == 0:  # a product of matrices
        one = ConvolutionWindow((1,), (0,), (0,), (1,), (1,))
        x, w = (nodes.expand_dims(graph, value, [2]) for value in (x, w))
        return nodes.squeeze(graph, _in_order(graph, x, w, one, groups), [2])
    has_kernel = _has_kernel(x)
    if has_kernel and groups == 1 and not (lower_bound(x.shape[1]) or isinstance(x.shape[1], int)):
        x, w = (_with_feature(graph, value) for value in (x, w))
    is_empty = product((*x.shape, *w.shape)) == 0
    # ONNX's reference evaluator has no ConvTranspose of groups.
    pads = _transposed_pads(w, window) if has_kernel and groups == 1 else None
    if pads is not None and not is_empty:
        return _conv_transpose(graph, x, w, window, pads)
    x, window = _padded(graph, x, window, all_of_it=not has_kernel)
    sizes = output_sizes(x, w, window)
    if is_empty or 0 in sizes:  # the runtime's products do not broadcast along no elements
        return graph.expand(
            nodes.constant_like(x, 0).broadcast_to((x.shape[0], w.shape[0], *sizes))
        )
    if not has_kernel:
        return by_products(graph, x, w, window, groups)
    # The gradient of a kernel is a convolution by images, whose sizes are dynamic.
    reach: dict[str, Any] = {"kernel_shape": w.shape[2:]} if is_static(w.shape[2:]) else {}
    return graph.node(
        "Conv",
        [graph.expand(x), graph.expand(w)],
        shape=[x.shape[0], w.shape[0], *sizes],
        group=groups,
        strides=list(window.strides),
        pads=[*window.low, *window.high],
        dilations=list(window.dilations),
        **reach,
    )


def _with_feature(graph: Graph, value: Value) -> Value:
    """Add a feature of zeros: with none at all the runtime's Conv does not end."""
    shape = tuple(1 if axis == 1 else dim for axis, dim in enumerate(value.shape))
    return nodes.concat(graph, [value, nodes.constant_like(value, 0).broadcast_to(shape)], 1)


def _padded(
    graph: Graph, x: Value, window: ConvolutionWindow, *, all_of_it: bool
) -> tuple[Value, ConvolutionWindow]:
    """The input with what Conv cannot put around and between its elements."""
    sizes = [*window.low, *window.high]
    plain = is_static(sizes) and all(int(str(n)) >= 0 for n in sizes)
    if plain and not all_of_it and all(step == 1 for step in window.base_dilations):
        return x, window
    zeros = (0,) * len(window.low)
    x = pad(
        graph,
        x,
        nodes.constant_like(x, 0),
        (0, 0, *window.low),
        (0, 0, *window.high),
        (0, 0, *(step - 1 for step in window.base_dilations)),
    )
    return x, ConvolutionWindow(window.strides, zeros, zeros, (1,) * len(zeros), window.dilations)


def _transposed_pads(w: Value, window: ConvolutionWindow) -> tuple[list[int], list[int]] | None:
    """Return what ConvTranspose cuts off at both ends, for an input with base dilations.

    What it does not cut off behind, it adds, but less than a stride. None where it does not fit.
    """
    apart = any(step > 1 for step in window.base_dilations)
    if not apart or any(n > 1 for n in window.strides) or not is_static(w.shape[2:]):
        return None
    if not is_static([*window.low, *window.high]):
        return None
    low, high = numbers_of(window.low), numbers_of(window.high)
    reach = [(n - 1) * d for n, d in zip(numbers_of(w.shape[2:]), window.dilations, strict=True)]
    before = [far - n for far, n in zip(reach, low, strict=True)]
    behind = [far - n for far, n in zip(reach, high, strict=True)]
    fits = all(n >= 0 for n in before) and all(
        n > -step for n, step in zip(behind, window.base_dilations, strict=True)
    )
    return (before, behind) if fits else None


def _conv_transpose(
    graph: Graph,
    x: Value,
    w: Value,
    window: ConvolutionWindow,
    pads: tuple[list[int], list[int]],
) -> Value:
    """Return ConvTranspose, which adds the reversed kernel for each element of the input."""
    before, behind = pads
    w = nodes.reverse(graph, w, range(2, w.rank))
    rows, spatial = w.shape[0], numbers_of(w.shape[2:])
    w = nodes.transpose(graph, w, [1, 0, *range(2, w.rank)])
    sizes = [
        (size - 1) * step + 1 + low + high - (n - 1) * dilation
        for size, step, low, high, n, dilation in zip(
            x.shape[2:], window.base_dilations, window.low, window.high, spatial, window.dilations,
            strict=True,
        )
    ]  # fmt: skip
    return graph.node(
        "ConvTranspose",
        [graph.expand(x), graph.expand(w)],
        shape=[x.shape[0], rows, *sizes],
        strides=list(window.base_dilations),
        pads=[*before, *(max(n, 0) for n in behind)],
        output_padding=[max(-n, 0) for n in behind],
        dilations=list(window.dilations),
        kernel_shape=list(spatial),
    )


RULES = convolution_rules(_convolve)
