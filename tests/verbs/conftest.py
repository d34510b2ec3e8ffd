"""In the rounds, JAX keeps on disk what it compiles here, which is the same many times."""

from __future__ import annotations

from tests.compile_cache import keep_compiled
from tests.xla_flags import is_unoptimized


def pytest_configure(config):
    if is_unoptimized():
        keep_compiled(config)
