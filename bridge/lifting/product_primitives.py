"""Products, convolutions and Fourier transforms."""

from __future__ import annotations

import re
from typing import Any

import jax.numpy as jnp
from jax import lax

from bridge.lifting.lifted_operation import LiftedOperation, LiftingRule
from xla_call_module.stablehlo.dimension_numbers import read_convolution_dimensions
from xla_call_module.stablehlo.walking import CONVOLUTION_ATTRIBUTES

_PRECISION = re.compile(r"#stablehlo<precision (\w+)>")
_ALGORITHM = re.compile(r"(\w+) = ([\w.]+)")
_FFT = re.compile(r"fft_type (\w+)")


def _precision(op: LiftedOperation) -> Any:
    """Return the precision of both operands; None for the default one."""
    names = _PRECISION.findall(op.text("precision_config"))
    if not names or set(names) == {"DEFAULT"}:
        return None
    return tuple(lax.Precision[name] for name in names)


def _algorithm(op: LiftedOperation) -> Any:
    """Return the algorithm that a product asks for, which JAX takes as its precision."""
    fields = dict(_ALGORITHM.findall(op.text("algorithm")))
    types = [
        fields[f"{name}_type"].upper()
        for name in ("lhs_precision", "rhs_precision", "accumulation")
    ]
    name = "_".join(types)
    if (count := fields["num_primitive_operations"]) != "1":
        name += f"_X{count}"
    if fields["allow_imprecise_accumulation"] == "true":
        name += "_FAST_ACCUM"
    if types[0].startswith("F8"):
        name = name.replace("_".join(types[:2]), "ANY_F8_ANY_F8")
    if name not in lax.DotAlgorithmPreset.__members__:
        op.refuse(f"it asks for the algorithm {name}, which this JAX does not know")
    return lax.DotAlgorithmPreset[name]


def _dot_general(op: LiftedOperation) -> Any:
    numbers = op.dimension_numbers()
    contracting = numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions
    batching = numbers.lhs_batching_dimensions, numbers.rhs_batching_dimensions
    dimension_numbers: Any = tuple(
        tuple(tuple(axes) for axes in pair) for pair in (contracting, batching)
    )
    # Algorithms are for floats; of integers each is exact.
    is_algorithmic = op.has("algorithm") and jnp.issubdtype(op.dtype, jnp.inexact)
    return lax.dot_general(
        op.array(0),
        op.array(1),
        dimension_numbers,
        precision=_algorithm(op) if is_algorithmic else _precision(op),
        preferred_element_type=op.dtype,
    )


def _dot(op: LiftedOperation) -> Any:
    return lax.dot(*op.arrays, precision=_precision(op), preferred_element_type=op.dtype)


def _einsum(op: LiftedOperation) -> Any:
    return jnp.einsum(op.text("einsum_config"), *op.arrays, precision=_precision(op))


def _convolution(op: LiftedOperation) -> Any:
    low, high = op.padding(len(op.types[0].shape) - 2)
    return _convolve(op, list(zip(low, high, strict=True)))


def _dynamic_convolution(op: LiftedOperation) -> Any:
    sizes = op.dimensions(2)
    return _convolve(op, list(zip(sizes[::2], sizes[1::2], strict=True)))


def _convolve(op: LiftedOperation, padding: Any) -> Any:
    value, kernel = op.array(0), op.array(1)
    names = read_convolution_dimensions(op)
    count = len(names[0]) - 2
    spatial = [str(number) for number in range(count)]
    orders = zip(names, (("b", "f"), ("o", "i"), ("b", "f")), strict=True)
    specs = [tuple(order.index(name) for name in (*first, *spatial)) for order, first in orders]
    if op.has("window_reversal"):
        turned = re.findall(r"true|false", op.text("window_reversal"))
        reversal = turned * count if len(turned) == 1 else turned
        axes = [specs[1][2 + axis] for axis in range(count) if reversal[axis] == "true"]
        kernel = lax.rev(kernel, axes) if axes else kernel
    ones = (1,) * count
    dilation = op.integers("lhs_dilation", ones)
    if not all(isinstance(size, int) for pair in padding for size in pair):
        # A convolution of JAX takes no symbolic padding, and has no rule for mapping it.
        edges = dict.fromkeys(specs[0][:2], (0, 0, 0))
        for axis, (low, high), step in zip(specs[0][2:], padding, dilation, strict=True):
            edges[axis] = (low, high, step - 1)
        value = lax.pad(value, value.dtype.type(0), [edges[axis] for axis in range(value.ndim)])
        padding, dilation = [(0, 0)] * count, ones
    return lax.conv_general_dilated(
        value,
        kernel,
        window_strides=op.integers("window_strides", ones),
        padding=padding,
        lhs_dilation=dilation,
        rhs_dilation=op.integers("rhs_dilation", ones),
        dimension_numbers=lax.ConvDimensionNumbers(*specs),
        feature_group_count=op.integer("feature_group_count", 1),
        batch_group_count=op.integer("batch_group_count", 1),
        precision=_precision(op),
        preferred_element_type=op.dtype,
    )


def _fft(op: LiftedOperation) -> Any:
    kind = _FFT.findall(op.text("fft_type"))
    lengths = op.integers("fft_length")
    return lax.fft(op.array(0), kind[0] if kind else op.text("fft_type"), lengths)


RULES = {
    "stablehlo.convolution": LiftingRule(_convolution, CONVOLUTION_ATTRIBUTES),
    "stablehlo.dot": LiftingRule(_dot, ("precision_config",)),
    "stablehlo.dot_general": LiftingRule(
        _dot_general, ("algorithm", "dot_dimension_numbers", "precision_config")
    ),
    "stablehlo.dynamic_conv": LiftingRule(_dynamic_convolution, CONVOLUTION_ATTRIBUTES),
    "stablehlo.einsum": LiftingRule(_einsum, ("einsum_config", "precision_config")),
    "stablehlo.unary_einsum": LiftingRule(_einsum, ("einsum_config",)),
    "stablehlo.fft": LiftingRule(_fft, ("fft_length", "fft_type")),
}
