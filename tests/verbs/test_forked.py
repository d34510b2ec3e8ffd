"""Forked children of a process that has used JAX: everything works there, or is refused."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# What JAX computes, for which its threads are not there.
COMPUTED = (
    "save of keys",
    "save of buckets",
    "call",
    "call of what was called",
    "verify",
    "inspect --cost",
)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forked")
    command = [sys.executable, "-m", "tests.verbs.forked_verbs", str(folder)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


def test_what_only_writes_and_reads_works(outcomes):
    others = {name: said for name, said in outcomes.items() if name not in COMPUTED}
    assert len(others) > 10
    assert set(others.values()) == {"right"}, others


@pytest.mark.parametrize("name", COMPUTED)
def test_what_computes_is_refused_with_the_cure(outcomes, name):
    assert outcomes[name].startswith("refused: JAX cannot compute "), outcomes[name]
    assert "forked from one that had used JAX" in outcomes[name]
    assert "get_context('spawn')" in outcomes[name]
