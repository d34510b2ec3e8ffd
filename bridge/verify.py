"""`verify`: what a SavedModel computes in TensorFlow is what it computes in JAX.

What it needs is imported when it is needed, so that `import bridge` stays quick.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from xla_call_module.errors import StructureError

if TYPE_CHECKING:
    from bridge.verifying.comparison import Tolerance
    from bridge.verifying.tensorflow_process import TensorFlowRun
    from bridge.verifying.trials import Trial
    from bridge.verifying.verification import VerifyReport
    from savedmodel.files.model_folder import ModelFolder

__all__ = ["verify"]

Progress = Callable[[int, int], None]
_ATTEMPTS = 3


def verify(
    path: str | os.PathLike[str],
    *,
    python: str | os.PathLike[str] | None = None,
    record: str | os.PathLike[str] | None = None,
    against: str | os.PathLike[str] | None = None,
    seed: int = 0,
    tolerance: Tolerance | None = None,
) -> VerifyReport:
    """Whether TensorFlow computes of a SavedModel what JAX does, gradients of every order included.

    TensorFlow runs in a process of its own, in which JAX cannot be imported. Each signature is
    called with random inputs, with dimension variables of 1, 3 and 17 or what is nearest to them
    under its constraints, and with zeros, ones, negative, huge and infinite numbers and NaN.
    Gradients are those of random cotangents; a gradient that TensorFlow does not have, because
    nothing depends on an argument, is zeros. Of huge inputs it is compared which results are
    finite; of huge and of infinite ones no gradient is, once something before it is not finite.
    What was exported for several devices runs on one in both. Where the folder is replaced
    meanwhile, all is done again, three times at most.

    On a terminal, a bar shows how far it is when it takes longer than two seconds.

    Args:
        path: the folder of a SavedModel that `bridge.load` reads.
        python: the interpreter of another environment with TensorFlow, in which neither JAX nor
            this package need be installed.
        record: a file to be written, with the inputs and what JAX computes, for `against`.
        against: a file that `record` wrote. Then JAX runs nothing, and the SavedModel may be one
            that `bridge.load` does not read, such as what a server has.
        seed: of the random numbers.
        tolerance: what numbers may differ by; by default what is usual for their dtype.

    Warns:
        UserWarning: a signature computes something besides calls of JAX functions, so that there is
            nothing to compare it with.

    Raises:
        InteropError: the file is damaged, JAX cannot run it here, or TensorFlow is not installed.
        ShardingError: a part of it is written for several devices (`jax.shard_map`).
        OSError: a file cannot be read or written.

    Example:
        >>> import bridge, jax
        >>> exported = jax.export.export(jax.jit(jax.numpy.sin))(1.0)
        >>> bridge.save(exported, "my_model")
        >>> bridge.verify("my_model").passed
        True
    """
    from bridge.core.progress import progress_bar
    from bridge.verifying.comparison import Tolerance
    from bridge.verifying.tensorflow_process import run_trials
    from bridge.verifying.trials import read_trials, write_trials
    from bridge.verifying.verification import VerifyReport, compare
    from savedmodel.files.model_folder import read_one_version

    if record is not None and against is not None:
        raise StructureError(
            "What is compared with a record cannot be recorded. To do: pass record= or against=."
        )

    def run_both(folder: ModelFolder) -> tuple[Sequence[Trial], TensorFlowRun]:
        with progress_bar("Verifying", unit="trials") as progress:
            if against is None:
                trials = _make_trials(folder, seed, _part_of(progress, 0, 2))
            else:
                trials = read_trials(against)
            # JAX has done as many, or nothing.
            shown = _part_of(progress, 1, 2) if against is None else progress
            run = run_trials(path, trials, python=python, progress=shown)
        # TensorFlow finds the files by their paths.
        folder.check_current()
        return trials, run

    trials, run = read_one_version(path, run_both, attempts=_ATTEMPTS)
    if record is not None:
        write_trials(record, trials)
    rows = [
        row
        for number, trial in enumerate(trials)
        for row in compare(number, trial, run, tolerance or Tolerance())
    ]
    return VerifyReport(os.fspath(path), run.tensorflow, run.failure, tuple(rows))


def _make_trials(folder: ModelFolder, seed: int, progress: Progress | None) -> Sequence[Trial]:
    from bridge.loading.loaded import LoadedModel
    from bridge.verifying.reference import make_trials
    from savedmodel.read import read

    model = LoadedModel(read(folder))
    if model.others:
        # Whoever calls `verify`.
        warnings.warn(_not_compared(model.others), UserWarning, stacklevel=5)
    return make_trials(model, seed=seed, progress=progress)


def _not_compared(keys: Iterable[str]) -> str:
    return (
        f"Not compared, since more than calls of JAX functions is computed: {', '.join(keys)}. To "
        "do: compare what is called in them, and its results with what the rest is to compute."
    )


def _part_of(progress: Progress | None, part: int, parts: int) -> Progress | None:
    """What shows how far one of several parts is that take as many steps each."""
    if progress is None:
        return None
    return lambda done, count: progress(part * count + done, parts * count)
