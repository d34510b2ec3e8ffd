"""The seconds of each test and the functions that it executes, as they were measured last.

`durations.json` has the tests that take long, for whoever reads it; `executed.xz` has every test.
"""

from __future__ import annotations

import functools
import json
import lzma
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
DURATIONS, EXECUTED = FOLDER / "durations.json", FOLDER / "executed.xz"
# What takes longer does not run in `make test`.
LIMIT = 0.15
# A fixture that several tests share and that takes less is not counted.
_SHORT = 0.2


@dataclass(frozen=True, slots=True)
class Measured:
    """One test, as it was measured.

    Attributes:
        seconds: of a processor, without the fixtures that it shares.
        functions: those that it executes, as `path:name`; `path:` where a process that it starts
            imports the file.
        fixtures: those that it shares, of which `Measurements` has the seconds.
    """

    seconds: float
    functions: frozenset[str]
    fixtures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Measurements:
    """All tests that were measured, by their names, and the seconds of what they share."""

    tests: Mapping[str, Measured]
    fixtures: Mapping[str, float]

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each test, with its part of what it shares."""
        users = Counter(name for test in self.tests.values() for name in test.fixtures)
        return {
            name: test.seconds + sum(self.fixtures[f] / users[f] for f in test.fixtures)
            for name, test in self.tests.items()
        }


def read_records(folder: Path) -> Measurements:
    """Return what a recorded run has measured.

    What a fixture that several tests share executes, each of them executes.
    """
    tests: dict[str, dict[str, Any]] = {}
    fixtures: dict[str, float] = defaultdict(float)
    shared: dict[str, set[str]] = defaultdict(set)
    executed: dict[str, set[str]] = defaultdict(set)
    seconds: dict[str, float] = defaultdict(float)
    for record in _records(folder):
        if "test" in record:
            tests[record["test"]] = record
        elif "fixture" in record:
            name = record["fixture"]
            fixtures[name] = max(fixtures[name], record["cpu"])
            shared[name].update(record["functions"])
        else:
            executed[record["child"]].update(record.get("functions", ()))
            seconds[record["child"]] += record.get("cpu", 0)
    long = {name: round(cpu, 2) for name, cpu in fixtures.items() if cpu > _SHORT}
    return Measurements(
        {
            name: Measured(
                round(record["cpu"] + seconds[name], 2),
                frozenset(executed[name].union(record["functions"], *(shared[f] for f in names))),
                tuple(f for f in names if f in long),
            )
            for name, record in tests.items()
            for names in [record["fixtures"]]
        },
        long,
    )


def _records(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            # The last line of a process that was killed may be a part of one.
            if line.endswith("}"):
                yield json.loads(line)


def merge(old: Measurements, new: Measurements) -> Measurements:
    """Return the new measurements, and the old ones of the tests that have none."""
    fixtures = {**old.fixtures, **new.fixtures}
    return Measurements({**old.tests, **new.tests}, fixtures)


def write(measurements: Measurements) -> None:
    """Write both files."""
    seconds = measurements.seconds()
    long = {name: round(seconds[name], 1) for name in sorted(seconds) if seconds[name] > LIMIT}
    DURATIONS.write_text(json.dumps(_by_file(long), indent=0) + "\n")
    sets = sorted({tuple(sorted(test.functions)) for test in measurements.tests.values()})
    functions = sorted({name for names in sets for name in names})
    place = {name: index for index, name in enumerate(functions)}
    number = {frozenset(names): index for index, names in enumerate(sets)}
    content = {
        "functions": functions,
        "fixtures": measurements.fixtures,
        "sets": [_steps(place[name] for name in names) for names in sets],
        "tests": _by_file(
            {
                name: [test.seconds, number[test.functions], *test.fixtures]
                for name, test in sorted(measurements.tests.items())
            }
        ),
    }
    text = json.dumps(content, separators=(",", ":"))
    EXECUTED.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def _steps(numbers: Iterable[int]) -> list[int]:
    """The differences of ascending numbers, which compress better."""
    return [after - before for before, after in pairwise([0, *numbers])]


def _by_file(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    files: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        file, _, test = name.partition("::")
        files.setdefault(file, {})[test] = value
    return files


def _flat(files: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {
        f"{file}::{test}": value for file, tests in files.items() for test, value in tests.items()
    }


@functools.cache
def _is_file(file: str) -> bool:
    return (FOLDER.parents[1] / file).is_file()


def is_there(name: str) -> bool:
    """Return whether there is the file of a test, without which pytest would run nothing at all."""
    return _is_file(name.partition("::")[0])


@functools.cache
def read() -> Measurements:
    """Return the measurements of the repository; there are none where it has no file of them."""
    if not EXECUTED.exists():
        return Measurements({}, {})
    content = json.loads(lzma.decompress(EXECUTED.read_bytes()))
    functions = content["functions"]
    sets = [frozenset(functions[i] for i in accumulate(steps)) for steps in content["sets"]]
    return Measurements(
        {
            name: Measured(seconds, sets[number], tuple(fixtures))
            for name, (seconds, number, *fixtures) in _flat(content["tests"]).items()
            if is_there(name)
        },
        content["fixtures"],
    )


def read_durations(text: str) -> dict[str, float]:
    """Return the seconds of the tests that take longer than the limit, from `durations.json`."""
    return _flat(json.loads(text))
