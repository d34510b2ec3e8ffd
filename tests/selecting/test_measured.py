"""What a run records, and the files of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.policy.source import ROOT
from tests.selecting import executed, measured
from tests.selecting.measured import Measured, read_records

TEST = "tests/bridge/test_save.py::test_a"


def _write(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture
def records(tmp_path):
    """Of two tests that share a fixture and start a process; a process was killed as it wrote."""
    fixture = {
        "fixture": "tests::model[0]",
        "cpu": 3.0,
        "wall": 4.0,
        "functions": ["bridge/a.py:f"],
    }
    test = {
        "test": TEST,
        "fixtures": ["tests::model[0]"],
        "cpu": 1.0,
        "functions": ["bridge/a.py:g"],
    }
    other = {**test, "test": f"{TEST}[1]", "functions": []}
    _write(tmp_path / "tests-1.jsonl", fixture, test, other)
    child = {"child": TEST, "functions": ["bridge/b.py:h"]}
    _write(tmp_path / "child-2.jsonl", child, {"child": TEST, "cpu": 0.5})
    with (tmp_path / "child-2.jsonl").open("a") as file:
        file.write('{"child": "tes')
    return read_records(tmp_path)


def test_what_is_recorded(records):
    functions = frozenset(f"bridge/{f}" for f in ("a.py:f", "a.py:g", "b.py:h"))
    assert records.tests[TEST] == Measured(1.5, functions, ("tests::model[0]",))
    assert records.tests[f"{TEST}[1]"].functions == {"bridge/a.py:f"}
    assert records.seconds() == {TEST: 3.0, f"{TEST}[1]": 2.5}


def test_the_files_say_what_was_measured(records, tmp_path, monkeypatch):
    monkeypatch.setattr(measured, "DURATIONS", tmp_path / "durations.json")
    monkeypatch.setattr(measured, "EXECUTED", tmp_path / "executed.xz")
    measured.write(records)
    assert measured.read.__wrapped__() == records
    durations = measured.read_durations((tmp_path / "durations.json").read_text())
    assert durations == {TEST: 3.0, f"{TEST}[1]": 2.5}


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python has no sys.monitoring")
def test_a_process_records_what_it_executes(tmp_path):
    program = f"""
import runpy
runpy.run_path({executed.__file__!r})["record_child"]()
from xla_call_module.platforms import *
"""
    variables = {
        executed.VARIABLE: str(tmp_path),
        executed.PYTEST_VARIABLE: f"{TEST} (call)",
        "PYTHONPATH": str(ROOT),
    }
    subprocess.run([sys.executable, "-c", program], env={**os.environ, **variables}, check=True)
    lines = [line for path in Path(tmp_path).iterdir() for line in path.read_text().splitlines()]
    found = {(r["child"], f) for r in map(json.loads, lines) for f in r.get("functions", ())}
    assert (TEST, "xla_call_module/platforms.py:") in found
    assert (TEST, "xla_call_module/lazy_names.py:load_lazily") in found


def test_tests_of_files_that_are_gone_are_left_out():
    """Pytest runs nothing at all where it is told a file that is not there."""
    assert measured.is_there("tests/selecting/test_measured.py::test_a")
    assert not measured.is_there("tests/selecting/test_gone.py::test_a")
    files = {name.partition("::")[0] for name in measured.read().tests}
    assert [file for file in files if not (ROOT / file).is_file()] == []
