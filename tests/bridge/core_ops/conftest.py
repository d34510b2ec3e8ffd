"""Tests that run what is walked in an optional package: without it there are none."""

from __future__ import annotations

import importlib.util

_NEEDED = ("onnx", "onnxruntime")
collect_ignore_glob = (
    [] if all(importlib.util.find_spec(name) is not None for name in _NEEDED) else ["test_*.py"]
)
