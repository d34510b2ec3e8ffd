"""The flags of XLA that a process of the tests reads are not those of processes that it starts."""

from __future__ import annotations

import os
import subprocess

from tests.policy.source import ROOT
from tests.xla_flags import UNOPTIMIZED

# JAX ends the process where it meets a flag that TensorFlow alone knows.
CODE = """
import os
import jax
from tests.xla_flags import set_unoptimized
set_unoptimized()
print(os.environ["XLA_FLAGS"])
print(jax.jit(lambda x: x + 1)(1.0))
"""


def test_each_framework_reads_its_own(preloaded_python):
    done = subprocess.run(
        [preloaded_python, "-c", CODE],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": UNOPTIMIZED},
    )
    assert done.stdout == f"{UNOPTIMIZED}\n2.0\n"
