"""`write_together`: several processes write one folder, each of them what it holds.

Process 0 makes the hidden folder, and the others write their data files into it, each with a table
of what is in them beside it. When all are done, process 0 puts the tables together and lets the
folder appear. How the processes hear of one another is not decided here.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from savedmodel.files.folder import VARIABLES, new_folder
from savedmodel.files.remote import is_remote
from savedmodel.model import SavedModel
from savedmodel.variables.bundle_layout import BundleStrings, Layout
from savedmodel.variables.bundle_writer import write_data_files, write_index
from savedmodel.variables.tensor_bundle import BundleEntry, index_path, read_index
from savedmodel.write import counting, encode, layout_of, serialize_proto, write_proto
from xla_call_module.errors import FormatError, StructureError

__all__ = ["Group", "write_together"]


class Group(Protocol):
    """The processes that write one folder, as one of them sees them."""

    @property
    def rank(self) -> int:
        """The number of this process."""

    @property
    def size(self) -> int:
        """The number of processes."""

    def begin(self, folder: str, agreed: Mapping[str, str]) -> str:
        """The folder that process 0 gives, when all have come and have agreed."""

    def report(self, written: int) -> int:
        """Tell how many bytes are written here; how many are in all, as far as is known.

        Raises what ends the writing when another process has failed.
        """

    def finish(self) -> None:
        """Tell that all is written here; process 0 waits until it is so everywhere."""

    def succeed(self) -> None:
        """In process 0 tell that the folder has appeared, in another wait until it has."""

    def fail(self, error: BaseException) -> None:
        """Tell the others what has failed here."""


def write_together(
    model: SavedModel,
    path: str | os.PathLike[str],
    *,
    group: Group,
    overwrite: bool = False,
    num_shards: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write a SavedModel with the other processes; it appears whole or not at all.

    All of them call this with the same model, but for the bytes that are held elsewhere.

    Args:
        model: what to write.
        path: the folder, on a file system that all processes share.
        group: the processes.
        overwrite: whether a SavedModel that is there is replaced.
        num_shards: as `write`, for each process.
        progress: as `write`; process 0 hears of the bytes of all.

    Raises:
        StructureError: the processes do not agree, the folder exists, or `path` is an address.
        FormatError: what would be replaced is not a SavedModel alone.
        InteropError: another process has failed.
        OSError: a file cannot be written; an older folder is untouched.
    """
    try:
        if is_remote(path):
            raise StructureError(
                f"{os.fspath(path)} is an address, and several processes write to a file system "
                "that they share. To do: save to a folder there, and copy it."
            )
        proto, objects = encode(model)
        data = serialize_proto(proto)
        del proto
        layout = layout_of(model, objects, num_shards)
        together = _Together(group, layout, _agreed(model, path, layout, overwrite=overwrite))
        if group.rank == 0:
            with new_folder(Path(path), overwrite=overwrite) as folder:
                together.lead(folder, data, progress)
        else:
            together.follow()
    except BaseException as error:
        group.fail(error)
        raise
    group.succeed()


class _Together:
    """What the two kinds of processes do alike."""

    __slots__ = ("_agreed", "_group", "_layout")

    def __init__(self, group: Group, layout: Layout, agreed: Mapping[str, str]) -> None:
        self._group = group
        self._layout = layout
        self._agreed = agreed

    def lead(self, folder: Path, data: bytes, progress: Callable[[int, int], None] | None) -> None:
        """Process 0: what it holds, then the rest of the file."""
        prefix = folder / VARIABLES
        prefix.parent.mkdir()
        self._group.begin(os.fspath(folder), self._agreed)
        total = sum(map(self._layout.size_of, range(self._group.size)))
        entries = self._write(
            prefix, lambda written: None if progress is None else progress(written, total)
        )
        self._group.finish()
        for rank in self._others():
            entries.update(_take_entries(_part_prefix(prefix, rank), self._layout, rank))
        write_index(prefix, {**entries, **self._layout.sliced}, len(self._layout.files))
        write_proto(folder, data)

    def follow(self) -> None:
        """Another process: what it holds, and a table of it."""
        folder = Path(self._group.begin("", self._agreed))
        prefix = folder / VARIABLES
        if not prefix.parent.is_dir():
            raise StructureError(
                f"Process 0 writes to {folder}, which process {self._group.rank} does not see. To "
                "do: save to a file system that all hosts share."
            )
        entries = self._write(prefix, lambda _: None)
        if self._group.rank in self._others():
            rank = self._group.rank
            write_index(_part_prefix(prefix, rank), entries, len(self._layout.files))
        self._group.finish()

    def _write(self, prefix: Path, progress: Callable[[int], None]) -> dict[str, BundleEntry]:
        rank = self._group.rank

        def written(size: int, _: int) -> None:
            progress(self._group.report(size))

        count = counting(written, self._layout.size_of(rank))
        return write_data_files(prefix, self._layout, holder=rank, written=count)

    def _others(self) -> list[int]:
        return sorted({file.holder for file in self._layout.files} - {0})


def _part_prefix(prefix: Path, rank: int) -> Path:
    return prefix.with_name(f"{prefix.name}.process-{rank:05}")


def _take_entries(prefix: Path, layout: Layout, rank: int) -> Mapping[str, BundleEntry]:
    """What another process says of its data files; what says it goes away."""
    entries = read_index(prefix).entries
    index_path(prefix).unlink()
    files = (file for file in layout.files if file.holder == rank)
    expected = {tensor.key: file.shard_id for file in files for tensor in file.tensors}
    if {key: entry.shard_id for key, entry in entries.items()} != expected:
        raise FormatError(
            f"{index_path(prefix)} lists {len(entries)} tensors, and not those {len(expected)} "
            f"that process {rank} holds. To do: save again, and to a folder that no other program "
            "writes to."
        )
    return entries


def _agreed(
    model: SavedModel, path: str | os.PathLike[str], layout: Layout, *, overwrite: bool
) -> dict[str, str]:
    """What is the same in all processes, by what a user would call it."""
    digest = hashlib.sha256()
    for file in layout.files:
        digest.update(f"{file.shard_id} {file.holder}\n".encode())
        for tensor in file.tensors:
            kind = tensor.values if isinstance(tensor, BundleStrings) else tensor.dtype
            digest.update(f"{tensor.key!r} {tensor.shape} {kind!r}\n".encode())
    for key, entry in layout.sliced.items():
        digest.update(f"{key!r} {entry.shape} {entry.slices}\n".encode())
    return {
        "path": os.path.abspath(path),
        "overwrite": str(overwrite),
        "signatures": ", ".join(
            f"{s.key}({', '.join(s.inputs)}) -> {', '.join(s.outputs)}" for s in model.signatures
        ),
        "number of data files": str(len(layout.files)),
        "names, shapes, dtypes and shardings of the parameters": digest.hexdigest()[:16],
    }
