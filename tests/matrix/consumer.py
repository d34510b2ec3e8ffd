"""`python consumer.py FOLDER CASE/TARGET ...`: load files in this TensorFlow and compare.

It stands alone: neither JAX nor this project is installed where it runs. For each file it writes
one JSON line when it begins and one with the outcome, so that what kills the process is known and
nothing before it is lost.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import tensorflow as tf  # it reads the environment when it is imported

Arrays = dict[int, np.ndarray[Any, Any]]
Call = dict[str, Arrays]


def read_values(path: Path) -> tuple[float, list[Call]]:
    """The tolerance, and for each call its arrays by kind and index."""
    calls: dict[int, Call] = {}
    with np.load(path) as entries:
        tolerance = float(entries["tolerance"])
        for key in entries.files:
            if key != "tolerance":
                call, kind, index, name = key.split("/")
                array = entries[key].view(tf.as_dtype(name).as_numpy_dtype)
                calls.setdefault(int(call), {}).setdefault(kind, {})[int(index)] = array
    return tolerance, [calls[call] for call in sorted(calls)]


def check_file(folder: Path, tolerance: float, calls: list[Call]) -> list[str]:
    """Return what is wrong with a SavedModel."""
    loaded = tf.saved_model.load(str(folder))
    signature = loaded.signatures["serving_default"]
    wrong = []
    for number, call in enumerate(calls):
        args = [tf.constant(call["input"][i]) for i in sorted(call["input"])]
        by_name = signature(**{f"x{i}": arg for i, arg in enumerate(args)})
        flat = [by_name[f"y{i}"] for i in range(len(by_name))]
        for way, results in (("signature", flat), ("root", tf.nest.flatten(loaded(*args)))):
            wrong += compare(f"{way}, call {number}", dict(enumerate(results)), call["output"],
                             tolerance)  # fmt: skip
        if "gradient" in call:
            found = pull_back(loaded, args, call)
            wrong += compare(f"gradient, call {number}", found, call["gradient"], tolerance)
    return wrong


def pull_back(loaded: Any, args: list[Any], call: Call) -> dict[int, Any]:
    """The gradient of one argument, for recorded cotangents of some results."""
    (index,) = call["gradient"]
    with tf.GradientTape() as tape:
        tape.watch(args[index])
        results = tf.nest.flatten(loaded(*args))
    cotangents = call["cotangent"]
    return {
        index: tape.gradient(
            [results[i] for i in cotangents],
            args[index],
            output_gradients=[tf.constant(cotangents[i]) for i in cotangents],
            unconnected_gradients=tf.UnconnectedGradients.NONE,
        )
    }


def compare(what: str, found: dict[int, Any], expected: Arrays, tolerance: float) -> list[str]:
    """One line for each array that differs."""
    if found.keys() != expected.keys():
        return [f"{what}: {len(found)} results, expected {len(expected)}"]
    lines = ((index, difference(found[index], expected[index], tolerance)) for index in expected)
    return [f"{what}, {index}: {line}" for index, line in lines if line]


def difference(tensor: Any, expected: np.ndarray[Any, Any], tolerance: float) -> str:
    """Return how a tensor differs from what was recorded; empty if it does not."""
    if tensor is None:
        return "None"
    found = tensor.numpy()
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return f"{found.dtype}{found.shape}, expected {expected.dtype}{expected.shape}"
    if not inexact(expected.dtype):
        return "" if np.array_equal(found, expected) else f"{found}, expected {expected}"
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    left, right = found.astype(wide), expected.astype(wide)
    finite = np.isfinite(right)
    if not np.array_equal(left[~finite], right[~finite], equal_nan=True):
        return f"{found}, expected {expected}"
    scale = np.abs(right[finite]).max(initial=0.0)
    error = np.abs(left[finite] - right[finite]).max(initial=0.0)
    within = error <= tolerance * scale
    return "" if within else f"off by {error:.3g} at a largest value of {scale:.3g}"


def inexact(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype rounds; numpy does not say so of those of ml_dtypes."""
    kind = tf.as_dtype(dtype)
    return bool(kind.is_floating or kind.is_complex)


def outcome(folder: Path, cell: str) -> dict[str, str]:
    """Return what became of one file."""
    case = cell.partition("/")[0]
    try:
        wrong = check_file(folder / cell, *read_values(folder / case / "values.npz"))
    except Exception as error:  # noqa: BLE001 - a file that fails is a cell of the grid
        return {"outcome": "failed", "message": f"{type(error).__name__}: {error}"}
    return {"outcome": "failed" if wrong else "passed", "message": "; ".join(wrong)}


def main(folder: Path, cells: list[str]) -> None:
    """Run each file, and say so at once."""
    # Whatever else prints goes to stderr.
    with os.fdopen(os.dup(1), "w") as lines:
        os.dup2(2, 1)
        for cell in cells:
            print(json.dumps({"cell": cell}), file=lines, flush=True)
            print(json.dumps({"cell": cell, **outcome(folder, cell)}), file=lines, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
