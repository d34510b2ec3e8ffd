"""The faults on purpose are there to be applied, and each is seen where it cannot be."""

from __future__ import annotations

import dataclasses
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.mutants.__main__ import run_tests, try_fault
from tests.mutants.copying import copied_tree
from tests.mutants.faults import Fault, flaws, read_faults, rooms_without
from tests.policy.source import PACKAGES, ROOT, write_tree

FAULT = Fault("bridge", "a-fault", "bridge/a.py", "x < 1", "x <= 1")


@pytest.fixture
def tree(tmp_path):
    write_tree(tmp_path, {"bridge/a.py": "y = x < 1\n"})
    return tmp_path


def test_each_fault_can_be_applied_and_each_room_has_one():
    faults = read_faults()
    assert flaws(faults, ROOT) == []
    assert rooms_without(faults, ROOT) == []


@pytest.mark.parametrize(
    ("changed", "flaw"),
    [
        ({"text": "x > 1"}, "a-fault: its text is in bridge/a.py 0 times, and not once"),
        ({"text": " "}, "a-fault: its text is in bridge/a.py 4 times, and not once"),
        ({"file": "bridge/b.py"}, "a-fault: its text is in bridge/b.py 0 times, and not once"),
        ({"replacement": "x < 1"}, "a-fault: it changes nothing"),
    ],
)
def test_a_fault_that_cannot_be_applied_is_found(tree, changed, flaw):
    assert flaws([FAULT], tree) == []
    assert flaws([dataclasses.replace(FAULT, **changed)], tree) == [flaw]


def test_a_room_without_a_fault_is_found(tree):
    assert rooms_without([FAULT], tree) == []
    assert rooms_without([dataclasses.replace(FAULT, room="savedmodel")], tree) == ["bridge"]


def test_a_name_of_two_faults_is_found(tree):
    assert flaws([FAULT, FAULT], tree) == ["a-fault is the name of 2 faults"]


@pytest.mark.parametrize(
    ("command", "status", "test"),
    [
        ("grep -q 'x < 1' bridge/a.py || echo FAILED a.py::test", "killed", "a.py::test"),
        ("echo 1 passed", "survived", ""),
        ("exit 1", "broken", ""),
        ("sleep 60", "too long", ""),
    ],
)
def test_what_the_tests_say(tree, command, status, test):
    before = (tree / "bridge/a.py").stat().st_mtime_ns
    outcome = try_fault(FAULT, tree, command, limit=0.5)
    assert (outcome.status, outcome.test) == (status, test)
    assert (tree / "bridge/a.py").read_text() == "y = x < 1\n"
    assert (tree / "bridge/a.py").stat().st_mtime_ns == before


def test_programs_in_a_copy_import_the_copy():
    names = (*PACKAGES, "tests", "pytest")
    program = (
        "import importlib.util, os, sys; print(os.path.dirname(os.path.dirname(sys.executable)), "
        f"*(importlib.util.find_spec(name).origin for name in {names}))"
    )
    with copied_tree() as tree:
        places = run_tests(f'.venv/bin/python -c "{program}"', tree, limit=60).output.split()
        packages = Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
        assert places == [
            str(tree / ".venv"),
            *(str(tree / name / "__init__.py") for name in names[:-1]),
            str(tree / ".venv" / packages / "pytest/__init__.py"),
        ]
        command_line = (tree / ".venv/bin/jax-tf-bridge").read_text()
        assert f"{tree}/.venv/bin/python" in command_line
        assert command_line.count(str(ROOT)) == command_line.count(str(tree))
        # Without the folder of the tree on the path, as a program of another folder has it.
        command = f'cd / && {tree}/.venv/bin/python -P -c "{program.replace("tests", "bridge")}"'
        assert run_tests(command, tree, limit=60).output.split()[:4] == places[:4]
    assert not tree.exists()
