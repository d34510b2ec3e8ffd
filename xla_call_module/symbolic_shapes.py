"""Symbolic shapes of files, for JAX, whose parser takes as long as an expression asks for.

JAX multiplies sums out, decides which argument of `max` and `min` is the greater, and counts an
exponent down (jax/_src/export/shape_poly.py). So the text of a file is looked at by
`dimensions.py` first, and what JAX does with it ends after a number of steps. The text of a user
is bounded in the same way.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from jax import export
from jax.extend import source_info_util

from xla_call_module.dimensions import MAX_EXPONENT, Shape, evaluate
from xla_call_module.errors import FormatError, InteropError, StructureError

# Less than a second. JAX takes 6 for a byte of arrays that it has serialized.
_MAX_STEPS = 2_000_000
_STEPS_PER_BYTE = 8
_MAX_BYTES = 1 << 22
# What runs when a block is entered or left, or an object goes, where nobody takes the error; as in
# a generator that is taken apart.
_AROUND = ("__enter__", "__exit__", "__del__", "limited_steps")


@contextmanager
def limited_reading(size: int) -> Iterator[None]:
    """End a block that makes an `Exported` with an error once it has taken too long."""
    steps = _MAX_STEPS + _STEPS_PER_BYTE * min(size, _MAX_BYTES)
    with limited_steps("to read a serialized Exported", steps=steps):
        yield


@contextmanager
def limited_parsing(texts: object) -> Iterator[None]:
    """End a block in which JAX reads what a user writes of sizes, once it has taken too long."""
    where = f"{texts!r:.200}"
    powers = [int(digits) for digits in re.findall(r"\^\s*(\d{1,99})", str(texts))]
    if max(powers, default=0) > MAX_EXPONENT:
        raise StructureError(
            f"{where} has the exponent {max(powers)}; expected at most {MAX_EXPONENT}. To do: "
            "write a smaller one."
        )
    error = StructureError(
        f"JAX takes too long to read {where}. To do: write sizes without powers of sums, and with "
        "less nesting."
    )
    try:
        with limited_steps("to read sizes", error=error):
            yield
    except RecursionError:
        raise error from None


def scope_constraints(scope: export.SymbolicScope) -> tuple[str, ...]:
    """Return the constraints of a scope, as texts that make the same scope again.

    The text of a scope has them, after its place in the program (jax/_src/export/shape_poly.py). Of
    `mod(b, 2) == 0` JAX makes another one, which stands before it and is left out.

    Example:
        >>> scope_constraints(export.SymbolicScope(("b >= 4", "mod(b, 2) == 0")))
        ('b >= 4', 'mod(b, 2) == 0')
    """
    texts = _all_constraints(scope)
    made = [
        _all_constraints(export.SymbolicScope((text,)))[:-1] if "mod" in text else ()
        for text in texts
    ]
    following = [*made[1:], ()]
    pairs = zip(texts, following, strict=False)
    return tuple(text for text, derived in pairs if text not in derived)


def constraints_of(avals: Iterable[Any]) -> tuple[str, ...]:
    """Return the constraints of the symbolic dimensions of arrays, which are of one scope."""
    dims = (dim for aval in avals for dim in aval.shape if export.is_symbolic_dim(dim))
    first = next(dims, None)
    return () if first is None else scope_constraints(first.scope)


def _all_constraints(scope: export.SymbolicScope) -> tuple[str, ...]:
    _, _, lines = str(scope).partition(" with constraints:\n")
    return tuple(line.strip() for line in lines.splitlines())


def parse_shape(shape: Shape, *, scope: export.SymbolicScope | None = None) -> Any:
    """Return the shape as JAX has it; call it where steps are limited."""
    for dim in shape:
        evaluate(dim, {})
    text = ", ".join(map(str, shape))
    return export.symbolic_shape(f"({text},)" if text else "()", scope=scope)


class _TooManySteps(BaseException):
    """Not to be taken for an error of what is run."""


@contextmanager
def limited_steps(
    what: str, *, steps: int = _MAX_STEPS, error: InteropError | None = None
) -> Iterator[None]:
    """End a block with an error once it has called too many functions.

    Where a profiler is at work, which counts them itself, nothing is limited.

    >>> with limited_steps("to count", steps=1000):
    ...     for number in range(10**9):
    ...         abs(number)
    Traceback (most recent call last):
        ...
    bridge.FormatError: It takes more than 1,000 steps to count, more than any \
writer needs. To do: write it again.
    """
    if sys.getprofile() is not None:
        yield
        return
    # JAX compiles which files are not the user's when it is first asked, and names a line of the
    # user's for each scope of sizes. That is no step of what is read.
    source_info_util.summarize(source_info_util.current())
    left = steps

    # It runs millions of times, so that it does nothing more while there are steps left.
    def count(frame: FrameType, _event: str, _argument: object) -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            return
        code = frame.f_code
        if code.co_name not in _AROUND and not code.co_flags & inspect.CO_GENERATOR:
            raise _TooManySteps

    sys.setprofile(count)
    try:
        yield
    except _TooManySteps:
        pass
    except Exception:  # JAX asks by a bare `except` whether a number is one, and goes on otherwise
        if left >= 0:
            raise
    finally:
        sys.setprofile(None)
    if left < 0:
        raise error or FormatError(
            f"It takes more than {steps:,} steps {what}, more than any writer needs. To do: write "
            "it again."
        )
