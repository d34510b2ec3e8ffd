"""`python -m tests.device [ARGUMENT ...]`: every test for an accelerator, and each verb once.

Arguments are those of pytest. What fails is written to `build/device/failures.txt` as it happens.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.device import IN_FULL
from tests.policy.source import ROOT

FAILURES = ROOT / "build" / "device" / "failures.txt"
_PLACES = ("tests/device", "tests/quick")
_MAX_PROCESSES = 15  # each takes 1 GB of the device
# Trying each kernel of a product would take most of the time.
_XLA_FLAGS = "--xla_gpu_autotune_level=0"


class _Failures:
    """A plugin of pytest that writes each failure down at once."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Append what a test says that failed, and which devices there were."""
        if report.failed:
            with FAILURES.open("a") as file:
                file.write(f"{report.nodeid} ({report.when})\n{report.longreprtext}\n\n")


def _gpus() -> int:
    if shutil.which("nvidia-smi") is None:
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return listed.stdout.count("GPU ")


def main(arguments: list[str]) -> int:
    """Run the tests, and return the status of pytest."""
    gpus = _gpus()
    os.environ[IN_FULL] = "1"
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus))))
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    if gpus:
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_XLA_FLAGS}"
    FAILURES.parent.mkdir(parents=True, exist_ok=True)
    FAILURES.write_text("")
    processes = min(_MAX_PROCESSES, max(os.cpu_count() or 1, 2) - 1)
    options = ["-n", str(processes), "--dist", "worksteal"]
    # Who names files or folders wants those alone.
    named = any(Path(argument.partition("::")[0]).exists() for argument in arguments)
    places = () if named else _PLACES
    return int(pytest.main([*options, *arguments, *places], plugins=[_Failures()]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
