"""What the table of operations has for each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.graph.stablehlo_operation import Operation
from bridge.onnx.graph.values import Value

__all__ = ["Emit", "Rule"]

Emit = Callable[[Graph, Operation], Value | Sequence[Value]]


@dataclass(frozen=True, slots=True)
class Rule:
    """How one operation of StableHLO becomes operations of ONNX.

    Attributes:
        emit: adds them to the graph; the operation's result, or all of them if they are several.
        attributes: those that `emit` reads, or that do not matter to it. An operation with any
            other is refused.
        whole: whether its operands are broadcast before; see `Value.held`.
        limits: what it refuses, in words.
    """

    emit: Emit
    attributes: tuple[str, ...] = ()
    whole: bool = True
    limits: str = ""
