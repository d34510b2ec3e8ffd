"""`python -m tests.matrix.coverage_cells FOLDER CASE/COLUMN ...`: what a function does in a place.

The files are those of `tests.matrix.files`, and the lines that it prints are as those of
`consumer.py`: one when a cell begins and one with its outcome, so that a converter which ends the
process is found out too.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
import tensorflow as tf

import bridge
from bridge.core_ops.decompositions.complex_pairs import COMPLEX_AS_PAIRS
from bridge.litert.lowering.storage_dtypes import at_boundary
from bridge.litert.runtime import Runtime
from tests.matrix import consumer
from tests.matrix.case import Case
from tests.matrix.files import case_settings, logical_arguments, physical_array
from tests.matrix.functions import CASES
from tests.matrix.written import DEFAULT, VALUES
from tests.operations.boundary import from_boundary
from xla_call_module.errors import InteropError

Answer = tuple[str, str]
_PASSED: Answer = ("passed", "")
_KEY = "serving_default"
# What another runtime may differ by, as a part of the largest magnitude, where a result is rounded
# at all: kernels of ONNX Runtime and of TFLite have their own polynomials and orders of sums.
_ROUNDED = {"ONNX": 2e-5, "LiteRT": 2e-5, "TFLite": 1e-4}


def measure(case: Case, folder: Path, column: str) -> Answer:
    """Return what became of one case in one place, and why.

    Args:
        case: the function.
        folder: where its file and its values are.
        column: one of `COLUMNS`.
    """
    tolerance, calls = consumer.read_values(folder / VALUES)
    if tolerance:
        tolerance = max(tolerance, _ROUNDED.get(column, 0.0))
    try:
        return COLUMNS[column](case, folder / DEFAULT, calls, tolerance)
    except InteropError as error:
        return "refused", f"{type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001 - a cell of the table
        return "failed", f"{type(error).__name__}: {error}"


# The elements of which ONNX Runtime has no arrays of numpy.
_WITHOUT_ARRAYS = ("tensor(bfloat16", "tensor(float8")


def _judge(
    calls: list[consumer.Call],
    tolerance: float,
    run: Callable[[list[np.ndarray[Any, Any]]], Mapping[str, Any]],
) -> Answer:
    """Compare the results of a function of the inputs, by the names of a signature."""
    wrong = []
    for number, call in enumerate(calls):
        by_name = run([call["input"][i] for i in sorted(call["input"])])
        found = {int(name.removeprefix("y")): value for name, value in by_name.items()}
        tensors = {
            index: tf.constant(np.asarray(value).astype(call["output"][index].dtype))
            for index, value in found.items()
        }
        wrong += consumer.compare(f"call {number}", tensors, call["output"], tolerance)
    return ("failed", "; ".join(wrong)) if wrong else _PASSED


def _in_tensorflow(_: Case, path: Path, calls: list[consumer.Call], tolerance: float) -> Answer:
    plain = [{k: v for k, v in call.items() if k != "gradient"} for call in calls]
    wrong = consumer.check_file(path, tolerance, plain)
    return ("failed", "; ".join(wrong)) if wrong else _PASSED


def _gradient(_: Case, path: Path, calls: list[consumer.Call], tolerance: float) -> Answer:
    with_gradient = [call for call in calls if "gradient" in call]
    if not with_gradient:
        return "absent", "there is no gradient to compare"
    loaded, wrong = tf.saved_model.load(str(path)), []
    for call in with_gradient:
        args = [tf.constant(call["input"][i]) for i in sorted(call["input"])]
        found = consumer.pull_back(loaded, args, call)
        wrong += consumer.compare("gradient", found, call["gradient"], tolerance)
    return ("failed", "; ".join(wrong)) if wrong else _PASSED


def _in_jax(case: Case, path: Path, calls: list[consumer.Call], tolerance: float) -> Answer:
    with case_settings(case):
        signature = bridge.load(path).signatures[_KEY]

        def run(arrays: list[np.ndarray[Any, Any]]) -> dict[str, Any]:
            results = signature(
                **{f"x{i}": a for i, a in enumerate(logical_arguments(case, arrays))}
            )
            leaves = jax.tree.leaves(results)
            return {f"y{i}": physical_array(leaf) for i, leaf in enumerate(leaves)}

        return _judge(calls, tolerance, run)


def _of_pairs(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return what ONNX has for an array of a dtype as that, which is a pair of a complex number."""
    return array[..., 0] + 1j * array[..., 1] if dtype.kind == "c" else array


def _in_onnx(case: Case, path: Path, calls: list[consumer.Call], tolerance: float) -> Answer:
    import onnxruntime

    with case_settings(case):
        model = bridge.to_onnx(path)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    taken = {value.name: value.type for value in session.get_inputs()}
    names = [value.name for value in session.get_outputs()]
    kinds = {*taken.values(), *(value.type for value in session.get_outputs())}
    if narrow := [kind for kind in sorted(kinds) if kind.startswith(_WITHOUT_ARRAYS)]:
        return "absent", f"ONNX Runtime takes and returns no arrays of {narrow[0]} in Python"

    def run(arrays: list[np.ndarray[Any, Any]]) -> dict[str, Any]:
        feeds = {f"x{i}": COMPLEX_AS_PAIRS.boundary.store(a) for i, a in enumerate(arrays)}
        found = session.run(None, {name: feeds[name] for name in taken})
        return {
            name: _of_pairs(array, calls[0]["output"][int(name.removeprefix("y"))].dtype)
            for name, array in zip(names, found, strict=True)
        }

    return _judge(calls, tolerance, run)


def _in_litert(case: Case, path: Path, calls: list[consumer.Call], tolerance: float) -> Answer:
    with case_settings(case):
        model = bridge.to_litert(path, verify=False)
    with Runtime(model) as runtime:
        (signature,) = runtime.contents.signatures
        wanted = {tensor.name for tensor in signature.inputs}

        def run(arrays: list[np.ndarray[Any, Any]]) -> Mapping[str, Any]:
            given = {f"x{i}": physical_array(a) for i, a in enumerate(arrays)}
            boundary = {name: at_boundary(array) for name, array in given.items() if name in wanted}
            found = runtime.run(boundary, signature=_KEY)
            dtypes = calls[0]["output"]
            return {
                name: from_boundary(array, dtypes[int(name.removeprefix("y"))].dtype)
                for name, array in found.items()
            }

        return _judge(calls, tolerance, run)


def _in_tflite(_: Case, path: Path, calls: list[consumer.Call], tolerance: float) -> Answer:
    try:
        converter = tf.lite.TFLiteConverter.from_saved_model(str(path), signature_keys=[_KEY])
        runner = tf.lite.Interpreter(model_content=converter.convert()).get_signature_runner(_KEY)
        wanted = runner.get_input_details()
        return _judge(
            calls,
            tolerance,
            lambda arrays: runner(
                **{f"x{i}": a for i, a in enumerate(arrays) if f"x{i}" in wanted}
            ),
        )
    except Exception as error:  # noqa: BLE001 - whatever TensorFlow's converter or interpreter says
        return "refused", f"{type(error).__name__}: {error}"


COLUMNS: Mapping[str, Callable[[Case, Path, list[consumer.Call], float], Answer]] = {
    "TensorFlow": _in_tensorflow,
    "gradient": _gradient,
    "back to JAX": _in_jax,
    "ONNX": _in_onnx,
    "LiteRT": _in_litert,
    "TFLite": _in_tflite,
}


def main(folder: Path, cells: list[str]) -> None:
    """Measure each cell, and say so at once."""
    warnings.simplefilter("ignore")
    cases = {case.name: case for case in CASES}
    with os.fdopen(os.dup(1), "w") as lines:
        os.dup2(2, 1)  # whatever else prints goes to stderr
        for cell in cells:
            name, _, column = cell.partition("/")
            print(json.dumps({"cell": cell}), file=lines, flush=True)
            outcome, message = measure(cases[name], folder / name, column)
            answer = {"cell": cell, "outcome": outcome, "message": message}
            print(json.dumps(answer), file=lines, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
