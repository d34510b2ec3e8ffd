"""The tests with another JAX: what is run, what is remembered, and what is said of it."""

import pytest

from tests.matrix import suite
from tests.matrix.environments import USUAL_JAX, WRITERS, Ready
from tests.matrix.grid import Outcome, exit_status
from tests.matrix.suite import run_suite


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


def test_the_usual_ones_are_among_all():
    assert set(USUAL_JAX) < {writer.version for writer in WRITERS}
    assert all(not writer.pythons for writer in WRITERS if writer.version in USUAL_JAX)
