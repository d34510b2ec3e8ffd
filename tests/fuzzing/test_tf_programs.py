"""Random TensorFlow functions, called from JAX in every way."""

from __future__ import annotations

import numpy as np
import pytest
from jax import enable_x64

from tests.fuzzing.programs import accuracy
from tests.fuzzing.programs.outcomes import FAILURES
from tests.fuzzing.programs.program import Argument, Parameter, Program, Statement
from tests.fuzzing.tf_programs import suite
from tests.fuzzing.tf_programs.case import TensorFlowCase
from tests.fuzzing.tf_programs.generating import CHECKS, PREAMBLE, generate
from tests.fuzzing.tf_programs.statements import STATEMENTS
from tests.renewed_process import RenewedProcess

# One alone, which `make test` runs.
SEEDS = (range(1), range(1, 10), *(range(first, first + 10) for first in range(10, 60, 10)))
MAX_CALLS = 4

pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_seed_is_one_program():
    with enable_x64(False):
        assert generate(7, x64=False) == generate(7, x64=False)


@pytest.fixture(scope="module")
def process():
    process = RenewedProcess(MAX_CALLS)
    yield process
    process.close()


def _failures(seeds):
    """Return what is wrong with programs, and their text."""
    with enable_x64(False):
        programs = [generate(seed, x64=False) for seed in seeds]
        outcomes = [(program, suite.run(program)) for program in programs]
    return [
        f"{found}\n{program.describe()}"
        for program, of_program in outcomes
        for found in of_program
        if found.kind in FAILURES
    ]


@pytest.mark.parametrize("seeds", SEEDS, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_what_jax_gets_is_what_tensorflow_computes(seeds, process):
    assert process.run(_failures, seeds) == []


def test_every_statement_and_every_check_is_drawn():
    with enable_x64(False):
        programs = [generate(seed, x64=False) for seed in range(2 * len(STATEMENTS))]
    drawn = {statement.template for program in programs for statement in program.statements}
    assert len({template.name for template in STATEMENTS} - drawn) <= 2  # of two seeds each
    assert {name for program in programs for name in program.checks} == {*CHECKS}


def _program(text, template):
    return Program(
        seed=0,
        x64=False,
        arguments=(Argument("x", (4, 3), "float32"),),
        parameters=(Parameter("x", "x"),),
        statements=(Statement("y", text, ("x",), "float32[4,3]", template),),
        returns="y",
        checks=("eager",),
        options=(("order", 1),),
        preamble=PREAMBLE,
    )


def test_the_tolerance_is_small_and_a_wrong_result_is_found(monkeypatch):
    program = _program("tf.exp({0}) / 3", "exp")
    case = TensorFlowCase(program)
    with enable_x64(False):
        (values, gradients), spreads = case.reference((), 1), case.spreads((), 1)
        pairs = [(values[0], spreads[0][0]), (gradients[0], spreads[1][0])]
        for array, spread in pairs:
            assert not spread.unstable.any()
            assert np.all(spread.tolerance <= 400 * 1.2e-7 * (np.abs(array) + 1e-6))
            assert accuracy.difference(array * np.float32(1.001), array, spread).text
        assert [found.kind for found in suite.run(program)] == ["right"]
        called = suite._call
        wrong = lambda *given, **more: lambda x: [called(*given, **more)(x)[0] * 1.001]  # noqa: E731
        monkeypatch.setattr(suite, "_call", wrong)
        assert [found.kind for found in suite.run(program)] == ["wrong"]
