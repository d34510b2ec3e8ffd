"""Batch sizes, as a user says them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from xla_call_module.errors import StructureError

__all__ = ["is_size", "parse_sizes"]


def parse_sizes(value: Any) -> tuple[int, ...] | None:
    """Batch sizes, of a whole number or a sequence of them; None for anything else.

    Raises:
        StructureError: a size is not positive.
    """
    if is_size(value):
        value = (value,)
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return None
    if not value or not all(map(is_size, value)):
        return None
    sizes = tuple(operator.index(size) for size in value)
    if min(sizes) < 1:
        raise StructureError(
            f"{min(sizes)} among the batch sizes {sizes} is none. To do: take whole numbers of at "
            "least 1."
        )
    return tuple(dict.fromkeys(sizes))


def is_size(value: Any) -> bool:
    """Whether it is a whole number, of whatever sign."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
