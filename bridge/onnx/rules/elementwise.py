"""Operations of one element at a time that ONNX has, or that take few of its operations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from bridge.core_ops import elementary
from bridge.core_ops.stablehlo_operation import Emit, Operation, Rule, identity
from bridge.graphs import nodes
from bridge.graphs.values import Value
from bridge.onnx.graph.graph_builder import Graph
from bridge.onnx.graph.wide_integers import fits_in_32_bits
from bridge.onnx.rules.bits import NOT_READ, in_total_order
from bridge.onnx.rules.fusions import fuse_difference, fuse_product, fuse_sum
from xla_call_module.size_polynomials import lower_bound


def _fused(fuse: Callable[..., Value | None], op_type: str, of_bools: str) -> Emit:
    """The rule of an operation of numbers that may be the last of several that are one of ONNX."""

    def emit(graph: Graph, op: Operation) -> Value:
        fused = fuse(graph, *op.operands) if op.operands[0].is_float else None
        return fused or elementary.compute(graph, op, op_type, of_bools)

    return emit


def _abs(graph: Graph, op: Operation) -> Value:
    (value,) = op.operands
    return value if value.is_unsigned else nodes.elementwise(graph, "Abs", value)


def _sign(graph: Graph, op: Operation) -> Value:
    """Return the sign; the runtime's own is wrong of -0, NaN in float16, and int64."""
    (value,) = op.operands
    if value.sizes is not None and all((lower_bound(dim) or 0) > 0 for dim in value.sizes):
        return nodes.constant_like(value, 1).broadcast_to(value.shape)
    if value.dtype == np.int64 and not fits_in_32_bits(graph, value):
        flags = [nodes.elementwise(graph, name, value, 0) for name in ("Greater", "Less")]
        above, below = (nodes.cast(graph, flag, np.int64) for flag in flags)
        return nodes.elementwise(graph, "Sub", above, below)
    sign = nodes.elementwise(graph, "Sign", value)
    if not value.is_float or not graph.exact:
        return sign
    return nodes.where(graph, nodes.elementwise(graph, "Equal", value, 0), value, sign)


def _is_finite(graph: Graph, op: Operation) -> Value:
    (value,) = op.operands
    parts = [nodes.elementwise(graph, name, value) for name in ("IsInf", "IsNaN")]
    return nodes.elementwise(graph, "Not", nodes.elementwise(graph, "Or", *parts))


def _rsqrt(graph: Graph, op: Operation) -> Value:
    return nodes.elementwise(graph, "Reciprocal", nodes.elementwise(graph, "Sqrt", *op.operands))


def _logistic(graph: Graph, op: Operation) -> Value:
    """Return 1 / (1 + exp(-x)): the runtime's Sigmoid is 0 below -18, and its logarithm -inf."""
    (value,) = op.operands
    if not graph.exact:
        return nodes.elementwise(graph, "Sigmoid", value)
    power = nodes.elementwise(graph, "Exp", nodes.elementwise(graph, "Neg", value))
    total = nodes.elementwise(graph, "Add", power, 1)
    return nodes.elementwise(graph, "Reciprocal", total)


def tan(graph: Graph, op: Operation) -> Value:
    """Return the tangent, in float64 by the sine and cosine."""
    (value,) = op.operands
    if value.dtype != np.float64:  # of which ONNX Runtime has no Tan
        return nodes.elementwise(graph, "Tan", value)
    parts = [nodes.elementwise(graph, name, value) for name in ("Sin", "Cos")]
    return nodes.elementwise(graph, "Div", *parts)


def _log_plus_one(graph: Graph, value: Value) -> Value:
    """Return `x * (log(u) / (u - 1))` with `u = 1 + x`, in which the rounding of `u` cancels.

    W. Kahan; Goldberg, What Every Computer Scientist Should Know About Floating-Point Arithmetic,
    theorem 4. It is a product, since ONNX Runtime's Where makes 0 of a -0 that it takes.
    """
    do = partial(nodes.elementwise, graph)
    sum_ = do("Add", value, 1)
    rest = do("Sub", sum_, 1)
    quotient = do("Div", do("Log", sum_), rest)
    is_unchanged = do("Or", do("Equal", rest, 0), do("Equal", value, np.inf))
    return do("Mul", value, nodes.where(graph, is_unchanged, 1, quotient))


def _exponential_minus_one(graph: Graph, value: Value) -> Value:
    """Return `x * ((u - 1) / log(u))` with `u = exp(x)`, in which the rounding of `u` cancels.

    W. Kahan; N. J. Higham, Accuracy and Stability of Numerical Algorithms, section 1.14.1. Of -0 it
    is -0, as `_log_plus_one` is.
    """
    do = partial(nodes.elementwise, graph)
    power = do("Exp", value)
    rest = do("Sub", power, 1)
    quotient = do("Div", rest, do("Log", power))
    product = do("Mul", value, nodes.where(graph, do("Equal", rest, 0), 1, quotient))
    # Beyond these the difference is the power, or -1, and the quotient is none.
    far = do("Greater", do("Abs", value), 30)
    return nodes.where(graph, far, rest, product)


def _widened(compute: Callable[[Graph, Value], Value]) -> Emit:
    """The rule of a function of float32 or float64 of a value that may be narrower."""

    def emit(graph: Graph, op: Operation) -> Value:
        (value,) = op.operands
        is_narrow = value.dtype.itemsize < np.dtype(np.float32).itemsize
        wide = nodes.cast(graph, value, np.float32) if is_narrow else value
        return nodes.cast(graph, compute(graph, wide), value.dtype)

    return emit


def _imag(graph: Graph, op: Operation) -> Value:
    """Return 0, the imaginary part of what is real."""
    del graph
    (value,) = op.operands
    return nodes.constant_like(value, 0).broadcast_to(value.shape)


def _total_order(graph: Graph, op: Operation, value: Value) -> Value:
    key = in_total_order(graph, value)
    if key is None:
        op.refuse(*NOT_READ)
    return key


def _compare(graph: Graph, direction: str, left: Value, right: Value) -> Value:
    are_computed = left.array is None and right.array is None
    if left.dtype == np.float16 and (are_computed or direction in ("EQ", "NE")):
        left, right = (_rounded(graph, value) for value in (left, right))
    if direction == "NE":
        return nodes.elementwise(graph, "Not", nodes.elementwise(graph, "Equal", left, right))
    return nodes.elementwise(graph, elementary.COMPARISONS[direction], left, right)


def _rounded(graph: Graph, value: Value) -> Value:
    """A value of float16 as such, which the runtime may still have as a float32.

    Of equal numbers one could be rounded, and the other not, as where a gradient asks which element
    was the greatest. The runtime drops casts between floats, and has two operations in a row in
    float16 where there are kernels for it, but not one alone.
    """
    if graph.producer(value) is None:
        return value
    return nodes.elementwise(graph, "Min", nodes.elementwise(graph, "Max", value, -np.inf), np.inf)


# Operations that ONNX has with the same meaning.
_SAME = {
    "ceil": "Ceil", "cosine": "Cos", "exponential": "Exp", "floor": "Floor", "log": "Log",
    "round_nearest_even": "Round", "sine": "Sin", "sqrt": "Sqrt", "tanh": "Tanh",
}  # fmt: skip
RULES = {
    **elementary.RULES,
    **{
        f"stablehlo.{name}": Rule(elementary.native(op_type), elementary.ACCURACY, expand=False)
        for name, op_type in _SAME.items()
    },
    "stablehlo.abs": Rule(_abs, expand=False),
    "stablehlo.add": Rule(_fused(fuse_sum, "Add", "Or"), expand=False),
    "stablehlo.exponential_minus_one": Rule(
        _widened(_exponential_minus_one), elementary.ACCURACY, expand=False
    ),
    "stablehlo.imag": Rule(_imag, expand=False),
    "stablehlo.is_finite": Rule(_is_finite, expand=False),
    "stablehlo.log_plus_one": Rule(_widened(_log_plus_one), elementary.ACCURACY, expand=False),
    "stablehlo.logistic": Rule(_logistic, elementary.ACCURACY, expand=False),
    "stablehlo.multiply": Rule(_fused(fuse_product, "Mul", "And"), expand=False),
    "stablehlo.real": Rule(identity, expand=False),  # complex numbers are refused before
    "stablehlo.round_nearest_afz": Rule(elementary.round_half_away, expand=False),
    "stablehlo.rsqrt": Rule(_rsqrt, elementary.ACCURACY, expand=False),
    "stablehlo.sign": Rule(_sign, expand=False),
    "stablehlo.subtract": Rule(_fused(fuse_difference, "Sub", "Xor"), expand=False),
    "stablehlo.tan": Rule(tan, elementary.ACCURACY, expand=False),
    "stablehlo.xor": Rule(elementary.bitwise("Xor"), expand=False),
    "stablehlo.compare": elementary.comparison(_total_order, _compare),
    "stablehlo.select": Rule(lambda graph, op: nodes.where(graph, *op.operands), expand=False),
}
