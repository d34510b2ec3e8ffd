"""Files of other programs, made readable by `bridge.retarget`, in each TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import bridge
from bridge.verifying.comparison import Tolerance, describe_difference
from bridge.verifying.tensorflow_process import TensorFlowRun, run_trials
from bridge.verifying.trials import Trial
from tests.foreign.files import ForeignFile, write_foreign
from tests.matrix.environments import Ready
from tests.matrix.grid import Cell, Outcome


def foreign_cells(
    folder: Path, consumers: Sequence[Ready], *, jax: str, step: Callable[[str], None]
) -> list[Cell]:
    """A cell for each file and TensorFlow, for which it is retargeted.

    Args:
        folder: for the files.
        consumers: environments with TensorFlow.
        jax: the version that runs here, which writes the files.
        step: is told what happens.
    """
    step("other programs write")
    files = write_foreign(folder)
    cells = []
    for consumer in consumers:
        for name, file in files.items():
            step(f"TensorFlow {consumer.version}: {name}")
            message = check(file, folder / name / consumer.version, consumer)
            outcome = Outcome.FAILED if message else Outcome.PASSED
            cells.append(
                Cell(jax, consumer.version, consumer.version, f"foreign_{name}", outcome, message)
            )
    return cells


def check(file: ForeignFile, target: Path, consumer: Ready) -> str:
    """Return what is wrong with a file after it was retargeted; empty if nothing is."""
    bridge.retarget(file.folder, consumer.version, to=target)
    trials = [to_trial(key, kinds) for key, kinds in file.values.items()]
    run = run_trials(target, trials, python=consumer.python)
    if run.failure:
        return run.failure
    problems = [
        problem for number, trial in enumerate(trials) for problem in _compare(number, trial, run)
    ]
    return "; ".join(problems)


def to_trial(key: str, kinds: Mapping[str, Mapping[str, object]]) -> Trial:
    """Read what a program of `tests.foreign` recorded of a signature, and of its gradient."""
    gradients = {f"input/{name}": value for name, value in kinds.get("gradient", {}).items()}
    orders = int(bool(gradients))
    return Trial(
        signature=key,
        kind="recorded",
        sizes={},
        inputs=kinds["input"],
        differentiated=tuple(kinds.get("gradient", {})),
        variables=(),
        outputs=tuple(kinds["output"]),
        cotangents=(kinds.get("cotangent", {}),) * orders,
        expected=(kinds["output"], *([gradients] * orders)),
    )


def _compare(number: int, trial: Trial, run: TensorFlowRun) -> list[str]:
    if error := run.errors[number]:
        return [f"{trial.signature}: {error}"]
    found = {
        f"{trial.signature}, order {order}: {name}": (run.results[number, order, name], wanted)
        for order, expected in enumerate(trial.expected)
        for name, wanted in expected.items()
    }
    differences = (
        (what, describe_difference(result, wanted, Tolerance(rtol=1e-5)))
        for what, (result, wanted) in found.items()
    )
    return [f"{what} {difference}" for what, difference in differences if difference]
