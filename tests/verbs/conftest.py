"""In `make test`, JAX keeps on disk what it compiles for these tests: it is the same many times."""

from __future__ import annotations

import tempfile

import jax

from tests.xla_flags import is_unoptimized


def pytest_configure(config):
    """Give JAX a folder of this process alone, since it does not write its files in one step."""
    if not is_unoptimized():
        return
    folder = tempfile.TemporaryDirectory()
    config.add_cleanup(folder.cleanup)
    jax.config.update("jax_compilation_cache_dir", folder.name)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
