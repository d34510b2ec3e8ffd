"""The rounds of the tests overlap by one worker, and print one after the other."""

from __future__ import annotations

import sys

from tests.policy.source import ROOT
from tests.rounds import run_rounds, shared_folder

# Ends as the test wants it when the next round has begun, which says so in the shared folder.
FIRST = """
import os, pathlib, sys, time
folder = pathlib.Path(os.environ["TESTS_ROUND"])
(folder / "next").touch()
print("one", flush=True)
end = time.monotonic() + 60
while not (folder.parent / "begun").exists() and time.monotonic() < end:
    time.sleep(0.05)
time.sleep(0.5)
print("two", flush=True)
sys.exit(3 if (folder.parent / "begun").exists() else 4)
"""
SECOND = """
import os, pathlib
print(os.environ["GIVEN"], flush=True)
(pathlib.Path(os.environ["TESTS_ROUND"]).parent / "begun").touch()
"""
CONFTEST = """
from tests.rounds import tell_of_idle_worker

def pytest_sessionfinish(session):
    tell_of_idle_worker(session.config)
"""
# Of two workers the one with this file ends when it has seen that the next round may begin.
LONG = """
import os, pathlib, time

def test_waits():
    folder = pathlib.Path(os.environ["TESTS_ROUND"])
    end = time.monotonic() + 60
    while not (folder / "next").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert (folder / "next").exists()
    assert len(list(folder.glob("gw*"))) == 1
"""


def _python(code):
    return [sys.executable, "-c", code]


def test_a_round_begins_before_the_former_ends_and_prints_after_it(capfdbinary):
    assert run_rounds([(_python(FIRST), {}), (_python(SECOND), {"GIVEN": "three"})]) == [3, 0]
    assert capfdbinary.readouterr().out == b"one\ntwo\nthree\n"


def test_a_worker_without_tests_lets_the_next_round_begin(tmp_path, capfdbinary):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_long.py").write_text(LONG)
    (tmp_path / "test_short.py").write_text("def test_ends():\n    pass\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    pytest = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile"]
    command = [*pytest, "-p", "no:cacheprovider", str(tmp_path)]
    assert run_rounds([(command, {"PYTHONPATH": str(ROOT)})]) == [0]
    assert b"2 passed" in capfdbinary.readouterr().out


def test_a_process_beside_the_rounds_shares_no_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("TESTS_ROUND", raising=False)
    assert shared_folder() is None
    monkeypatch.setenv("TESTS_ROUND", str(tmp_path / "0"))
    assert shared_folder() == tmp_path
