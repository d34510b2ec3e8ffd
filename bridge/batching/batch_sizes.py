"""Batch sizes, as a user says them."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xla_call_module.errors import StructureError

Buckets = Sequence[int] | Mapping[str, Sequence[int]]


def parse_sizes(value: Any) -> tuple[int, ...] | None:
    """Return the batch sizes of a whole number or a sequence of them; None for anything else."""
    if is_size(value):
        value = (value,)
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return None
    if not value or not all(map(is_size, value)):
        return None
    sizes = tuple(operator.index(size) for size in value)
    if min(sizes) < 1:
        raise StructureError(
            f"{min(sizes)} among the batch sizes {sizes} is below 1. To do: take positive ones."
        )
    return tuple(dict.fromkeys(sizes))


def parse_buckets(value: Any) -> tuple[int, ...]:
    """The sizes that `batch_buckets=` names, in ascending order."""
    is_list = isinstance(value, Sequence | np.ndarray) and not isinstance(value, str | bytes)
    sizes = list(value) if is_list else []
    are_sizes = bool(sizes) and all(is_size(size) and 0 < size < 1 << 31 for size in sizes)
    if not are_sizes or len(set(sizes)) < len(sizes):
        raise StructureError(
            f"batch_buckets={value!r}; expected different sizes of batches from 1 on, such as "
            "(1, 8, 32, 128)."
        )
    return tuple(sorted(map(operator.index, sizes)))


def is_size(value: Any) -> bool:
    """Return whether it is a whole number, of whatever sign."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
