"""The tests with another JAX: what is run, what is remembered, and what is said of it."""

import pytest

from tests.matrix import suite
from tests.matrix.environments import USUAL_JAX, WRITERS, Ready
from tests.matrix.grid import Cell, Outcome, exit_status, show
from tests.matrix.report import table
from tests.matrix.suite import SUITE, run_suite


@pytest.fixture
def writer(tmp_path, monkeypatch):
    """An environment whose interpreter notes its arguments and says what it is told."""
    root = tmp_path / "sources"
    (root / "bridge").mkdir(parents=True)
    (root / "bridge" / "a.py").write_text("one")
    (root / "pyproject.toml").write_text("")
    monkeypatch.setattr(suite, "ROOT", root)
    python = tmp_path / "jax-1" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        f'#!/bin/sh\ncd {tmp_path}\necho "$@" >> calls\ncat said\nexit $(cat status)\n'
    )
    python.chmod(0o755)
    return Ready("1", python)


def _answer(folder, said, status=0):
    (folder / "said").write_text(said)
    (folder / "status").write_text(str(status))


def _calls(folder):
    return (folder / "calls").read_text().splitlines()


def test_what_passed_is_run_again_for_other_sources_only(writer, tmp_path):
    _answer(tmp_path, "....\n12 passed, 3 skipped, 5 deselected in 61.05s (0:01:01)\n")
    cell = run_suite(writer)
    assert (cell.jax, cell.case, cell.outcome) == ("1", "tests", Outcome.PASSED)
    assert cell.message == "12 passed, 3 skipped, 5 deselected"
    assert run_suite(writer) == cell
    assert len(_calls(tmp_path)) == 1
    (suite.ROOT / "bridge" / "__pycache__").mkdir()
    (suite.ROOT / "bridge" / "__pycache__" / "a.pyc").write_text("compiled")
    assert run_suite(writer) == cell
    assert len(_calls(tmp_path)) == 1
    (suite.ROOT / "bridge" / "a.py").write_text("two")
    run_suite(writer)
    assert len(_calls(tmp_path)) == 2
    assert all(folder in _calls(tmp_path)[0] for folder in SUITE)


@pytest.mark.parametrize(
    ("said", "status"),
    [("F.\n1 failed, 1 passed in 2.00s\n", 1), ("INTERNALERROR\n", 3), ("no tests ran\n", 0)],
)
def test_what_fails_is_said_and_not_remembered(said, status, writer, tmp_path):
    _answer(tmp_path, said, status)
    cell = run_suite(writer)
    assert cell.outcome is Outcome.DIED
    assert said.strip() in cell.message
    assert exit_status([cell]) == 1
    assert not writer.tested.exists()


def test_the_report(capsys):
    from rich.console import Console

    file = Cell("9", "2.18", "2.18", "erf", Outcome.PASSED)
    passed = Cell("7", "", "2.21", "tests", Outcome.PASSED, "12 passed")
    died = Cell("8", "", "2.21", "tests", Outcome.DIED, "exit status 1")
    lines = table([file, passed, died], {"numbers": ["erf"]}).splitlines()
    assert lines[-2:] == [
        "- the tests with JAX 7 and TensorFlow 2.21: 12 passed",
        "- the tests with JAX 8 and TensorFlow 2.21: died",
    ]
    show([file, passed, died], Console(highlight=False))
    printed = capsys.readouterr().out
    assert "JAX 7, tests                        .  12 passed\n" in printed
    assert "JAX 8, tests                        D  D 1 died\n" in printed


def test_the_usual_ones_are_among_all():
    assert set(USUAL_JAX) < {writer.version for writer in WRITERS}
    assert all(not writer.pythons for writer in WRITERS if writer.version in USUAL_JAX)
