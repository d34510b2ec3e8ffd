"""Source locations that say nothing of where a checkout lies, so that bytes do not depend on it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax

__all__ = ["relative_locations"]

# Of every operation the line of the function alone, without who called it, and without the folder.
# https://docs.jax.dev/en/latest/config_options.html
_FRAMES = "jax_include_full_tracebacks_in_locations"
_FOLDERS = "jax_hlo_source_file_canonicalization_regex"


@contextmanager
def relative_locations(*folders: Path) -> Iterator[None]:
    """A context in which JAX writes `model.py`, and not the whole path of a source file.

    Args:
        folders: what is left out in front of paths, besides those that Python imports from.
    """
    before = {name: getattr(jax.config, name) for name in (_FRAMES, _FOLDERS)}
    jax.config.update(_FRAMES, False)
    jax.config.update(_FOLDERS, _pattern([*map(str, folders), *sys.path]))
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def _pattern(folders: list[str]) -> str:
    """Return a pattern for any of the folders, a longer one before those that it lies in."""
    places = {
        place for folder in folders if folder for place in (folder, str(Path(folder).resolve()))
    }
    ordered = sorted(places, key=lambda place: (-len(place), place))
    return "|".join(f"^{re.escape(place.rstrip('/'))}/" for place in ordered if place != "/")
