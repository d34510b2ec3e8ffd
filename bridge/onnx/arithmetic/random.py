"""Random bits. Those of threefry are arithmetic; those of a device's own generator are refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from bridge.core_ops.stablehlo_operation import Operation, Rule
from bridge.graphs import nodes
from bridge.graphs.values import Value
from bridge.onnx.arithmetic.bits import shift
from bridge.onnx.graph.graph_builder import Graph

__all__ = ["RULES"]

# Salmon et al., Parallel random numbers: as easy as 1, 2, 3; five groups of four rounds.
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_GROUPS = 5
_PARITY = 0x1BD11BDA
_HALF = 32

_OF_THE_DEVICE = (
    "its random bits are the device's own, which ONNX cannot repeat",
    "take keys of jax.random.key(seed, impl='threefry2x32')",
)


def _refuse(graph: Graph, op: Operation) -> Value:
    """Refuse an operation, since ONNX's random operations have streams of their own."""
    del graph
    op.refuse(*_OF_THE_DEVICE)


def _bits(graph: Graph, op: Operation) -> Sequence[Value]:
    """The next state and bits, counted as XLA does (xla/hlo/builder/lib/prng.cc)."""
    (state,) = op.operands
    shape, dtype = op.results[1].shape, op.results[1].dtype
    numbers = tuple(dim for dim in shape if dim is not None)
    if (narrow := op.results[1].narrow) is not None:
        op.refuse(f"its bits are {narrow.name}", "take those of 32 bits, and convert them")
    is_known = len(numbers) == len(shape) and 0 not in numbers
    if "THREE_FRY" not in op.text("rng_algorithm"):
        op.refuse(*_OF_THE_DEVICE)
    if not is_known or state.dtype != np.uint64 or state.shape != (2,) or "int" not in dtype.name:
        op.refuse("its state is not a pair of uint64, or its bits are not integers of known shape")
    key, count = (nodes.slice_along(graph, state, 0, n, n + 1) for n in (0, 1))
    if dtype.itemsize == np.dtype(np.uint64).itemsize:
        used, bits = math.prod(numbers), _wide(graph, key, count, math.prod(numbers))
    else:
        used, bits = _narrow(graph, key, count, numbers)
    after = nodes.elementwise(graph, "Add", count, used)
    shaped = nodes.reshape(graph, bits, numbers)
    return [nodes.concat(graph, [key, after], 0), nodes.cast(graph, shaped, dtype)]


def _wide(graph: Graph, key: Value, count: Value, size: int) -> Value:
    """Return 64 random bits from each count."""
    low, high = (nodes.cast(graph, x, np.uint64) for x in _blocks(graph, key, count, size))
    return nodes.elementwise(graph, "BitwiseOr", low, shift(graph, high, _HALF, "LEFT"))


def _narrow(graph: Graph, key: Value, count: Value, shape: Sequence[int]) -> tuple[int, Value]:
    """Return two words from each count, neighbours along the first even dimension.

    Without an even one it is the longest, of which the last bits are left out.
    """
    dims = list(shape) or [1]
    axis = next((n for n, dim in enumerate(dims) if dim % 2 == 0), dims.index(max(dims)))
    half = [*dims[:axis], (dims[axis] + 1) // 2, *dims[axis + 1 :]]
    size = math.prod(half)
    words = [nodes.reshape(graph, word, half) for word in _blocks(graph, key, count, size)]
    columns = [graph.expand(nodes.expand_dims(graph, word, [axis + 1])) for word in words]
    joined = nodes.concat(graph, columns, axis + 1)
    whole = nodes.reshape(graph, joined, [*half[:axis], 2 * half[axis], *half[axis + 1 :]])
    return size, nodes.slice_along(graph, whole, axis, 0, dims[axis])


def _blocks(graph: Graph, key: Value, count: Value, size: int) -> tuple[Value, Value]:
    """Return two words of 32 bits for each count from the state on."""
    line = nodes.cast(graph, nodes.count_up(graph, size, is_constant=False), np.uint64)
    first, second = _words(graph, nodes.elementwise(graph, "Add", line, count))
    return _threefry(graph, _words(graph, key), first, second)


def _words(graph: Graph, value: Value) -> tuple[Value, Value]:
    """The low and the high half of 64 bits."""
    high = shift(graph, value, _HALF, "RIGHT")
    return nodes.cast(graph, value, np.uint32), nodes.cast(graph, high, np.uint32)


def _threefry(
    graph: Graph, key: tuple[Value, Value], first: Value, second: Value
) -> tuple[Value, Value]:
    do = partial(nodes.elementwise, graph)
    parity = do("BitwiseXor", do("BitwiseXor", *key), _PARITY)
    keys = (*key, parity)
    first, second = do("Add", first, keys[0]), do("Add", second, keys[1])
    for group in range(_GROUPS):
        for distance in _ROTATIONS[group % 2]:
            first = do("Add", first, second)
            left = shift(graph, second, distance, "LEFT")
            right = shift(graph, second, _HALF - distance, "RIGHT")
            second = do("BitwiseXor", first, do("BitwiseOr", left, right))
        first = do("Add", first, keys[(group + 1) % 3])
        second = do("Add", do("Add", second, keys[(group + 2) % 3]), group + 1)
    return first, second


RULES = {
    "stablehlo.rng": Rule(_refuse, ("rng_distribution",)),
    "stablehlo.rng_bit_generator": Rule(_bits, ("rng_algorithm",)),
}
