"""The functions of the packages that a process executes, in a run that is recorded.

Processes that a test starts read this file as they begin, by a `.pth` file that `recording.py`
writes beside the packages of the environment; so it imports the standard library alone. They name
the test by the variable that pytest sets.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import time
from types import CodeType
from typing import Any

# The folder of the records.
VARIABLE = "TESTS_RECORDS"
PYTEST_VARIABLE = "PYTEST_CURRENT_TEST"
# The same of the test that has started a pytest, which sets the other one for its own tests.
OUTER_VARIABLE = "TESTS_RECORDED_TEST"
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

_PREFIXES = tuple(
    os.path.join(ROOT, name, "") for name in ("bridge", "savedmodel", "xla_call_module")
)
_TOOL = 4
_IN_FUNCTION = 1  # CO_OPTIMIZED, which the body of a module or a class has not


def function_name(code: CodeType) -> str:
    """The file and the outermost function or method of a piece of code.

    There is none in what runs when a module is imported.
    """
    name = code.co_qualname.partition(".<locals>")[0]
    in_function = code.co_flags & _IN_FUNCTION and not name.startswith("<")
    return f"{code.co_filename[len(ROOT) + 1 :]}:{name if in_function else ''}"


class Functions:
    """The functions of the packages that this process executes."""

    def __init__(self) -> None:
        self._seen: set[CodeType] = set()
        if sys.version_info >= (3, 12):
            monitoring = sys.monitoring
            monitoring.use_tool_id(_TOOL, "tests")
            monitoring.register_callback(_TOOL, monitoring.events.PY_START, self._start)
            monitoring.set_events(_TOOL, monitoring.events.PY_START)

    def _start(self, code: CodeType, _: int) -> Any:
        if not code.co_filename.startswith(_PREFIXES):
            return sys.monitoring.DISABLE
        self._see(code)
        return None

    def _see(self, code: CodeType) -> None:
        self._seen.add(code)

    def take(self) -> set[str]:
        """Return the names of what has been executed since the last call."""
        seen, self._seen = self._seen, set()
        return {name for name in map(function_name, seen) if not name.endswith(":")}


class _FunctionsOfChild(Functions):
    """The functions of a process that a test has started, each written when it is first seen."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._written: set[tuple[CodeType, str]] = set()
        self._begun = os.getpid()
        super().__init__()
        atexit.register(self._write_seconds)

    def _see(self, code: CodeType) -> None:
        test = _current_test()
        if (code, test) not in self._written:
            self._written.add((code, test))
            self._write({"child": test, "functions": [function_name(code)]})

    def _write_seconds(self) -> None:
        # The server of `tests/fork_server.py` waits for none of its processes.
        if os.getpid() != self._begun:
            self._write({"child": _current_test(), "cpu": round(time.process_time(), 3)})

    def _write(self, record: dict[str, Any]) -> None:
        path = os.path.join(self._folder, f"child-{os.getpid()}.jsonl")
        # A process that has become another user's may not write there.
        with contextlib.suppress(OSError), open(path, "a") as file:
            file.write(json.dumps(record) + "\n")


def _current_test() -> str:
    test = os.environ.get(OUTER_VARIABLE) or os.environ.get(PYTEST_VARIABLE, "")
    return test.rpartition(" (")[0]


def record_child() -> None:
    """Begin to record, in a process that a test has started; Python may call it twice."""
    if PYTEST_VARIABLE in os.environ and sys.monitoring.get_tool(_TOOL) is None:
        _FunctionsOfChild(os.environ[VARIABLE])
