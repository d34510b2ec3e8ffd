"""`CompilationCache`: compiled executables in a folder, for processes that load the same model."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bridge.core._jax import compiling_through, settings_query
from savedmodel.files.folder import hidden_folder
from savedmodel.files.model_folder import read_file
from savedmodel.files.remote import is_remote
from xla_call_module.errors import ArgumentError, FormatError, StructureError, quote
from xla_call_module.tracebacks import warn

__all__ = ["MAX_FILE_BYTES", "CompilationCache", "machine_features"]

# XLA serializes an executable as one protobuf message, which is smaller.
MAX_FILE_BYTES = 1 << 31
# What a file begins with: the format, then a SHA-256 of the key and the executable.
_MAGIC = b"jax-tf-bridge executable 1\n"
_DIGEST_BYTES = hashlib.sha256().digest_size
_SUFFIX = ".executable"
_CPU_INFO = "/proc/cpuinfo"
_trace_settings = settings_query()


@dataclass(frozen=True, slots=True)
class CompilationCache:
    """A folder of compiled executables, one file for each of them.

    JAX makes the keys of its persistent compilation cache of the lowered module, which has the
    shapes, of the versions of jaxlib and of the platform, of the devices, the compile options and
    XLA_FLAGS (jax/_src/cache_key.py). A file has the name of the hash of such a key and of the
    features of this machine, since code for one CPU can end a process on another.

    What a file says is checked and handed to XLA; nothing of it is unpickled. It is machine code
    all the same, to be trusted as a program is.

    JAX's setting `jax_compilation_cache_max_size` is the limit of this folder, too: the files that
    were used longest ago give way, as the time of their last change tells.

    Attributes:
        folder: the folder; it is made when the first executable is written.
        machine: what `machine_features` returns on the machine that runs the executables.
    """

    folder: Path
    machine: str

    @classmethod
    def at(cls, folder: Any) -> CompilationCache:
        """Return the cache of a folder, which need not be there yet.

        Raises:
            ArgumentError: it is no path.
            StructureError: it is not the path of a folder on a disk.
            VersionError: this JAX has no such cache that a call could have of its own.
        """
        if not isinstance(folder, (str, os.PathLike)) or not isinstance(os.fspath(folder), str):
            raise ArgumentError(
                f"compiled is {folder!r}; expected the path of a folder. To do: pass a folder for "
                "compiled executables, such as 'my_model.compiled', or leave it out."
            )
        path = Path(folder)
        if not os.fspath(folder) or is_remote(folder) or (path.exists() and not path.is_dir()):
            raise StructureError(
                f"compiled is {os.fspath(folder)!r}, which is not the path of a folder on a disk. "
                "To do: pass one that is, or that is not there yet."
            )
        cache = cls(path.absolute(), machine_features())
        with compiling_through(cache):
            return cache

    def around(self, jitted: Callable[..., Any], parameters: int) -> Callable[..., Any]:
        """Return a `jax.jit`-ed function whose executables come from the folder, or go there.

        Args:
            jitted: the function of leaves.
            parameters: how many of the first leaves have always the same shapes and shardings.
        """
        called: set[Hashable] = set()

        def call(*leaves: Any) -> Any:
            kind = _kind_of(leaves[parameters:])
            if kind in called:
                return jitted(*leaves)
            with compiling_through(self):
                results = jitted(*leaves)
            if kind is not None:
                called.add(kind)
            return results

        return call

    def get(self, key: str) -> bytes | None:
        """Return what was kept under a key of JAX; None where nothing is, or it is damaged."""
        if _max_bytes() == 0:
            return None
        name = self._name(key)
        try:
            content = read_file(self.folder / name, limit=MAX_FILE_BYTES)
        except (FormatError, OSError, MemoryError):
            return None
        start = len(_MAGIC) + _DIGEST_BYTES
        value = content[start:]
        if content[:start] != _header(name, value):
            return None
        with contextlib.suppress(OSError):  # it was used; who may only read cannot say so
            os.utime(self.folder / name, follow_symlinks=False)
        return value

    def put(self, key: str, value: bytes) -> None:
        """Keep an executable under a key of JAX; the file appears whole, or takes another's place.

        Warns:
            UserWarning: it cannot be written, or is larger than the limit of the folder.
        """
        name, content = self._name(key), _header(self._name(key), value) + value
        limit = _max_bytes()
        if limit is not None and len(content) > limit:
            if limit:
                warn(
                    f"A compiled executable has {len(content):,} bytes, more than the {limit:,} of "
                    "jax_compilation_cache_max_size, and is compiled again by the next process. To "
                    "do: raise the limit, or set it to -1, which is none."
                )
            return
        try:
            with hidden_folder(self.folder, name) as staged:
                (staged / name).write_bytes(content)
                (staged / name).replace(self.folder / name)
            if limit is not None:
                self._evict(limit, name)
        except OSError as error:
            warn(
                f"A compiled executable cannot be kept in {self.folder}, and is compiled again by "
                f"the next process: {quote(error)}. To do: let the process write there, or fill "
                "the folder by one that may."
            )

    def _evict(self, limit: int, newest: str) -> None:
        """Remove the files that were used longest ago, until the rest has no more than a limit."""
        files = []
        for path in self.folder.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(OSError):  # another process has removed it
                status = path.lstat()
                files.append((path.name == newest, status.st_mtime_ns, status.st_size, path))
        total = sum(size for _, _, size, _ in files)
        for is_newest, _, size, path in sorted(files):
            if total <= limit or is_newest:
                return
            with contextlib.suppress(OSError):
                path.unlink()
                total -= size

    def _name(self, key: str) -> str:
        return hashlib.sha256(f"{self.machine}\n{key}".encode()).hexdigest() + _SUFFIX


def _max_bytes() -> int | None:
    """Return the limit of the folder; None without one."""
    config: Any = jax.config  # the stub of its class lacks the settings
    limit = int(config.jax_compilation_cache_max_size)
    return None if limit < 0 else limit


def machine_features() -> str:
    """Return what the CPU of this machine can do, as its operating system tells it."""
    told = [platform.system(), platform.machine()]
    try:
        lines = Path(_CPU_INFO).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return " ".join([*told, platform.processor()])
    names = ("flags", "Features", "isa")
    features = {line for line in lines if line.partition(":")[0].strip() in names}
    return " ".join([*told, *sorted({word for line in features for word in line.split()})])


def _kind_of(leaves: tuple[Any, ...]) -> Hashable:
    """Return what an executable is compiled for; None where JAX traces, and may compile another."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        return None
    arrays = tuple(
        (np.shape(leaf), getattr(leaf, "dtype", type(leaf)), getattr(leaf, "sharding", None))
        for leaf in leaves
    )
    return arrays, _trace_settings()


def _header(name: str, value: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(name.encode() + value).digest()
