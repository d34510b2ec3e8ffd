"""The signatures of TensorFlow's operations, and the dtypes and ranks of which its CPU kernels are.

They are those of the operations' definitions and kernels in TensorFlow 2.14, which later versions
keep. A graph names most operations as `bridge.graphs` does; others have TensorFlow's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from xla_call_module.errors import DtypeError


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs and outputs of an operation.

    Attributes:
        op: TensorFlow's name of it.
        inputs: the attribute with the dtype of each input; the last one with `*` for a list of any
            length. A text in brackets is a fixed dtype.
        outputs: the name and the attribute of each output.
        dtypes: the dtypes of `T` that have a kernel; None for all.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[tuple[str, str], ...]
    dtypes: frozenset[str] | None


_INTEGERS = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_SIGNED = frozenset(name for name in _INTEGERS if name.startswith("int"))
_FLOATS = frozenset({"bfloat16", "float16", "float32", "float64"})
_COMPLEX = frozenset({"complex64", "complex128"})
_WIDE = frozenset({"float32", "float64"})
_REAL = _INTEGERS | _FLOATS
_DTYPES: Mapping[str, frozenset[str] | None] = {
    "all": None,
    "select": _REAL | _COMPLEX | {"bool"},
    "numbers": _REAL | _COMPLEX,
    "real": _REAL,
    "integers": _INTEGERS,
    "signed": _SIGNED | _FLOATS | _COMPLEX,
    "signed_real": _SIGNED | _FLOATS,
    "fields": _FLOATS | _COMPLEX,
    "floats": _FLOATS,
    "wide": _WIDE,
    "wide_fields": _WIDE | _COMPLEX,
    "mod": _WIDE | {"int32", "int64"},
    "power": _FLOATS | _COMPLEX,
    "special": _WIDE | {"float16"},
    "products": _FLOATS | _COMPLEX | {"int32", "int64"},
    "images": _FLOATS | {"int32"},
    "fft": _COMPLEX,
    "pooled": _FLOATS,
    # Of these sums kernels add numbers of 16 bits in 16 bits.
    "wide_sums": _WIDE | _COMPLEX | _INTEGERS,
    "wide_products": _WIDE | _COMPLEX | {"int32", "int64"},
    "range": _WIDE | {"int32", "int64"},
    "words": frozenset({"uint32", "uint64", "int32", "int64"}),
}
# The name in a graph, TensorFlow's, the inputs, the outputs, and the dtypes with kernels.
_TABLE = """
Abs Abs T y:T signed_real
Acos Acos T y:T fields
Acosh Acosh T y:T fields
Add AddV2 T,T z:T numbers
All All [bool],Tidx output:[bool] all
And LogicalAnd [bool],[bool] z:[bool] all
Any Any [bool],Tidx output:[bool] all
ArgMax ArgMax T,Tidx output:output_type real
ArgMin ArgMin T,Tidx output:output_type real
Asin Asin T y:T fields
Asinh Asinh T y:T fields
Assert Assert [bool],T* - all
Atan Atan T y:T fields
Atan2 Atan2 T,T z:T floats
Atanh Atanh T y:T fields
AvgPool AvgPool T output:T wide
BatchMatMulV2 BatchMatMulV2 T,T output:T products
Bitcast Bitcast T output:type all
BitwiseAnd BitwiseAnd T,T z:T integers
BitwiseNot Invert T y:T integers
BitwiseOr BitwiseOr T,T z:T integers
BitwiseXor BitwiseXor T,T z:T integers
Cast Cast SrcT y:DstT all
Ceil Ceil T y:T floats
Cholesky Cholesky T output:T wide_fields
Complex Complex T,T out:Tout wide
ComplexAbs ComplexAbs T y:Tout fft
Concat ConcatV2 T*,Tidx output:T all
Conj Conj T output:T fft
Const Const - output:dtype all
Conv2D Conv2D T,T output:T images
Conv2DBackpropFilter Conv2DBackpropFilter T,[int32],T output:T wide
Conv3D Conv3D T,T output:T wide
Cos Cos T y:T fields
Cosh Cosh T y:T fields
CumProd Cumprod T,Tidx out:T wide_sums
CumSum Cumsum T,Tidx out:T wide_sums
DepthwiseConv2dNative DepthwiseConv2dNative T,T output:T wide
Div RealDiv T,T z:T fields
Einsum Einsum T* output:T wide_products
Equal Equal T,T z:[bool] select
Erf Erf T y:T floats
Erfc Erfc T y:T floats
Exp Exp T y:T fields
Expand BroadcastTo T,Tidx output:T all
Expm1 Expm1 T y:T fields
FFT FFT Tcomplex output:Tcomplex all
FloatMod Mod T,T z:T wide
Floor Floor T y:T floats
Gather GatherV2 Tparams,Tindices,Taxis output:Tparams all
GatherND GatherNd Tparams,Tindices output:Tparams all
Greater Greater T,T z:[bool] real
GreaterOrEqual GreaterEqual T,T z:[bool] real
IFFT IFFT Tcomplex output:Tcomplex all
IRFFT IRFFT Tcomplex,[int32] output:Treal all
Identity Identity T output:T all
Imag Imag T output:Tout fft
IntegerDiv TruncateDiv T,T z:T integers
IsFinite IsFinite T y:[bool] floats
IsInf IsInf T y:[bool] floats
IsNaN IsNan T y:[bool] floats
LeftShift LeftShift T,T z:T integers
Less Less T,T z:[bool] real
LessOrEqual LessEqual T,T z:[bool] real
Log Log T y:T fields
Log1p Log1p T y:T fields
LogSoftmax LogSoftmax T logsoftmax:T floats
MatMul MatMul T,T product:T products
MatrixTriangularSolve MatrixTriangularSolve T,T output:T wide_fields
Max Maximum T,T z:T real
MaxPoolGrad MaxPoolGrad T,T,T output:T pooled
MaxPool MaxPool T output:T pooled
Min Minimum T,T z:T real
Mod FloorMod T,T z:T integers
Mul Mul T,T z:T numbers
Neg Neg T y:T signed
Not LogicalNot [bool] y:[bool] all
NotEqual NotEqual T,T z:[bool] select
Or LogicalOr [bool],[bool] z:[bool] all
Pad PadV2 T,Tpaddings,T output:T select
PopulationCount PopulationCount T y:[uint8] integers
Pow Pow T,T z:T power
Qr Qr T q:T,r:T wide_fields
RFFT RFFT Treal,[int32] output:Tcomplex all
Range Range Tidx,Tidx,Tidx output:Tidx all
Real Real T output:Tout fft
Reciprocal Reciprocal T y:T fields
ReduceMax Max T,Tidx output:T real
ReduceMin Min T,Tidx output:T real
ReduceProd Prod T,Tidx output:T wide_sums
ReduceSum Sum T,Tidx output:T wide_sums
Relu Relu T activations:T floats
Reshape Reshape T,Tshape output:T all
RightShift RightShift T,T z:T integers
Round Rint T y:T wide
Reverse ReverseV2 T,Tidx output:T all
Rsqrt Rsqrt T y:T fields
SelfAdjointEigV2 SelfAdjointEigV2 T e:T,v:T wide_fields
ScatterND TensorScatterUpdate T,Tindices,T output:T select
Shape Shape T output:out_type all
Sigmoid Sigmoid T y:T fields
Sign Sign T y:T signed_real
Sin Sin T y:T fields
Sinh Sinh T y:T fields
Size Size T output:out_type all
Softmax Softmax T softmax:T floats
Sqrt Sqrt T y:T fields
Squeeze Squeeze T output:T all
StridedSlice StridedSlice T,Index,Index,Index output:T all
Sub Sub T,T z:T numbers
Svd Svd T s:T,u:T,v:T wide_fields
Tan Tan T y:T fields
Tanh Tanh T y:T fields
TensorListReserve TensorListReserve shape_type,[int32] handle:[variant] all
TensorListSetItem TensorListSetItem [variant],[int32],element_dtype output_handle:[variant] all
TensorListStack TensorListStack [variant],[int32] tensor:element_dtype select
TensorScatterAdd TensorScatterAdd T,Tindices,T output:T numbers
TensorScatterMax TensorScatterMax T,Tindices,T output:T real
TensorScatterMin TensorScatterMin T,Tindices,T output:T real
TensorScatterUpdate TensorScatterUpdate T,Tindices,T output:T select
TopK TopKV2 T,Tk values:T,indices:index_type real
Transpose Transpose T,Tperm y:T all
Unsqueeze ExpandDims T,Tdim output:T all
UnsortedSegmentProd UnsortedSegmentProd T,Tindices,Tnumsegments output:T numbers
Where SelectV2 [bool],T,T output:T select
"""
# In the order in which they are tried, where an operation has no kernel of a dtype.
_WIDER: Mapping[str, tuple[str, ...]] = {
    "bool": ("uint8", "int32"),
    "int8": ("int32", "int64"),
    "int16": ("int32", "int64"),
    "uint8": ("int32", "int64"),
    "uint16": ("int32", "int64"),
    "uint32": ("int64",),
    "float16": ("float32",),
    "bfloat16": ("float32",),
    "float8_e4m3fn": ("float32",),
    "float8_e5m2": ("float32",),
}
# Operations whose low bits do not depend on how the highest one is read, of uint64 as int64.
_MODULAR = frozenset({"BatchMatMulV2", "Einsum", "MatMul", "Neg"})

# Operations that broadcast their operands.
BROADCASTING = frozenset({
    "Add", "And", "Atan2", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Complex", "Div", "Equal",
    "FloatMod", "Greater", "GreaterOrEqual", "IntegerDiv", "LeftShift", "Less", "LessOrEqual",
    "Max", "Min", "Mod", "Mul", "NotEqual", "Or", "Pow", "RightShift", "Sub", "Where",
})  # fmt: skip
# The most dimensions that a kernel takes, of operations whose kernels do not take any number. Where
# operands are broadcast, neighbouring dimensions of which the same ones are repeated count once;
# those of Where count each. GatherND takes any number, but looks up in so many.
_MAX_RANKS: Mapping[str, int] = {
    **dict.fromkeys(BROADCASTING, 5),
    "ArgMax": 7,
    "ArgMin": 7,
    "Expand": 5,
    "GatherND": 7,
    "Pad": 6,
    "Slice": 8,
    "Softmax": 5,
    "Where": 8,
}


@cache
def _signatures() -> Mapping[str, Signature]:
    table = {}
    for line in _TABLE.strip().splitlines():
        name, op, inputs, outputs, dtypes = line.split()
        pairs = [tuple(each.split(":")) for each in outputs.split(",") if each != "-"]
        table[name] = Signature(
            op=op,
            inputs=() if inputs == "-" else tuple(inputs.split(",")),
            outputs=tuple((output, attribute) for output, attribute in pairs),
            dtypes=_DTYPES[dtypes],
        )
    return table


def signature_of(op_type: str) -> Signature | None:
    """Return the signature of an operation; None for one that is written as several.

    >>> signature_of("Add").op
    'AddV2'
    """
    return _signatures().get(op_type)


@cache
def _operations() -> Mapping[str, Signature]:
    return {signature.op: signature for signature in _signatures().values()}


def operation_signature(op: str) -> Signature | None:
    """Return the signature of an operation by TensorFlow's name; None for an unknown one.

    >>> operation_signature("AddV2").inputs
    ('T', 'T')
    """
    return _operations().get(op)


def input_attributes(op: str, count: int) -> list[str | None]:
    """Return the attribute with the dtype of each input; None for a fixed or an unknown one.

    >>> input_attributes("ConcatV2", 3)
    ['T', 'T', 'Tidx']
    """
    signature = operation_signature(op)
    if signature is None:
        return [None] * count
    attributes: list[str] = []
    for text in signature.inputs:
        repeated = count - len(signature.inputs) + 1 if text.endswith("*") else 1
        attributes += [text.rstrip("*")] * repeated
    return [None if text.startswith("[") else text for text in attributes]


def max_rank(op_type: str) -> int | None:
    """Return the most dimensions that the kernel of an operation takes; None for any number.

    >>> max_rank("Pad")
    6
    """
    return _MAX_RANKS.get(op_type)


def has_kernel(op_type: str, dtype: np.dtype[Any]) -> bool:
    """Return whether TensorFlow computes an operation of a dtype on the CPU.

    >>> has_kernel("Round", np.dtype("float16"))
    False
    """
    signature = signature_of(op_type)
    return signature is None or signature.dtypes is None or dtype.name in signature.dtypes


def computation_dtype(op_type: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which an operation is computed: the same, or a wider one.

    >>> computation_dtype("Round", np.dtype("float16"))
    dtype('float32')
    """
    if has_kernel(op_type, dtype):
        return dtype
    wider = _WIDER.get(dtype.name, ())
    if dtype.name == "uint64" and op_type in _MODULAR:
        wider = ("int64",)
    for name in wider:
        if has_kernel(op_type, np.dtype(name)):
            return np.dtype(name)
    raise DtypeError(
        f"TensorFlow has no {op_type} of {dtype.name}, nor of a wider dtype with the same "
        "results. To do: compute this in another dtype."
    )
