"""The folder that TensorFlow Serving watches: a version is a child whose name is a number.

Serving looks at the names of the children now and then, and takes each that is a number for a
version, whatever is in it (tensorflow_serving/sources/storage_path/
file_system_storage_path_source.cc). So nothing half done may have such a name: on a disk a version
appears, and goes, by a rename. An object store has no such step; there saved_model.pb is what comes
last and goes first, and Serving tries to load a version again while it is not there.
"""

from __future__ import annotations

import filecmp
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol

from savedmodel.files.folder import PROTO_FILE, hidden_folder, locked, move_new, write_text
from savedmodel.files.model_folder import ModelFolder
from savedmodel.files.remote import address, is_remote, upload
from savedmodel.rewrite import copy_files
from xla_call_module.errors import FormatError, StructureError

# One name for all hidden folders there, so that the next publisher removes what was left.
_HIDDEN = "publish"
# Serving's numbers have 64 bits.
MAX_VERSION = 2**63 - 1
_MAX_TEXT_BYTES = 1 << 24
_PIECE_BYTES = 8 << 20
_NUMBER = re.compile(r"[ \t\n\v\f\r]*[+-]?[0-9]+[ \t\n\v\f\r]*")


class BasePath(Protocol):
    """The folder of the versions, on a disk or in an object store.

    Attributes:
        path: the absolute path, or the address.
    """

    path: str

    def taken(self) -> dict[int, str]:
        """Return the number of each child that Serving takes for a version, with its name."""

    def versions(self) -> dict[int, str]:
        """Return those of `taken` that are SavedModels."""

    def new_version(self) -> Any:
        """Return a context with the path of a new local folder, for a version to be made in."""

    def numbering(self) -> Any:
        """Return a context in which no other publisher of this machine takes a number."""

    def place(self, folder: Path, version: int) -> str:
        """Make a finished folder appear as a version; return its path."""

    def copy(self, name: str, folder: Path) -> None:
        """Copy a version to a new folder."""

    def has_files(self, name: str, folder: Path, *, without: Collection[str]) -> bool:
        """Return whether a version has the same files as a local folder, but for some of each."""

    def remove(self, name: str) -> None:
        """Remove a version, if it still exists."""

    def read_text(self, name: str) -> str | None:
        """Return the text of a file beside the versions; None where there is none."""

    def write_text(self, name: str, text: str) -> str:
        """Write a file beside the versions; return its path."""


def parse_version(name: str) -> int | None:
    """Return the version that Serving reads in the name of a child; None where it reads none.

    >>> parse_version("007"), parse_version("+7"), parse_version(".7"), parse_version("7a")
    (7, 7, None, None)
    """
    if not _NUMBER.fullmatch(name):
        return None
    number = int(name)
    return number if -MAX_VERSION - 1 <= number <= MAX_VERSION else None


def open_base_path(path: str | os.PathLike[str]) -> BasePath:
    """Return the base path at a path or an address."""
    if is_remote(path):
        return _RemoteBasePath(os.fspath(path))
    folder = Path(os.path.abspath(path))
    if folder.exists() and not folder.is_dir():
        raise StructureError(f"{folder} is not a folder. To do: take another base_path.")
    if (folder / PROTO_FILE).exists():
        raise StructureError(
            f"{folder} is itself a SavedModel, and base_path is the folder above the versions. To "
            "do: take its parent, or a new folder."
        )
    return _LocalBasePath(folder)


class _LocalBasePath:
    """A base path on a disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.path = str(path)

    def taken(self) -> dict[int, str]:
        names = os.listdir(self._path) if self._path.is_dir() else []
        return _numbered(names)

    def versions(self) -> dict[int, str]:
        return {
            number: name
            for number, name in self.taken().items()
            if (self._path / name / PROTO_FILE).is_file()
        }

    @contextmanager
    def new_version(self) -> Iterator[Path]:
        with hidden_folder(self._path, _HIDDEN) as outer:
            # One more level: the hidden folder itself is locked, and removed at the end.
            folder = outer / "version"
            yield folder

    @contextmanager
    def numbering(self) -> Iterator[None]:
        # Without it, one that has looked for the next number and waits would take it again after
        # others have published it and removed it.
        with locked(self._path):
            yield

    def place(self, folder: Path, version: int) -> str:
        target = self._path / str(version)
        move_new(folder, target)
        return str(target)

    def copy(self, name: str, folder: Path) -> None:
        source = self._path / name
        folder.mkdir()
        try:
            opened = ModelFolder(source)
            copy_files(opened, folder)
            # One that goes is moved away first, so one that is still there was there all along.
            opened.check_current()
        except (OSError, FormatError) as error:
            if (source / PROTO_FILE).exists():
                raise
            raise StructureError(
                f"{source} was removed while it was copied. To do: take a version that is there."
            ) from error

    def has_files(self, name: str, folder: Path, *, without: Collection[str]) -> bool:
        return _have_same_files(folder, self._path / name, without)

    def remove(self, name: str) -> None:
        with hidden_folder(self._path, _HIDDEN) as aside:
            try:
                (self._path / name).rename(aside / "version")
            except FileNotFoundError:
                return

    def read_text(self, name: str) -> str | None:
        if not self._path.is_dir():
            return None
        folder = ModelFolder(self._path)
        if folder.find(name, links=True) is None:
            return None
        return _to_text(folder.read(name, limit=_MAX_TEXT_BYTES), f"{self._path / name}")

    def write_text(self, name: str, text: str) -> str:
        with hidden_folder(self._path, _HIDDEN) as aside:
            write_text(aside / name, text)
            (aside / name).replace(self._path / name)
        return str(self._path / name)


class _RemoteBasePath:
    """A base path in an object store."""

    def __init__(self, path: str) -> None:
        self.path = path.rstrip("/")
        self._address = address(self.path)

    def taken(self) -> dict[int, str]:
        if not self._address.exists():
            return {}
        return _numbered([child.name for child in self._address.iterdir()])

    def versions(self) -> dict[int, str]:
        return {
            number: name
            for number, name in self.taken().items()
            if (self._address / name / PROTO_FILE).exists()
        }

    @contextmanager
    def new_version(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory() as outer:
            yield Path(outer) / "version"

    def numbering(self) -> Any:
        return nullcontext()

    def place(self, folder: Path, version: int) -> str:
        if version in self.taken():
            raise FileExistsError(f"{self.path}/{version}")
        upload(folder, f"{self.path}/{version}", last=PROTO_FILE, overwrite=False)
        return f"{self.path}/{version}"

    def copy(self, name: str, folder: Path) -> None:
        folder.mkdir()
        source = self._address / name
        before = _file_states(source)
        _download(source, folder)
        if _file_states(source) != before:
            raise StructureError(
                f"{source} was changed while it was copied. To do: take a version that stays."
            )

    def has_files(self, name: str, folder: Path, *, without: Collection[str]) -> bool:
        return _have_same_files(folder, self._address / name, without)

    def remove(self, name: str) -> None:
        target = self._address / name
        if target.exists():
            (target / PROTO_FILE).unlink(missing_ok=True)
            target.rmtree()

    def read_text(self, name: str) -> str | None:
        file = self._address / name
        if not file.exists():
            return None
        with file.open("rb") as opened:
            data = opened.read(_MAX_TEXT_BYTES + 1)
        if len(data) > _MAX_TEXT_BYTES:
            raise FormatError(f"{file} has over {_MAX_TEXT_BYTES:,} bytes. To do: remove it.")
        return _to_text(data, str(file))

    def write_text(self, name: str, text: str) -> str:
        self._address.mkdir(parents=True, exist_ok=True)
        (self._address / name).write_text(text)
        return f"{self.path}/{name}"


def _numbered(names: list[str]) -> dict[int, str]:
    pairs = ((parse_version(name), name) for name in sorted(names))
    return {number: name for number, name in pairs if number is not None}


def _have_same_files(first: Path, second: Any, without: Collection[str]) -> bool:
    """Return whether two folders have files of the same names and bytes, but for some of each.

    The second may be at an address. One that is gone meanwhile has others.
    """
    try:
        ours, theirs = dict(_files(first)), dict(_files(second))
        names = ours.keys() - without
        return names == theirs.keys() - without and all(
            _are_same(ours[name], theirs[name]) for name in sorted(names)
        )
    except FileNotFoundError:
        return False


def _files(folder: Any, below: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the files below a folder or an address, by their names in it."""
    for child in folder.iterdir():
        if child.is_dir():
            yield from _files(child, f"{below}{child.name}/")
        else:
            yield f"{below}{child.name}", child


def _are_same(first: Path, second: Any) -> bool:
    if isinstance(second, Path):
        return first.samefile(second) or filecmp.cmp(first, second, shallow=False)
    if first.stat().st_size != second.stat().length:
        return False
    with first.open("rb") as ours, second.open("rb") as theirs:
        while piece := ours.read(_PIECE_BYTES):
            if theirs.read(len(piece)) != piece:
                return False
    return True


def _download(source: Any, target: Path) -> None:
    for child in source.iterdir():
        place = target / child.name
        if child.is_dir():
            place.mkdir()
            _download(child, place)
        else:
            with child.open("rb") as opened, place.open("wb") as copy:
                shutil.copyfileobj(opened, copy, _PIECE_BYTES)


def _file_states(folder: Any) -> list[tuple[str, int, Any]]:
    """Return the files below an address with their sizes and times."""
    states = []
    for child in folder.iterdir():
        if child.is_dir():
            states += _file_states(child)
        else:
            status = child.stat()
            states.append((str(child), status.length, status.mtime))
    return sorted(states)


def _to_text(data: bytes, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"{where} is not text: {error}. To do: remove it.") from error
