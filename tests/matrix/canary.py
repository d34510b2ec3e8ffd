"""`python -m tests.matrix.canary`: what the newest pre-releases break, before they are released.

An environment with the newest JAX, TensorFlow and Keras that there are, pre-releases included, and
the newest of everything else; the quick tests and those of the gates run in it, and each one that
fails is printed as the feature that broke, with the error.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Table

from tests.matrix.environments import FOLDER, ROOT, EnvironmentFailedError, run_command

# A version that is a pre-release itself is what lets pip choose one, of this package alone.
PRE_RELEASES = (
    "jax>=0.9.0.dev0",
    "jaxlib>=0.9.0.dev0",
    "keras>=3.5.0.dev0",
    "tensorflow-cpu>=2.18.0rc0",
)
# As in the Makefile: of what they ask for nothing is wanted.
BESIDE = ("tf_keras", "tensorflow-serving-api")
TESTS = ("tests/quick", "tests/policy/test_gates.py")
SHOWN = ("jax", "jaxlib", "tensorflow-cpu", "keras", "flax", "numpy", "onnxruntime")


@dataclass(frozen=True, slots=True)
class Break:
    """A feature that does not work, and the first line of the error."""

    feature: str
    error: str


def main() -> int:
    """Print what broke; 0 if nothing did, 1 if something did, 2 if there is no environment."""
    console = Console(highlight=False)
    try:
        python = _prepare(FOLDER / "canary")
    except EnvironmentFailedError as failure:
        console.print(f"An environment cannot be made: {failure}", markup=False)
        return 2
    console.print("Tried with " + ", ".join(_versions(python)), markup=False)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [str(python), "-m", "pytest", "-q", f"--junitxml={report}", "-n", "2", *TESTS]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if not report.is_file():
            console.print((done.stdout + done.stderr)[-3000:], markup=False)
            return 1
        broken, count = breaks_in(report.read_text())
    _show(broken, count, console)
    return int(bool(broken) or done.returncode != 0)


def breaks_in(report: str) -> tuple[list[Break], int]:
    """Return the features that a JUnit report says are broken, and how many tests ran."""
    cases = list(ElementTree.fromstring(report).iter("testcase"))
    broken: dict[str, str] = {}
    for case in cases:
        for failure in (*case.findall("failure"), *case.findall("error")):
            broken.setdefault(_feature(case), (failure.get("message") or "").partition("\n")[0])
    return [Break(feature, error) for feature, error in broken.items()], len(cases)


def _feature(case: ElementTree.Element) -> str:
    """Return words for a test: `test_call_tf[jit]` is `call tf`; a gate has its private name."""
    name, _, variant = (case.get("name") or "").partition("[")
    if name == "test_a_name_that_moves_is_said_once":
        return f"gate {variant.rstrip(']')}"
    return name.removeprefix("test_").replace("_", " ") or (case.get("classname") or "")


def _show(broken: Sequence[Break], count: int, console: Console) -> None:
    if not broken:
        console.print(f"{count} tests passed; nothing broke.")
        return
    table = Table("feature", "error", title=f"{len(broken)} features broke, of {count} tests")
    for item in broken:
        table.add_row(item.feature, item.error)
    console.print(table, markup=False)


def _prepare(home: Path) -> Path:
    """Make the environment, or bring it up to the newest versions."""
    python = home / "bin" / "python"
    if not python.is_file():
        run_command([sys.executable, "-m", "venv", str(home)])
    install = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    install += ["--upgrade", "--upgrade-strategy", "eager"]
    run_command([*install, "--editable", ".[test]", *PRE_RELEASES])
    run_command([*install, "--no-deps", *BESIDE])
    return python


def _versions(python: Path) -> list[str]:
    script = "import importlib.metadata as m, sys; [print(n, m.version(n)) for n in sys.argv[1:]]"
    done = subprocess.run(
        [str(python), "-c", script, *SHOWN], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


if __name__ == "__main__":
    sys.exit(main())
