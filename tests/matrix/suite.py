"""The tests of the packages, run with another JAX and the newest TensorFlow."""

from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path

from tests.matrix.environments import CONSUMERS, ROOT, Ready
from tests.matrix.grid import Cell, Outcome

SUITE = (
    "tests/bridge",
    "tests/golden",
    "tests/savedmodel",
    "tests/verbs",
    "tests/xla_call_module",
)
# All of them but the slow ones and, of the gradient matrix, most of those of a kind.
_MARKERS = "not slow and not alike"
_PACKAGES = ("bridge", "savedmodel", "xla_call_module", "tests", "pyproject.toml")
_PROCESSES = "2"  # each holds TensorFlow and JAX
_LAST_WORDS = 3000  # characters of a process that failed
_COUNTS = re.compile(r"(\d+ passed[^=\n]*?) in [0-9.]+s")


def run_suite(writer: Ready) -> Cell:
    """A cell that says how many tests passed; they are not run again for the same sources."""
    sources = _digest(ROOT)
    counts = _recall(writer.tested, sources)
    if counts is None:
        command = [str(writer.python), "-m", "pytest", "-q", "-m", _MARKERS]
        done = subprocess.run(
            [*command, "-n", _PROCESSES, "--dist", "loadfile", *SUITE],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        found = _COUNTS.search(done.stdout)
        if done.returncode or found is None:
            words = f"exit status {done.returncode}\n{(done.stdout + done.stderr)[-_LAST_WORDS:]}"
            return _cell(writer, Outcome.DIED, words)
        counts = found[1]
        writer.tested.write_text(f"{sources}\n{counts}")
    return _cell(writer, Outcome.PASSED, counts)


def _cell(writer: Ready, outcome: Outcome, message: str) -> Cell:
    return Cell(writer.version, "", CONSUMERS[-1].version, "tests", outcome, message)


def _recall(stamp: Path, sources: str) -> str | None:
    """Return what was said of these sources when they passed."""
    before, _, counts = stamp.read_text().partition("\n") if stamp.is_file() else ("", "", "")
    return counts if before == sources else None


def _digest(root: Path) -> str:
    """Of every file that the tests may read, whatever has been made from it."""
    digest = hashlib.sha256()
    for package in _PACKAGES:
        top = root / package
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(root)} {path.stat().st_size}\n".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()
