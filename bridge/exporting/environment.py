"""The environment of an export: Python, the packages, and the source of the function.

Source locations name files without the folder of the checkout, so that the bytes of a file do not
depend on where it was.
"""

from __future__ import annotations

import inspect
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, TypedDict

import jax

from bridge.exporting.revision import read_revision

# By the module that is imported where a package is in use, the distribution that has its version.
# What is written depends on these.
_PACKAGES = {
    "bridge": "jax-tf-bridge",
    "equinox": "equinox",
    "flatbuffers": "flatbuffers",
    "flax": "flax",
    "google.protobuf": "protobuf",
    "google_crc32c": "google-crc32c",
    "haiku": "dm-haiku",
    "jax": "jax",
    "jaxlib": "jaxlib",
    "keras": "keras",
    "ml_dtypes": "ml_dtypes",
    "numpy": "numpy",
    "optax": "optax",
    "orbax.checkpoint": "orbax-checkpoint",
    "safetensors": "safetensors",
}

# Of every operation the line of the function alone, without who called it, and without the folder.
# https://docs.jax.dev/en/latest/config_options.html
_FRAMES = "jax_include_full_tracebacks_in_locations"
_FOLDERS = "jax_hlo_source_file_canonicalization_regex"


class Environment(TypedDict):
    """The entries of a manifest besides the files and the request."""

    versions: dict[str, str]
    source: dict[str, Any] | None


def describe_environment(source: Path | None) -> Environment:
    """Return the versions of all packages in use, and the revision of a source file."""
    revision = None if source is None else read_revision(source)
    if revision is None:
        return Environment(versions=_versions(), source=None)
    known = {"revision": revision.commit, "changed": revision.changed}
    return Environment(versions=_versions(), source=known)


def source_file(value: Any) -> Path | None:
    """Return the file of a function, or of the class of an object; None where it is not known.

    For a mapping, as `bridge.save` takes it, it is that of the first value with a known file.
    """
    if isinstance(value, Mapping):
        return next(filter(None, map(source_file, value.values())), None)
    unwrapped = inspect.unwrap(value) if callable(value) else value
    for candidate in (unwrapped, type(unwrapped)):
        try:
            file = Path(inspect.getsourcefile(candidate) or "")
        except (TypeError, OSError):
            continue
        if file.is_file():
            return file
    return None


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for module, distribution in _PACKAGES.items():
        if module not in sys.modules:
            continue
        try:
            versions[distribution] = metadata.version(distribution)
        except metadata.PackageNotFoundError:  # in use from its source folder
            versions[distribution] = "not installed"
    return dict(sorted(versions.items()))


@contextmanager
def relative_locations(*folders: Path) -> Iterator[None]:
    """Return a context in which JAX writes `model.py`, and not the whole path of a source file."""
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
