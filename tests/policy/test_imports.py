"""The imports of a module are read from its syntax tree."""

from __future__ import annotations

from tests.policy.imports import imports_of
from tests.policy.source import parse_module


def test_relative_imports_are_resolved(tmp_path):
    path = tmp_path / "c.py"
    module = parse_module("bridge.keras.c", path, "from .. import save\nfrom .d import name\n")
    assert [found.name for found in imports_of(module)] == ["bridge.save", "bridge.keras.d.name"]
