"""The process in which ai_edge_litert works."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

from bridge.core import worker_messages
from bridge.core.limited_process import ProcessDeath, WorkerProcess
from bridge.litert.worker import worker_program
from xla_call_module.errors import MissingDependencyError

__all__ = ["LiteRTProcess", "ProcessDeath", "check_installed"]

# Nothing else of this package is to be found by the program.
_START = """
import sys
sys.path.insert(0, sys.argv[1])
from bridge.litert.worker.worker_program import main
main()
"""
_WHEELS = {"ai_edge_litert": "ai-edge-litert"}


def check_installed(feature: str) -> None:
    """Refuse to go on without the wheels."""
    for module, wheel in _WHEELS.items():
        if importlib.util.find_spec(module) is None:
            raise MissingDependencyError.of(feature, wheel, extra="litert")


class LiteRTProcess(WorkerProcess):
    """A process with the packages of LiteRT. What was loaded is gone after a death."""

    def _command(self, folder: Path) -> list[str]:
        package = folder / "bridge"
        if not package.exists():
            shutil.copytree(Path(worker_program.__file__).parent, package / "litert" / "worker")
            (package / "core").mkdir()
            shutil.copy(worker_messages.__file__, package / "core")
            for name in (".", "core", "litert"):
                (package / name / "__init__.py").touch()
        return [sys.executable, "-c", _START, os.fspath(folder)]
