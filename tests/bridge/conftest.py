"""Tests of an optional package: without it, or without a runtime, there are none."""

from __future__ import annotations

import importlib.util

_NEEDED = ("onnx", "onnxruntime")
_HAS_ALL = all(importlib.util.find_spec(name) is not None for name in _NEEDED)
collect_ignore_glob = [] if _HAS_ALL else ["core_ops/test_*.py", "onnx/test_*.py"]
