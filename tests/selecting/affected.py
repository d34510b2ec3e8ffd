"""The tests that can see what differs from an earlier state of the tree."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.policy.source import PACKAGES, ROOT, module_name
from tests.selecting.changes import changed_parts, parts, reached, source_paths
from tests.selecting.choosing import choose, mirrors
from tests.selecting.measured import Measurements
from tests.selecting.selection import is_named

# Of a function that differs, and of one that is beside it in the file.
_DIFFERS, _BESIDE, _PREFERRED = 1.0, 0.02, 10.0
# The files of tests that are found by imports, where there are no measurements.
_MOST_FILES = 6
_IMPORT = re.compile(r"^ *(?:from|import) ([\w.]+)(?: import (\([^)]*\)|.*))?", re.MULTILINE)
_QUICK, _POLICY = "tests/quick", "tests/policy"


@dataclass(slots=True)
class Affected:
    """Functions and tests.

    Attributes:
        functions: how much of the change is in each function of the packages.
        tests: what is run in any case, by name: a test, a function of tests, a file.
    """

    functions: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    tests: set[str] = field(default_factory=set)

    def prefer(self, part: Affected) -> None:
        """Let the functions of a part of the change count more than the others."""
        for function, weight in part.functions.items():
            self.functions[function] = _PREFERRED * weight


def affected_by(texts: Mapping[str, tuple[str, str]], measured: Measurements) -> Affected:
    """Return what can see the difference between two texts of each file."""
    found = Affected()
    executed = {f for test in measured.tests.values() for f in test.functions}
    for path, (before, after) in texts.items():
        folder, *_, file = Path(path).parts if "/" in path else ("", path)
        is_python = path.endswith(".py")
        if is_python and folder in PACKAGES:
            changed = changed_parts(before, after)
            if not changed:
                continue
            for function in reached(path, changed):
                found.functions[function] = _DIFFERS
            places = [f"{path}:"]
            if not executed & found.functions.keys():
                # A process that several tests share executes it, or none does.
                found.tests.update(_beside(path))
                places.append(f"{Path(path).parents[-3 if path.count('/') > 1 else 0]}/")
            found.tests.update(_importing(path, measured))
            for function in executed:
                if function.startswith(tuple(places)):
                    found.functions[function] = max(found.functions[function], _BESIDE)
            found.tests.update(_unmeasured(path, measured))
        elif is_python and file.startswith("test_"):
            found.tests.update(_of_tests(path, changed_parts(before, after), after))
        else:
            found.tests.update(_of_other(path, measured))
    return found


def _beside(path: str) -> Iterator[str]:
    """Yield the files of tests of a module, and of its room where it has none."""
    files = list(_test_files())
    yield from [f for f in files if mirrors(f, path)] or [
        f for f in files if Path(f).parent == Path("tests", path).parent
    ]


def _importing(path: str, measured: Measurements) -> Iterator[str]:
    """Yield the nearest files of tests of what imports a module, of those without measurements."""
    measured_files = {name.partition("::")[0] for name in measured.tests}
    files = [file for file in _test_files() if file not in measured_files]
    if not files:
        return
    imported = {str(p.relative_to(ROOT)): _imported(p.read_text()) for p in source_paths()}
    near, seen, found = [path], set[str](), list[str]()
    while near and len(found) < _MOST_FILES:
        seen.update(near)
        found += [f for f in files if f not in found and any(mirrors(f, p) for p in near)]
        names = {module_name(Path(p)) for p in near}
        near = sorted({p for p, used in imported.items() if not used.isdisjoint(names)} - seen)
    yield from found[:_MOST_FILES]


def _imported(text: str) -> set[str]:
    """Return the modules that a module imports, and the names in them."""
    found = _IMPORT.findall(text)
    return {m for m, _ in found} | {f"{m}.{n}" for m, ns in found for n in re.findall(r"\w+", ns)}


def _test_files() -> Iterator[str]:
    return (str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("tests/**/test_*.py")))


def _unmeasured(path: str, measured: Measurements) -> Iterator[str]:
    """Yield the functions of the tests of a module that have not been measured."""
    names = {name.partition("[")[0] for name in measured.tests}
    for file in _test_files():
        if mirrors(file, path):
            yield from (
                f"{file}::{name}" for name in _tests_in(file) if f"{file}::{name}" not in names
            )


def _tests_in(file: str) -> list[str]:
    names = (name.split(".") for name in parts((ROOT / file).read_text()))
    return ["::".join(name) for name in names if name[-1].startswith("test_")]


def _of_tests(path: str, changed: set[str], after: str) -> Iterator[str]:
    """Yield the tests that differ, and the file where something else does."""
    if not after or not changed:
        return
    if all(name.rpartition(".")[2].startswith("test_") for name in changed):
        yield from (f"{path}::{name.replace('.', '::')}" for name in changed)
    else:
        yield path


def _of_other(path: str, measured: Measurements) -> Iterator[str]:
    """Yield the tests that a file is about that is no module of the packages and no test."""
    folder, *rest = Path(path).parts
    if folder == "tests" and path.endswith(".py"):
        yield from _importers(path)
    elif folder == "tests" and len(rest) > 1:
        yield f"tests/{rest[0]}"
    elif folder in ("docs", "examples"):
        stem = Path(path).stem
        places = (f"tests/{folder}/", f"{_POLICY}/test_docs")
        yield from (name for name in measured.tests if stem in name and name.startswith(places))
    else:
        yield from (_POLICY, _QUICK)


def _importers(path: str) -> Iterator[str]:
    """Yield the files of tests that import a module of `tests/`, by others of them, too."""
    texts = {str(p.relative_to(ROOT)): p.read_text() for p in sorted(ROOT.glob("tests/**/*.py"))}
    todo, seen = [path], {path}
    while todo:
        name = re.escape(todo.pop().removesuffix(".py").removesuffix("/__init__").replace("/", "."))
        package, _, module = name.rpartition(r"\.")
        pattern = re.compile(rf"\b{name}\b|from {package} import .*\b{module}\b")
        for file, text in texts.items():
            if file not in seen and pattern.search(text):
                seen.add(file)
                todo.append(file)
    yield from (file for file in sorted(seen) if Path(file).name.startswith("test_"))


def choose_affected(
    affected: Affected, measured: Measurements, seconds: float
) -> tuple[list[str], int]:
    """Return the tests that run, and how many more could see the difference but take too long."""
    chosen = choose(measured, affected.functions, seconds, sorted(affected.tests))
    differ = {f for f, weight in affected.functions.items() if weight >= _DIFFERS}
    able = {name for name, test in measured.tests.items() if test.functions & differ}
    run = {*chosen}
    return chosen, sum(not is_named(name, run) for name in able)
