"""Lists on the command line, such as `1,8,32`."""

from __future__ import annotations

import argparse

__all__ = ["to_parts", "to_sizes"]


def to_parts(text: str) -> list[str]:
    """What the commas are between.

    >>> to_parts("cpu, cuda,")
    ['cpu', 'cuda']
    """
    return [part.strip() for part in text.split(",") if part.strip()]


def to_sizes(text: str) -> tuple[int, ...]:
    """Batch sizes; whether a batch may have them is said by those who use them.

    Raises:
        ArgumentTypeError: they are no whole numbers.
    """
    try:
        return tuple(map(int, to_parts(text)))
    except ValueError as error:
        message = f"{text!r} is no list of batch sizes such as 1,8,32"
        raise argparse.ArgumentTypeError(message) from error
