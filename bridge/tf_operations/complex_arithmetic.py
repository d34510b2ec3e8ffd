"""Arithmetic of complex numbers, with XLA's results for zeros and infinities."""

from __future__ import annotations

from functools import partial

import numpy as np

from bridge.graphs import nodes
from bridge.graphs.values import Value
from bridge.tf_operations.bits import bitcast
from bridge.tf_operations.operation_graph import Graph
from xla_call_module.size_polynomials import broadcast


def is_complex(value: Value) -> bool:
    """Return whether the elements are complex numbers."""
    return value.dtype.kind == "c"


def _part(graph: Graph, op_type: str, value: Value) -> Value:
    kind = np.dtype(f"f{value.dtype.itemsize // 2}")
    made = graph.node(op_type, [value], shape=value.unbroadcast_shape, dtype=kind)
    return made.broadcast_to(value.shape)


def size(graph: Graph, value: Value) -> Value:
    """Return the absolute values."""
    return _part(graph, "ComplexAbs", value)


def split(graph: Graph, value: Value) -> tuple[Value, Value]:
    """Return the real and the imaginary parts."""
    return _part(graph, "Real", value), _part(graph, "Imag", value)


def join(graph: Graph, real: Value, imag: Value) -> Value:
    """Return the complex numbers of some parts."""
    shape = broadcast([real.unbroadcast_shape, imag.unbroadcast_shape])
    kind = np.dtype(f"c{2 * real.dtype.itemsize}")
    parts = [graph.expand(value.broadcast_to(shape)) for value in (real, imag)]
    made = graph.node("Complex", parts, shape=shape, dtype=kind)
    return made.broadcast_to(broadcast([real.shape, imag.shape]))


def divide(graph: Graph, dividend: Value, divisor: Value) -> Value:
    """Return the quotient, with infinities and zeros as the C standard has them.

    ISO C, annex G.5.1, example 2, which XLA follows.
    """
    do = partial(nodes.elementwise, graph)
    quotient = do("Div", dividend, divisor)
    if divisor.array is not None and (np.isfinite(divisor.array) & (divisor.array != 0)).all():
        return quotient
    (a, b), (c, d) = split(graph, dividend), split(graph, divisor)
    infinity = _with_sign(graph, nodes.constant_like(c, np.inf), c)
    by_zero = join(graph, do("Mul", infinity, a), do("Mul", infinity, b))
    endless = [_has_infinity(graph, *parts) for parts in ((a, b), (c, d))]
    finite = [do("And", *(do("IsFinite", x) for x in parts)) for parts in ((a, b), (c, d))]
    of_infinity = _conjugate_product(graph, [*_ends(graph, a, b), c, d], np.inf)
    by_infinity = _conjugate_product(graph, [a, b, *_ends(graph, c, d)], 0)
    is_zero = do("And", do("Equal", c, 0), do("Equal", d, 0))
    result = nodes.where(graph, do("And", finite[0], endless[1]), by_infinity, quotient)
    result = nodes.where(graph, do("And", endless[0], finite[1]), of_infinity, result)
    return nodes.where(graph, is_zero, by_zero, result)


def _has_infinity(graph: Graph, real: Value, imag: Value) -> Value:
    flags = [nodes.elementwise(graph, "IsInf", part) for part in (real, imag)]
    return nodes.elementwise(graph, "Or", *flags)


def _ends(graph: Graph, *parts: Value) -> list[Value]:
    """Return 1 with the sign of a part that is infinite, and 0 with its sign for any other."""
    ends = []
    for part in parts:
        is_infinite = nodes.elementwise(graph, "IsInf", part)
        one = nodes.where(graph, is_infinite, nodes.constant_like(part, 1), 0)
        ends.append(_with_sign(graph, one, part))
    return ends


def _with_sign(graph: Graph, natural: Value, of: Value) -> Value:
    """Return a number that is not negative, with the sign of another one."""
    bits = bitcast(graph, of, f"int{8 * of.dtype.itemsize}")
    negative = nodes.elementwise(graph, "Less", bits, 0)
    return nodes.where(graph, negative, nodes.elementwise(graph, "Neg", natural), natural)


def _conjugate_product(graph: Graph, parts: list[Value], factor: float) -> Value:
    """Return the product of a number and the conjugate of another one, by a factor."""
    do, (a, b, c, d) = partial(nodes.elementwise, graph), parts
    real = do("Add", do("Mul", a, c), do("Mul", b, d))
    imag = do("Sub", do("Mul", b, c), do("Mul", a, d))
    scale = nodes.constant_like(real, factor)
    return join(graph, do("Mul", real, scale), do("Mul", imag, scale))


def power(graph: Graph, base: Value, exponent: Value) -> Value:
    """Return the power, of 0 and of infinity as XLA has it.

    Of 0 it is 0 or NaN, as the exponent is positive or another one; of infinity it is that or 0
    where exponent and base are real, and NaN of every other number with an infinite part.
    """
    do = partial(nodes.elementwise, graph)
    real, imag = split(graph, exponent)
    is_positive = do("And", do("Equal", imag, 0), do("Greater", real, 0))
    nothing = nodes.constant_like(base, complex(np.nan, np.nan))
    of_zero = nodes.where(graph, is_positive, nodes.constant_like(base, 0), nothing)
    result = nodes.where(graph, do("Equal", base, 0), of_zero, do("Pow", base, exponent))
    parts = split(graph, base)
    is_finite = do("And", *(do("IsFinite", part) for part in parts))
    is_real = do("And", do("Equal", imag, 0), do("Equal", parts[1], 0))
    is_infinity = do("And", do("Equal", parts[0], np.inf), is_real)
    infinity = nodes.constant_like(base, complex(np.inf, 0))
    of_infinity = nodes.where(graph, do("Greater", real, 0), infinity, 0)
    of_infinity = nodes.where(graph, is_infinity, of_infinity, nothing)
    result = nodes.where(graph, is_finite, result, of_infinity)
    one = nodes.constant_like(base, 1)
    return nodes.where(graph, do("Equal", exponent, 0), one, result)


def rsqrt(graph: Graph, value: Value) -> Value:
    """Return the reciprocal of the root, which of negative numbers depends on the sign of 0."""
    do = partial(nodes.elementwise, graph)
    real, imag = split(graph, value)
    is_negative = do("And", do("Less", real, 0), do("Equal", imag, 0))
    quotient = do("Div", nodes.constant_like(value, 1), do("Sqrt", value))
    return nodes.where(graph, is_negative, quotient, do("Rsqrt", value))
