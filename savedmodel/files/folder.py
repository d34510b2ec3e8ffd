"""A folder that appears whole or not at all, on a disk or in an object store.

Everything is written into a hidden sibling, which then takes the place of the target in one step
of the file system. A writer that is killed leaves its sibling behind, unlocked; the next writer to
the same parent folder removes it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import glob
import hashlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from savedmodel.files.assets import OWN_BATCHING_FILE
from savedmodel.files.model_folder import ModelFolder
from savedmodel.files.remote import is_remote, parse_path, upload
from xla_call_module.errors import FormatError, StructureError

PROTO_FILE = "saved_model.pb"
VARIABLES = "variables/variables"
_MARK = ".jax-tf-bridge-"
_INNER = ".model"
_STALE_AFTER_SECONDS = 60.0
# NAME_MAX in linux/limits.h, and what a hidden folder has around the name of what it becomes.
_MAX_NAME_BYTES = 255
_SUFFIX_BYTES = len(f".{_MARK}") + 16 + len(".old")
# What a SavedModel consists of (tensorflow/cc/saved_model/constants.h, Keras's metadata, and what
# TensorFlow Serving reads in it).
# A folder with anything else in it is somebody's, and is not replaced.
_CONTENTS = frozenset({
    "assets", "assets.extra", "debug", "fingerprint.pb", OWN_BATCHING_FILE,
    "keras_metadata.pb", PROTO_FILE, "saved_model.pbtxt", "variables",
})  # fmt: skip
# linux/fcntl.h and linux/fs.h
_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_RENAME_EXCHANGE = 2


@contextmanager
def new_folder(
    target: Path, *, overwrite: bool, replaces: ModelFolder | None = None
) -> Iterator[Path]:
    """A new folder to write into, which becomes `target` when the block ends without an error."""
    target = Path(os.path.abspath(target))
    if replaces is None:
        _check_target(target, overwrite=overwrite)
    with hidden_folder(target.parent, target.name) as folder:
        yield folder
        _sync_folders(folder)
        if replaces is None:
            _put(folder, target, overwrite=overwrite)
        else:
            _replace(folder, target, replaces)
        _sync_folder(target.parent)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """A block in which nobody else on this machine is that asks for it for the same folder."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


@contextmanager
def new_place(
    path: str | os.PathLike[str], *, overwrite: bool, replaces: ModelFolder | None = None
) -> Iterator[Path]:
    """Yield an empty local folder; its content is moved to `path` unless there is an error."""
    path = parse_path(path)
    if is_remote(path):
        with tempfile.TemporaryDirectory() as temporary:
            yield Path(temporary)
            upload(Path(temporary), path, last=PROTO_FILE, overwrite=overwrite)
        return
    with new_folder(Path(path), overwrite=overwrite, replaces=replaces) as folder:
        yield folder


@contextmanager
def staged_folder(path: str | os.PathLike[str], *, overwrite: bool) -> Iterator[Path]:
    """A path where a SavedModel is written, and given more files; then it appears at `path`."""
    with new_place(path, overwrite=overwrite) as folder:
        inner = folder / _INNER
        yield inner
        for entry in sorted(inner.iterdir()):
            entry.rename(folder / entry.name)
        inner.rmdir()


@contextmanager
def hidden_folder(parent: Path, name: str) -> Iterator[Path]:
    """A new folder that nobody looks for; what is left in it at the end of the block is removed.

    What killed writers have left beside it is removed first.
    """
    target = parent / name
    name = fit_name(name, _SUFFIX_BYTES)
    folder = parent / f".{name}{_MARK}{secrets.token_hex(8)}"
    with _about(target, folder):
        parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(parent, name)
        folder.mkdir()
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # NFS has no such lock on a folder. What is left behind there is not removed by others.
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        with _about(target, folder):
            yield folder
    finally:
        # After an exchange this is the old version, after an error the half-written one.
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


@contextmanager
def _about(target: Path, folder: Path) -> Iterator[None]:
    """Have errors of the system name what a hidden folder becomes in its place."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            error.filename = os.fsdecode(error.filename).replace(str(folder), str(target))
        raise


def fit_name(name: str, spare: int) -> str:
    """Return a name that a longer one can begin with; a long one is cut, and ends in its hash then.

    >>> fit_name("model", 32), len(fit_name("x" * 255, 32))
    ('model', 223)
    """
    most = _MAX_NAME_BYTES - spare
    encoded = os.fsencode(name)
    if len(encoded) <= most:
        return name
    digest = hashlib.sha256(encoded).hexdigest()[:16]
    kept = encoded[: most - len(digest)].decode(errors="ignore")
    return f"{kept}{digest}"


def move_new(folder: Path, target: Path) -> None:
    """Let a finished folder appear under a name that is free, in one step."""
    _sync_folders(folder)
    try:
        _rename(folder, target, _RENAME_NOREPLACE)
    except OSError as error:
        # A plain rename says so of a folder that came between the look and the step.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from error
    _sync_folder(target.parent)


def bytes_of(folder: Path) -> int:
    """Return the number of bytes of all files below a folder that nobody else changes."""
    return sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file())


def write_text(file: Path, text: str) -> None:
    """Write a small new file that survives a power cut, once its folder does."""
    write_bytes(file, text.encode())


def write_bytes(file: Path, data: bytes) -> None:
    """Write a small new file, as `write_text`."""
    with file.open("xb") as opened:
        opened.write(data)
        opened.flush()
        os.fsync(opened.fileno())


def _check_target(target: Path, *, overwrite: bool) -> None:
    if not os.path.lexists(target):
        return
    if not overwrite:
        raise StructureError(
            f"{target} exists. To do: pass overwrite=True to replace it, or take another path."
        )
    if not target.is_dir() or target.is_symlink():
        raise FormatError(f"{target} is not a folder, so it is not replaced. To do: remove it.")
    names = {entry.name for entry in target.iterdir()}
    inside = {f"variables/{entry.name}" for entry in (target / "variables").glob("*")}
    foreign = names - _CONTENTS
    foreign |= {name for name in inside if not name.startswith("variables/variables.")}
    if foreign:
        raise FormatError(
            f"{target} holds {', '.join(sorted(foreign)[:3])}, which is not part of a SavedModel, "
            "so it is not replaced. To do: move that elsewhere, or take another path."
        )
    if names and not names & {PROTO_FILE, "saved_model.pbtxt"}:
        raise FormatError(
            f"{target} holds {', '.join(sorted(names)[:3])} and no {PROTO_FILE}, so it is not "
            "replaced. To do: take another path."
        )


def _put(folder: Path, target: Path, *, overwrite: bool) -> None:
    """Let `folder` take the place of `target` in one step."""
    try:
        _rename(folder, target, _RENAME_NOREPLACE)
        return
    except FileExistsError as error:
        if not overwrite:
            raise StructureError(
                f"{target} was made by another writer meanwhile; it is left as it is. To do: pass "
                "overwrite=True to replace it, or take another path."
            ) from error
    # Another writer may have put something else there since the first look.
    _check_target(target, overwrite=overwrite)
    _rename(folder, target, _RENAME_EXCHANGE)


def _replace(folder: Path, target: Path, old: ModelFolder) -> None:
    """Let `folder` take the place of `old` at `target`, and of no other folder, in one step."""
    old.check_current()
    _rename(folder, target, _RENAME_EXCHANGE)
    if not old.is_at(folder):
        # Between the look and the step another writer was quicker.
        _rename(folder, target, _RENAME_EXCHANGE)
        old.check_current()


def _rename(source: Path, target: Path, flags: int) -> None:
    """Linux's renameat2, https://man7.org/linux/man-pages/man2/rename.2.html.

    Python's os.rename can neither refuse an empty folder as target nor exchange two folders. On
    file systems without it (EINVAL) two plain renames do the same with a gap between them.
    """
    library = ctypes.CDLL(None, use_errno=True)
    if hasattr(library, "renameat2"):
        result = library.renameat2(
            _AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), flags
        )
        if result == 0:
            return
        number = ctypes.get_errno()
        if number not in (errno.EINVAL, errno.ENOSYS):
            raise OSError(number, os.strerror(number), str(target))
    if flags == _RENAME_NOREPLACE:
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        source.rename(target)
        return
    _exchange_by_renames(source, target)


def _exchange_by_renames(source: Path, target: Path) -> None:
    aside = source.with_name(f"{source.name}.old")
    target.rename(aside)
    try:
        source.rename(target)
    except OSError:
        aside.rename(target)
        raise
    aside.rename(source)


def _remove_stale(parent: Path, name: str) -> None:
    """Remove what killed writers have left, under whatever names: nobody holds their locks."""
    for left in parent.glob(f".*{glob.escape(_MARK)}*"):
        # Between two renames that is all that there is of what another writer replaces.
        if left.suffix == ".old" and not left.name.startswith(f".{name}{_MARK}"):
            continue
        with contextlib.suppress(OSError):
            # Between a writer's mkdir and its lock there is a moment; a young folder is left alone.
            if time.time() - left.stat().st_mtime < _STALE_AFTER_SECONDS:
                continue
            lock = os.open(left, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(lock)


def _sync_folders(folder: Path) -> None:
    for root, _, _ in os.walk(folder):
        _sync_folder(Path(root))


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems cannot do it for a folder (https://man7.org/linux/man-pages/man2/fsync.2.html).
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)
