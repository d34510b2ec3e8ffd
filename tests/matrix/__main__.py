"""`python -m tests.matrix`: files for, and in, each TensorFlow; with `--jax` from other JAXs.

Without options this JAX writes every case for each usual TensorFlow, for the oldest of all, and for
none in particular; each TensorFlow runs what is for it, and the other two. Then the tests of the
packages run with the oldest JAX and one between. With `--jax` each other JAX writes for the oldest
and the newest TensorFlow, and runs the tests. The environments are made once, in .matrix, and what
passed in one, byte for byte, is not run again.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from tests.matrix.environments import (
    CONSUMERS,
    ROOT,
    USUAL,
    USUAL_JAX,
    WRITERS,
    EnvironmentFailedError,
)
from tests.matrix.functions import FAMILIES
from tests.matrix.grid import exit_status, show
from tests.matrix.report import table, write_table
from tests.matrix.runs import Step, from_each_jax, in_each_tensorflow, with_each_jax


def main(arguments: Sequence[str]) -> int:
    """Run the matrix; 0 where every cell is as expected."""
    options = _parse(arguments)
    console = Console(highlight=False)
    run = from_each_jax if options.jax else in_each_tensorflow
    until = time.monotonic() + options.tests_within
    everything = not (options.jax or options.only or options.cases)
    try:
        with _folder(options.keep) as folder, _steps(console) as step:
            cells = run(
                folder,
                only=_chosen(options),
                names=options.cases,
                step=step,
                python=options.python,
            )
            if everything:
                cells += with_each_jax(only=USUAL_JAX, step=step, until=until)
    except EnvironmentFailedError as failure:
        console.print(f"An environment cannot be made: {failure}", markup=False)
        return 1
    show(cells, console)
    if options.page:
        families = {name: [case.name for case in cases] for name, cases in FAMILIES.items()}
        write_table(ROOT / "docs/reference/versions.md", table(cells, families))
    return exit_status(cells)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument(
        "cases", nargs="*", help="names from tests/matrix/functions.py, or foreign; all"
    )
    parser.add_argument("--jax", action="store_true", help="other JAXs instead of TensorFlows")
    parser.add_argument("--only", metavar="VERSION", help="one TensorFlow, or one JAX")
    parser.add_argument("--all", action="store_true", help="every TensorFlow, not the usual ones")
    parser.add_argument(
        "--python",
        metavar="COMMAND",
        default="",
        help="the interpreter for environments that it suits, such as python3.13",
    )
    parser.add_argument(
        "--tests-within",
        metavar="SECONDS",
        type=float,
        default=math.inf,
        help="begin to run the tests with another JAX only while this has not passed",
    )
    parser.add_argument("--page", action="store_true", help="write the table into the docs")
    parser.add_argument("--keep", metavar="FOLDER", type=Path, help="a new folder for the files")
    options = parser.parse_args(arguments)
    known = _known(options)
    if options.only not in (None, *known):
        parser.error(f"--only takes one of {', '.join(known)}")
    return options


def _known(options: argparse.Namespace) -> list[str]:
    return [environment.version for environment in (WRITERS if options.jax else CONSUMERS)]


def _chosen(options: argparse.Namespace) -> Sequence[str]:
    if options.only is not None:
        return [options.only]
    return _known(options) if options.jax or options.all else USUAL


@contextlib.contextmanager
def _folder(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True)
        yield kept.resolve()
        return
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


@contextlib.contextmanager
def _steps(console: Console) -> Iterator[Step]:
    """Says what happens now, on a terminal."""
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=None)
        yield lambda text: progress.update(task, description=text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
