"""The suite of files of TensorFlow's own operations, run by a session as in a server without XLA.

It has the default options, those of the optimizer too. Importing this disables XLA in TensorFlow
for the whole process.
"""

from __future__ import annotations

from bridge.core._tf import disable_xla
from tests.fuzzing.plain_programs.generating import generate
from tests.fuzzing.programs.suite import clear, run, simpler

__all__ = ["clear", "generate", "run", "simpler"]

disable_xla()
