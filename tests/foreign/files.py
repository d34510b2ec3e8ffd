"""The files that the programs of this folder have written, as a test takes them."""

from __future__ import annotations

import fcntl
import importlib.util
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.policy.source import ROOT

NAMES = ("jax2tf", "keras", "bare_graph", "session_graph", "orbax")


@dataclass(frozen=True, slots=True)
class ForeignFile:
    """One SavedModel and what JAX computes.

    Attributes:
        folder: with saved_model.pb.
        values: arrays by signature, kind (`input`, `output`, `cotangent`, `gradient`,
            `parameter`) and name.
    """

    folder: Path
    values: dict[str, dict[str, dict[str, np.ndarray[Any, Any]]]]


def write_foreign(out: Path) -> dict[str, ForeignFile]:
    """Write the files of each program, by its name; orbax only where it is installed."""
    names = [name for name in NAMES if name != "orbax" or _has_orbax_export()]
    command = [sys.executable, "-m", "tests.foreign", str(out), *names]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return {name: read_foreign(out / name) for name in names}


def write_foreign_once(out: Path) -> dict[str, ForeignFile]:
    """Write into a folder that several processes share, of which the first one writes."""
    out.mkdir(exist_ok=True)
    with (out / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (out / "written").exists():
            write_foreign(out)
            (out / "written").touch()
    return {name: read_foreign(out / name) for name in NAMES if (out / name).exists()}


def _has_orbax_export() -> bool:
    """Return whether it is there; the namespace `orbax` is also that of orbax.checkpoint."""
    return all(importlib.util.find_spec(name) for name in ("orbax", "orbax.export"))


def read_foreign(folder: Path) -> ForeignFile:
    """Return the file that a program has written into a folder, and what JAX computes."""
    values: dict[str, dict[str, dict[str, np.ndarray[Any, Any]]]] = {}
    with np.load(folder / "values.npz") as entries:
        for entry in entries.files:
            key, kind, name = entry.split("/", 2)
            values.setdefault(key, {}).setdefault(kind, {})[name] = entries[entry]
    return ForeignFile(folder / "model", values)
