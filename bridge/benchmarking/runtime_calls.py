"""`python -m bridge.benchmarking.runtime_calls`: a file called by one runtime, and measured.

A request comes on the standard input and the answer goes to the standard output, as messages of
`bridge.core.worker_messages`. The request has the runtime, the file, the signature, and the
names of inputs and outputs; its parts are the inputs.
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
from xla_call_module.dtypes import Array

__all__ = ["CALLS", "peak_memory"]

Request = Mapping[str, Any]
Arrays = Mapping[str, Array]
Call = Callable[[], Sequence[Any]]

_MAX_CALLS = 200


def _jax(request: Request, arrays: Arrays) -> Call:
    import jax

    from bridge.core._jax import enable_x64
    from bridge.litert.litert_model import bind_signatures
    from bridge.loading.calling import call_flat
    from bridge.loading.exported_from_call import exported_from_call

    enable_x64().__enter__()  # files have the dtypes that they were exported with
    (bound,) = bind_signatures(
        request["path"], signatures=request["signature"], params=None, args=None,
        platform="cpu", order=0, inputs=None, outputs=None,
    ).values()  # fmt: skip
    call = bound.original
    function = jax.jit(call_flat(exported_from_call(call), name=call.name))
    leaves = {index: jax.device_put(array) for index, (_, array) in bound.parameters.items()}
    leaves |= {
        index: jax.device_put(arrays[name].astype(call.args[index].dtype.numpy))
        for index, name in bound.inputs.items()
    }
    return lambda: jax.block_until_ready(function(*(leaves[index] for index in call.kept)))


def _tensorflow(request: Request, arrays: Arrays) -> Call:
    import tensorflow as tf

    loaded = tf.saved_model.load(request["path"])
    function = loaded.signatures[request["signature"]]
    specs = function.structured_input_signature[1]
    tensors = {name: tf.cast(array, specs[name].dtype) for name, array in arrays.items()}

    def call(_: Any = loaded) -> list[Any]:  # its variables live as long as it does
        results = function(**tensors)
        return [results[name].numpy() for name in request["outputs"]]

    return call


def _onnx_runtime(request: Request, arrays: Arrays) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        request["path"], options, providers=["CPUExecutionProvider"]
    )
    names = [value.name for value in session.get_inputs()]
    feeds = dict(zip(request["inputs"], arrays.values(), strict=True))
    feeds = {name: feeds[name] for name in names}
    return lambda: session.run(None, feeds)


def _litert(request: Request, arrays: Arrays) -> Call:
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(request["path"], num_threads=1).get_signature_runner(request["signature"])

    def call() -> list[Any]:
        results = runner(**arrays)
        return [results[name] for name in request["outputs"]]

    return call


CALLS = {
    "JAX": _jax,
    "TensorFlow": _tensorflow,
    "ONNX Runtime": _onnx_runtime,
    "LiteRT": _litert,
}
# What is imported before the clock runs.
_MODULES = {
    "JAX": ("jax", "bridge.litert.litert_model", "bridge.loading.calling"),
    "TensorFlow": ("tensorflow",),
    "ONNX Runtime": ("onnxruntime",),
    "LiteRT": ("ai_edge_litert.interpreter",),
}


def peak_memory() -> int:
    """Return the bytes that this process has had at most; 0 where the system does not say."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
    except OSError:
        return 0
    return int(lines["VmHWM"].split()[0]) * 1024


def _measure(request: Request, parts: Sequence[bytes]) -> tuple[dict[str, Any], list[Any]]:
    """Return what was measured, and the results."""
    arrays = read_arrays(request["arrays"], parts)
    for name in _MODULES[request["runtime"]]:
        importlib.import_module(name)
    begun = time.perf_counter()
    call = CALLS[request["runtime"]](request, arrays)
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
