"""The environments of the matrix: which versions, and how each one is made once."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".matrix"
_STAMP = ".installed"


@dataclass(frozen=True, slots=True)
class Environment:
    """One virtual environment.

    Attributes:
        name: of its folder, such as `tf-2.18.1`.
        version: the framework's, as far as it is asked for: `2.18`, `0.9.0`.
        requirements: what is installed into it.
        pins: versions other than those of constraints.txt.
        beside: what is installed without what it asks for.
        pythons: commands of interpreters that its wheels exist for; empty for the running one.
    """

    name: str
    version: str
    requirements: tuple[str, ...]
    pins: Mapping[str, str] = field(default_factory=dict)
    beside: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Python:
    """An interpreter: its command, and its version as the name of a command: `python3.12`."""

    command: str
    version: str


RUNNING = Python(sys.executable, f"python{sys.version_info[0]}.{sys.version_info[1]}")


@dataclass(frozen=True, slots=True)
class Ready:
    """An environment that exists: its framework's version and its own interpreter."""

    version: str
    python: Path

    @property
    def passed(self) -> Path:
        """The list of files that have passed in it."""
        return self.python.parents[1] / ".passed"

    @property
    def tested(self) -> Path:
        """Return which of the sources the tests have passed in it for, and how many there were."""
        return self.python.parents[1] / ".tested"


_NONE: Mapping[str, str] = {}


class EnvironmentFailedError(Exception):
    """An environment cannot be made; the message has pip's last words."""


def _tensorflow(
    version: str, pins: Mapping[str, str] = _NONE, pythons: tuple[str, ...] = ()
) -> Environment:
    # As in pyproject.toml: the wheel without GPU kernels exists for Linux on x86-64 only.
    requirements = (
        "tensorflow-cpu; sys_platform == 'linux' and platform_machine == 'x86_64'",
        "tensorflow; sys_platform != 'linux' or platform_machine != 'x86_64'",
    )
    return Environment(
        name=f"tf-{version}",
        version=version.rpartition(".")[0],
        requirements=requirements,
        pins={"tensorflow": version, "tensorflow-cpu": version, **pins},
        pythons=pythons,
    )


def _jax(
    version: str, pins: Mapping[str, str] = _NONE, *, pythons: tuple[str, ...] = ()
) -> Environment:
    return Environment(
        name=f"jax-{version}",
        version=version,
        requirements=("--editable", ".[test]"),
        pins={"jax": version, "jaxlib": version, **pins},
        # As in the Makefile: of what these ask for nothing is wanted.
        beside=("tf_keras", "tensorflow-serving-api"),
        pythons=pythons,
    )


# Older releases refuse newer versions of what they stand on than these, and have no wheels for
# newer interpreters.
_UNTIL_3_11 = ("python3.11",)
_UNTIL_3_12 = ("python3.12", "python3.11")
_OLD = {"numpy": "1.26.4", "protobuf": "4.25.9"}
_OLDER = _OLD | {"wrapt": "1.14.2"}
CONSUMERS = (
    _tensorflow("2.14.1", {**_OLDER, "ml-dtypes": "0.2.0", "keras": "2.14.0"}, _UNTIL_3_11),
    _tensorflow("2.15.1", {**_OLDER, "ml-dtypes": "0.3.2", "keras": "2.15.0"}, _UNTIL_3_11),
    _tensorflow("2.16.2", {**_OLD, "ml-dtypes": "0.3.2"}, _UNTIL_3_12),
    _tensorflow("2.17.1", {**_OLD, "ml-dtypes": "0.4.1"}, _UNTIL_3_12),
    _tensorflow("2.18.1", {"numpy": "2.0.2", "protobuf": "5.29.6"}, _UNTIL_3_12),
    _tensorflow("2.19.1", {"numpy": "2.1.3", "protobuf": "5.29.6"}, _UNTIL_3_12),
    _tensorflow("2.20.0"),
    _tensorflow("2.21.0"),
)
# Every other release, so that a run stays short; the ones between run where they are asked for.
USUAL = ("2.14", "2.16", "2.18", "2.20", "2.21")

# The oldest that pyproject.toml allows, one in between, and the newest, which needs Python 3.12;
# each with the newest neighbours that take it.
WRITERS = (
    _jax("0.9.0", {"dm-haiku": "0.0.16", "flax": "0.12.6"}),
    _jax("0.10.2", {"flax": "0.12.8"}),
    _jax("0.12.0.1", {"flax": "0.12.12"}, pythons=("python3.13", "python3.12")),
)
# Those that run on every Python that the project supports.
USUAL_JAX = ("0.9.0", "0.10.2")


def find_python(environment: Environment, *, wanted: str = "") -> Python | None:
    """The interpreter that an environment is made with; None if this machine has none.

    Args:
        environment: which one.
        wanted: the command of the interpreter to take, where the environment's wheels exist for it.
    """
    if wanted and (python := _ask(wanted)) is not None and _fits(python, environment):
        return python
    if _fits(RUNNING, environment):
        return RUNNING
    found = filter(None, map(shutil.which, environment.pythons))
    return next(filter(None, map(_ask, found)), None)


def _fits(python: Python, environment: Environment) -> bool:
    return not environment.pythons or python.version in environment.pythons


_QUESTION = "import ensurepip, sys; print('python%d.%d' % sys.version_info[:2])"


def _ask(command: str) -> Python | None:
    """The interpreter behind a command that runs.

    Version managers put commands on the path that only say that they are not installed.
    """
    try:
        done = subprocess.run(
            [command, "-c", _QUESTION], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return Python(command, done.stdout.strip())


def prepare(environment: Environment, python: Python, *, folder: Path = FOLDER) -> Ready:
    """The environment, after what was missing in it was installed.

    One that is made with another interpreter than the running one has a folder of its own.

    Raises:
        EnvironmentFailedError: it cannot be made. What was made stays, for the next time.
    """
    name = environment.name
    home = folder / (name if python.version == RUNNING.version else f"{name}-{python.version}")
    ready = Ready(environment.version, home / "bin" / "python")
    pinned = constraints((ROOT / "constraints.txt").read_text(), environment.pins)
    wanted = "\n".join([*environment.requirements, *environment.beside, pinned])
    stamp = home / _STAMP
    if stamp.is_file() and stamp.read_text() == wanted:
        return ready
    run_command([python.command, "-m", "venv", str(home)])
    constrained = home / "constraints.txt"
    constrained.write_text(pinned)
    # Compiling all of TensorFlow takes longer than compiling what is imported.
    install = [str(ready.python), "-m", "pip", "install", "-qq", "--no-compile"]
    install.append("--disable-pip-version-check")
    run_command([*install, *environment.requirements], constrained)
    if environment.beside:
        run_command([*install, "--no-deps", *environment.beside], constrained)
    for record in (ready.passed, ready.tested):
        record.unlink(missing_ok=True)
    stamp.write_text(wanted)
    return ready


def constraints(text: str, pins: Mapping[str, str]) -> str:
    """The pins of a constraints file, some of them exchanged."""
    kept = [line for line in _pin_lines(text) if _normal(line.partition("==")[0]) not in pins]
    own = [f"{name}=={version}" for name, version in sorted(pins.items())]
    return "\n".join([*kept, *own]) + "\n"


def _pin_lines(text: str) -> Iterable[str]:
    return (line for line in text.splitlines() if line and not line.startswith("#"))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def run_command(command: list[str], constrained: Path | None = None) -> None:
    """Run a command in the checkout.

    Raises:
        EnvironmentFailedError: it fails; the message has its last words.
    """
    # The variable reaches the environment that pip builds in, too; the option does not.
    extra = {} if constrained is None else {"PIP_CONSTRAINT": str(constrained)}
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | extra, capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-5:])
        raise EnvironmentFailedError(f"{' '.join(command[:4])} …: {last}")
