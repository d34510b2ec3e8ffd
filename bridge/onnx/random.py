"""Random bits. Those of threefry are arithmetic, which other rules carry; the rest is refused."""

from __future__ import annotations

from bridge.onnx.graph import Graph
from bridge.onnx.operation import Operation
from bridge.onnx.rules import Rule
from bridge.onnx.values import Value

__all__ = ["RULES"]


def _refuse(graph: Graph, op: Operation) -> Value:
    """ONNX's random operations have streams of their own."""
    del graph
    op.refuse(
        "its random bits are the device's own, which ONNX cannot repeat",
        "take keys of jax.random.key(seed, impl='threefry2x32')",
    )


RULES = {
    "stablehlo.rng": Rule(_refuse, ("rng_distribution",)),
    "stablehlo.rng_bit_generator": Rule(_refuse, ("rng_algorithm",)),
}
