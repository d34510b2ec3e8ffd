"""Tests that need several devices, each file in a process that has eight of the CPU."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.policy.source import ROOT
from tests.xla_flags import with_xla_flags

FILES = sorted(path.stem for path in (ROOT / "tests" / "eight_devices").glob("[a-z]*.py"))


@pytest.mark.parametrize("name", FILES)
def test_with_eight_devices(name, tmp_path, preloaded_python):
    flags = "--xla_force_host_platform_device_count=8"
    path = ROOT / "tests" / "eight_devices" / f"{name}.py"
    done = subprocess.run(
        [preloaded_python, "-m", "pytest", str(path), "-q", "-x", f"--basetemp={tmp_path / 't'}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": with_xla_flags(flags), "JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
