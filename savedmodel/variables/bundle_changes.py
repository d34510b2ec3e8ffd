"""The layout of a bundle in which some tensors of another one have new values.

A data file in which nothing changes stays as it is. What else was in the others is copied into new
ones, apart from the new values: where the same tensors change again, only these are written.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from savedmodel.variables.bundle_layout import (
    BundleStrings,
    BundleTensor,
    DataFile,
    Layout,
    lay_out,
)
from savedmodel.variables.bundle_reader import read_strings, stream_tensor
from savedmodel.variables.tensor_bundle import STRING, BundleIndex
from savedmodel.variables.tensor_slices import slice_key

# So little is no file of its own.
_FEW_BYTES = 1 << 20
# Where others change each time, the files would become ever more.
MAX_KEPT_FILES = 32


def lay_out_changes(index: BundleIndex, tensors: Sequence[BundleTensor]) -> Layout:
    """Return the data files of a bundle with other tensors under some keys of another one."""
    changed = _entries_of(index, [tensor.key for tensor in tensors])
    touched = {index.entries[key].shard_id for key in changed if not index.entries[key].slices}
    stored = {e.shard_id for key, e in index.entries.items() if key not in changed and not e.slices}
    if len(stored - touched) > MAX_KEPT_FILES:
        touched = stored
    kept = tuple(sorted(stored - touched))
    moved = [*_copies(index, changed, touched)]
    sizes = (index.entries[tensor.key].size for tensor in moved)
    are_few = sum(sizes) <= _FEW_BYTES
    layouts = [lay_out([*tensors, *(moved if are_few else ())], None)]
    layouts += [] if are_few else [lay_out(moved, None)]
    files = [file for layout in layouts for file in layout.files if file.tensors]
    numbered = tuple(replace(file, shard_id=number) for number, file in enumerate(files))
    known = {key: entry for layout in layouts for key, entry in layout.known.items()}
    places = {shard_id: len(files) + position for position, shard_id in enumerate(kept)}
    for key, entry in index.entries.items():
        if key not in changed and (entry.slices or entry.shard_id in places):
            known[key] = replace(entry, shard_id=places.get(entry.shard_id, 0))
    return Layout(numbered or (DataFile(0, 0, ()),), known, kept)


def _entries_of(index: BundleIndex, keys: Collection[str]) -> set[str]:
    """Return the keys of tensors, and those of the slices that they are stored in, if there."""
    slices = (slice_key(key, part) for key in keys for part in index.entries[key].slices)
    return {*keys, *slices} & index.entries.keys()


def _copies(
    index: BundleIndex, changed: Collection[str], files: Collection[int]
) -> Iterator[BundleTensor | BundleStrings]:
    """Yield what else is in some data files; each slice is a tensor under a key of its own."""
    for key, entry in index.entries.items():
        if key in changed or entry.slices or entry.shard_id not in files:
            continue
        if entry.dtype == STRING:
            yield BundleStrings(key, entry.shape, read_strings(index, key))
        else:
            chunks = functools.partial(stream_tensor, index, key)
            yield BundleTensor(key, entry.dtype, entry.shape, chunks)
