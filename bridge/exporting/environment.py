"""The environment of an export: Python, the packages, and the source of the function.

Source locations name files without the folder of the checkout, so that the bytes of a file do not
depend on where it was.
"""

from __future__ import annotations

import inspect
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TypedDict

import jax

_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_MAX_WAIT_SECONDS = 30.0
_MAX_LINKS = 10


@dataclass(frozen=True, slots=True)
class Revision:
    """A commit, and whether the checkout is the same.

    Attributes:
        changed: whether files of the commit are different on the disk, or the file in question is
            none of them; None where git is not installed.
    """

    commit: str
    changed: bool | None


def read_revision(file: Path) -> Revision | None:
    """Return the commit that is checked out where a file or folder is; None where there is none.

    >>> import os
    >>> read_revision(Path(os.sep)) is None
    True
    """
    file = file.resolve()
    folder = file if file.is_dir() else file.parent
    root = next((place for place in (folder, *folder.parents) if (place / ".git").exists()), None)
    if root is None:
        return None
    if (commit := _ask(root, "rev-parse", "--verify", "HEAD")) is not None:
        tracked = _ask(root, "status", "--porcelain", "--untracked-files=no")
        own = _ask(root, "status", "--porcelain", "--", str(file))
        known = tracked is not None and own is not None
        return Revision(commit.strip(), bool(tracked or own) if known else None)
    head = _read_head(root / ".git")
    return None if head is None else Revision(head, None)


def _ask(root: Path, *arguments: str) -> str | None:
    """Return the output of git; None where it is not installed, or refuses."""
    if (git := shutil.which("git")) is None:
        return None
    # Without its locks, since others may be at work in the same checkout.
    command = [git, "--no-optional-locks", "-C", str(root), *arguments]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=_MAX_WAIT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _read_head(git: Path) -> str | None:
    """Return the commit that HEAD leads to (https://git-scm.com/docs/gitrepository-layout)."""
    try:
        if git.is_file():  # of a worktree or a submodule
            text = git.read_text().strip()
            git = (git.parent / text.removeprefix("gitdir: ")).resolve()
        shared = git / "commondir"
        common = (git / shared.read_text().strip()).resolve() if shared.is_file() else git
        text = (git / "HEAD").read_text().strip()
        for _ in range(_MAX_LINKS):
            if not text.startswith("ref: "):
                break
            text = _read_reference(common, text.removeprefix("ref: "))
    except (OSError, UnicodeDecodeError):
        return None
    return text if _COMMIT.fullmatch(text) else None


def _read_reference(git: Path, name: str) -> str:
    if (git / name).is_file():
        return (git / name).read_text().strip()
    packed = git / "packed-refs"
    lines = packed.read_text().splitlines() if packed.is_file() else []
    return next((line.split(" ", 1)[0] for line in lines if line.endswith(f" {name}")), "")


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
