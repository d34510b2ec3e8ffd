"""`python -m bridge.benchmarking.runtime_calls`: a file called by one runtime, and measured.

A request comes on the standard input and the answer goes to the standard output, as messages of
`bridge.core.worker_messages`. The request has the runtime, the file, the signature, and the
names of outputs; its parts are the inputs.
"""

from __future__ import annotations

import importlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes  # noqa: F401 - numpy knows its dtypes by their names afterwards
import numpy as np

from bridge.core.worker_messages import (
    describe_arrays,
    read_arrays,
    read_message,
    write_message,
)
from bridge.formats.file_format import Runtime, RuntimeCall
from bridge.formats.format_registry import format_of, format_runtimes

__all__ = ["JAX", "RUNTIMES", "peak_memory"]

_MAX_CALLS = 200


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


def peak_memory() -> int:
    """Return the bytes that this process has had at most; 0 where the system does not say."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
    except OSError:
        return 0
    return int(lines["VmHWM"].split()[0]) * 1024


def _measure(
    request: Mapping[str, Any], parts: Sequence[bytes]
) -> tuple[dict[str, Any], list[Any]]:
    """Return what was measured, and the results."""
    inputs = read_arrays(request["arrays"], parts)
    runtime = RUNTIMES[request["runtime"]]
    for name in runtime.modules:
        importlib.import_module(name)
    begun = time.perf_counter()
    call = runtime.prepare(
        RuntimeCall(request["path"], request["signature"], inputs, tuple(request["outputs"]))
    )
    results = [np.asarray(result) for result in call()]
    first = time.perf_counter() - begun
    times: list[float] = []
    end = time.perf_counter() + request["seconds"]
    while len(times) < _MAX_CALLS and (not times or time.perf_counter() < end):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    named = {str(number): result for number, result in enumerate(results)}
    answer = {
        "first_call": first,
        "latency": statistics.median(times),
        "memory": peak_memory(),
        "arrays": describe_arrays(named),
    }
    return answer, results


def main() -> None:
    """Answer one request; what libraries print goes to the standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    message = read_message(sys.stdin.buffer)
    assert message is not None
    request, parts = message
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    try:
        write_message(answers, *_measure(request, parts))
    except Exception as error:  # noqa: BLE001 - whatever a runtime says
        write_message(answers, {"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
