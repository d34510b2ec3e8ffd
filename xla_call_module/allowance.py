"""The limits of what a file may take: a small one can describe what no memory holds."""

from __future__ import annotations

from xla_call_module.errors import FormatError


class Allowance:
    """An amount that is spent while a file is read.

    >>> steps = Allowance(2, what="steps to trace a signature")
    >>> steps.spend(2)
    >>> steps.spend()
    Traceback (most recent call last):
        ...
    bridge.FormatError: The file takes more than 2 steps to trace a signature, \
more than any writer needs. To do: write it again.
    """

    __slots__ = ("_left", "_limit", "_what")

    def __init__(self, limit: int, *, what: str) -> None:
        """Begin with nothing spent."""
        self._left = limit
        self._limit = limit
        self._what = what

    @property
    def left(self) -> int:
        """The amount that is not spent."""
        return self._left

    def spend(self, amount: int = 1) -> None:
        """Spend some of it."""
        self._left -= amount
        if self._left < 0:
            raise FormatError(
                f"The file takes more than {self._limit:,} {self._what}, more than any writer "
                "needs. To do: write it again."
            )
