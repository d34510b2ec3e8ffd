"""The folder of a SavedModel, held open, so that all that is read of it is of one version.

A writer lets a new folder take the place of the old one, which it removes. From then on the path
leads to the new one; what is opened relative to the descriptor of a folder (openat,
https://man7.org/linux/man-pages/man2/open.2.html) is below the one that was there before.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

from savedmodel.files.remote import is_remote, parse_path
from xla_call_module.errors import FormatError, InteropError, StructureError, quote

_ATTEMPTS = 20
_PAUSE = 0.01  # seconds
_MAX_DEPTH = 32
_MAX_LINKS = 40  # as Linux follows, https://man7.org/linux/man-pages/man7/path_resolution.7.html
_MAX_HELD = 128  # of the 1,024 descriptors that a process usually has
_DESCRIPTORS = "/proc/self/fd"  # where a file that was removed can be opened again
_Result = TypeVar("_Result")


class ModelFolder:
    """A folder that is held open; files in it are opened only where they are files, inside of it.

    Attributes:
        path: where it was found, for messages; it may be a link itself, as `latest` often is.
    """

    __slots__ = ("__weakref__", "_descriptor", "_held", "_place", "path")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open the folder."""
        self.path = Path(path)
        self._place = os.path.abspath(path)
        # To go through a folder one need not be allowed to list it.
        access = getattr(os, "O_PATH", os.O_RDONLY)
        self._descriptor = os.open(self._place, access | os.O_DIRECTORY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor).atexit = False
        self._held: dict[str, tuple[os.stat_result, int | None]] | None = None

    def hold_files(self) -> None:
        """Open all files at once, so that they can be read after the folder has been removed.

        Where there are too many, where some cannot be opened, or on a system that cannot open a
        removed file again, no file is kept open, and each file is opened when it is read.

        Raises:
            FormatError: another folder has taken the place of this one.
        """
        if not os.path.isdir(_DESCRIPTORS):
            return
        opened: dict[str, tuple[os.stat_result, int | None]] = {}
        try:
            entries = [*itertools.islice(self._walk("", 0), _MAX_HELD + 1)]
            if len(entries) > _MAX_HELD or any(stat.S_ISLNK(entry.st_mode) for _, entry in entries):
                return
            for name, status in entries:
                descriptor = None
                if stat.S_ISREG(status.st_mode):
                    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
                    descriptor = os.open(name, flags, dir_fd=self._descriptor)
                    weakref.finalize(self, os.close, descriptor).atexit = False
                opened[name] = status, descriptor
        except (FormatError, OSError):
            self.check_current()
            return
        self.check_current()
        self._held = opened

    def is_current(self) -> bool:
        """Return whether the folder is still the one that the path leads to."""
        return self.is_at(self._place)

    def is_at(self, path: str | os.PathLike[str]) -> bool:
        """Return whether the folder is the one that a path leads to."""
        try:
            status = os.stat(path)
        except OSError:
            return False
        return os.path.samestat(status, os.fstat(self._descriptor))

    def check_current(self) -> None:
        """Refuse what may have been read of another version, or of one that is being removed.

        Raises:
            FormatError: another folder has taken the place of this one.
        """
        if not self.is_current():
            raise FormatError(
                f"{self.path} was replaced or removed while it was read. To do: try again."
            )

    def find(self, name: str, *, links: bool = False) -> os.stat_result | None:
        """Return the status of a regular file; None where there is no such file.

        Args:
            name: the path below the folder, with slashes.
            links: whether it may be a link to outside of the folder, as in a cache whose folders
                are links to files that are named by their content.

        Raises:
            FormatError: the path is absolute, has `..`, is such a link where none may be, or is
                there and is no regular file; or the folder has been replaced.
        """
        parts = name.split("/")
        if (
            not name
            or name.startswith("/")
            or "\0" in name
            or not {"", ".", ".."}.isdisjoint(parts)
        ):
            raise FormatError(
                f"{self.path} refers to a file {name!r}, which is not a path inside of it."
            )
        path = self.path / name
        if self._held is not None and name not in self._held:
            return None
        try:
            status = self._held[name][0] if self._held else os.stat(name, dir_fd=self._descriptor)
        except FileNotFoundError:
            self.check_current()
            return None
        except (OSError, ValueError) as error:
            raise FormatError(f"{path} cannot be a file: {quote(error)}.") from error
        if not stat.S_ISREG(status.st_mode):
            raise FormatError(f"{path} is not a regular file. To do: copy the folder again.")
        if not links and self._held is None:
            self._check_inside(name)
        return status

    def descriptor(self, name: str, *, links: bool = True) -> int:
        """Return the descriptor of a file, opened for reading; the caller closes it.

        Raises:
            FormatError: as `find`.
            OSError: it is not there, or cannot be read.
        """
        self.find(name, links=links)
        # What took its place since must not be waited for.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        opened = self._held[name][1] if self._held and name in self._held else None
        place = name if opened is None else f"{_DESCRIPTORS}/{opened}"
        try:
            descriptor = os.open(place, flags, dir_fd=self._descriptor)
        except FileNotFoundError:
            self.check_current()
            path = str(self.path / name)
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise FormatError(f"{self.path / name} is not a regular file. To do: copy it again.")
        return descriptor

    def open(self, name: str, *, links: bool = True) -> BinaryIO:
        """Return a file, opened for reading.

        Raises:
            FormatError, OSError: as `descriptor`.
        """
        return open(self.descriptor(name, links=links), "rb")

    def read(self, name: str, *, limit: int) -> bytes:
        """Return the content of a file; it may be a link.

        Args:
            name: as for `find`.
            limit: the most bytes that a file of its kind has.

        Raises:
            FormatError: as `find`; it is larger, or it was changed while it was read.
            OSError: it is not there, or cannot be read.
        """
        with self.open(name) as file:
            before = os.fstat(file.fileno())
            if before.st_size > limit:
                raise FormatError(
                    f"{self.path / name} has {before.st_size:,} bytes; such a file has {limit:,} "
                    "at most. To do: copy it again, or write it again."
                )
            data = bytearray(before.st_size)
            rest = memoryview(data)
            while rest and (count := file.readinto(rest)):  # type: ignore[attr-defined]  # typeshed
                rest = rest[count:]
            after = os.fstat(file.fileno())
        if rest or (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise FormatError(
                f"{self.path / name} was changed while it was read. To do: try again once whoever "
                "writes it has finished."
            )
        return bytes(data)

    def walk(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the paths of all that is below the folder, sorted, with their status.

        Links are not followed. A folder comes before what is in it.

        Raises:
            FormatError: folders are nested too deep, or the folder has been replaced.
            OSError: something there cannot be looked at.
        """
        if self._held is not None:
            yield from ((name, status) for name, (status, _) in self._held.items())
            return
        entries = [*self._walk("", 0)]
        # Of a folder that is being removed it may be a part.
        self.check_current()
        yield from entries

    def _walk(self, below: str, depth: int) -> Iterator[tuple[str, os.stat_result]]:
        if depth > _MAX_DEPTH:
            raise FormatError(
                f"{self.path / below} is over {_MAX_DEPTH} folders deep. To do: remove it."
            )
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(below or ".", flags, dir_fd=self._descriptor)
        try:
            names = sorted(os.listdir(descriptor))
        finally:
            os.close(descriptor)
        for name in names:
            path = f"{below}/{name}" if below else name
            status = os.stat(path, dir_fd=self._descriptor, follow_symlinks=False)
            yield path, status
            if stat.S_ISDIR(status.st_mode):
                yield from self._walk(path, depth + 1)

    def _check_inside(self, name: str) -> None:
        """Refuse a path with links that lead out of the folder."""
        root = os.path.realpath(self._place)
        pending, done = name.split("/")[::-1], ""
        for _ in range(_MAX_LINKS + name.count("/")):
            if not pending:
                return
            part = os.path.normpath(os.path.join(done, pending.pop()))
            try:
                target = os.readlink(part, dir_fd=self._descriptor)
            except OSError:  # it is no link
                done = part
                continue
            if target.startswith(f"{root}/"):
                done, target = "", target.removeprefix(f"{root}/")
            leads = os.path.normpath(os.path.join(done, target))
            if leads.startswith(("/", "../")) or leads == "..":
                break
            pending, done = [*pending, *leads.split("/")[::-1]], ""
        raise FormatError(
            f"{self.path / name} is a link to {os.path.realpath(self.path / name)}, outside of its "
            "folder. To do: copy the folder with what its links point to, such as by cp -rL."
        )


def locate(
    path: str | os.PathLike[str], within: ModelFolder | None = None
) -> tuple[ModelFolder, str]:
    """Return the folder that a file is in, and its path below that."""
    path = Path(path)
    return (ModelFolder(path.parent), path.name) if within is None else (within, path.as_posix())


def read_file(path: str | os.PathLike[str], *, limit: int) -> bytes:
    """Return the content of a file, wherever it is; see `ModelFolder.read`."""
    folder, name = locate(path)
    return folder.read(name, limit=limit)


def _open(folder: str | os.PathLike[str]) -> ModelFolder:
    folder = parse_path(folder)
    if is_remote(folder):
        raise StructureError(
            f"{os.fspath(folder)} is an address, and files are read from a disk. To do: copy the "
            "folder to one, with etils or the tools of the store, and pass the copy."
        )
    try:
        return ModelFolder(folder)
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        path = os.fspath(folder)
        cure = "pass the folder that holds that file"
        parent = os.path.dirname(path) or "."
        if newest := newest_version(parent):
            cure += f", such as {newest}, the newest version there"
        if not os.path.lexists(path):
            said = "does not exist, so it has no saved_model.pb"
        elif os.path.basename(path) == "saved_model.pb":
            said, cure = "is a file of a SavedModel", f"pass its folder, {parent}"
        else:
            said = "has no saved_model.pb, as it is not a folder"
            cure += (
                "; a serialized Exported or StableHLO is for bridge.to_jax, bridge.inspect and "
                "`jax-tf-bridge run`"
            )
        raise FormatError(f"{path} {said}. To do: {cure}.") from error


def newest_version(base_path: str | os.PathLike[str]) -> str:
    """Return the path of the newest SavedModel in a folder of versions; empty where it is none.

    Versions are the children whose names are numbers, as TensorFlow Serving has them.
    """
    try:
        names = [name for name in os.listdir(base_path or ".") if name.isdecimal()]
    except (OSError, ValueError):
        return ""
    paths = [os.path.join(base_path, name) for name in sorted(names, key=int, reverse=True)]
    return next((path for path in paths if os.path.isfile(f"{path}/saved_model.pb")), "")


def read_one_version(
    folder: str | os.PathLike[str] | ModelFolder,
    read: Callable[[ModelFolder], _Result],
    *,
    attempts: int = _ATTEMPTS,
) -> _Result:
    """Read a folder by a function, and again if it is replaced meanwhile."""
    if isinstance(folder, ModelFolder):
        return read(folder)
    for attempt in range(attempts):
        try:
            opened = _open(folder)
        except FormatError:
            # Where two folders cannot be exchanged, there is none for a moment.
            if attempt:
                raise
            time.sleep(_PAUSE)
            continue
        try:
            if attempt:  # its writers are faster than this reader
                opened.hold_files()
            return read(opened)
        except (InteropError, OSError) as error:
            if opened.is_current():
                raise
            last = error
    raise FormatError(
        f"{os.fspath(folder)} was replaced or removed {attempts} times while it was read. To do: "
        "try again once its writers pause."
    ) from last
