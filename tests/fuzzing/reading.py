"""The content of a SavedModel, as a value that two readings of it share."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import savedmodel
from xla_call_module.errors import InteropError

LIMIT = 5.0


class TookTooLongError(BaseException):
    """Reading took longer than it may; no `except Exception` stops it."""


@contextmanager
def time_limit(seconds: float = LIMIT) -> Iterator[None]:
    """An error for a block that takes too long."""

    def stop(*_: object) -> None:
        raise TookTooLongError(f"over {seconds} s")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def read_all(folder: Path) -> Any:
    """Every number, name and module of a SavedModel."""
    model = savedmodel.read(folder)
    variables = tuple(
        (v.name, v.dtype.name, v.shape, v.trainable, v.constant, v.shared().tobytes())
        for v in model.variables
    )
    signatures = tuple(
        (
            signature.key,
            signature.function.chain,
            sorted(signature.function.bound.items()),
            sorted(signature.function.constants.items()),
            sorted(signature.inputs.items()),
            sorted(signature.outputs.items()),
        )
        for signature in model.signatures
    )
    return sorted(variables), sorted(signatures, key=lambda item: item[0]), model.params


def outcome(read: Callable[[], Any]) -> Any:
    """Return what was read, or the `InteropError`; any other error goes through."""
    with time_limit():
        try:
            return read()
        except InteropError as error:
            return error
