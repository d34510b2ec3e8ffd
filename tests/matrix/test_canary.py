"""A broken test in a report of pytest is named by its feature; the newest Python is found."""

from __future__ import annotations

import subprocess

import pytest

from tests.matrix.canary import Break, breaks_in
from tests.matrix.environments import ROOT

REPORT = """<testsuites><testsuite>
<testcase classname="tests.quick.test_every_verb" name="test_call_tf[jit]">
  <failure message="TypeError: no such argument&#10;in a line">...</failure></testcase>
<testcase classname="tests.quick.test_every_verb" name="test_call_tf[eager]">
  <failure message="TypeError: another">...</failure></testcase>
<testcase classname="tests.quick.test_every_verb" name="test_load[jit]"/>
<testcase classname="tests.policy.test_gates"
  name="test_a_name_that_moves_is_said_once[jax._src:mesh]">
  <error message="AssertionError: fails"/></testcase>
</testsuite></testsuites>"""


def test_a_feature_that_broke_is_named_once():
    broken = [
        Break("call tf", "TypeError: no such argument"),
        Break("gate jax._src:mesh", "AssertionError: fails"),
    ]
    assert breaks_in(REPORT) == (broken, 4)


@pytest.fixture
def python_of(tmp_path, monkeypatch):
    """Return which of some Pythons `make` takes; each says its version, or that it does not run."""
    commands = tmp_path / "bin"
    commands.mkdir()
    monkeypatch.setenv("PATH", f"{commands}:/usr/bin:/bin")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))

    def choose(versions, **options):
        for path, version in versions.items():
            command = tmp_path / path
            command.parent.mkdir(parents=True, exist_ok=True)
            # The check compares the version with the last thing that its program names.
            command.write_text(
                f'#!/bin/sh\ncase "$2" in *"\'{version}\')") exit 0;; esac\nexit 1\n'
            )
            command.chmod(0o755)
        named = [f"{name}={value}" for name, value in options.items()]
        made = subprocess.run(
            ["make", "--silent", "python", *named],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        return made.stdout.strip().removeprefix(f"{tmp_path}/")

    return choose


def test_make_takes_the_newest_python_that_runs(python_of):
    """Version managers put commands on the path that only say that they are not installed."""
    versions = {"bin/python3.13": "", "bin/python3.12": "3.12", "bin/python3.11": "3.11"}
    assert python_of(versions) == "python3.12"
    assert python_of(versions, PYTHONS="3.11") == "python3.11"
    assert python_of(versions, PYTHON="mine") == "mine"
