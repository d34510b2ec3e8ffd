"""`python -m tests [ARGUMENT ...]`: all tests, with arguments of pytest, in five rounds.

TensorFlow keeps every program that its XLA compiler has made until the process ends, and JAX much
of what it has traced. Each round has new processes, so that none of them grows beyond 3 GB. A round
begins when one worker alone of the former still runs.

All but the last compile thousands of small programs once each, so LLVM does not optimize in them.
It does in the last, whose pages and examples show what a user gets, in `make matrix`, and in a call
of pytest.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.rounds import run_rounds
from tests.xla_flags import UNOPTIMIZED, VARIABLE, with_xla_flags

_TESTS = Path(__file__).parent
BRIDGE = "tests/bridge"
# The tests of its rooms; the files beside these folders test the verbs.
_FOLDERS = (path.parent.name for path in _TESTS.glob("bridge/*/__init__.py"))
ROOMS = tuple(f"{BRIDGE}/{name}" for name in sorted(_FOLDERS))
# What compares no bits of NaNs that TensorFlow computes.
SMALL = tuple(
    f"tests/{name}"
    for name in (
        "device",
        "distributed",
        "distribution",
        "golden",
        "matrix",
        "savedmodel",
        "xla_call_module",
    )
)
VERBS = "tests/verbs"
# The table of cases compares NaNs, also those of TensorFlow.
OPERATIONS = "tests/operations"
_UNOPTIMIZED = {"XLA_FLAGS": with_xla_flags(UNOPTIMIZED)}
# What pytest is told, and what is in its environment.
ROUNDS: tuple[tuple[tuple[str, ...], dict[str, str]], ...] = (
    ((BRIDGE, *(f"--ignore={place}" for place in ROOMS)), _UNOPTIMIZED),
    ((*ROOMS, OPERATIONS), _UNOPTIMIZED),
    (SMALL, {**_UNOPTIMIZED, VARIABLE: "1"}),
    ((VERBS,), {**_UNOPTIMIZED, VARIABLE: "1"}),
    (("tests", *(f"--ignore={place}" for place in (BRIDGE, OPERATIONS, *SMALL, VERBS))), {}),
)


def main(arguments: list[str]) -> int:
    """Run the rounds; the status is that of the first one that fails."""
    return run([((), {})] if names_places(arguments) else ROUNDS, arguments)


def names_places(arguments: Sequence[str]) -> bool:
    """Return whether some arguments are files or folders: who names them wants those alone."""
    return any(Path(argument.partition("::")[0]).exists() for argument in arguments)


def run(
    rounds: Sequence[tuple[Sequence[str], Mapping[str, str]]],
    arguments: list[str],
    *,
    may_be_empty: bool = True,
) -> int:
    """Run rounds, each of some places, with arguments of pytest and variables of the environment.

    The status is that of the first one that fails.

    Args:
        rounds: the places of each, and what is in its environment.
        arguments: what pytest is told besides.
        may_be_empty: whether a round without tests, as of a file that is gone, is no failure.
    """
    command = [sys.executable, "-m", "pytest", *arguments]
    if sys.stdout.isatty():
        command.append("--color=yes")
    statuses = run_rounds([([*command, *places], variables) for places, variables in rounds])
    kilobytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(f"The largest process held {kilobytes / 1e6:.1f} GB.")
    empty = int(pytest.ExitCode.NO_TESTS_COLLECTED)
    if set(statuses) == {empty} or (empty in statuses and not may_be_empty):
        return empty
    return next((status for status in statuses if status not in (0, empty)), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
