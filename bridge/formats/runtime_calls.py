"""Files called by the runtimes of their formats, in a process that runs nothing else.

`python -m bridge.formats.runtime_calls [MODULE ...]` imports some modules, and answers the requests
(`bridge.core.worker_messages`) of a `RuntimeProcess`: each has the runtime, the file, the
signature, and the names of outputs; its parts are the inputs.
"""

from __future__ import annotations

import importlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - numpy knows its dtypes by their names afterwards
import numpy as np

from bridge.core.limited_process import ProcessDeath, WorkerProcess
from bridge.core.worker_messages import Answer, answer_requests, describe_arrays, read_arrays
from bridge.formats.file_format import Runtime, RuntimeCall
from bridge.formats.format_registry import format_of, format_runtimes
from xla_call_module.dtypes import Array
from xla_call_module.errors import InteropError

_PROGRAM = "bridge.formats.runtime_calls"
_MAX_CALLS = 200
_MAX_SECONDS = 600.0  # for one request


def _jax(call: RuntimeCall) -> Callable[[], Sequence[Any]]:
    import jax  # the processes of others are without it

    jax.enable_x64(True).__enter__()  # files have the dtypes that they were exported with
    return format_of(call.path).open(call.path, call.signature).bind(call.inputs)


# The reference, which calls files of which those of other formats are made.
JAX = Runtime(
    name="JAX",
    option="jax",
    wheels=("jax",),
    modules=("jax", "bridge.formats.runnable", "bridge.loading.loaded_model"),
    prepare=_jax,
)
RUNTIMES = {each.name: each for each in (JAX, *format_runtimes().values())}


class RuntimeProcess(WorkerProcess):
    """A process in which runtimes call files."""

    def __init__(self, imports: Sequence[str] = ()) -> None:
        """Start nothing yet; the process imports some modules, also of the working directory."""
        super().__init__(seconds=_MAX_SECONDS)
        self._imports = imports

    def _command(self, folder: Path) -> list[str]:
        del folder
        return [sys.executable, "-m", _PROGRAM, *self._imports]

    def call(
        self, runtime: Runtime, call: RuntimeCall, *, repeated: float | None = None
    ) -> tuple[dict[str, Any], list[Array]]:
        """Return what was measured of a call, and its results."""
        try:
            answer, parts = self.request(
                "call",
                [*call.inputs.values()],
                runtime=runtime.name,
                path=os.path.abspath(call.path),
                signature=call.signature,
                outputs=call.outputs,
                arrays=describe_arrays(call.inputs),
                repeated=repeated,
            )
            problem = answer.get("error")
        except ProcessDeath as death:
            problem = str(death)
        if problem:
            raise InteropError(f"{runtime.name} does not run it: {problem}")
        return answer, [*read_arrays(answer["arrays"], parts).values()]


def peak_memory() -> int:
    """Return the bytes that this process has had at most; 0 where the system does not say."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
    except OSError:
        return 0
    return int(lines["VmHWM"].split()[0]) * 1024


class _Worker:
    """The verb of the requests."""

    def call(
        self,
        parts: Sequence[bytes],
        *,
        runtime: str,
        path: str,
        signature: str,
        outputs: Sequence[str],
        arrays: Sequence[Any],
        repeated: float | None,
    ) -> Answer:
        """Return what was measured of a call, and the results."""
        if repeated is not None and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        inputs = read_arrays(arrays, parts)
        for name in RUNTIMES[runtime].modules:
            importlib.import_module(name)
        begun = time.perf_counter()
        call = RUNTIMES[runtime].prepare(RuntimeCall(path, signature, inputs, tuple(outputs)))
        results = [np.asarray(result) for result in call()]
        first = time.perf_counter() - begun
        measured = {} if repeated is None else _measure(call, first, repeated)
        named = {str(number): result for number, result in enumerate(results)}
        return {**measured, "arrays": describe_arrays(named)}, results


def _measure(call: Callable[[], Any], first: float, seconds: float) -> dict[str, float]:
    """Return the seconds of the first call and the median of others, and the peak memory."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < _MAX_CALLS and (not times or time.perf_counter() < end):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return {
        "first_call": first,
        "latency": statistics.median(times),
        "memory": peak_memory(),
    }


if __name__ == "__main__":
    for module in sys.argv[1:]:
        importlib.import_module(module)
    answer_requests(_Worker())
