"""The recording of a run: the processor time of each test, and the functions that it executes.

Each process adds a file of lines of JSON to the folder of the records, a line as soon as a test
ends, so that a run that is stopped is of use. What a fixture of a file or of the session costs and
executes is a record apart, which each test that uses it names.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.selecting.executed import Functions

_TICKS = os.sysconf("SC_CLK_TCK")


def _processor_seconds() -> float:
    """The seconds of this process and of the processes that it has started."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) + _seconds_of_running()


def _seconds_of_running() -> float:
    """The seconds of the processes that this one has started and that have not ended."""
    seconds = 0.0
    for path in Path("/proc/self/task").glob("*/children"):
        for child in path.read_text().split():
            try:
                stat = Path("/proc", child, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            seconds += sum(map(int, stat[11:15])) / _TICKS
    return seconds


class _Part:
    """A test, or a fixture that several share, without the fixtures within."""

    def __init__(self) -> None:
        self.cpu = self.wall = 0.0
        self.functions: set[str] = set()


class Recorder:
    """The plugin of pytest that records.

    Args:
        folder: the folder of the records.
    """

    def __init__(self, folder: str) -> None:
        self._file = Path(folder, f"tests-{os.getpid()}.jsonl")
        self._functions = Functions()
        self._parts: list[_Part] = []
        self._last = (0.0, 0.0)
        self._modules = 0
        self._caches: list[Any] = []

    def _account(self) -> None:
        """Give what has happened since the last call to the innermost part."""
        now = (_processor_seconds(), time.perf_counter())
        functions = self._functions.take()
        if self._parts:
            part = self._parts[-1]
            part.cpu += now[0] - self._last[0]
            part.wall += now[1] - self._last[1]
            part.functions |= functions
        self._last = now

    def _begin(self) -> None:
        self._account()
        self._parts.append(_Part())

    def _end(self, record: dict[str, Any]) -> None:
        self._account()
        part = self._parts.pop()
        record |= {"cpu": round(part.cpu, 3), "wall": round(part.wall, 3)}
        with self._file.open("a") as file:
            file.write(json.dumps(record | {"functions": sorted(part.functions)}) + "\n")

    def _clear_caches(self) -> None:
        """Have each test execute what one before it has cached in the packages."""
        if len(sys.modules) != self._modules:
            self._modules = len(sys.modules)
            names = ("bridge", "savedmodel", "xla_call_module")
            modules = [module for name, module in sys.modules.items() if name.startswith(names)]
            values = [value for module in modules for value in list(vars(module).values())]
            self._caches = [value for value in values if hasattr(type(value), "cache_clear")]
        for cache in self._caches:
            cache.cache_clear()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Any:
        self._clear_caches()
        self._begin()
        result = yield
        indices = item.callspec.indices if hasattr(item, "callspec") else {}
        shared = {
            _name(definition, indices.get(name, 0))
            for name, definitions in item._fixtureinfo.name2fixturedefs.items()
            for definition in definitions
            if definition.scope != "function"
        }
        self._end({"test": item.nodeid, "fixtures": sorted(shared)})
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Any:
        if fixturedef.scope == "function":
            return (yield)
        self._begin()
        try:
            return (yield)
        finally:
            self._end({"fixture": _name(fixturedef, request.param_index)})


def _name(definition: Any, index: int) -> str:
    return f"{definition.baseid}::{definition.argname}[{index}]"
