"""Many seeds of a suite in processes of their own; what comes of them is appended to a file."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.fuzzing.programs.outcomes import FAILURES
from tests.policy.source import ROOT

# A suite is a module with `generate(seed, x64=…)`, `run(program)`, `simpler(program)`, `clear()`.
SUITES = {
    "programs": "tests.fuzzing.programs.suite",
    "call_tf": "tests.fuzzing.tf_programs.suite",
    "plain": "tests.fuzzing.plain_programs.suite",
}
CHUNK = 150
# Of one program: seconds of CPU, so that a busy machine is no hang, and of waiting.
LIMIT = 100.0
_IDLE_LIMITS = 10
_POLLED = 2.0


def campaign(
    suite: str,
    file: Path,
    *,
    seconds: float | None = None,
    count: int | None = None,
    first: int | None = None,
    x64: bool | None = None,
    chunk: int = CHUNK,
    tell: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Run seeds until the time or the number is up, one worker process after another.

    Args:
        suite: the name of one of `SUITES`.
        file: gets a line of JSON for each program.
        seconds: how long.
        count: how many programs.
        first: the first seed; without it what follows the last one in the file.
        x64: whether JAX has 64-bit types; None for both, chunk by chunk.
        chunk: how many programs a process runs.
        tell: is told of failures and of progress.

    Returns:
        The records.
    """
    old = read(file)
    position = first if first is not None else 1 + max((r["seed"] for r in old), default=-1)
    known = Counter(finding["key"] for r in old for finding in r.get("findings", ()))
    end = time.monotonic() + seconds if seconds is not None else None
    records: list[dict[str, Any]] = []
    wide = bool(x64)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as out:
        while (count is None or len(records) < count) and (end is None or time.monotonic() < end):
            number = chunk if count is None else min(chunk, count - len(records))
            for record in _work(suite, wide, position, number, known, end):
                records.append(record)
                position = record["seed"] + 1
                known.update(finding["key"] for finding in record.get("findings", ()))
                out.write(json.dumps(record) + "\n")
                out.flush()
                _tell_failures(record, tell)
            tell(f"up to seed {position}: {_counts(records)}")
            wide = wide if x64 is not None else not wide
    return records


def _work(
    suite: str, x64: bool, first: int, count: int, known: Counter[str], end: float | None
) -> Iterator[dict[str, Any]]:
    """The records of some seeds; when the process dies or hangs, a new one goes on behind it."""
    last = first + count
    while first < last and (end is None or time.monotonic() < end):
        begun = None
        for message in _messages(suite, x64, first, last - first, known, end):
            if "begin" in message:
                begun = message["begin"]
            elif "outcomes" in message:
                yield message
                first, begun = message["seed"] + 1, None
            elif "died" in message and begun is not None:
                outcome = {"check": "process", "kind": message["died"], "reason": message["reason"]}
                yield {"seed": begun, "x64": x64, "seconds": 0, "outcomes": [outcome]}
                first = begun + 1
            elif "died" in message:
                raise RuntimeError(f"a worker did not start: {message['reason']}")


def _messages(
    suite: str, x64: bool, first: int, count: int, known: Counter[str], end: float | None
) -> Iterator[dict[str, Any]]:
    """Yield what a worker says; at its end `died` where it did not come to its own."""
    reader, writer = os.pipe()
    module = [sys.executable, "-m", "tests.fuzzing.programs.worker", SUITES[suite]]
    stopped = ""
    with tempfile.TemporaryFile() as noise, tempfile.TemporaryFile() as given:
        given.write(json.dumps(known).encode())
        given.seek(0)
        process = subprocess.Popen(
            [*module, str(int(x64)), str(first), str(count), str(writer)],
            cwd=ROOT,
            stdin=given,
            stdout=subprocess.DEVNULL,
            stderr=noise,
            pass_fds=[writer],
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )
        os.close(writer)
        try:
            for message in _lines(reader, process.pid):
                yield message
                if end is not None and time.monotonic() > end:
                    stopped = "ended"
                    break
        except TimeoutError:
            stopped = "hung"
        finally:
            os.close(reader)
            if stopped or sys.exc_info()[0] is not None:
                process.kill()
            code = process.wait()
        noise.seek(0)
        reason = f"exit status {code}: {noise.read().decode(errors='replace')[-1500:]}"
    if stopped != "ended" and (stopped or code):
        yield {"died": stopped or "killed", "reason": reason}


def _lines(reader: int, pid: int) -> Iterator[dict[str, Any]]:
    """Yield what comes through a pipe from a process.

    Raises:
        TimeoutError: nothing came for too long.
    """
    text, start, used = "", time.monotonic(), 0.0
    while True:
        ready, _, _ = select.select([reader], [], [], _POLLED)
        if not ready:
            waited = time.monotonic() - start
            if _cpu_seconds(pid) - used > LIMIT or waited > LIMIT * _IDLE_LIMITS:
                raise TimeoutError
            continue
        data = os.read(reader, 1 << 16).decode()
        if not data:
            return
        *lines, text = (text + data).split("\n")
        yield from map(json.loads, lines)
        start, used = time.monotonic(), _cpu_seconds(pid)


def _cpu_seconds(pid: int) -> float:
    """Return what a process has used, https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _tell_failures(record: dict[str, Any], tell: Callable[[str], None]) -> None:
    for outcome in record["outcomes"]:
        if outcome["kind"] in FAILURES:
            tell(f"seed {record['seed']} x64 {record['x64']}: {outcome['kind']} "
                 f"{outcome['check']}: {outcome.get('reason', '')[:300]}")  # fmt: skip
    for finding in record.get("findings", ()):
        tell(f"reduced:\n{finding['reduced']}\n{finding['reason'][:400]}")


def read(file: Path) -> list[dict[str, Any]]:
    """The records of a file; none if there is no file."""
    if not file.exists():
        return []
    found = []
    for line in file.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:  # the last line of a run that was ended
            continue
    return found


def _counts(records: list[dict[str, Any]]) -> str:
    kinds = Counter(o["kind"] for record in records for o in record["outcomes"])
    arrays = sum(o.get("comparisons", 0) for record in records for o in record["outcomes"])
    ends = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common())
    return f"{len(records)} programs: {ends}" + (f"; {arrays} comparisons" if arrays else "")


def summary(records: list[dict[str, Any]]) -> str:
    """Return how many programs and checks ended in what, refusals by reason, and the failures."""
    lines = [_counts(records)]
    outcomes = [(record, o) for record in records for o in record["outcomes"]]
    checks = Counter((o["check"], o["kind"]) for _, o in outcomes)
    lines += [f"  {check:10} {kind:12} {n}" for (check, kind), n in sorted(checks.items())]
    compared = sum(o.get("compared", 0) for _, o in outcomes)
    skipped = sum(o.get("skipped", 0) for _, o in outcomes)
    seconds = sum(record.get("cpu", record["seconds"]) for record in records)
    lines.append(f"elements compared {compared}, unstable ones skipped {skipped}; {seconds:.0f} s")
    for kind in ("refused", "inapplicable"):
        reasons = Counter(
            f"{o['check']}: {_first_words(o.get('reason', ''))}"
            for _, o in outcomes
            if o["kind"] == kind
        )
        lines.append(f"{kind} by reason:")
        lines += [f"  {n:5} {reason}" for reason, n in reasons.most_common()]
    lines.append("failures:")
    for record, o in outcomes:
        if o["kind"] in FAILURES:
            lines.append(f"  seed {record['seed']} x64 {record['x64']} {o['kind']} {o['check']}: "
                         f"{o.get('reason', '')[:200]}")  # fmt: skip
    return "\n".join(lines)


def _first_words(reason: str) -> str:
    """A reason without what differs from program to program."""
    words = [
        word for word in reason.split() if not any(c.isdigit() or c in "[]{}<>()" for c in word)
    ]
    return " ".join(words[:14])
