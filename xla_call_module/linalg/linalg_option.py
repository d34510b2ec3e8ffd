"""The option `linalg`: whether calls of linear algebra libraries are replaced."""

from __future__ import annotations

from typing import Literal, get_args

from xla_call_module.errors import StructureError

# Calls that run everywhere, or JAX's own.
LinalgOption = Literal["portable", "lapack"]
LINALG: tuple[LinalgOption, ...] = get_args(LinalgOption)


def parse_linalg(linalg: str) -> bool:
    """Return whether calls of linear algebra libraries are to be replaced."""
    if linalg not in LINALG:
        raise StructureError(f"linalg is {linalg!r}; expected {' or '.join(map(repr, LINALG))}.")
    return linalg == "portable"
