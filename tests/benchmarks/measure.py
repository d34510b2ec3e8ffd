"""Ratios of two ways to do the same thing, measured in the same run.

Machines are shared and noisy, so the two take turns, and what is reported is the median over the
rounds of the ratio within a round.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

ROUNDS = 5


@dataclass(frozen=True)
class Ratio:
    """A result.

    Attributes:
        name: what was compared.
        ratios: ours over the peer's, one for each round.
        limit: what the median must not exceed; None where nothing is claimed.
        ours: our median, as text with a unit.
        peer: the peer's.
    """

    name: str
    ratios: tuple[float, ...]
    limit: float | None
    ours: str
    peer: str

    @property
    def median(self) -> float:
        return statistics.median(self.ratios)

    @property
    def holds(self) -> bool:
        return self.limit is None or self.median <= self.limit


@dataclass(frozen=True)
class Usage:
    """The use of a process: CPU seconds of all its threads, and its peak resident bytes."""

    cpu: float
    memory: float


def compare(
    name: str,
    ours: Callable[[], float],
    peer: Callable[[], float],
    *,
    limit: float | None,
    unit: str,
    scale: float = 1.0,
    rounds: int = ROUNDS,
) -> Ratio:
    """Take turns, after one round that is not counted."""
    ours(), peer()
    pairs = [(ours(), peer()) for _ in range(rounds)]
    medians = [statistics.median(side) * scale for side in zip(*pairs, strict=True)]
    return Ratio(
        name,
        tuple(mine / theirs for mine, theirs in pairs),
        limit,
        f"{medians[0]:.3g} {unit}",
        f"{medians[1]:.3g} {unit}",
    )


def compare_usage(
    name: str,
    ours: Sequence[Usage],
    peer: Sequence[Usage],
    *,
    cpu: float | None,
    memory: float | None,
) -> Iterator[Ratio]:
    """CPU time and peak memory of processes, round by round; `{}` in the name is which of them.

    Args:
        name: what was compared.
        ours: one for each round.
        peer: the same of the peer.
        cpu: what the median ratio of CPU times must not exceed.
        memory: the same of peak memory.
    """
    for what, field, limit, unit, scale in (
        ("CPU time", "cpu", cpu, "s", 1.0),
        ("peak memory", "memory", memory, "MB", 1e-6),
    ):
        mine = [getattr(usage, field) for usage in ours]
        theirs = [getattr(usage, field) for usage in peer]
        yield Ratio(
            name.format(what),
            tuple(a / b for a, b in zip(mine, theirs, strict=True)),
            limit,
            f"{statistics.median(mine) * scale:.3g} {unit}",
            f"{statistics.median(theirs) * scale:.3g} {unit}",
        )


def seconds(action: Callable[[], object], *, repeat: int = 1) -> float:
    """Wall-clock seconds of one call, averaged over `repeat` in a row."""
    started = time.perf_counter()
    for _ in range(repeat):
        action()
    return (time.perf_counter() - started) / repeat


# Not `ru_maxrss`: that is never less than what the process that starts another one has.
_TELL_PEAK = """
import os as _os, re as _re
with open("/proc/self/status") as _status:
    _peak = _re.search(r"VmHWM:\\s+(\\d+)", _status.read())[1]
_os.write(int(_os.environ["MEASURED_BY"]), _peak.encode())
"""


def run_process(code: str, *arguments: str, quiet: bool = False) -> Usage:
    """Return what a new Python process that runs `code` uses; a quiet one prints to nowhere."""
    reader, writer = os.pipe()
    environment = os.environ | {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",
        "MEASURED_BY": str(writer),
    }
    # Installed packages come compiled; sources that Python may not keep compiled would count here.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code + _TELL_PEAK, *arguments],
        env=environment,
        pass_fds=[writer],
        stdout=subprocess.DEVNULL if quiet else None,
    )
    os.close(writer)
    _, status, usage = os.wait4(process.pid, 0)
    with os.fdopen(reader) as told:
        peak = told.read()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"a measured process ended with {process.returncode}")
    return Usage(usage.ru_utime + usage.ru_stime, int(peak) * 1024.0)
