"""The window of a convolution, and what targets read of one."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bridge.core_ops.stablehlo_operation import Emit, Operation, Rule
from bridge.core_ops.windows import count_windows
from bridge.graphs import nodes
from bridge.graphs.tensor_graph import TensorGraph
from bridge.graphs.values import Value
from xla_call_module.size_polynomials import Dim, floordiv, numbers_of, product
from xla_call_module.stablehlo.walking import CONVOLUTION_ATTRIBUTES

MAX_PLACES = 10_000  # in a kernel, for each of which there may be a product of matrices

# Computes a convolution, of which it is told the padding of each spatial dimension.
Convolve = Callable[[Any, Operation, Sequence[Dim], Sequence[Dim]], Value]


@dataclass(frozen=True, slots=True)
class ConvolutionWindow:
    """The window of a convolution, one number for each spatial dimension.

    Attributes:
        strides: the distance from one place of the kernel to the next.
        low: the number of zeros before the input; a negative one cuts off.
        high: the number behind it.
        base_dilations: the distance between elements of the input.
        dilations: the distance between elements of the kernel.
    """

    strides: tuple[int, ...]
    low: tuple[Dim, ...]
    high: tuple[Dim, ...]
    base_dilations: tuple[int, ...]
    dilations: tuple[int, ...]

    @classmethod
    def of(cls, op: Operation, low: Sequence[Dim], high: Sequence[Dim]) -> ConvolutionWindow:
        """Return the window of an operation with some padding."""
        ones = (1,) * len(low)
        return cls(
            strides=op.integers("window_strides", ones),
            low=tuple(low),
            high=tuple(high),
            base_dilations=op.integers("lhs_dilation", ones),
            dilations=op.integers("rhs_dilation", ones),
        )

    def unpadded(self) -> ConvolutionWindow:
        """Return the same window on an input that is padded and dilated."""
        zeros, ones = (0,) * len(self.strides), (1,) * len(self.strides)
        return dataclasses.replace(self, low=zeros, high=zeros, base_dilations=ones)

    def with_dimension(self) -> ConvolutionWindow:
        """Return the window with a dimension of size 1 more in front."""
        return ConvolutionWindow(
            (1, *self.strides), (0, *self.low), (0, *self.high),
            (1, *self.base_dilations), (1, *self.dilations),
        )  # fmt: skip


def reversed_dimensions(op: Operation) -> list[int]:
    """Return the spatial dimensions along which the kernel is reversed."""
    flags = op.raw.attributes["window_reversal"] if op.has("window_reversal") else ()
    return [axis for axis, flag in enumerate(flags) if flag]


def convolution_rules(convolve: Convolve) -> dict[str, Rule]:
    """Return the rules of both operations: of a padding that is known, and of a computed one."""
    of_padding: dict[str, Emit] = {
        "stablehlo.convolution": lambda graph, op: convolve(
            graph, op, *op.padding(op.operands[0].rank - 2)
        ),
        "stablehlo.dynamic_conv": lambda graph, op: convolve(
            graph, op, *_computed_padding(graph, op)
        ),
    }
    return {name: Rule(emit, CONVOLUTION_ATTRIBUTES) for name, emit in of_padding.items()}


def _computed_padding(graph: Any, op: Operation) -> tuple[Sequence[Dim], Sequence[Dim]]:
    """Return a padding that is computed, of sizes as a rule."""
    value = nodes.reshape(graph, op.operands[2], (2 * (op.operands[0].rank - 2),))
    padding = dataclasses.replace(op, operands=(value,)).sizes(graph, 0)
    return padding[::2], padding[1::2]


def output_sizes(x: Value, w: Value, window: ConvolutionWindow) -> list[Dim]:
    """Return how many places there are for the kernel along each spatial dimension."""
    sizes: list[Dim] = []
    for axis, (stride, dilation) in enumerate(zip(window.strides, window.dilations, strict=True)):
        length = x.shape[axis + 2] + window.low[axis] + window.high[axis]
        sizes.append(count_windows(length, w.shape[axis + 2], stride, dilation))
    return sizes


def by_products(
    graph: TensorGraph, x: Value, w: Value, window: ConvolutionWindow, groups: int
) -> Value:
    """Return the sum of a product of matrices for each place in the kernel.

    Batch and features come first, and the rows of kernels likewise; nothing is padded.
    """
    batch, features, *_ = x.shape
    rows, columns, *reach = w.shape
    sizes = output_sizes(x, w, window)
    each = floordiv(features, groups)
    total = nodes.broadcast_in_dim(
        graph, nodes.constant_like(x, 0), [], [batch, groups, floordiv(rows, groups), *sizes]
    )
    for place in itertools.product(*map(range, numbers_of(reach))):
        part = _under(graph, x, place, sizes, window)
        flat = nodes.reshape(graph, part, [batch, groups, each, product(sizes)])
        factor = nodes.slice_(
            graph, w, place, [n + 1 for n in place], [1] * len(place), axes=range(2, w.rank)
        )
        factor = nodes.reshape(graph, factor, [groups, floordiv(rows, groups), columns])
        shape = [batch, groups, floordiv(rows, groups), product(sizes)]
        made = graph.node("MatMul", [graph.expand(factor), graph.expand(flat)], shape=shape)
        total = nodes.elementwise(graph, "Add", total, nodes.reshape(graph, made, total.shape))
    return nodes.reshape(graph, graph.expand(total), [batch, rows, *sizes])


def _under(
    graph: TensorGraph,
    x: Value,
    place: Sequence[int],
    sizes: Sequence[Dim],
    window: ConvolutionWindow,
) -> Value:
    """The elements of the input that one element of the kernel meets."""
    starts = [n * dilation for n, dilation in zip(place, window.dilations, strict=True)]
    limits = [
        start + (size - 1) * stride + 1
        for start, size, stride in zip(starts, sizes, window.strides, strict=True)
    ]
    return nodes.slice_(graph, x, starts, limits, window.strides, axes=range(2, x.rank))
