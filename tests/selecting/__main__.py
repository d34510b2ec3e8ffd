"""`python -m tests.selecting COMMAND [ARGUMENT ...]`: some of the tests, with arguments of pytest.

- `quick`: what notices most in 75 seconds.
- `affected [--since COMMIT or FOLDER]`: what can see the difference, in three minutes.
- `test`: all tests that take no longer than the limit, and the sentinels.
- `part NUMBER`: a seventh of the others, that of a day when the number is that of the day.
- `measure`: everything, or what the arguments name, recorded into the files of `measured.py`.
- `moved`: says which tests have come over the limit, and runs none.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests.__main__ import ROUNDS, names_places, run
from tests.policy.source import ROOT
from tests.selecting import executed, measured
from tests.selecting.affected import affected_by, choose_affected
from tests.selecting.changes import changed_texts, earlier_state, text_before
from tests.selecting.choosing import choose, in_parts
from tests.selecting.measured import LIMIT, Measurements
from tests.selecting.selection import Selection, is_named
from tests.selecting.sentinels import SENTINELS

# Seconds of two processors, less what the start and the collection of two workers take.
QUICK_SECONDS, AFFECTED_SECONDS = 62.0, 260.0
DAYS = 7
_SHOWN = 10
_TOGETHER = "tests/quick"
_WORKERS = ("-n", "2", "--no-loadscope-reorder", "--dist")


def quick(arguments: list[str]) -> int:
    """Run the covering set."""
    measurements = measured.read()
    # A fault is as likely in each function that a test executes.
    functions = {f for test in measurements.tests.values() for f in test.functions if f[-1] != ":"}
    names = choose(measurements, dict.fromkeys(functions, 1.0), QUICK_SECONDS, _every_verb())
    return _run_some(names, arguments)


def _every_verb() -> list[str]:
    return [n for n in measured.read().tests if is_named(n, {_TOGETHER})] or [_TOGETHER]


def affected(arguments: list[str]) -> int:
    """Run what can see a difference."""
    since = ""
    if arguments[:1] == ["--since"]:
        since, arguments = arguments[1], arguments[2:]
    earlier = earlier_state(since)
    texts = changed_texts(earlier)
    found = affected_by(texts, measured.read())
    if not since:
        # What is in no commit is what is being worked on.
        found.prefer(affected_by(changed_texts("HEAD"), measured.read()))
    names, left_out = choose_affected(found, measured.read(), AFFECTED_SECONDS)
    print(f"{len(texts)} files differ from {earlier}: {', '.join(sorted(texts)[:5])}", flush=True)
    if not names:
        print("No test can see a difference.")
        return 0
    print(
        f"{len(names)} tests can see it, and {left_out} more for which there is no time.",
        flush=True,
    )
    return _run_some(names, arguments)


def slow() -> dict[str, float]:
    """Return the seconds of the tests that `test` leaves out."""
    durations = measured.read_durations(measured.DURATIONS.read_text())
    return {
        name: seconds
        for name, seconds in durations.items()
        if measured.is_there(name) and not is_named(name, SENTINELS)
    }


def test(arguments: list[str]) -> int:
    """Run what takes no longer than the limit, and the sentinels."""
    # Without what takes long, the third and the fourth hold little.
    top, rooms, (small, _), (verbs, variables), last = ROUNDS
    with _selected(Selection(without=frozenset(slow()))):
        return run(
            (top, rooms, ((*small, *verbs), variables), last), [*_WORKERS, "loadfile", *arguments]
        )


def part(arguments: list[str]) -> int:
    """Run the part of a day of what `test` leaves out."""
    number, *arguments = arguments
    names = in_parts(slow(), DAYS)[int(number) % DAYS]
    return _run_some(names, arguments, apart=True)


def _run_some(names: Sequence[str], arguments: list[str], *, apart: bool = False) -> int:
    """Run some tests, those that need LLVM's optimizer apart.

    Args:
        names: of tests, of functions of tests, of files and of folders.
        arguments: of pytest.
        apart: whether the rounds stay apart that differ in more; each takes a start.
    """
    unoptimized, optimized = ROUNDS[0][1], ROUNDS[-1][1]
    rounds: dict[str, tuple[list[str], dict[str, str]]] = {}
    for file in sorted({name.partition("::")[0] for name in names}):
        if not (ROOT / file).exists():
            continue
        variables = _variables_of(file)
        if file.startswith(_TOGETHER) or not (apart or variables == optimized):
            variables = unoptimized
        rounds.setdefault(str(variables), ([], variables))[0].append(file)
    with _selected(Selection(only=tuple(names))):
        options = [*_WORKERS, "worksteal", *arguments]
        return run([*rounds.values()], options, may_be_empty=bool(arguments))


def _variables_of(file: str) -> dict[str, str]:
    """Return what is in the environment of the round of a file or folder."""
    for places, variables in ROUNDS:
        ignored = [p.partition("=")[2] for p in places if p.startswith("--ignore=")]
        if _is_below(file, places) and not _is_below(file, ignored):
            return variables
    return ROUNDS[-1][1]


def _is_below(file: str, places: Iterable[str]) -> bool:
    return any(f"{file}/".startswith(f"{place}/") for place in places)


@contextlib.contextmanager
def _selected(selection: Selection) -> Iterator[None]:
    """Have the processes that are started inside run some tests."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "selection.json")
        selection.write(path)
        os.environ[Selection.VARIABLE] = str(path)
        try:
            yield
        finally:
            del os.environ[Selection.VARIABLE]


def measure(arguments: list[str]) -> int:
    """Run and record, also in the processes that the tests start."""
    file = Path(executed.__file__)
    program = (
        f"p = {str(file)!r}; g = {{'__name__': 'tests_executed', '__file__': p}}; "
        f"exec(compile(__import__('pathlib').Path(p).read_text(), p, 'exec'), g); "
        "g['record_child']()"
    )
    hook = Path(sysconfig.get_path("purelib"), "tests_recording.pth")
    with tempfile.TemporaryDirectory() as folder:
        hook.write_text(f'import os; "{executed.VARIABLE}" in os.environ and exec({program!r})\n')
        try:
            environment = {**os.environ, executed.VARIABLE: folder}
            command = [sys.executable, "-m", "tests", *arguments]
            status = subprocess.run(command, env=environment, check=False).returncode
        finally:
            hook.unlink()
        record(folder, complete=not names_places(arguments))
    return status


def record(folder: str, *, complete: bool) -> None:
    """Write what a run has recorded; the rest stays as it is where the run is not complete."""
    new = measured.read_records(Path(folder))
    old = Measurements({}, {}) if complete else measured.read()
    measured.write(measured.merge(old, new))


def moved(arguments: list[str]) -> int:
    """Say what has come over the limit since the earlier state."""
    print("\n".join(_moved(text_before(str(measured.DURATIONS.relative_to(ROOT))))))
    return 0


def _moved(before: str) -> Iterator[str]:
    now = slow()
    yield f"{len(now)} tests of more than {LIMIT} s run in `make test-all` alone."
    old = measured.read_durations(before) if before else now
    new = sorted(now.keys() - old.keys())
    if len(new) > _SHOWN:
        yield f"{len(new)} of them have moved there, such as these:"
    for name in new[:_SHOWN]:
        yield f"moved to `make test-all`: {name} takes {now[name]} s"


_COMMANDS = {
    "quick": quick,
    "affected": affected,
    "test": test,
    "part": part,
    "measure": measure,
    "moved": moved,
}

if __name__ == "__main__":
    if sys.argv[1:2] == [] or sys.argv[1] not in _COMMANDS:
        sys.exit(__doc__)
    sys.exit(_COMMANDS[sys.argv[1]](sys.argv[2:]))
