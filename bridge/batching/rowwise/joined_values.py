"""Values of which nobody knows which one it is: those of branches, and of the turns of a loop."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from bridge.batching.rowwise.row_value import Batch, BatchValue, Elements, Mixing, Rows, elements_of

__all__ = ["join", "join_all"]


def join_all(batch: Batch, values: Sequence[BatchValue], where: str) -> BatchValue:
    """What is known of a value that is one of several; see `join`."""
    return reduce(lambda left, right: join(batch, left, right, where), values)


def join(batch: Batch, left: BatchValue, right: BatchValue, where: str) -> BatchValue:
    """What is known of a value that is one or the other.

    Args:
        batch: the batch.
        left: the one, whose shape counts where sizes only look different.
        right: the other.
        where: the operation that chooses, for the reason if the result is mixed.
    """
    if left == right:
        return left
    if (known := left.mixing or right.mixing) is not None:
        return BatchValue((), mixing=known)
    different = any(
        a != b and (batch.is_in(a) or batch.is_in(b))
        for a, b in zip(left.shape, right.shape, strict=True)
    )
    turns = {value.turn for value in (left, right) if value.turn}
    is_placed, rows = _join_rows(batch, left, right)
    if different or not is_placed or len(turns) > 1 or (rows is not None and turns):
        text = f"{where} has rows of the batch in different places"
        return BatchValue((), mixing=Mixing(False, text))
    elements = _join_elements(left, right)
    if elements != left.elements or elements != right.elements:
        lost = [value for value in (left, right) if value.elements != elements]
        if any(map(batch.is_in_elements, lost)):
            text = f"{where} takes the size of the batch as a number"
            return BatchValue((), mixing=Mixing(True, text))
    origin = left.origin if left.origin == right.origin else None
    turn = next(iter(turns), None)
    return BatchValue(left.shape, rows, elements, turn=turn, origin=origin)


def _join_rows(batch: Batch, left: BatchValue, right: BatchValue) -> tuple[bool, Rows | None]:
    """Whether rows are in one place, and where."""
    one, other = left.rows, right.rows
    if one is None or other is None:
        # What is the same for all batches of one size may be of any place in them.
        found = one or other
        return found is None or not batch.names, found
    layouts = {(r.outer, r.inner) for r in (one, other) if not r.is_constant}
    if one.axis != other.axis or len(layouts) > 1:
        return False, None
    if not layouts:
        return True, Rows(one.axis, one.outer, one.inner, is_constant=True)
    ((outer, inner),) = layouts
    return True, Rows(one.axis, outer, inner)


def _join_elements(left: BatchValue, right: BatchValue) -> Elements | None:
    one, other = left.elements, right.elements
    if one is None or other is None or one.shape != other.shape:
        return None
    array = one.array
    for place, (a, b) in enumerate(zip(one.dims, other.dims, strict=True)):
        array.reshape(-1)[place] = a if a == b else None
    return elements_of(array)
