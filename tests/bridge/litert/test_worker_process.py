"""The wheels that a LiteRT model takes are named where they are missing."""

from __future__ import annotations

import subprocess
import sys

# A process in which a package is not found, whoever looks for it.
_WITHOUT = """
from importlib.machinery import PathFinder

found = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: (
    None if name.partition(".")[0] == "ai_edge_litert" else found(name, *rest)
)
import bridge

bridge.to_litert(lambda x: x, args="f32[3]")
"""


def test_the_wheels_are_named():
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT], capture_output=True, text=True, check=False
    )
    assert "MissingDependencyError: bridge.to_litert needs ai-edge-litert" in done.stderr
    assert "[litert]" in done.stderr
