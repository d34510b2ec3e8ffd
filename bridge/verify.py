"""`verify`: compare what a SavedModel computes in TensorFlow and in JAX.

The modules behind it are imported by the call, so that `import bridge` stays quick.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from xla_call_module.errors import FormatError, StructureError
from xla_call_module.tracebacks import api_boundary, warn

if TYPE_CHECKING:
    from bridge.verifying.comparison import Tolerance
    from bridge.verifying.tensorflow_process import TensorFlowRun
    from bridge.verifying.trials import Trial
    from bridge.verifying.verification import VerifyReport, VerifyRow
    from savedmodel.files.model_folder import ModelFolder


Progress = Callable[[int, int], None]
_ATTEMPTS = 3


@api_boundary
def verify(
    path: str | os.PathLike[str],
    *,
    python: str | os.PathLike[str] | None = None,
    record: str | os.PathLike[str] | None = None,
    against: str | os.PathLike[str] | None = None,
    seed: int = 0,
    tolerance: Tolerance | float | tuple[float, float] | None = None,
    probes: Sequence[str] | None = None,
    inputs: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    quick: bool = False,
    steps: int | None = None,
) -> VerifyReport:
    """Compare TensorFlow with JAX on a SavedModel, gradients of every order included.

    An ONNX or a LiteRT model is run by ONNX Runtime or ai-edge-litert, in a process of its own, and
    compared with what was recorded (`against`) of the SavedModel of the same functions; JAX runs
    nothing. Differences at NaN, at infinities and where numbers overflow are none. A quantized
    model needs a `tolerance` of about the error that was reported when it was written.

    TensorFlow runs in a process of its own, in which JAX cannot be imported. Each signature is
    called with random inputs, with dimension variables of 1, 3 and 17 or the nearest sizes that
    meet its constraints, and with zeros, ones, negative, huge and infinite numbers and NaN. Where
    JAX itself does not return for inputs at the edges of their dtypes, within 30 seconds or 20
    times as long as for others, a warning says so. Gradients are those of random cotangents; a
    gradient that is None in TensorFlow, because nothing depends on an argument, counts as zeros.
    For huge inputs only the finiteness of results is compared; for huge and infinite inputs
    gradients are compared as long as everything before them is finite. A signature that assigns
    variables is called several times in a row, and what it has assigned is compared after each
    call; everything else is called with the values in the file. Of a signature that
    `bridge.serving.compose` has made the response is compared with what `postprocess` makes of
    JAX's outputs for what `preprocess` makes of a request: random numbers, or `inputs`, which
    strings need. A function that was exported for
    several devices runs on one in both. If the folder is replaced meanwhile, everything is done
    again, at most three times.

    On a terminal, a bar shows how far it is when it takes longer than two seconds.

    Args:
        path: the folder of a SavedModel that `bridge.load` reads, or the file of one of those.
        python: the interpreter of another environment with TensorFlow, in which neither JAX nor
            this package need be installed.
        record: a file to write, with the inputs and JAX's results, for `against`.
        against: a file that `record` wrote. Then JAX runs nothing, and the SavedModel may be one
            that `bridge.load` does not read, such as that of a server.
        seed: the seed of the random numbers.
        tolerance: the allowed difference: `rtol`, or `(rtol, atol)` as in `numpy.testing`; by
            default the usual one of the least precise dtype of floats that a result was computed
            with, such as bfloat16 inside of float32.
        probes: the kinds of inputs to try, some of `random`, `zeros`, `ones`, `negative`, `huge`,
            `nan` and `inf`; by default all, or none where there are `inputs`.
        inputs: arrays to try, by the names of inputs, or by `SIGNATURE/INPUT`; or the .npz file
            that has them. Only the signatures of which all inputs are there are called with them.
        quick: whether random inputs of one size are enough; with `probes` all have that size.
        steps: how many calls of a signature that assigns variables follow one another, with random
            or given inputs; by default 3.

    Warns:
        UserWarning: a signature computes something besides calls of JAX functions, and is not
            compared.

    Raises:
        InteropError: the file is damaged, JAX cannot run it here, or TensorFlow is not installed.
        ShardingError: a part of it is written for several devices (`jax.shard_map`).
        StructureError: an option is wrong, or the arrays are not those that a signature takes.
        OSError: a file cannot be read or written.

    Example:
        >>> import bridge, jax
        >>> exported = jax.export.export(jax.jit(jax.numpy.sin))(1.0)
        >>> saved = bridge.save(exported, "my_model")
        >>> bridge.verify("my_model").passed
        True
        >>> report = bridge.verify("my_model", inputs={"x": 0.5}, tolerance=1e-6)
        >>> [(row.inputs, row.order) for row in report.rows]
        [('given', 0), ('given', 1)]
    """
    from bridge.core.progress import progress_bar
    from bridge.loading.loaded_model import LoadedModel
    from bridge.verifying.composed import composed_inputs, composed_keys, verify_composed
    from bridge.verifying.reference import make_trials
    from bridge.verifying.tensorflow_process import run_trials
    from bridge.verifying.trial_request import request_trials, to_tolerance
    from bridge.verifying.trials import as_exact, read_trials, write_trials
    from bridge.verifying.verification import VerifyReport, compare
    from savedmodel.files.model_folder import read_one_version
    from savedmodel.read import read

    is_asked = quick or any(option is not None for option in (probes, inputs, steps))
    _refuse_mixed(path, python=python, record=record, against=against, is_asked=is_asked)
    if os.path.isfile(path):
        return _verify_file(os.fspath(path), against, tolerance)
    request = request_trials(probes, inputs, quick=quick, steps=steps)
    allowed = to_tolerance(tolerance)

    def run_both(
        folder: ModelFolder,
    ) -> tuple[Sequence[Trial], TensorFlowRun, Sequence[VerifyRow]]:
        model = None if against is not None else LoadedModel(read(folder))
        composed = {} if model is None else composed_inputs(folder, composed_keys(folder, model))
        with progress_bar("Verifying", unit="trials") as progress:
            if model is None:
                trials: Sequence[Trial] = as_exact(
                    read_trials(str(against)), exact=_is_exact(folder)
                )
            else:
                shown = _part_of(progress, 0, 2)
                trials = make_trials(
                    model, seed=seed, request=request, progress=shown, others=composed
                )
            # JAX has made as many trials, or none.
            shown = _part_of(progress, 1, 2) if against is None else progress
            run = run_trials(path, trials, python=python, progress=shown)
            around, left = (
                ([], [])
                if model is None
                else verify_composed(
                    os.fspath(path), model, composed, request,
                    tolerance=allowed, seed=seed, python=python,
                )
            )  # fmt: skip
        if model is not None:
            _warn_of_others([key for key in model.others if key not in composed], left)
        # TensorFlow finds the files by their paths.
        folder.check_current()
        return trials, run, around

    trials, run, around = read_one_version(path, run_both, attempts=_ATTEMPTS)
    if record is not None:
        write_trials(record, trials)
    rows = [
        row for number, trial in enumerate(trials) for row in compare(number, trial, run, allowed)
    ]
    runtime = f"TensorFlow {run.tensorflow}"
    rows += around
    return VerifyReport(os.fspath(path), run.tensorflow, run.failure, tuple(rows), runtime)


def _is_exact(folder: ModelFolder) -> bool:
    """Return whether a SavedModel says nothing else; TensorFlow reads more than is read here."""
    from savedmodel.read import read_proto
    from xla_call_module.node import INEXACT

    try:
        graphs = [one.graph_def for one in read_proto(folder).meta_graphs]
    except FormatError:
        return True
    functions = (function for graph in graphs for function in graph.library.function)
    return not any(INEXACT in node.attr for each in functions for node in each.node_def)


def _warn_of_others(others: Sequence[str], left: Sequence[str]) -> None:
    """Warn of signatures that are not compared."""
    if others:
        warn(
            "Not compared, since they compute more than calls of JAX functions: "
            f"{', '.join(others)}. To do: compare the functions that they call, and test the "
            "rest in TensorFlow.",
        )
    if left:
        warn(
            f"Not compared, since requests with strings cannot be made up: {', '.join(left)}. To "
            "do: pass inputs= with the tensors of a request."
        )


def _refuse_mixed(
    path: str | os.PathLike[str],
    *,
    python: str | os.PathLike[str] | None,
    record: str | os.PathLike[str] | None,
    against: str | os.PathLike[str] | None,
    is_asked: bool,
) -> None:
    """Refuse options that exclude each other, or that a file has no use for."""
    if record is not None and against is not None:
        raise StructureError("record= and against= exclude each other. To do: pass one of them.")
    if against is not None and is_asked:
        raise StructureError(
            f"{os.fspath(against)} has the inputs already. To do: leave out probes, inputs, quick "
            "and steps, or record it with them."
        )
    if os.path.isfile(path) and (python is not None or record is not None or is_asked):
        raise StructureError(
            f"{os.fspath(path)} is a file, which is compared with what was recorded elsewhere. "
            "To do: pass against= alone, and the other options where that is recorded."
        )


def _verify_file(path: str, against: str | os.PathLike[str] | None, tolerance: Any) -> VerifyReport:
    """Compare what a file's runtime computes with recorded results of JAX."""
    from bridge.formats.format_registry import all_formats, format_of
    from bridge.verifying.trial_request import to_tolerance
    from bridge.verifying.trials import read_trials
    from bridge.verifying.verification import VerifyReport, as_converted

    format_ = format_of(path)
    if format_.compare is None or format_.runtime is None:
        names = " or ".join(each.name for each in all_formats() if each.compare)
        raise FormatError(
            f"{path} is a file, and not {names}. To do: pass such a file, or the folder of a "
            "SavedModel."
        )
    if against is None:
        raise StructureError(
            f"{path} has no results of JAX to compare with. To do: pass against= or --against, a "
            "file that `verify` recorded of the SavedModel of the same functions (record= or "
            "--record)."
        )
    rows = format_.compare(path, read_trials(against), to_tolerance(tolerance))
    runtime = f"{format_.runtime.name} {format_.runtime.version()}"
    return VerifyReport(path, "", "", tuple(map(as_converted, rows)), runtime)


def _part_of(progress: Progress | None, part: int, parts: int) -> Progress | None:
    """Return the progress of one of several parts that take as many steps each."""
    if progress is None:
        return None
    return lambda done, count: progress(part * count + done, parts * count)
