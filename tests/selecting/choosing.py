"""The tests that notice most a second, within seconds of a processor."""

from __future__ import annotations

import heapq
import math
import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from tests.selecting.measured import Measurements

# Beside its seconds a test takes some of pytest's; one that has not been measured takes so many.
_LEAST, _UNMEASURED = 0.03, 0.3
# A test beside the code compares what the code does, others what is made of it.
_MIRRORED = 4.0
# How fast it falls what one more test notices of the same function; and of what one more set of
# parameters notices, what is left.
_AGAIN, _ALIKE = 1.3, 0.8


def mirrors(test: str, path: str) -> bool:
    """Return whether a file of tests is that of a module: `tests/a/test_b_more.py` of `a/b.py`.

    The tests of a room as a whole, `tests/a/test_a.py`, are those of each of its modules.
    """
    file, module = Path(test.partition("::")[0]), Path(path)
    if file.parent != Path("tests", module.parent):
        return False
    subject = f"{file.stem.removeprefix('test_')}_"
    return subject.startswith((f"{module.stem.lstrip('_')}_", f"{module.parent.name}_"))


def choose(
    measured: Measurements,
    weights: Mapping[str, float],
    seconds: float,
    first: Collection[str] = (),
) -> list[str]:
    """Return the tests that notice most of a fault in one of the functions, the best ones first.

    A test notices less of a function the more others it executes, and the more have been chosen
    that execute it.

    Args:
        weights: how likely a fault is in each function, as `path:name`.
        seconds: of a processor, what the chosen tests and the fixtures that they share may take.
        first: the tests that are chosen in any case.
    """
    by_path = defaultdict(list)
    for function in weights:
        by_path[function.partition(":")[0]].append(function)
    files = {name.partition("::")[0] for name in measured.tests}
    mirrored = {
        file: {f for path, functions in by_path.items() if mirrors(file, path) for f in functions}
        for file in files
    }
    shared: dict[tuple[frozenset[str], str], dict[str, float]] = {}
    notices: dict[str, dict[str, float]] = {}
    for name, test in measured.tests.items():
        key = (test.functions, name.partition("::")[0])
        if key not in shared:
            narrow = 1 / math.sqrt(len(test.functions) or 1)
            near = mirrored[key[1]]
            shared[key] = {
                f: weights[f] * narrow * (_MIRRORED if f in near else 1)
                for f in test.functions & weights.keys()
            }
        notices[name] = shared[key]
    times, alike, paid = Counter[str](), Counter[str](), set[str]()

    def cost(name: str) -> float:
        test = measured.tests.get(name)
        if test is None:
            return _UNMEASURED
        shared = sum(measured.fixtures[f] for f in test.fixtures if f not in paid)
        return test.seconds + shared + _LEAST

    def worth(name: str) -> float:
        gain = sum(value / (1 + times[f]) ** _AGAIN for f, value in notices[name].items())
        return gain * _ALIKE ** alike[_function_of(name)] / cost(name)

    def take(name: str) -> None:
        nonlocal seconds
        chosen.append(name)
        seconds -= cost(name)
        times.update(notices.get(name, {}).keys())
        alike[_function_of(name)] += 1
        if name in measured.tests:
            paid.update(measured.tests[name].fixtures)

    chosen: list[str] = []
    for name in first:
        take(name)
    heap = [(-worth(name), name) for name in notices.keys() - {*chosen} if notices[name]]
    heapq.heapify(heap)
    while heap and seconds > _LEAST:
        name = heapq.heappop(heap)[1]
        now = worth(name)
        if heap and now < -heap[0][0]:
            heapq.heappush(heap, (-now, name))
        elif cost(name) <= seconds:
            take(name)
    return chosen


def _function_of(test: str) -> str:
    return test.partition("[")[0]


def in_parts(names: Iterable[str], count: int) -> list[list[str]]:
    """Return the tests in parts; those of a file are together.

    The name of a file alone decides. A part that followed from how long tests take would be another
    one after each measurement, and a test could miss its day time and again.
    """
    parts: list[list[str]] = [[] for _ in range(count)]
    for name in sorted(names):
        parts[zlib.crc32(name.partition("::")[0].encode()) % count].append(name)
    return parts
