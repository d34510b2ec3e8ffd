"""What JAX has compiled for the tests, from one run to the next.

JAX does not write an entry in one step, so that each process has a folder of its own. It begins
with links to the entries that there are, and what it adds is linked beside them at its end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from functools import partial
from pathlib import Path

import jax
import pytest

FOLDER = Path(__file__).parents[1] / ".jax_cache"
MAX_BYTES = 500_000_000


def keep_compiled(config: pytest.Config, folder: Path = FOLDER) -> None:
    """Have JAX read what it has compiled before, and keep what it compiles, in this process.

    The folder is emptied when it has grown beyond its limit.
    """
    entries = folder / "entries"
    entries.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        # A process that was killed has left its own.
        if path != entries and path.stat().st_mtime < time.time() - 24 * 3600:
            shutil.rmtree(path, ignore_errors=True)
    if sum(path.stat().st_size for path in entries.iterdir()) > MAX_BYTES:
        shutil.rmtree(entries, ignore_errors=True)
        entries.mkdir(exist_ok=True)
    private = Path(tempfile.mkdtemp(dir=folder))
    private.chmod(0o777)  # some tests are another user for a while
    _link(entries, private)
    config.add_cleanup(partial(_merge, private, entries))
    jax.config.update("jax_compilation_cache_dir", str(private))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _merge(private: Path, entries: Path) -> None:
    _link(private, entries)
    shutil.rmtree(private, ignore_errors=True)


def _link(source: Path, target: Path) -> None:
    for path in source.iterdir():
        # Another process may have the same, or have emptied the folder.
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            os.link(path, target / path.name)
