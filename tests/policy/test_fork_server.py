"""A process of the fork server ends, prints and fails as one of Python does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.policy.source import ROOT

PROGRAMS = {
    "a program": ["-c", "import sys; print(__name__, sys.argv, input())", "x", "y z"],
    "a status": ["-c", "import sys; print('said', file=sys.stderr); sys.exit(7)"],
    "a message": ["-c", "import sys; sys.exit('said')"],
    "a warning": ["-W", "error", "-c", "import warnings; warnings.warn('said')"],
    "a signal": ["-c", "import os; os.kill(os.getpid(), 11)"],
    "a module": ["-m", "json.tool", "--compact"],
    "an environment": ["-c", "import os; print(os.environ['FOUND'], os.getcwd(), *os.environ)"],
    "an end": ["-c", "import atexit; atexit.register(print, 'at the end')"],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_does_what_python_does(name, preloaded_python, tmp_path):
    environment = {"FOUND": "here", "PATH": os.environ["PATH"]}
    found, expected = (
        subprocess.run(
            [program, *PROGRAMS[name]],
            input="[1,  2]\n", cwd=tmp_path, env=environment,
            capture_output=True, text=True, check=False,
        )
        for program in (preloaded_python, sys.executable)
    )  # fmt: skip
    assert (found.returncode, found.stdout) == (expected.returncode, expected.stdout)
    assert ("said" in found.stderr) == ("said" in expected.stderr)


def test_what_is_imported(preloaded_python):
    code = "import sys; print({'jax', 'tensorflow'} <= sys.modules.keys())"
    done = subprocess.run(
        [preloaded_python, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{preloaded_python != sys.executable}\n"


def test_it_ends_with_who_has_started_it(tmp_path):
    code = (
        "import os, pathlib, sys\n"
        "from tests.fork_server import preloaded_python\n"
        "with preloaded_python(pathlib.Path(sys.argv[1])):\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    # The server has its standard error, which ends where both have ended.
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, check=False
    )
    assert done.returncode == -signal.SIGKILL


def test_who_is_killed_takes_its_child_along(preloaded_python):
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    command = [preloaded_python, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        child = int(process.stdout.readline())
        process.kill()
    assert process.returncode == -signal.SIGKILL
    end = time.monotonic() + 60
    while Path(f"/proc/{child}").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
