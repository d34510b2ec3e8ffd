"""The search for what grows faster than the size of its work, by counting and not by a clock.

Where nothing can be counted, bounds of seconds are those of a processor as slow as the one here.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_ROOT = Path(__file__).parent.parent
_PACKAGES = tuple(f"{_ROOT / name}/" for name in ("bridge", "savedmodel", "xla_call_module"))
# A function whose third part takes this much longer than its second grows faster than its work.
_TOLERATED = 1.15
# What a million additions take where the bounds of tests are chosen.
_USUAL_SECONDS = 0.03


def seconds_here(seconds: float) -> float:
    """Return a bound of seconds of a processor, larger where that is old, shared or traced."""
    start, total = time.thread_time(), 0
    for number in range(1_000_000):
        total += number
    return seconds * max(1.0, (time.thread_time() - start) / _USUAL_SECONDS)


class _Count:
    """The count of the lines of each function of the project that run, and of their calls of C."""

    def __init__(self) -> None:
        self.steps: Counter[CodeType] = Counter()

    def __enter__(self) -> _Count:
        self._before = sys.gettrace(), sys.getprofile()
        sys.settrace(self._enter)
        sys.setprofile(self._call)
        return self

    def __exit__(self, *raised: object) -> None:
        sys.settrace(self._before[0])
        sys.setprofile(self._before[1])

    def _enter(self, frame: FrameType, event: str, _: object) -> Any:
        return self._line if frame.f_code.co_filename.startswith(_PACKAGES) else None

    def _line(self, frame: FrameType, event: str, _: object) -> Any:
        self.steps[frame.f_code] += event == "line"
        return self._line

    def _call(self, frame: FrameType, event: str, _: object) -> None:
        if event == "c_call" and frame.f_code.co_filename.startswith(_PACKAGES):
            self.steps[frame.f_code] += 1


def times_called(function: Callable[..., object], action: Callable[[], object]) -> int:
    """Return how often an action calls a Python function."""
    times, before = 0, sys.getprofile()

    def called(frame: FrameType, event: str, _: object) -> None:
        nonlocal times
        times += event == "call" and frame.f_code is function.__code__

    sys.setprofile(called)
    try:
        action()
    finally:
        sys.setprofile(before)
    return times


def superlinear(make: Callable[[int], Callable[[], object]], *, size: int) -> list[str]:
    """The functions of the project whose steps grow faster than the size, with their steps.

    Args:
        make: prepares what is counted, for a size.
        size: the first size; the others are twice and three times as large.
    """
    make(size * 3)()  # what is kept from one time to the next is not counted
    counts = []
    for times in (1, 2, 3):
        action = make(size * times)
        with _Count() as count:
            action()
        counts.append(count.steps)
    found = []
    for code in counts[-1]:
        once, twice, thrice = (steps[code] for steps in counts)
        # What a small one does not do at all begins at some size.
        if once and thrice - twice > _TOLERATED * (twice - once) + 4 * size + 50:
            place = f"{Path(code.co_filename).relative_to(_ROOT)}:{code.co_firstlineno}"
            found.append(f"{place} {code.co_name}: {once}, {twice}, {thrice}")
    return sorted(found)
