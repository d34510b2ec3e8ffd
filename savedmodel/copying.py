"""The files of a SavedModel's folder, copied to another."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO

from savedmodel.files.folder import VARIABLES
from savedmodel.files.model_folder import ModelFolder
from savedmodel.variables.tensor_bundle import read_index
from xla_call_module.errors import FormatError

__all__ = ["check_sizes", "copy_files"]

_PIECE_BYTES = 8 << 20
# Writers put tensors next to each other, or leave less than a page between.
_MAX_PADDING = 1 << 20
# No honest file says of so much that it is zeros, and takes no place on the disk.
_MAX_HOLES = 1 << 28


def copy_files(
    source: ModelFolder, target: Path, *, without: Collection[str] = (), linked: bool = True
) -> None:
    """Give a folder what is in another.

    Args:
        source: the folder of a SavedModel.
        target: a folder that is there, and is empty.
        without: paths below the source that are left out.
        linked: whether a file gets one more name where the file system can, and is copied only
            where it cannot. What is linked must not be changed in place afterwards.

    Raises:
        FormatError: something there is neither file nor folder, is a link to outside, or is far
            larger than its content; or the source was replaced meanwhile.
        OSError: a file cannot be read or written.
    """
    check_sizes(source)
    for name, is_folder in list(_entries(source, without)):
        if is_folder:
            (target / name).mkdir()
            continue
        with source.open(name, links=False) as file:
            if not (linked and _link(file, target / name)):
                _copy(file, target / name)


def _entries(folder: ModelFolder, without: Collection[str]) -> Iterator[tuple[str, bool]]:
    """The paths below a folder of all that is kept, and whether each is a folder."""
    for name, status in folder.walk():
        if name in without:
            continue
        path = folder.path / name
        if stat.S_ISLNK(status.st_mode) and path.is_dir():
            raise FormatError(f"{path} is a link to a folder. To do: put the folder there itself.")
        is_folder = stat.S_ISDIR(status.st_mode)
        if not (is_folder or stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
            raise FormatError(f"{path} is neither a file nor a folder. To do: remove it.")
        # What a link leads to elsewhere is no part of the model, and not to be handed on.
        if not is_folder and folder.find(name) is None:
            raise FormatError(f"{path} is neither a file nor a folder. To do: remove it.")
        yield name, is_folder


def check_sizes(folder: ModelFolder) -> None:
    """Refuse files that are far larger than what was written into them.

    Raises:
        FormatError: a data file goes on after the last tensor that the index has in it; or most of
            another file is on no disk.
        OSError: a file cannot be read.
    """
    ends: dict[str, int] = {}
    if folder.find(f"{VARIABLES}.index", links=True) is not None:
        index = read_index(VARIABLES, within=folder)
        for entry in index.entries.values():
            name = index.files.name(entry.shard_id)
            ends[name] = max(ends.get(name, 0), entry.offset + entry.size)
    for name, status in folder.walk():
        path, size = folder.path / name, status.st_size
        if name in ends and size > ends[name] + _MAX_PADDING:
            raise FormatError(
                f"{path} has {size:,} bytes, and the last tensor in it ends at byte {ends[name]:,}."
                " To do: write the model again, or cut the file off there."
            )
        if name not in ends and stat.S_ISREG(status.st_mode) and size > _MAX_HOLES:
            with folder.open(name) as file:
                held = sum(stop - start for start, stop in _extents(file, size))
            if size - held > _MAX_HOLES:
                raise FormatError(
                    f"{path} has {size:,} bytes, {size - held:,} of which are on no disk. To do: "
                    "write the model again."
                )


def _link(file: BinaryIO, target: Path) -> bool:
    """Give an open file one more name; whether that could be done."""
    try:
        # Python follows links only if it is given a descriptor, which an absolute path does not use
        # (https://github.com/python/cpython/issues/81793).
        os.link(f"/proc/self/fd/{file.fileno()}", target, src_dir_fd=file.fileno())
    except OSError:
        # Another file system, one without links, or one that forbids them for others' files.
        return False
    return True


def _copy(file: BinaryIO, target: Path) -> None:
    """Copy an open file; what is on no disk stays so."""
    size = os.fstat(file.fileno()).st_size
    with target.open("xb") as copy:
        for start, stop in _extents(file, size):
            file.seek(start)
            copy.seek(start)
            while start < stop and (piece := file.read(min(_PIECE_BYTES, stop - start))):
                copy.write(piece)
                start += len(piece)
        copy.truncate(size)
        copy.flush()
        os.fsync(copy.fileno())


def _extents(file: BinaryIO, size: int) -> Iterator[tuple[int, int]]:
    """Where a file has bytes on the disk, and not only zeros that nobody wrote."""
    stop = 0
    try:
        while stop < size:
            start = os.lseek(file.fileno(), stop, os.SEEK_DATA)
            stop = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            yield start, stop
    except OSError as error:
        if error.errno != errno.ENXIO:  # there is no more
            raise
