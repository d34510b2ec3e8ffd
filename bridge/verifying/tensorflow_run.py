"""`python tensorflow_run.py SAVED_MODEL TRIALS RESULTS`: run trials in TensorFlow alone.

A copy of this file, beside one of `tensorflow_probes.py`, runs in a process of its own, perhaps in
another environment, in which this package need not be installed: it imports TensorFlow and numpy,
and nothing can import JAX in it. TRIALS is a file as `bridge.verifying.trials` writes it;
RESULTS becomes one with the arrays `TRIAL/result/ORDER/NAME`. On the standard output there is one
JSON line for each event.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

# An import of a module that is None fails; so this comes before every other import.
sys.modules.update({"jax": None, "jaxlib": None})  # type: ignore[dict-item]  # typeshed has no None

import numpy as np  # noqa: E402 - as above
import tensorflow as tf  # noqa: E402 - as above

Arrays = dict[str, np.ndarray[Any, Any]]


def read_arrays(path: str) -> tuple[dict[str, Any], Arrays]:
    """Return the header of a file with arrays, and the arrays."""
    with np.load(path, allow_pickle=False) as entries:
        header = json.loads(entries["header"].tobytes())
        arrays = {
            key: entries[key].view(tf.as_dtype(name).as_numpy_dtype)
            for key, name in header["dtypes"].items()
        }
    return header, arrays


def write_arrays(path: str, arrays: Arrays) -> None:
    """Write arrays; dtypes that numpy lacks are unsigned integers of the same width."""
    header = {"dtypes": {key: array.dtype.name for key, array in arrays.items()}}
    plain = {
        key: array if array.dtype.isbuiltin == 1 else array.view(f"u{array.dtype.itemsize}")
        for key, array in arrays.items()
    }
    text = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez(path, header=text, **plain)  # type: ignore[arg-type]  # the keys are no options


def to_tensor(arrays: Arrays, number: int, key: str) -> Any:
    """Return a tensor of a trial."""
    return tf.constant(arrays[f"{number}/{key}"])


class AssignedVariables:
    """The variables of the signatures that assign some, with their values in the file."""

    def __init__(self, loaded: Any, trials: Iterable[Mapping[str, Any]]) -> None:
        """Remember the values; a tensor shares its memory with a variable that nobody assigns."""
        keys = {trial["signature"] for trial in trials if trial.get("step")}
        variables = {id(v): v for key in sorted(keys) for v in loaded.signatures[key].variables}
        self._variables = [*variables.values()]
        self._initial = self.values()

    def values(self) -> list[Any]:
        """Return what the variables hold."""
        return [tf.identity(variable.read_value()) for variable in self._variables]

    def assign(self, values: Sequence[Any] | None = None) -> None:
        """Let them hold these values again; by default those in the file."""
        for variable, value in zip(self._variables, values or self._initial, strict=True):
            variable.assign(value)


def run_trial(
    loaded: Any,
    trial: Mapping[str, Any],
    given: Callable[[str], Any],
    state: AssignedVariables,
) -> Arrays:
    """Return the results of one trial, by order and name."""
    signature = loaded.signatures[trial["signature"]]
    if trial.get("step", 0) < 2:
        state.assign()
    before = state.values()
    inputs = {name: given(f"input/{name}") for name in trial["inputs"]}
    # The last slash of a name, which earlier files may have, TensorFlow takes for that of a scope.
    variables = {f"{name}/": v for v in signature.variables for name in names_of(v)}
    variables |= {name: v for v in signature.variables for name in names_of(v)}
    sources = {f"input/{name}": inputs[name] for name in trial["differentiated"]}
    sources |= {f"variable/{name}": variables[name] for name in trial["variables"]}
    # As it is served, without gradients; then all orders at once.
    orders = [call_signature(signature, inputs, trial)]
    assigned = [name for name in trial["expected"][0] if name not in trial["outputs"]]
    orders[0] |= {name: variables[name.partition("/")[2]].read_value() for name in assigned}
    if trial["orders"]:
        after = state.values()
        state.assign(before)
        orders += differentiate(trial["orders"], signature, inputs, sources, trial, given)[1:]
        state.assign(after)
    results: Arrays = {}
    for order, by_name in enumerate(orders):
        for name, value in by_name.items():
            if value is None:  # nothing depends on it
                value = tf.zeros_like(sources[name])
            results[f"{order}/{name}"] = np.asarray(tf.convert_to_tensor(value))
    return results


def names_of(variable: Any) -> tuple[str, str]:
    """Return the name of a variable, alone and with dtype and shape."""
    name = variable.name.partition(":")[0]
    shape = ",".join(map(str, variable.shape))
    return name, f"{name} {variable.dtype.name}[{shape}]"


def call_signature(
    signature: Any, inputs: Mapping[str, Any], trial: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the outputs of a signature that the trial compares."""
    keywords: Any = (signature.structured_input_signature or ((), {}))[1]
    # Of a file without an object graph TensorFlow takes one input by its place alone.
    by_place = not keywords and len(inputs) == 1
    named = signature(*inputs.values()) if by_place else signature(**inputs)
    return {name: named[name] for name in trial["outputs"]}


def differentiate(
    order: int,
    signature: Any,
    inputs: Mapping[str, Any],
    sources: Mapping[str, Any],
    trial: Mapping[str, Any],
    given: Callable[[str], Any],
) -> list[dict[str, Any]]:
    """Return the outputs, and the gradients of each order up to the given one."""
    if order == 0:
        return [call_signature(signature, inputs, trial)]
    with tf.GradientTape() as tape:
        for source in sources.values():
            tape.watch(source)
        orders = differentiate(order - 1, signature, inputs, sources, trial, given)
    below = orders[-1]
    wanted = [name for name in trial["cotangents"][order - 1] if below[name] is not None]
    if not wanted:
        return [*orders, dict.fromkeys(sources)]
    gradients = tape.gradient(
        [tf.convert_to_tensor(below[name]) for name in wanted],
        list(sources.values()),
        output_gradients=[given(f"cotangent/{order}/{name}") for name in wanted],
    )
    return [*orders, dict(zip(sources, gradients, strict=True))]


def main(model: str, trials: str, results: str) -> None:
    """Run every trial, and print an event for each."""
    # Whatever else prints goes to stderr.
    with os.fdopen(os.dup(1), "w") as lines:
        os.dup2(2, 1)

        def emit(**fields: Any) -> None:
            print(json.dumps(fields), file=lines, flush=True)

        emit(tensorflow=tf.__version__)
        header, arrays = read_arrays(trials)
        known = [trial["deviations"].values() for trial in header["trials"]]
        names = sorted({name for outputs in known for several in outputs for name in several})
        emit(deviations=importlib.import_module("tensorflow_probes").probe_all(names))
        try:
            loaded = tf.saved_model.load(model)
        except Exception as error:  # noqa: BLE001 - what it is, is for the caller to say
            emit(load_error=f"{type(error).__name__}: {error}")
            return
        state = AssignedVariables(loaded, header["trials"])
        computed: Arrays = {}
        for number, trial in enumerate(header["trials"]):
            emit(begun=number)
            begun, message = time.perf_counter(), ""
            given = functools.partial(to_tensor, arrays, number)
            try:
                result = run_trial(loaded, trial, given, state)
                computed |= {f"{number}/result/{key}": array for key, array in result.items()}
            except Exception as error:  # noqa: BLE001 - as above
                message = f"{type(error).__name__}: {error}"
            emit(trial=number, error=message, seconds=time.perf_counter() - begun)
        write_arrays(results, computed)
        emit(done=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
