"""Parameters that are read from a file at once."""

from __future__ import annotations

import os
from typing import Any

from bridge.exporting.parameter_files import open_parameters, to_memory


def read_parameters(path: str | os.PathLike[str], *, separator: str | None = None) -> Any:
    """Return the pytree of parameters in a file, or in a folder of orbax."""
    with open_parameters(path, separator=separator) as arrays:
        return to_memory(arrays)
