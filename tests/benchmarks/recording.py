"""docs/reference/benchmarks.json: what each benchmark has measured last, when and where.

`docs/draw_performance.py` draws the plots of the documentation of it, and writes the tables.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.benchmarks.measure import Ratio

RECORD = Path(__file__).parents[2] / "docs" / "reference" / "benchmarks.json"
_PACKAGES = (
    "jax-tf-bridge",
    "jax",
    "tensorflow",
    "tensorflow-cpu",
    "onnxruntime",
    "ai-edge-litert",
    "numpy",
)
_DIGITS = 3


def record(benchmark: str, results: Sequence[Ratio], path: Path = RECORD) -> None:
    """Write the results of one benchmark; those of the others stay as they are."""
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"runs": {}}
    known["runs"][benchmark] = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": _machine(),
        "versions": _versions(),
        "results": [_to_json(result) for result in results if result.peer or _is_measured(result)],
    }
    path.write_text(json.dumps(known, indent=1, sort_keys=True, allow_nan=False) + "\n")


def _is_measured(result: Ratio) -> bool:
    return all(map(math.isfinite, result.ratios))


def _to_json(result: Ratio) -> dict[str, Any]:
    """Return a result; what could not be measured has no ratio, and says why as the peer's."""
    if not _is_measured(result):
        return {"name": result.name, "ours": result.ours, "peer": result.peer}
    figures = {
        "median": result.median,
        "lowest": min(result.ratios),
        "highest": max(result.ratios),
    }
    return {
        "name": result.name,
        **{name: float(f"{value:.{_DIGITS}g}") for name, value in figures.items()},
        "rounds": len(result.ratios),
        "ours": result.ours,
        "peer": result.peer,
    }


def _machine() -> str:
    """Return the machine in words, with its load, which tells how far times are to be trusted."""
    load = os.getloadavg()[0]
    cores = len(os.sched_getaffinity(0))
    return f"{platform.system()} {platform.machine()}, {cores} cores, load {load:.1f}"


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
