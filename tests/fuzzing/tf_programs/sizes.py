"""The sizes at which the shapes of TensorFlow functions are found out."""

from __future__ import annotations

from collections.abc import Iterable

# Sizes of the dimension variables that no other dimension has.
SIZES = ({"b": 7, "t": 11}, {"b": 13, "t": 17})
_NAMES = {(7, 13): "b", (11, 17): "t"}


def shape_of(first: Iterable[int], second: Iterable[int]) -> tuple[int | str, ...]:
    """A size is a number, a dimension variable, or something that depends on one."""
    return tuple(
        one if one == other else _NAMES.get((one, other), "?")
        for one, other in zip(first, second, strict=True)
    )
