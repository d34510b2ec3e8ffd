"""Operations of one element at a time."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from bridge.core_ops import elementary
from bridge.core_ops.integer_division import divide_integers, remainder_of_integers, whole_power
from bridge.core_ops.softmaxes import fuse_log_softmax, fuse_softmax
from bridge.core_ops.stablehlo_operation import Operation, Rule
from bridge.graphs import nodes
from bridge.graphs.size_arithmetic import compute_sizes
from bridge.graphs.values import Value, constant_array
from bridge.tf_operations.bits import in_total_order
from bridge.tf_operations.complex_arithmetic import (
    divide,
    is_complex,
    join,
    power,
    rsqrt,
    size,
    split,
)
from bridge.tf_operations.linear_algebra import fuse_triangle
from bridge.tf_operations.operation_graph import Graph
from bridge.tf_operations.pooling import fuse_mean_of_windows
from xla_call_module.size_polynomials import lower_bound


def _subtract(graph: Graph, op: Operation) -> Value:
    left, right = op.operands
    if left.is_float and (fused := fuse_log_softmax(graph, left, right)) is not None:
        return fused
    return elementary.compute(graph, op, "Sub", "NotEqual")


def _abs(graph: Graph, op: Operation) -> Value:
    (value,) = op.operands
    if is_complex(value):
        return size(graph, value)
    return value if value.is_unsigned else nodes.elementwise(graph, "Abs", value)


def _sign(graph: Graph, op: Operation) -> Value:
    """Return the sign, of zeros and NaN themselves."""
    (value,), do = op.operands, partial(nodes.elementwise, graph)
    if value.sizes is not None and all((lower_bound(dim) or 0) > 0 for dim in value.sizes):
        return nodes.constant_like(value, 1).broadcast_to(value.shape)
    if value.is_unsigned:
        return nodes.cast(graph, do("NotEqual", value, 0), value.dtype)
    if is_complex(value):
        length = size(graph, value)
        quotient = join(graph, *(do("Div", part, length) for part in split(graph, value)))
        return nodes.where(graph, do("Equal", length, 0), value, quotient)
    sign = do("Sign", value)
    if not value.is_float or not graph.exact:
        return sign
    return nodes.where(graph, do("Greater", do("Abs", value), 0), sign, value)


def _round_half_away(graph: Graph, op: Operation) -> Value:
    (value,) = op.operands
    is_zero = nodes.elementwise(graph, "Equal", value, 0)
    return nodes.where(graph, is_zero, value, elementary.round_half_away(graph, op))


def erf(graph: Graph, op: Operation) -> Value:
    """Return the error function, of float64 within the numbers of which TensorFlow has it."""
    (value,) = op.operands
    if value.dtype == np.float64:
        value = nodes.elementwise(graph, "Max", value, -_ERF_IS_ONE)
        value = nodes.elementwise(graph, "Min", value, _ERF_IS_ONE)
    return nodes.elementwise(graph, "Erf", value)


_ERF_IS_ONE = 6.0  # from where on it is 1 in float64, and minus it -1


def _rsqrt(graph: Graph, op: Operation) -> Value:
    (value,) = op.operands
    return rsqrt(graph, value) if is_complex(value) else nodes.elementwise(graph, "Rsqrt", value)


def _make_complex(graph: Graph, op: Operation) -> Value:
    real, imag = op.operands
    return join(graph, real, imag)


def _real(graph: Graph, op: Operation) -> Value:
    (value,) = op.operands
    return split(graph, value)[0] if is_complex(value) else value


def _imag(graph: Graph, op: Operation) -> Value:
    (value,) = op.operands
    if is_complex(value):
        return split(graph, value)[1]
    return nodes.constant_like(value, 0).broadcast_to(value.shape)


def _divide(graph: Graph, op: Operation) -> Value:
    known = compute_sizes("divide", op.operands)
    if known is not None:
        return known
    dividend, divisor = op.operands
    if not dividend.is_float:
        return divide_integers(graph, op)
    if is_complex(dividend):
        return divide(graph, dividend, divisor)
    for fuse in (fuse_softmax, fuse_mean_of_windows):
        if (fused := fuse(graph, dividend, divisor)) is not None:
            return fused
    reciprocal = None if divisor.array is None else elementary.reciprocal_of(divisor.array)
    if reciprocal is not None:
        factor = constant_array(reciprocal).broadcast_to(divisor.shape)
        return nodes.elementwise(graph, "Mul", dividend, factor)
    return nodes.elementwise(graph, "Div", dividend, divisor)


def _remainder(graph: Graph, op: Operation) -> Value:
    known = compute_sizes("remainder", op.operands)
    if known is not None:
        return known
    if op.operands[0].is_float:
        return nodes.elementwise(graph, "FloatMod", *op.operands)
    return remainder_of_integers(graph, op)


def _power(graph: Graph, op: Operation) -> Value:
    base, exponent = op.operands
    if not base.is_float:
        return whole_power(graph, base, exponent)
    if is_complex(base):
        return power(graph, base, exponent)
    if exponent.scalar == 2:
        return nodes.elementwise(graph, "Mul", base, base)
    return nodes.elementwise(graph, "Pow", base, exponent)


def _select(graph: Graph, op: Operation) -> Value:
    return fuse_triangle(graph, *op.operands) or nodes.where(graph, *op.operands)


def _convert(graph: Graph, op: Operation) -> Value:
    """Return numbers of another dtype; floats beyond the integers become the nearest of them."""
    (value,), dtype = op.operands, op.result.dtype
    if is_complex(value) and dtype.kind != "c":
        value = split(graph, value)[0]
    if dtype.kind == "b" and value.dtype != bool:
        return nodes.elementwise(graph, "NotEqual", value, 0)
    if value.is_float and not is_complex(value) and "int" in dtype.name:
        return _to_integers(graph, value, dtype)
    return graph.cast(value, dtype)


def _to_integers(graph: Graph, value: Value, dtype: np.dtype[Any]) -> Value:
    """Return floats as integers: NaN is 0, and what is beyond them the least or the greatest."""
    do, bounds = partial(nodes.elementwise, graph), np.iinfo(dtype)
    if value.dtype.itemsize < 4:
        value = nodes.cast(graph, value, np.float32)
    least, beyond = float(bounds.min), float(bounds.max + 1)
    numbers = do("Max", value, least)
    if graph.exact:
        numbers = nodes.where(graph, do("IsNaN", value), 0, numbers)
    is_beyond = do("GreaterOrEqual", numbers, beyond)
    made = graph.cast(nodes.where(graph, is_beyond, 0, numbers), dtype)
    return nodes.where(graph, is_beyond, int(bounds.max), made)


# Operations that TensorFlow has with the same meaning.
_SAME = {
    "ceil": "Ceil", "cosine": "Cos", "exponential": "Exp", "exponential_minus_one": "Expm1",
    "floor": "Floor", "log": "Log", "log_plus_one": "Log1p", "logistic": "Sigmoid",
    "round_nearest_even": "Round", "sine": "Sin", "sqrt": "Sqrt", "tan": "Tan",
    "tanh": "Tanh",
}  # fmt: skip
RULES = {
    **elementary.RULES,
    **{
        f"stablehlo.{name}": Rule(elementary.native(op_type), elementary.ACCURACY, expand=False)
        for name, op_type in _SAME.items()
    },
    "stablehlo.abs": Rule(_abs, expand=False),
    "stablehlo.add": Rule(elementary.arithmetic("Add", "Or"), expand=False),
    "stablehlo.atan2": Rule(elementary.native("Atan2"), elementary.ACCURACY, expand=False),
    "stablehlo.compare": elementary.comparison(
        lambda graph, _, value: in_total_order(graph, value),
        lambda graph, direction, left, right: nodes.elementwise(
            graph, elementary.COMPARISONS[direction], left, right
        ),
    ),
    "stablehlo.complex": Rule(_make_complex, expand=False),
    "stablehlo.convert": Rule(_convert, expand=False),
    "stablehlo.divide": Rule(_divide, expand=False),
    "stablehlo.imag": Rule(_imag, expand=False),
    "stablehlo.is_finite": Rule(elementary.native("IsFinite"), expand=False),
    "stablehlo.multiply": Rule(elementary.arithmetic("Mul", "And"), expand=False),
    "stablehlo.power": Rule(_power, elementary.ACCURACY, expand=False),
    "stablehlo.real": Rule(_real, expand=False),
    "stablehlo.remainder": Rule(_remainder, expand=False),
    "stablehlo.round_nearest_afz": Rule(_round_half_away, expand=False),
    "stablehlo.rsqrt": Rule(_rsqrt, elementary.ACCURACY, expand=False),
    "stablehlo.select": Rule(_select, expand=False),
    "stablehlo.sign": Rule(_sign, expand=False),
    "stablehlo.subtract": Rule(_subtract, expand=False),
    "stablehlo.xor": Rule(elementary.bitwise("Xor", "NotEqual"), expand=False),
}
