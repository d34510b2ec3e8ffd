"""The tests that a run of pytest is told to run, and no others."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar


def is_named(test: str, names: Iterable[str]) -> bool:
    """Return whether a test is one of these, or of one of these functions, files or folders."""
    function = test.partition("[")[0]
    file = Path(function.partition("::")[0])
    return not {test, function, str(file), *map(str, file.parents)}.isdisjoint(names)


@dataclass(frozen=True, slots=True)
class Selection:
    """Names of tests, of functions of tests, of files and of folders.

    Attributes:
        only: what alone is run, the files of the first ones first; None for everything.
        without: what is not run.
    """

    VARIABLE: ClassVar[str] = "TESTS_SELECTION"

    only: tuple[str, ...] | None = None
    without: frozenset[str] = frozenset()

    def write(self, path: Path) -> None:
        """Write it to a file, which the variable names in the processes that are to read it."""
        path.write_text(json.dumps([self.only, sorted(self.without)]))

    @classmethod
    def take(cls) -> Selection:
        """Return the selection that this process is told, which a pytest in a test is not."""
        path = os.environ.pop(cls.VARIABLE, None)
        if path is None:
            return cls()
        only, without = json.loads(Path(path).read_text())
        return cls(None if only is None else tuple(only), frozenset(without))

    def of(self, tests: Iterable[str]) -> list[str]:
        """Return those of the tests that are run, in the order of their files."""
        only = set(self.only or ())
        tests = [test for test in tests if not is_named(test, self.without)]
        if self.only is None:
            return tests
        files = dict.fromkeys(name.partition("::")[0] for name in self.only)
        places = {file: place for place, file in enumerate(files)}
        wanted = [test for test in tests if is_named(test, only)]
        return sorted(wanted, key=lambda test: places.get(test.partition("::")[0], -1))
