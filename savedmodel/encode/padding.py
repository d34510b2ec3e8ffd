"""Batches padded and cut inside a FunctionDef, by operations that every TensorFlow has.

The added rows repeat the last one. Rows of zeros would give a function values that it may not be
made for: its gradient there can be infinite, and 0 times infinity in the gradient of a variable is
not a number; a loop may not end. No gradient goes through the added rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from savedmodel.encode.body import Body, Tensor
from savedmodel.model import BatchBuckets
from xla_call_module.call import TensorSpec
from xla_call_module.dtypes import dtype_from_name

_INT32_DTYPE = dtype_from_name("int32", where="int32")
_INT32 = _INT32_DTYPE.enum
_BOOL = dtype_from_name("bool", where="bool").enum


class Padding:
    """The nodes of one body that pad its batch, and cut what comes of it.

    `savedmodel.decode.padding` knows them again.
    """

    def __init__(
        self, body: Body, buckets: BatchBuckets, counted: Tensor, spec: TensorSpec
    ) -> None:
        """Write the nodes that count the rows of an argument, and those that are missing."""
        self._body = body
        shape = body.add_shape("batch_shape", counted, spec)
        self._zero, self._one = self._constant([0]), self._constant([1])
        self._minus_one, self._axis = self._constant([-1]), self._constant(0)
        bounds = [self._zero, self._one, self._one]
        self._count = self._slice("batch_count", shape, bounds, _INT32)
        self._rows = self._repeated(buckets)

    def pad(self, tensor: Tensor, spec: TensorSpec) -> Tensor:
        """Return a batch with as many rows as its bucket."""
        enum = spec.dtype.enum
        last = self._slice("batch_last", tensor, [self._minus_one, self._zero, self._one], enum)
        taken = [last, self._rows, self._axis]
        more = self._node("GatherV2", "batch_more", taken, {"Tparams": enum, **_GATHER})
        stopped = self._body.stop_gradient(more, spec)
        return self._concat("batch_padded", tensor, stopped, enum)

    def cut(self, tensor: Tensor, spec: TensorSpec) -> Tensor:
        """Return the rows of a padded batch that are the request's own."""
        bounds = [self._zero, self._count, self._one]
        return self._slice("batch_cut", tensor, bounds, spec.dtype.enum)

    def _repeated(self, buckets: BatchBuckets) -> Tensor:
        """Return as many zeros as rows are missing: indices of the last row among the last rows."""
        # What is larger than all of them is its own bucket; an empty batch has no row to repeat.
        limits, number = self._constant([0, *buckets.sizes]), {"T": _INT32}
        above = self._node("Greater", "batch_above", [self._count, limits], number)
        steps = self._node("Cast", "batch_steps", [above], {"SrcT": _BOOL, "DstT": _INT32})
        place = self._node("Sum", "batch_place", [steps, self._axis], number | {"Tidx": _INT32})
        sizes = self._concat("batch_sizes", limits, self._count, _INT32)
        taken = [sizes, place, self._axis]
        bucket = self._node("GatherV2", "batch_bucket", taken, {"Tparams": _INT32, **_GATHER})
        missing = self._node("Sub", "batch_missing", [bucket, self._count], number)
        repeated = [self._zero, missing]
        return self._node("Tile", "batch_rows", repeated, number | {"Tmultiples": _INT32})

    def _slice(self, name: str, tensor: Tensor, bounds: Sequence[Tensor], enum: int) -> Tensor:
        return self._node("StridedSlice", name, [tensor, *bounds], {"T": enum, "Index": _INT32})

    def _concat(self, name: str, first: Tensor, second: Tensor, enum: int) -> Tensor:
        inputs = [first, second, self._axis]
        return self._node("ConcatV2", name, inputs, {"T": enum, "Tidx": _INT32})

    def _constant(self, value: int | Sequence[int]) -> Tensor:
        return self._body.add_constant("batch_constant", value, _INT32_DTYPE)

    def _node(
        self, op: str, name: str, inputs: Sequence[Tensor], types: Mapping[str, int]
    ) -> Tensor:
        node = self._body.add_operation(op, name, inputs, types)
        if op == "ConcatV2":
            node.attr["N"].i = 2
        elif op == "Sum":
            node.attr["keep_dims"].b = True
        elif name == "batch_last":
            node.attr["end_mask"].i = 1
        return Tensor(node.name, _OUTPUTS.get(op, "output"))


_GATHER = {"Tindices": _INT32, "Taxis": _INT32}
# What the result of an operation is called, where it is not `output`
# (tensorflow/core/ops/math_ops.cc).
_OUTPUTS = {"Cast": "y", "Greater": "z", "Sub": "z"}
