"""LiteRT models run by ai-edge-litert, in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bridge.core.worker_messages import describe_arrays, read_arrays
from bridge.litert.lowering.storage_dtypes import at_boundary
from bridge.litert.worker_process import LiteRTProcess, ProcessDeath, check_installed
from bridge.verifying.comparison import Tolerance
from bridge.verifying.trials import Trial
from bridge.verifying.verification import VerifyRow, compare_calls, trials_of
from xla_call_module.dtypes import Array
from xla_call_module.errors import FormatError, InteropError, StructureError
from xla_call_module.node import INEXACT

Kernels = Literal["delegate", "builtin", "reference"]


@dataclass(frozen=True, slots=True)
class LiteRTTensor:
    """An input or an output of a signature, or a variable.

    Attributes:
        shape: its shape, in which sizes that vary are -1.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LiteRTSignature:
    """A signature of a model.

    Attributes:
        inputs: its inputs, in the order of the subgraph.
    """

    name: str
    inputs: tuple[LiteRTTensor, ...]
    outputs: tuple[LiteRTTensor, ...]


@dataclass(frozen=True, slots=True)
class LiteRTModel:
    """The contents of a model.

    Attributes:
        variables: what it keeps between calls.
        exact: whether it has NaN and signs of zeros as JAX, as far as it says.
    """

    signatures: tuple[LiteRTSignature, ...]
    operators: Mapping[str, int]
    variables: tuple[LiteRTTensor, ...] = ()
    exact: bool = True


def describe(
    model: bytes | str | os.PathLike[str], *, process: LiteRTProcess | None = None
) -> LiteRTModel:
    """Return what is in a model."""
    check_installed("LiteRT")
    own = LiteRTProcess() if process is None else None
    try:
        return _described(process or own, model)
    finally:
        if own is not None:
            own.close()


def _described(process: LiteRTProcess | None, model: bytes | str | os.PathLike[str]) -> LiteRTModel:
    assert process is not None
    name = "The LiteRT model" if isinstance(model, bytes) else os.fspath(model)
    contents = model if isinstance(model, bytes) else Path(model).read_bytes()
    try:
        answer, _ = process.request("describe", [contents])
        problem = answer.get("error")
    except ProcessDeath as error:
        problem = str(error)
    if problem:
        raise FormatError(
            f"{name} cannot be read; it is no LiteRT model, or is damaged: {problem}. To do: write "
            "it again."
        )
    signatures = tuple(
        LiteRTSignature(one["name"], _tensors(one["inputs"]), _tensors(one["outputs"]))
        for one in answer["signatures"]
    )
    variables = _tensors(answer["variables"])
    exact = INEXACT not in answer["notes"]
    return LiteRTModel(signatures, answer["operators"], variables, exact)


def _tensors(described: Any) -> tuple[LiteRTTensor, ...]:
    return tuple(LiteRTTensor(name, dtype, tuple(shape)) for name, dtype, shape in described)


class Runtime:
    """A model in a process that runs it; a context manager.

    If the process dies of one run, the next one starts it again.
    """

    def __init__(
        self,
        model: bytes | str | os.PathLike[str],
        *,
        threads: int = 1,
        kernels: Kernels = "delegate",
        process: LiteRTProcess | None = None,
    ) -> None:
        """Describe a model; it is loaded with the first run."""
        check_installed("LiteRT")
        self._model = model if isinstance(model, bytes) else os.fspath(model)
        self._options = {"threads": threads, "kernels": kernels}
        self._is_own = process is None
        self._process = LiteRTProcess() if process is None else process
        self._loaded: tuple[int, int] | None = None
        try:
            self.contents = _described(self._process, self._model)
        except InteropError:
            self.close()
            raise

    def __enter__(self) -> Runtime:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let the process go."""
        self.close()

    def close(self) -> None:
        """Let the model go, and the process if it has no other user."""
        if self._is_own:
            self._process.close()
        else:
            self.restart()

    def restart(self) -> None:
        """Let the model go; the next run loads it again, with the first values of variables."""
        if self._loaded is not None and self._loaded[0] == self._process.starts:
            self._request("unload", [], model=self._loaded[1])
        self._loaded = None

    def run(self, arrays: Mapping[str, Any], *, signature: str | None = None) -> dict[str, Array]:
        """Return the results of a signature by their names."""
        described = self._signature(signature)
        given = _checked(described, arrays)
        answer, parts = self._request(
            "run",
            [*given.values()],
            model=self._load(),
            signature=described.name,
            arrays=describe_arrays(given),
        )
        results = read_arrays(answer["arrays"], parts)
        return {tensor.name: results[tensor.name] for tensor in described.outputs}

    def _signature(self, name: str | None) -> LiteRTSignature:
        known = {one.name: one for one in self.contents.signatures}
        if name is None and len(known) == 1:
            return self.contents.signatures[0]
        if name not in known:
            raise StructureError(
                f"The LiteRT model has no signature {name!r}. To do: name one of {sorted(known)}."
            )
        return known[name]

    def _load(self) -> int:
        self._process.start()
        if self._loaded is None or self._loaded[0] != self._process.starts:
            is_path = isinstance(self._model, str)
            parts = [] if is_path else [self._model]
            path = os.path.abspath(self._model) if is_path else None
            answer, _ = self._request("load", parts, path=path, **self._options)
            self._loaded = self._process.starts, answer["model"]
        return self._loaded[1]

    def _request(self, verb: str, parts: Any, **options: Any) -> Any:
        try:
            answer = self._process.request(verb, parts, **options)
        except ProcessDeath as error:
            raise InteropError(
                f"ai-edge-litert does not survive the model: {error}. To do: leave out of the "
                "model what it cannot run."
            ) from error
        if "error" in answer[0]:
            raise InteropError(
                f"ai-edge-litert does not run the model: {answer[0]['error']}. To do: leave out of "
                "the model what it cannot run."
            )
        return answer


def _checked(signature: LiteRTSignature, arrays: Mapping[str, Any]) -> dict[str, Array]:
    """Return the arrays in the order of the inputs, which they fit."""
    names = [tensor.name for tensor in signature.inputs]
    if sorted(names) != sorted(arrays):
        raise StructureError(
            f"Signature {signature.name!r} takes {sorted(names)} and was given {sorted(arrays)}. "
            "To do: pass an array for each name."
        )
    given = {name: np.asarray(arrays[name]) for name in names}
    for tensor in signature.inputs:
        array = given[tensor.name]
        fits = len(array.shape) == len(tensor.shape) and all(
            size in (-1, has) for size, has in zip(tensor.shape, array.shape, strict=True)
        )
        if not fits or array.dtype.name != tensor.dtype:
            raise StructureError(
                f"Input {tensor.name!r} of signature {signature.name!r} is {tensor.dtype}"
                f"{[*tensor.shape]} and was given {array.dtype.name}{[*array.shape]}. To do: pass "
                "an array of that dtype and shape."
            )
    return given


def run_trial(runtime: Runtime, trial: Trial) -> dict[str, Array]:
    """Return the results of a trial; a first step starts from the initial variables."""
    if trial.step <= 1 and runtime.contents.variables:
        runtime.restart()
    return runtime.run(trial.inputs, signature=trial.signature)


def compare_model(
    model: bytes | str | os.PathLike[str],
    trials: Sequence[Trial],
    tolerance: Tolerance | None = None,
    *,
    process: LiteRTProcess | None = None,
) -> list[VerifyRow]:
    """Return a row for each trial of a signature that a model has."""
    with Runtime(model, process=process) as runtime:
        keys = [one.name for one in runtime.contents.signatures]
        return compare_calls(
            trials_of(keys, trials, exact=runtime.contents.exact),
            lambda trial: run_trial(runtime, trial),
            at_boundary,
            tolerance or Tolerance(),
        )
