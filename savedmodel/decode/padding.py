"""The nodes of `savedmodel.encode.padding`, known again wherever TensorFlow has put them.

Only what is written there is known: the same operations, each with what it takes there. A file in
which one of them is different is not understood, rather than understood wrongly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from savedmodel.decode.dataflow import Operation, Origin
from savedmodel.model import BatchBuckets, Function
from savedmodel.protos.schema import Proto
from savedmodel.protos.tensor_values import decode_tensor
from xla_call_module.call import CallModule
from xla_call_module.errors import THROUGH_TENSORFLOW, FormatError, StructureError

_INT32 = 3
_MAX_SIZES = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Padded:
    """A batch that is padded.

    Attributes:
        source: the batch.
        count: its number of rows, by which what comes of it is cut.
        counted: the tensor whose rows are counted.
        sizes: the buckets.
    """

    source: Origin
    count: Origin
    counted: Origin
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A result of a padded batch, `source`, without the rows that were added."""

    source: Origin
    count: Origin


class _OtherError(Exception):
    """The operations are others."""


def read_padded(origin: Origin) -> Padded | None:
    """Return how a batch is padded; None where the operation is anything else."""
    if not isinstance(origin, Operation) or origin.op != "ConcatV2":
        return None
    try:
        source, more, axis = _take(origin, "ConcatV2", 3)
        last, rows, gather_axis = _take(more, "GatherV2", 3)
        _expect(axis, [0])
        _expect(gather_axis, [0])
        if not _same(source, _read_last(last)) or _number(more, "batch_dims"):
            return None
        count, sizes = _read_rows(rows)
        return Padded(source, count, _read_count(count), sizes)
    except _OtherError:
        return None


def read_cut(origin: Origin) -> Cut | None:
    """Return how a padded batch is cut; None where the operation is anything else."""
    if not isinstance(origin, Operation) or origin.op != "StridedSlice":
        return None
    try:
        source, begin, count, step = _take_slice(origin)
        _expect(begin, [0])
        _expect(step, [1])
        _read_count(count)
        return Cut(source, count)
    except _OtherError:
        return None


def read_buckets(
    call: CallModule, operands: Sequence[Padded | None]
) -> tuple[BatchBuckets, Origin]:
    """Return the buckets of a call's batches, and the count of rows that its results are cut to."""
    padded = [(index, padding) for index, padding in enumerate(operands) if padding is not None]
    first = padded[0][1]
    shape = call.operands[padded[0][0]].shape
    alike = all(
        padding.count is first.count and padding.sizes == first.sizes for _, padding in padded
    )
    counted = any(_same(padding.source, first.counted) for _, padding in padded)
    if not (alike and counted and shape and isinstance(shape[0], str)):
        raise _other_padding(call)
    buckets = BatchBuckets(shape[0], first.sizes)
    leading = [index for index, spec in enumerate(call.operands) if buckets.lead(spec)]
    if leading != [index for index, _ in padded]:
        raise _other_padding(call)
    return buckets, first.count


def check_cut(function: Function, index: int, *, is_cut: bool) -> None:
    """Refuse a result of a padded batch that has the rows that were added, and any other cut."""
    buckets = function.batch_buckets
    results = function.call.results
    is_batch = buckets is not None and index < len(results) and buckets.lead(results[index])
    if is_batch != is_cut:
        raise _other_padding(function.call)


def _other_padding(call: CallModule) -> StructureError:
    return StructureError(
        f"Batches around the call of {call.name} are padded or cut in another way than by "
        f"batch_buckets. To do: {THROUGH_TENSORFLOW}."
    )


def _read_last(last: Origin) -> Origin:
    """Return the batch whose last row is taken."""
    source, begin, _, step = _take_slice(last, end_mask=1)
    _expect(begin, [-1])
    _expect(step, [1])
    return source


def _read_rows(rows: Origin) -> tuple[Origin, tuple[int, ...]]:
    """Return the count and the buckets behind the numbers of the rows that are added."""
    first, missing = _take(rows, "Tile", 2)
    _expect(first, [0])
    bucket, count = _take(missing, "Sub", 2)
    sizes, place, axis = _take(bucket, "GatherV2", 3)
    _expect(axis, [0])
    limits, own, concat_axis = _take(sizes, "ConcatV2", 3)
    _expect(concat_axis, [0])
    steps, sum_axis = _take(place, "Sum", 2)
    _expect(sum_axis, [0])
    (above,) = _take(steps, "Cast", 1)
    if _type(steps, "DstT") != _INT32 or not _number(place, "keep_dims"):
        raise _OtherError
    compared, bounds = _take(above, "Greater", 2)
    if own is not count or compared is not count or bounds is not limits:
        raise _OtherError
    return count, _sizes(limits)


def _read_count(count: Origin) -> Origin:
    """Return the tensor whose rows are counted."""
    shape, begin, end, step = _take_slice(count)
    _expect(begin, [0])
    _expect(end, [1])
    _expect(step, [1])
    return _take(shape, "Shape", 1)[0]


def _sizes(limits: Origin) -> tuple[int, ...]:
    first, *sizes = _values(limits)
    if first != 0 or not sizes or sizes[0] < 1 or sizes != sorted(set(sizes)):
        raise _OtherError
    return tuple(sizes)


def _take(origin: Origin, op: str, number: int) -> tuple[Origin, ...]:
    if not isinstance(origin, Operation) or origin.op != op or len(origin.sources) != number:
        raise _OtherError
    return origin.sources


def _take_slice(origin: Origin, *, end_mask: int = 0) -> tuple[Origin, ...]:
    sources = _take(origin, "StridedSlice", 4)
    masks = ("begin_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    if any(_number(origin, mask) for mask in masks) or _number(origin, "end_mask") != end_mask:
        raise _OtherError
    return sources


def _number(origin: Origin, name: str) -> int:
    """Return an attribute that is a number or a flag; 0 where it is not there."""
    value = _attribute(origin, name)
    return 0 if value is None else int(value.i) or int(value.b)


def _type(origin: Origin, name: str) -> int:
    """Return an attribute that is a dtype; 0 where it is not there."""
    value = _attribute(origin, name)
    return 0 if value is None else int(value.type)


def _attribute(origin: Origin, name: str) -> Proto | None:
    if not isinstance(origin, Operation) or name not in origin.definition.attr:
        return None
    return origin.definition.attr[name]  # type: ignore[no-any-return]


def _expect(origin: Origin, values: Sequence[int]) -> None:
    if _values(origin) != list(values):
        raise _OtherError


def _values(origin: Origin) -> list[int]:
    """Return the numbers of a small constant."""
    tensor = origin.tensor if isinstance(origin, Operation) else None
    if tensor is None or tensor.dtype != _INT32:
        raise _OtherError
    try:
        array = decode_tensor(tensor)
    except FormatError as error:
        raise _OtherError from error
    if array.ndim > 1 or not 0 < array.size <= _MAX_SIZES:
        raise _OtherError
    return [int(value) for value in array.reshape(-1)]


def _same(first: Origin, second: Origin) -> bool:
    return first is second or first == second
