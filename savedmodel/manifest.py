"""The manifest of a SavedModel: its files with their hashes, and what they were made of.

It lies in `assets.extra/`, which TensorFlow keeps for others' files and does not look into
(tensorflow/cc/saved_model/constants.h). There is no date in it and no place on a disk, so that the
same inputs give the same manifest.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

from savedmodel.files.assets import SERVING_FILES
from savedmodel.files.folder import VARIABLES, write_text
from savedmodel.files.model_folder import ModelFolder, read_one_version
from savedmodel.variables.tensor_bundle import read_index
from xla_call_module.errors import FormatError, StructureError

MANIFEST_FILE = "assets.extra/jax_tf_bridge_manifest.json"
_FORMAT = 1
_MAX_BYTES = 16 << 20
_PIECE_BYTES = 8 << 20
# Writers put tensors next to each other, or leave less than a page between.
_MAX_PADDING = 1 << 20
# No honest file says of so much that it is zeros, and takes no place on the disk.
_MAX_HOLES = 1 << 28


@dataclass(frozen=True, slots=True)
class HashedFile:
    """A file: its size in bytes, and its SHA-256 as hexadecimal text."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of a SavedModel, and what it was made of.

    Attributes:
        files: by their paths in the folder.
        versions: of Python and of the packages that were in use, by their names.
        source: the revision of the source that was exported, if it has one: `revision`, and
            `changed`, whether files differed from it (None where nobody could tell).
        request: what was asked for, as whoever asked says it.
    """

    files: Mapping[str, HashedFile]
    versions: Mapping[str, str] = field(default_factory=dict)
    source: Mapping[str, Any] | None = None
    request: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with the fields."""
        return asdict(self)


def write_manifest(
    folder: Path,
    *,
    versions: Mapping[str, str],
    source: Mapping[str, Any] | None,
    request: Mapping[str, Any],
) -> Manifest:
    """Hash all files of a SavedModel, and write down what they are."""
    opened = ModelFolder(folder)
    files = {path: _hash(opened, path) for path in sorted(_paths(opened))}
    manifest = Manifest(files, versions, source, request)
    text = json.dumps({"format": _FORMAT, **manifest.to_json()}, indent=1, sort_keys=True)
    target = folder / MANIFEST_FILE
    target.parent.mkdir(exist_ok=True)
    # An older one may have another name in another folder.
    target.unlink(missing_ok=True)
    write_text(target, f"{text}\n")
    return manifest


def renew_manifest(
    folder: Path,
    old: Manifest,
    *,
    request: Mapping[str, Any] = MappingProxyType({}),
    carried: Mapping[str, str] = MappingProxyType({}),
) -> Manifest:
    """Hash all files of a SavedModel that was made of another one, and write down what they are."""
    new = write_manifest(
        folder, versions=old.versions, source=old.source, request={**old.request, **request}
    )
    for path, former in carried.items():
        if former in old.files and old.files[former] != new.files.get(path):
            raise FormatError(
                f"{former} of the source SavedModel is not what its manifest says. To do: copy the "
                f"source again, write it again, or remove its {MANIFEST_FILE}."
            )
    return new


def read_manifest(folder: str | os.PathLike[str] | ModelFolder) -> Manifest | None:
    """Return the manifest of a SavedModel; None where it has none."""
    return read_one_version(folder, _read_manifest)


def _read_manifest(folder: ModelFolder) -> Manifest | None:
    if folder.find(MANIFEST_FILE) is None:
        return None
    path = folder.path / MANIFEST_FILE
    text = folder.read(MANIFEST_FILE, limit=_MAX_BYTES)
    try:
        fields = json.loads(text)
        if fields["format"] != _FORMAT:
            raise FormatError(
                f"{path} is of format {fields['format']!r:.40}; known is {_FORMAT}. To do: use the "
                "version of jax-tf-bridge that wrote it, or a later one."
            )
        files = {
            str(name): HashedFile(int(file["bytes"]), str(file["sha256"]))
            for name, file in dict(fields["files"]).items()
        }
        versions = {str(name): str(version) for name, version in dict(fields["versions"]).items()}
        source = fields["source"] and dict(fields["source"])
        return Manifest(files, versions, source, dict(fields["request"]))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(
            f"{path} is not a manifest, or a damaged one ({type(error).__name__}: {error!s:.100}). "
            "To do: copy the folder again, or remove the manifest."
        ) from error


def compare_manifest(folder: str | os.PathLike[str] | ModelFolder) -> tuple[str, ...]:
    """Return the differences of a SavedModel from its manifest; none where it is as written."""
    return read_one_version(folder, _compare_manifest)


def _compare_manifest(folder: ModelFolder) -> tuple[str, ...]:
    manifest = read_manifest(folder)
    if manifest is None:
        raise StructureError(
            f"{folder.path} has no manifest ({MANIFEST_FILE}). To do: write it with `jax-tf-bridge "
            "export`, or bridge.save(…, manifest=True)."
        )
    check_sizes(folder)
    paths = _paths(folder)
    missing = [f"{path} is missing" for path in sorted(manifest.files.keys() - paths)]
    unknown = paths - manifest.files.keys() - SERVING_FILES
    added = [f"{path} is not in the manifest" for path in sorted(unknown)]
    changed = [
        difference
        for path in sorted(paths & manifest.files.keys())
        if (difference := _difference(folder, path, manifest.files[path]))
    ]
    return (*missing, *added, *changed)


def hash_file(file: BinaryIO) -> HashedFile:
    """Return the size and the hash of an open file."""
    digest = hashlib.sha256()
    size = 0
    while piece := file.read(_PIECE_BYTES):
        digest.update(piece)
        size += len(piece)
    return HashedFile(size, digest.hexdigest())


def _hash(folder: ModelFolder, name: str) -> HashedFile:
    with folder.open(name) as file:
        return hash_file(file)


def _difference(folder: ModelFolder, name: str, expected: HashedFile) -> str:
    status = folder.find(name, links=True)
    if status is None:
        return f"{name} is a link to nothing"
    if status.st_size != expected.bytes:
        return f"{name} has {status.st_size:,} bytes, in the manifest {expected.bytes:,}"
    if (hashed := _hash(folder, name)) != expected:
        return f"{name} has the SHA-256 {hashed.sha256}, in the manifest {expected.sha256}"
    return ""


def _paths(folder: ModelFolder) -> set[str]:
    """Return all files below a folder but for the manifest; links to folders are not followed."""
    return {
        name
        for name, status in folder.walk()
        if not stat.S_ISDIR(status.st_mode) and name != MANIFEST_FILE
    }


def check_sizes(folder: ModelFolder) -> None:
    """Refuse files that are far larger than what was written into them."""
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
                on_disk = sum(stop - start for start, stop in written_extents(file, size))
            if size - on_disk > _MAX_HOLES:
                raise FormatError(
                    f"{path} has {size:,} bytes, and {size - on_disk:,} of them are holes that the "
                    "disk does not store. To do: write the model again."
                )


def written_extents(file: BinaryIO, size: int) -> Iterator[tuple[int, int]]:
    """Yield the start and stop of each part of a file that is on the disk, and no hole in it."""
    stop = 0
    try:
        while stop < size:
            start = os.lseek(file.fileno(), stop, os.SEEK_DATA)
            stop = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            yield start, stop
    except OSError as error:
        if error.errno != errno.ENXIO:  # there is no more
            raise
