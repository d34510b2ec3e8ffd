"""What JAX compiles in one process of the tests is there in the next."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.policy.source import ROOT

PROGRAM = """
import pathlib, sys
import jax
from tests.compile_cache import keep_compiled

class Config:
    def add_cleanup(self, function):
        self.end = function

config = Config()
keep_compiled(config, pathlib.Path(sys.argv[1]))
jax.monitoring.register_event_listener(lambda name, **_: print(name))
jax.jit(lambda x: x * 3 + 1)(2.0)
config.end()
"""


def _run(folder):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.count("/jax/compilation_cache/cache_hits")


def test_what_one_process_compiles_the_next_one_reads(tmp_path):
    assert _run(tmp_path) == 0
    assert any((tmp_path / "entries").iterdir())
    assert _run(tmp_path) > 0
    assert [path.name for path in tmp_path.iterdir()] == ["entries"]
