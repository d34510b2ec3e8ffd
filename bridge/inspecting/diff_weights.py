"""The differences of the variables of two files, read side by side a few megabytes at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from savedmodel.model import Variable
from xla_call_module.dimensions import aval_text
from xla_call_module.errors import StructureError

NOTHING = "nothing"  # in place of what one of the files does not have

_Array = npt.NDArray[Any]
_WINDOW = 1 << 19


@dataclass(frozen=True, slots=True)
class WeightDifference:
    """A variable that is not the same in both files.

    Attributes:
        name: the pytree path with slashes.
        first: dtype and shape in the first file, such as `float32[3,4]`; empty if it is not there.
        second: the same of the second file.
        elements: the number of elements, if it is the same in both.
        different: the number of elements that differ; two NaNs do not.
        greatest: the greatest difference, infinite where only one element is infinite.
        index: the index of the greatest difference; None where there is none between numbers.
        relative: the greatest difference relative to the larger of the two magnitudes.
        unmatched_nans: the number of elements that are NaN in one file only.
    """

    name: str
    first: str
    second: str
    elements: int = 0
    different: int = 0
    greatest: float = 0.0
    index: tuple[int, ...] | None = None
    relative: float = 0.0
    unmatched_nans: int = 0

    def __str__(self) -> str:
        """Return one line."""
        types = f"{self.first or NOTHING} -> {self.second or NOTHING}"
        if not self.elements:
            return f"{self.name}: {types}"
        text = f"{self.name}: {self.first if self.first == self.second else types}"
        if not self.different:
            return f"{text}, equal values"
        text += f", {self.different:,} of {self.elements:,} elements differ"
        if self.index is not None:
            where = f" at {list(self.index)}" if self.index else ""
            text += f", by at most {self.greatest:.6g}{where}, relatively {self.relative:.3g}"
        if self.unmatched_nans:
            text += f", {self.unmatched_nans:,} are no number in one only"
        return text


def diff_weights(
    first: Mapping[str, Variable], second: Mapping[str, Variable]
) -> Iterator[WeightDifference]:
    """Yield the variables that differ, in the order of the first file; then those that it lacks."""
    for name in dict.fromkeys([*first, *second]):
        difference = _compare(name, first.get(name), second.get(name))
        if difference is not None:
            yield difference


def _compare(name: str, first: Variable | None, second: Variable | None) -> WeightDifference | None:
    before, after = _type(first), _type(second)
    if first is None or second is None or first.shape != second.shape:
        return WeightDifference(name, before, after)
    tally = _Tally()
    for start, ours, theirs in _windows(first, second):
        tally.add(start, ours, theirs)
    if not tally.different and before == after:
        return None
    return WeightDifference(
        name,
        before,
        after,
        elements=first.size // first.dtype.itemsize,
        different=tally.different,
        greatest=tally.greatest,
        index=_unravel(tally.position, first.shape),
        relative=tally.relative,
        unmatched_nans=tally.unmatched_nans,
    )


def _type(variable: Variable | None) -> str:
    return "" if variable is None else aval_text(variable.dtype.name, variable.shape)


def _unravel(position: int | None, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    if position is None:
        return None
    return tuple(int(index) for index in np.unravel_index(position, shape))


def _windows(first: Variable, second: Variable) -> Iterator[tuple[int, _Array, _Array]]:
    """Yield the elements of both variables, window by window, with the index of the first one."""
    ours, theirs = _ElementReader(first), _ElementReader(second)
    total = first.size // first.dtype.itemsize
    for start in range(0, total, _WINDOW):
        count = min(_WINDOW, total - start)
        yield start, ours.take(count), theirs.take(count)
    ours.end()
    theirs.end()


class _ElementReader:
    """The elements of a variable, one window after another."""

    __slots__ = ("_dtype", "_pieces", "_rest")

    def __init__(self, variable: Variable) -> None:
        if variable.chunks is None:
            raise StructureError(
                f"The variable {variable.name} has no value. To do: compare files that are whole."
            )
        self._pieces = iter(variable.chunks())
        self._dtype = variable.dtype.numpy
        self._rest: _Array = np.empty(0, np.uint8)

    def take(self, count: int) -> _Array:
        """Return the next `count` elements."""
        size = count * self._dtype.itemsize
        parts, missing = [], size
        while missing:
            if not self._rest.size:
                self._rest = _bytes_of(next(self._pieces))
            parts.append(self._rest[:missing])
            missing -= parts[-1].size
            self._rest = self._rest[parts[-1].size :]
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return whole.view(self._dtype)

    def end(self) -> None:
        """Read to the end, where the checksum of all elements is verified."""
        for _ in self._pieces:
            pass


def _bytes_of(chunk: Any) -> _Array:
    """Return the memory of a chunk; an array of an ml_dtypes dtype has no buffer protocol."""
    if isinstance(chunk, np.ndarray):
        return chunk.reshape(-1).view(np.uint8)
    return np.frombuffer(chunk, np.uint8)


class _Tally:
    """The differences in the windows so far."""

    def __init__(self) -> None:
        self.different = 0
        self.unmatched_nans = 0
        self.greatest = 0.0
        self.relative = 0.0
        self.position: int | None = None

    def add(self, start: int, first: _Array, second: _Array) -> None:
        """Count the elements of a window that begins at element `start`."""
        if first.dtype == second.dtype and _same_bytes(first, second):
            return
        ours, theirs = _wide(first, second)
        nans = np.isnan(ours) != np.isnan(theirs)
        both = np.isnan(ours) & np.isnan(theirs)
        differs = (ours != theirs) & ~both
        self.different += int(differs.sum())
        self.unmatched_nans += int(nans.sum())
        usable = differs & ~nans
        if not usable.any():
            return
        distance = np.where(usable, _distance(ours, theirs), 0.0)
        worst = int(np.argmax(distance))
        if distance[worst] > self.greatest:
            self.greatest, self.position = float(distance[worst]), start + worst
        self.relative = max(self.relative, float(_relative(distance, ours, theirs).max()))


def _same_bytes(first: _Array, second: _Array) -> bool:
    return bool(np.array_equal(first.view(np.uint8), second.view(np.uint8)))


def _wide(first: _Array, second: _Array) -> tuple[_Array, _Array]:
    """Return both in one dtype that represents the numbers of either, if there is one."""
    kinds = {first.dtype.kind, second.dtype.kind}
    if kinds <= {"i", "u"}:
        wide: Any = np.result_type(first.dtype, second.dtype)
    else:
        wide = np.complex128 if "c" in kinds else np.float64
    return first.astype(wide), second.astype(wide)


def _distance(ours: _Array, theirs: _Array) -> _Array:
    if ours.dtype.kind in "iu":
        # In arithmetic modulo 2**64 the larger less the smaller is right, whatever their signs.
        larger, smaller = np.maximum(ours, theirs), np.minimum(ours, theirs)
        with np.errstate(over="ignore"):
            return (larger.astype(np.uint64) - smaller.astype(np.uint64)).astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        distance: _Array = np.abs(ours - theirs)
    return np.where(np.isnan(distance), np.inf, distance)


def _relative(distance: _Array, ours: _Array, theirs: _Array) -> _Array:
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        magnitudes = (np.abs(array.astype(np.complex128)) for array in (ours, theirs))
        relative: _Array = distance / np.maximum(*magnitudes)
    # An infinity is all of it away from anything else, a zero of nothing away from itself.
    return np.where(np.isinf(distance), np.inf, np.nan_to_num(relative, nan=0.0))
