"""`python -m tests.mutants [NAME ...]`: apply faults, and report which ones no test notices.

A name is a part of a fault's name or of its path; without one it is all of them. The status is 1
where a fault is not noticed.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.copying import copied_tree
from tests.mutants.faults import Fault, flaws, read_faults
from tests.policy.source import ROOT

# Compared with the original, all that differs is the fault.
_COMMAND = f"make affected SINCE={shlex.quote(str(ROOT))}"
_FAILURE = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_TAIL = 2000
# What would have the programs of the copy's environment import something else.
_ELSEWHERE = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer of the tests of a tree.

    Attributes:
        status: `killed`, `survived`, `too long`, or `broken` where no test is said to have failed.
        seconds: how long they took.
        test: the first one that failed.
        output: the end of what was printed.
    """

    status: str
    seconds: float
    test: str
    output: str


def run_tests(command: str, tree: Path, limit: float) -> Outcome:
    """Run a command of a shell in a tree, and end it with all its processes after some seconds."""
    environment = {name: text for name, text in os.environ.items() if name not in _ELSEWHERE}
    start = time.monotonic()
    with subprocess.Popen(
        command, shell=True, cwd=tree, env=environment, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        try:
            output, _ = process.communicate(timeout=limit)
            late = False
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            late = True
    failure = _FAILURE.search(output)
    if failure:
        status = "killed"
    elif late:
        status = "too long"
    else:
        status = "broken" if process.returncode else "survived"
    test = failure[1] if failure else ""
    return Outcome(status, time.monotonic() - start, test, output[-_TAIL:])


def try_fault(fault: Fault, tree: Path, command: str, limit: float) -> Outcome:
    """Apply a fault to a tree, run the tests, and undo it."""
    path = tree / fault.file
    before, status = path.read_bytes(), path.stat()
    fault.apply(tree)
    try:
        return run_tests(command, tree, limit)
    finally:
        path.write_bytes(before)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def main(arguments: Sequence[str]) -> int:
    """Try the faults that are named, and print a line for each of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="a part of a fault's name or of its path")
    parser.add_argument("--seconds", type=float, default=300, help="how long each may take")
    parser.add_argument("--command", default=_COMMAND, help=f"what runs; by default {_COMMAND}")
    parser.add_argument("--list", action="store_true", help="print the faults, and try none")
    options = parser.parse_args(arguments)
    faults = read_faults()
    if found := flaws(faults, ROOT):
        sys.exit("\n".join(found))
    chosen = [
        fault
        for fault in faults
        if not options.names or any(n in fault.name or n in fault.file for n in options.names)
    ]
    if not chosen:
        sys.exit(f"No fault has {' or '.join(options.names)} in its name or its path.")
    width = max(len(fault.name) for fault in chosen)
    if options.list:
        print("\n".join(f"{fault.name:{width}} {fault.file}" for fault in chosen))
        return 0
    counts: dict[str, int] = {}
    with copied_tree() as tree:
        if (sound := run_tests(options.command, tree, options.seconds)).status != "survived":
            sys.exit(f"{sound.output}\nWithout a fault the command is {sound.status}.")
        for fault in chosen:
            outcome = try_fault(fault, tree, options.command, options.seconds)
            counts[outcome.status] = counts.get(outcome.status, 0) + 1
            place = outcome.test or fault.file
            line = f"{fault.name:{width}} {outcome.status:8} {outcome.seconds:6.1f} s {place}"
            print(line, flush=True)
            if outcome.status == "broken":
                print(outcome.output, file=sys.stderr)
    print(", ".join(f"{count} {status}" for status, count in sorted(counts.items())))
    return int(counts.keys() != {"killed"})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
