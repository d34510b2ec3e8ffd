"""Tests of an optional package: without it, or without a runtime, there are none."""

from __future__ import annotations

from tests.bridge.onnx.conftest import collect_ignore_glob

__all__ = ["collect_ignore_glob"]
