"""Formats of files: the package that each takes is named where it is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

# A process in which a package is not found, whoever looks for it.
_WITHOUT = """
import sys
from importlib.machinery import PathFinder

verb, missing = sys.argv[1:]
found = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: (
    None if name.partition(".")[0] == missing else found(name, *rest)
)
import bridge

getattr(bridge, verb)(lambda x: x, args="f32[3]")
"""


@pytest.mark.parametrize(
    ("verb", "module", "package"),
    [("to_onnx", "onnx", "onnx"), ("to_litert", "ai_edge_litert", "ai-edge-litert")],
)
def test_it_is_named(verb, module, package):
    command = [sys.executable, "-c", _WITHOUT, verb, module]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"MissingDependencyError: bridge.{verb} needs {package}" in done.stderr
    assert f"[{verb.removeprefix('to_')}]" in done.stderr
