"""The wheels that a LiteRT model takes are named where they are missing."""

from __future__ import annotations

import pytest

import bridge
from bridge.litert import worker_process
from xla_call_module.errors import MissingDependencyError


def test_the_wheels_are_named(monkeypatch):
    monkeypatch.setattr(worker_process, "_WHEELS", {"no_such_module": "no-such-wheel"})
    with pytest.raises(MissingDependencyError, match=r"needs no-such-wheel.*\[litert\]"):
        bridge.to_litert(lambda x: x, args="f32[3]")
