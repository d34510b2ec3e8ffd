"""The environment of an export: Python, the packages, and the source of the function."""

from __future__ import annotations

import inspect
import platform
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, TypedDict

from bridge.exporting.revision import read_revision

__all__ = ["Environment", "describe_environment", "source_file"]

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


class Environment(TypedDict):
    """The entries of a manifest besides the files and the request."""

    versions: dict[str, str]
    source: dict[str, Any] | None


def describe_environment(source: Path | None) -> Environment:
    """The versions of all that is in use, and the revision of a source file.

    Args:
        source: the file, or a folder; None where it is not known.
    """
    found = None if source is None else read_revision(source)
    revision = None if found is None else {"revision": found.commit, "changed": found.changed}
    return Environment(versions=_versions(), source=revision)


def source_file(value: Any) -> Path | None:
    """Where a function or the class of an object was written; None where that is not known.

    Of a mapping, as `bridge.save` takes it, it is that of the first value of which it is known.
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
