"""The record of ONNX Runtime and of ONNX's opsets: what there is, since when, and what is wrong.

All of it was found with one release (`RELEASE`) on the CPU, by loading and running models; which
kernels older ones lack, down to the oldest that models are for (`OLDEST`), too. For a new release,
run `tests/bridge/onnx` with it: a kernel that has gone, or a deviation that is another one, fails
there. `_KERNELS_OF_SEVERAL` may be extended by loading a model of each dtype, with a line in
`_SINCE`. A deviation that has been mended stays listed while older releases have it; each says
which modules avoid it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

RELEASE, OLDEST = (1, 32), (1, 22)
# From the first opset that has integer bit operations, and axes of reductions as inputs, to the
# last that was tested. The release reads all of them.
OPSETS = range(18, 27)
DEFAULT_OPSET = 21  # most runtimes read it
FLOAT8_OPSET = 19  # the first with floats of 8 bits
DFT_AXIS_OPSET = 20  # the first that DFT takes the axis as an input of
GELU_OPSET = 20  # the first with Gelu
BITCAST_OPSET = 26  # the first with BitCast; before it nothing tells the sign of a NaN

_INTS = "int8 int16 int32 int64 uint8 uint16 uint32 uint64"
_FLOATS = "float16 float32 float64"
_WIDE = f"int32 int64 {_FLOATS}"

# The dtypes for which there is a kernel. An operation that is not in here (Identity, Reshape,
# Transpose, Concat, Slice, Gather, Cast, If, Loop, …) takes every dtype.
_KERNELS_OF_SEVERAL: Mapping[str, str] = {
    "Abs Add Sub Mul Div Mod": f"{_INTS} {_FLOATS}",
    "Less LessOrEqual Greater GreaterOrEqual": f"{_INTS} {_FLOATS}",
    "Equal": f"bool {_INTS} {_FLOATS}",
    "Neg": f"int8 int16 int32 int64 {_FLOATS}",
    "Sign": f"{_INTS} float32 float64",  # that of float16 gives 0 for NaN
    "Floor Ceil Round Exp Log Sqrt Reciprocal Sin Cos Tanh Sigmoid": _FLOATS,
    "Softmax LogSoftmax": _FLOATS,
    "Tan Erf Asin Acos Atan Sinh Cosh Asinh Acosh Atanh Gelu": "float16 float32",
    "Conv ConvTranspose AveragePool": "float16 float32",
    "BatchNormalization LayerNormalization": "float32 float64",
    "IsNaN IsInf": f"bfloat16 {_FLOATS}",
    "Not And Or Xor": "bool",
    "BitwiseNot BitwiseAnd BitwiseOr BitwiseXor": _INTS,
    "BitShift": "uint8 uint32 uint64",
    "Pow": _WIDE,
    "Max Min Clip": f"int8 int32 int64 uint8 uint32 uint64 {_FLOATS}",
    "Relu": f"int8 int32 {_FLOATS}",
    "MatMul": _WIDE,  # of unsigned integers it fails where an operand is empty
    # Sums and products of integers are in float64 there, and the greatest of int64 in 32 bits.
    "ReduceSum ReduceProd ReduceMean": _FLOATS,
    "ReduceMax ReduceMin": f"bool int8 uint8 int32 {_FLOATS}",
    "ArgMax ArgMin": f"int8 uint8 {_WIDE}",
    "Where": f"int8 uint8 uint32 {_WIDE}",
    "Expand Tile": f"bool {_INTS} {_FLOATS}",
    "Pad": f"bool int8 int32 int64 uint8 uint32 uint64 {_FLOATS}",
    "Unsqueeze Squeeze": f"bool {_INTS} {_FLOATS} bfloat16",
    "CumSum Einsum": _WIDE,
    "DFT": "float32 float64",
    "TopK": f"int8 int16 uint8 {_WIDE}",
    "Range": "int16 int32 int64 float32 float64",
    "MaxPool": f"int8 uint8 {_FLOATS}",
    "ScatterElements ScatterND": f"bool {_INTS} float32 float64",
    "Resize": "int8 int32 uint8 float16 float32",
    "NonZero": "bool int32 int64 uint8 float16 float32",
}
# Those of them that came with a release after the oldest one. (Cos of float64 came with 1.29, and
# there is nothing wider: a release before does not load a model that has it.)
_SINCE: Mapping[tuple[int, int], Mapping[str, str]] = {
    (1, 24): {"Max": "int8 uint8", "Min": "int8 uint8"},
    (1, 26): {"TopK": "int8 int16 uint8"},
    (1, 31): {"Where": "int8 uint32"},
}


def _of_later(op_type: str) -> set[str]:
    """Return the dtypes of which the oldest release has no kernel."""
    added = [kernels.get(op_type, "") for release, kernels in _SINCE.items() if release > OLDEST]
    return set(" ".join(added).split())


KERNELS: Mapping[str, frozenset[str]] = {
    name: frozenset(dtypes.split()) - _of_later(name)
    for names, dtypes in _KERNELS_OF_SEVERAL.items()
    for name in names.split()
}
CONV_MAX_SPATIAL_DIMENSIONS = 3
# Of these dtypes a Div of 1 and a Mul behind it become one Div (`DEVIATIONS`).
DIV_MUL_FUSION_DTYPES = frozenset({"float16", "float32", "float64", "int32", "int64"})


@dataclass(frozen=True, slots=True)
class Deviation:
    """A result that is another one than ONNX or XLA says.

    Attributes:
        operations: the ONNX operations, separated by spaces.
        deviation: the result of the runtime.
        avoided_in: the modules of `bridge` that see to it, separated by spaces.
    """

    operations: str
    deviation: str
    avoided_in: str


DEVIATIONS = (
    Deviation(
        "Max Min Sign",
        "of several int64 only the low halves are compared",
        "onnx.graph.wide_integers",
    ),
    Deviation("Sign", "0 for -0, and for NaN in float16", "onnx.rules.elementwise"),
    Deviation(
        "Where",
        "0 for a -0 that is taken where the condition holds",
        "onnx.rules.elementwise onnx.graph.graph_builder",
    ),
    Deviation("Sigmoid", "0 below -18, so that its logarithm is -inf",
              "onnx.rules.elementwise"),
    Deviation("Erf", "1 for NaN, before 1.27", "onnx.operation_table"),
    Deviation("Gelu", "an error relative to the operand, not to the result",
              "onnx.rules.fusions"),
    Deviation("Equal Less Greater", "computed numbers of float16 are compared unrounded",
              "onnx.rules.elementwise"),
    Deviation("Mod", "with fmod=1 integers go through floats", "onnx.rules.division"),
    Deviation("Div", "a processor traps at x / 0 and least / -1", "onnx.rules.division"),
    Deviation(
        "Div Mul",
        "1 / x * y becomes y / x (DivMulFusion), of integers too, and before y is computed",
        "onnx.graph.graph_builder",
    ),
    Deviation(
        "MatMul Mul Div",
        "a number by which a float64 product is scaled is rounded to float32 (MatMulScaleFusion)",
        "onnx.graph.graph_builder",
    ),
    Deviation(
        "Pow ReduceMean Sqrt Div",
        "a normalization is fused whatever the exponent, with an epsilon of 1e-5 where the sum has "
        "it first, is no constant or is float64 (LayerNormFusion, SimplifiedLayerNormFusion)",
        "onnx.rules.division onnx.rules.fusions",
    ),
    Deviation(
        "Transpose MatMul",
        "the fused node forgets the Transpose where the other operand is a vector",
        "core_ops.dots",
    ),
    Deviation("MatMul", "no sum over no elements (K = 0) by a vector is written", "core_ops.dots"),
    Deviation("Cast", "to float8 what is just beyond the greatest is rounded down, or NaN",
              "onnx.graph.graph_builder"),
    Deviation("ReduceSum ReduceProd", "integers go through float64", "onnx.rules.reductions"),
    Deviation("ReduceMax ReduceMin", "NaNs are passed over, 64-bit integers compared by 32 bits",
              "onnx.rules.reductions"),
    Deviation("ReduceMax ReduceMin", "of no elements, before 1.30, another one, or none of bools",
              "onnx.rules.reductions"),
    Deviation("ArgMax ArgMin", "NaNs are passed over", "onnx.rules.reductions"),
    Deviation("LogSoftmax", "NaNs are passed over in float64", "onnx.rules.fusions"),
    Deviation("CumSum", "sums of float16 are not rounded one after another", "core_ops.windows"),
    Deviation("MaxPool", "NaNs are lost, and -inf is the lowest finite number",
              "core_ops.windows onnx.graph.pooling"),
    Deviation("Conv", "of no features it does not end", "onnx.rules.convolutions"),
    Deviation("DFT", "of lengths that are no power of 2 it is inexact, 1e-4 at 1,000 elements",
              "onnx.rules.fourier"),
    Deviation("ScatterND", "rows are written by several threads, so updates of one place are lost",
              "core_ops.scatters onnx.graph.graph_builder"),
    Deviation("ScatterElements", "its max and min pass over some NaNs", "core_ops.scatters"),
)  # fmt: skip


def has_kernel(op_type: str, dtype: str) -> bool:
    """Return whether the runtime computes an operation in a dtype.

    >>> has_kernel("Erf", "float32"), has_kernel("Erf", "float64"), has_kernel("Slice", "int4")
    (True, False, True)
    """
    return op_type not in KERNELS or dtype in KERNELS[op_type]
