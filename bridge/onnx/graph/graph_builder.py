"""The graph of ONNX while it is built: opsets, dtypes without kernels, faults of the runtime."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bridge.graphs import nodes
from bridge.graphs.tensor_graph import Inputs, Results, TensorGraph
from bridge.graphs.values import Value, constant_array
from bridge.onnx.graph import kernels, loop_nodes, pooling, wide_integers
from bridge.onnx.graph.onnx_runtime import BITCAST_OPSET, DIV_MUL_FUSION_DTYPES
from xla_call_module.size_polynomials import Dim, Shape

# Up to so many numbers are repeated in place of a single one.
_MAX_REPEATED = 1 << 12
# From where on a float32 is none of the finite numbers: half a step above the greatest of them,
# which for one with an even fraction is rounded down.
_FLOAT8_OVERFLOW = {"float8_e4m3fn": float(np.nextafter(np.float32(464), np.float32(np.inf))),
                    "float8_e5m2": 61440.0}  # fmt: skip


class NewerOpset(Exception):  # noqa: N818 - it is no error, and no caller sees it
    """The signal that the model is to be made anew for `BITCAST_OPSET`."""


class Graph(TensorGraph):
    """A graph of operations of ONNX's default domain.

    Attributes:
        opset: the version of these operations.
    """

    opset: int
    format = "ONNX"

    def __init__(
        self,
        opset: int = 0,
        *,
        outer: Graph | None = None,
        may_rise: bool = False,
        exact: bool = True,
    ) -> None:
        """Make an empty graph."""
        super().__init__(outer=outer, exact=exact)
        self.opset = opset if outer is None else outer.opset
        self._may_rise: bool = may_rise if outer is None else outer._may_rise

    def reads_bits(self) -> bool:
        """Return whether there is an operation that reads the bits of a float."""
        if self.opset >= BITCAST_OPSET:
            return True
        if self._may_rise:
            raise NewerOpset
        return False

    def nodes_of(
        self, op_type: str, inputs: Inputs, results: Results, **attributes: Any
    ) -> list[Value]:
        """Return the results of an operation, in a wider dtype where there is no kernel."""
        alike, alike_results = kernels.typed_alike(op_type, self.opset, len(inputs), len(results))
        pairs = list(zip(inputs, alike, strict=True))
        own = next((value.dtype for value, is_alike in pairs if value and is_alike), None)
        wide = own if own is None else kernels.computation_dtype(op_type, own, self.opset)
        if wide is None or wide == own:
            return self._compute(op_type, inputs, results, attributes)
        given = [self.cast(value, wide) if value and a else value for value, a in pairs]
        kinds = [
            (shape, wide if is_alike and dtype == own else dtype)
            for (shape, dtype), is_alike in zip(results, alike_results, strict=True)
        ]
        computed = self._compute(op_type, given, kinds, attributes)
        return [self.cast(v, dtype) for v, (_, dtype) in zip(computed, results, strict=True)]

    def compose(self, op_type: str, values: Sequence[Value]) -> Value | None:
        """Return Max or Min of int64 by what compares all bits of them."""
        return wide_integers.extreme(self, op_type, values)

    def loop(
        self,
        size: Dim,
        inits: Sequence[Value],
        step: Callable[[TensorGraph, Value, list[Value]], Sequence[Value]],
        row_shape: Shape | None = None,
    ) -> list[Value]:
        """Return the carried values behind a Loop, then the rows of its iterations."""
        return loop_nodes.loop(self, size, inits, step, row_shape)

    def scatter_rows(
        self, matrix: Value, index: Value, updates: Value, reduction: str, *, unique: bool
    ) -> Value:
        """Return a matrix with rows written into it.

        ONNX Runtime writes the rows of ScatterND from several threads at once, so that two of them
        at one place lose updates (seen with 1.31). ScatterElements goes one after another.
        """
        column = nodes.expand_dims(self, index, [1])
        if unique:
            inputs = [matrix, self.expand(column), updates]
            return self.node("ScatterND", inputs, shape=matrix.shape, reduction=reduction)
        indices = self.expand(column.broadcast_to(updates.shape))
        inputs = [matrix, indices, updates]
        return self.node("ScatterElements", inputs, shape=matrix.shape, axis=0, reduction=reduction)

    def pooled(
        self, reducer: str, value: Value, rows: Sequence[tuple[int, int, int, int]]
    ) -> Value | None:
        """Return MaxPool of windows, where the runtime's has the same elements."""
        return pooling.max_pool(self, value, rows) if reducer == "maximum" else None

    def cast(self, value: Value, dtype: np.dtype[Any]) -> Value:
        """Cast as ONNX does; `bridge.onnx.rules.casts` has StableHLO's `convert`."""
        if value.dtype != dtype and dtype.name in _FLOAT8_OVERFLOW:
            return self._rounded(value, dtype)
        made = super().cast(value, dtype)
        wide_integers.remember_cast(self, value, made)
        return made

    def _rounded(self, value: Value, dtype: np.dtype[Any]) -> Value:
        """Return floats of 8 bits; beyond the greatest is NaN or infinity, as in XLA.

        ONNX Runtime rounds what is just beyond it down, or takes it for NaN, so that is infinite
        before; by a product, since its Where takes a -0 for a 0.
        """
        wide = self.cast(value, np.dtype(np.float32))
        numbers = (1, _FLOAT8_OVERFLOW[dtype.name], np.inf)
        one, beyond, infinity = (constant_array(np.array(n, np.float32)) for n in numbers)
        unbroadcast, flag = wide.unbroadcast_shape, np.dtype(bool)
        size = self.node("Abs", [wide], shape=unbroadcast)
        is_beyond = self.node("GreaterOrEqual", [size, beyond], shape=unbroadcast, dtype=flag)
        factor = self.node("Where", [is_beyond, infinity, one], shape=unbroadcast, dtype=wide.dtype)
        ended = self.node("Mul", [wide, factor], shape=unbroadcast)
        attributes = {"to": dtype, "saturate": 0}
        (made,) = self._compute("Cast", [ended], [(unbroadcast, dtype)], attributes)
        return made.broadcast_to(value.shape)

    def _replaced(
        self, op_type: str, inputs: Inputs, results: Results, attributes: Mapping[str, Any]
    ) -> list[Value] | None:
        if op_type == "Div":
            dividend, divisor = inputs
            if (quotient := self._reciprocal(dividend, divisor, results[0])) is not None:
                return [quotient]
        if op_type not in ("Div", "Mul") or results[0][1] != np.float64:
            return None
        inputs = _without_scalars(inputs)
        if not self._may_scale(op_type, inputs):
            return self._add(op_type, inputs, results, attributes)
        shape, dtype = results[0]
        made = self._compute(op_type, _above(inputs), [((1, *shape), dtype)], attributes)
        return self._compute("Squeeze", [*made, self.vector([0])], results, {})

    def _may_scale(self, op_type: str, inputs: Sequence[Value | None]) -> bool:
        """Return whether ONNX Runtime may take a product or quotient for the scale of a MatMul.

        Of what has no dimensions it does so behind a MatMul, and not in front of one.
        """
        for place in (1,) if op_type == "Div" else (0, 1):
            scale, other = inputs[place], inputs[1 - place]
            if scale is None or other is None or scale.array is None or scale.array.size != 1:
                continue
            node = None if other.unbroadcast_shape else self.producer(other)
            is_scaled = bool(other.unbroadcast_shape) or (
                node is not None and node.op_type == "MatMul"
            )
            if is_scaled and len(scale.unbroadcast_shape) <= len(other.unbroadcast_shape):
                return True
        return False

    def _reciprocal(
        self,
        dividend: Value | None,
        divisor: Value | None,
        result: tuple[Sequence[Dim | None], np.dtype[Any]],
    ) -> Value | None:
        """Return 1 / value without a Div of 1; None for other quotients.

        Of such a Div and a Mul behind it ONNX Runtime makes one Div (`DivMulFusion`): another
        number where they are integers, and without minding that the other factor has to be
        computed before. Of 8 and 16 bits, and unsigned, it leaves integers alone.
        """
        shape, dtype = result
        if dividend is None or divisor is None or dividend.array is None or dividend.scalar != 1:
            return None
        if dtype.name not in DIV_MUL_FUSION_DTYPES:
            return None
        if dtype.kind == "f" and len(dividend.unbroadcast_shape) <= len(divisor.unbroadcast_shape):
            return self.node("Reciprocal", [divisor], shape=shape)
        minus = dataclasses.replace(dividend, array=np.negative(dividend.array))
        return self.node("Neg", [self.node("Div", [minus, divisor], shape=shape)], shape=shape)


def _without_scalars(inputs: Sequence[Value | None]) -> list[Value | None]:
    """Repeat scalar constants along a static dimension of the other operand, if there is one.

    ONNX Runtime makes one node of a MatMul and of a product or quotient with a single number around
    it, which has the number, or its reciprocal, as a float32 (`MatMulScaleFusion`).
    """
    shape = max(
        (value.unbroadcast_shape for value in inputs if value is not None), key=len, default=()
    )
    sizes = [dim if isinstance(dim, int) and dim <= _MAX_REPEATED else 0 for dim in shape]
    axis = next((axis for axis in reversed(range(len(shape))) if sizes[axis] > 1), None)
    if axis is None:
        return list(inputs)
    return _repeated(inputs, (sizes[axis], *(1 for _ in shape[axis + 1 :])))


def _above(inputs: Sequence[Value | None]) -> list[Value | None]:
    """Return scalar constants with a dimension more than the others, so that they scale nothing."""
    rank = max(len(value.unbroadcast_shape) for value in inputs if value is not None)
    return _repeated(inputs, (1,) * (rank + 1))


def _repeated(inputs: Sequence[Value | None], shape: tuple[int, ...]) -> list[Value | None]:
    """Return the inputs, their scalar constants in another shape."""
    given: list[Value | None] = []
    for value in inputs:
        if value is not None and value.array is not None and value.array.size == 1:
            array = np.broadcast_to(value.array.reshape(()), shape)
            value = dataclasses.replace(value, unbroadcast_shape=shape, array=array)
        given.append(value)
    return given
