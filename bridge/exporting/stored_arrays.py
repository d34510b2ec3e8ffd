"""Arrays of parameter files, each of which is read when it is asked for.

So the arrays of a file become variables one after another, and no more than the largest of them, or
a few small ones, are in memory at a time.
"""

from __future__ import annotations

import json
import math
import os
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import jax
import numpy as np

from bridge.core.npz_file import NPZ_ERRORS, open_npz
from savedmodel.files.model_folder import locate
from xla_call_module.dtypes import Array, dtype_from_name
from xla_call_module.errors import (
    DtypeError,
    FormatError,
    InteropError,
    MissingDependencyError,
    refusing_damage,
)

# https://github.com/huggingface/safetensors#format
_SAFETENSORS_DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32",
    "I32": "int32", "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16",
    "F32": "float32", "F64": "float64", "C64": "complex64", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}  # fmt: skip
_NPY_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
# Small arrays of a checkpoint are read together: orbax reads its list of all of them each time.
_GROUP_BYTES, _MAX_GROUPS = 1 << 24, 16


@dataclass(frozen=True, slots=True, eq=False)
class StoredArray:
    """An array of an open file, which `numpy.asarray` reads, each time anew.

    Attributes:
        read: a function that returns the array; it raises a `FormatError` where that is damaged.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[], Array]

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        """Return the array as numpy asks for it; `copy` says nothing, since each is a new one."""
        return self.read() if dtype is None else self.read().astype(dtype, copy=False)


@contextmanager
def open_npz_arrays(path: Path) -> Iterator[dict[str, StoredArray]]:
    """Return a context with the arrays of a .npz file by their keys."""
    with ExitStack() as stack:
        with _refusing_npz(path):
            entries = stack.enter_context(open_npz(path))
            members = frozenset(entries.zip.namelist())
            arrays = {key: _npz_array(path, entries, key, members) for key in entries.files}
        yield arrays


def _npz_array(path: Path, entries: Any, key: str, members: frozenset[str]) -> StoredArray:
    def read() -> Array:
        with _refusing_npz(path):
            return entries[key]  # type: ignore[no-any-return]

    with entries.zip.open(key if key in members else f"{key}.npy") as file:
        header = _NPY_HEADERS.get(np.lib.format.read_magic(file))
        shape, dtype = (None, None) if header is None else header(file)[::2]
    if shape is None or dtype is None or dtype.hasobject:
        array = read()  # which refuses objects
        shape, dtype = array.shape, array.dtype
    if dtype.kind not in "biufc":
        raise DtypeError(
            f"{path} has {key!r} as {dtype}, which does not tell the dtype; numpy writes bfloat16 "
            "and float8 this way. To do: write a .safetensors file, or store it as float32."
        )
    return StoredArray(shape, dtype, read)


@contextmanager
def _refusing_npz(path: Path) -> Iterator[None]:
    try:
        yield
    except (InteropError, OSError):
        raise
    except NPZ_ERRORS as error:
        said = str(error).partition("\n")[0] or type(error).__name__
        raise FormatError(
            f"{path} is not a .npz file of numbers alone, without pickled objects: {said} To do: "
            "write it with numpy.savez, of arrays of numbers."
        ) from error


@contextmanager
def open_safetensors_arrays(path: Path) -> Iterator[dict[str, StoredArray]]:
    """Return a context with the arrays of a .safetensors file by their keys.

    They are read, not mapped: what is mapped counts as memory of the process.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise MissingDependencyError.of(
            f"Reading {path}", "safetensors", extra="safetensors",
            instead="write the parameters as .npz",
        ) from error  # fmt: skip
    folder, name = locate(path)
    with folder.open(name) as file:
        try:
            with safe_open(path, framework="np"):  # it checks the whole header
                pass
        except SafetensorError as error:
            raise FormatError(
                f"{path} is not a .safetensors file, or a damaged one: {error}. To do: write it "
                "again."
            ) from error
        with refusing_damage(str(path)):
            (size,) = struct.unpack("<Q", file.read(8))
            entries = json.loads(file.read(size))
            entries.pop("__metadata__", None)
            arrays = {
                key: _safetensors_array(path, file, key, entry, 8 + size)
                for key, entry in entries.items()
            }
        yield arrays


def _safetensors_array(
    path: Path, file: BinaryIO, key: str, entry: Mapping[str, Any], begin: int
) -> StoredArray:
    where = f"{key!r} of {path}"
    name = _SAFETENSORS_DTYPES.get(entry["dtype"], entry["dtype"])
    dtype, shape = dtype_from_name(name, where=where).numpy, tuple(entry["shape"])
    start, stop = (begin + offset for offset in entry["data_offsets"])

    def read() -> Array:
        data, position = np.empty(stop - start, np.uint8), 0
        while position < data.size:
            count = os.preadv(file.fileno(), [data.data[position:]], start + position)
            if not count:
                raise FormatError(f"{where} ends early. To do: write it again.")
            position += count
        if name == "bool" and data.max(initial=0) > 1:
            raise FormatError(f"{where} has a bool that is neither 0 nor 1. To do: write it again.")
        return data.view(dtype).reshape(shape)

    return StoredArray(shape, dtype, read)


@contextmanager
def open_orbax_arrays(path: Path, folder: Path) -> Iterator[Any]:
    """Return a context with the pytree of a checkpoint of orbax; what is no array is itself."""
    try:
        from orbax import checkpoint
    except ImportError as error:
        raise MissingDependencyError.of(
            f"Reading {path}", "orbax", extra="orbax", instead="write the parameters as .npz"
        ) from error
    with ExitStack() as stack:
        with refusing_damage(str(path)):
            handler = checkpoint.PyTreeCheckpointHandler()
            reader = stack.enter_context(checkpoint.Checkpointer(handler))
            tree = _OrbaxTree(checkpoint, reader, path, folder.absolute()).arrays()
        yield tree


class _OrbaxTree:
    """A checkpoint of orbax, of which neighbouring arrays are restored together."""

    def __init__(self, checkpoint: Any, reader: Any, path: Path, folder: Path) -> None:
        self._checkpoint, self._reader, self._path, self._folder = checkpoint, reader, path, folder
        metadata = reader.metadata(folder).item_metadata.tree
        with_paths, tree = jax.tree_util.tree_flatten_with_path(metadata)
        self._tree: Any = tree  # the stub of its class lacks `flatten_up_to`
        self._metadata = [leaf for _, leaf in with_paths]
        sizes = [_size_of(leaf) or 0 for leaf in self._metadata]
        # Older versions of orbax restore all or nothing.
        is_partial = getattr(checkpoint, "PLACEHOLDER", None) is not None
        self._groups = _groups(
            [jax.tree_util.keystr(keys, simple=True, separator="/") for keys, _ in with_paths],
            sizes,
            max(_GROUP_BYTES, sum(sizes) // _MAX_GROUPS) if is_partial else sum(sizes),
        )
        self._held: dict[int, Any] = {}
        self._lock = threading.Lock()

    def arrays(self) -> Any:
        """Return the pytree."""
        return jax.tree.unflatten(self._tree, map(self._array, range(len(self._metadata))))

    def _array(self, index: int) -> Any:
        leaf = self._metadata[index]
        if _size_of(leaf) is None:
            return self._read(index)
        dtype = np.dtype(leaf.dtype)
        return StoredArray(tuple(leaf.shape), dtype, lambda: np.asarray(self._read(index), dtype))

    def _read(self, index: int) -> Any:
        with self._lock:
            if index not in self._held:
                self._held = {}  # before there are others
                with refusing_damage(str(self._path)):
                    self._held = self._restore(self._groups[index])
            return self._held[index]

    def _restore(self, group: Sequence[int]) -> dict[int, Any]:
        checkpoint, count = self._checkpoint, len(self._metadata)
        # As numpy arrays, whatever devices they were on.
        wanted = [checkpoint.RestoreArgs(restore_type=np.ndarray)] * count
        options: dict[str, Any] = {"restore_args": jax.tree.unflatten(self._tree, wanted)}
        if len(group) < count:
            chosen = frozenset(group)
            leaves = [
                leaf if index in chosen else checkpoint.PLACEHOLDER
                for index, leaf in enumerate(self._metadata)
            ]
            options["item"] = jax.tree.unflatten(self._tree, leaves)
        restored = self._reader.restore(self._folder, args=checkpoint.args.PyTreeRestore(**options))
        leaves = self._tree.flatten_up_to(restored)
        return {index: leaves[index] for index in group}


def _size_of(leaf: Any) -> int | None:
    """Return the bytes of an array of which orbax says shape and dtype; None of anything else."""
    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    if shape is None or dtype is None:
        return None
    return int(math.prod(shape) * np.dtype(dtype).itemsize)


def _groups(names: Sequence[str], sizes: Sequence[int], limit: int) -> dict[int, Sequence[int]]:
    """Return for each array those that are read with it, in the order in which files have them."""
    groups: dict[int, Sequence[int]] = {}
    group: list[int] = []
    total = 0
    for index in sorted(range(len(names)), key=lambda index: names[index]):
        if total + sizes[index] > limit:
            group, total = [], 0
        group.append(index)
        groups[index], total = group, total + sizes[index]
    return groups
