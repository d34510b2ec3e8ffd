"""The window of a convolution, and what targets read of one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bridge.core_ops.stablehlo_operation import Emit, Operation, Rule
from bridge.graphs import nodes
from bridge.graphs.values import Value
from xla_call_module.size_polynomials import Dim
from xla_call_module.stablehlo.walking import CONVOLUTION_ATTRIBUTES

__all__ = ["ConvolutionWindow", "convolution_rules", "reversed_dimensions"]

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
