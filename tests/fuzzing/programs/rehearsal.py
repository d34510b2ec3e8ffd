"""A suite for the tests of the campaign: some of its programs end the process, or never end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

from tests.fuzzing.programs.outcomes import Outcome
from tests.fuzzing.programs.program import Argument, Parameter, Program

DIES, HANGS = 2, 5


def generate(seed: int, *, x64: bool) -> Program:
    """A program that returns its argument."""
    argument = Argument("x0", (2,), "float32")
    return Program(seed, x64, (argument,), (Parameter("x0", "x0"),), (), "x0", ("save",))


def run(program: Program) -> list[Outcome]:
    """End, hang or be right, as the seed says."""
    if program.seed == DIES:
        os.kill(os.getpid(), signal.SIGSEGV)
    if program.seed == HANGS:
        while True:
            pass
    return [Outcome("save", "right", compared=2)]


def simpler(program: Program) -> Iterator[Program]:
    """Nothing."""
    yield from ()


def clear() -> None:
    """Do nothing."""
