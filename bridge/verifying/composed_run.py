"""`python composed_run.py SAVED_MODEL GIVEN RESULTS`: run what is around a call in TensorFlow.

A copy of this file runs in a process of its own, which imports TensorFlow and numpy alone. GIVEN
has a request, and in a second run what JAX returns for the inputs that the first one made of it:
RESULTS then has what the signature answers, and what `postprocess` makes of JAX's outputs. On the
standard output there is one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

# An import of a module that is None fails; so this comes before every other import.
sys.modules.update({"jax": None, "jaxlib": None})  # type: ignore[dict-item]  # typeshed has no None

import numpy as np  # noqa: E402 - as above
import tensorflow as tf  # noqa: E402 - as above


def read_values(path: str) -> tuple[str, dict[str, Any]]:
    """Return the key of a signature, and the tensors of a file by their places."""
    with np.load(path, allow_pickle=False) as entries:
        header = json.loads(entries["header"].tobytes())
        tensors = {}
        for place, name in header["dtypes"].items():
            array = entries[place]
            if name == "string":
                texts = [bytes.fromhex(text) for text in array.reshape(-1).tolist()]
                tensors[place] = tf.reshape(tf.constant(texts, tf.string), array.shape)
            else:
                tensors[place] = tf.constant(array.view(tf.as_dtype(name).as_numpy_dtype))
    return header["key"], tensors


def write_values(path: str, key: str, tensors: Mapping[str, Any]) -> None:
    """Write tensors; strings as their bytes in hexadecimal numbers."""
    dtypes = {place: tensor.dtype.name for place, tensor in tensors.items()}
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for place, tensor in tensors.items():
        array = tensor.numpy() if hasattr(tensor, "numpy") else np.asarray(tensor)
        if tensor.dtype == tf.string:
            texts = [text.hex() for text in np.asarray(array, object).reshape(-1)]
            array = np.array(texts, "U").reshape(tensor.shape)
        elif array.dtype.isbuiltin != 1:
            array = array.view(f"u{array.dtype.itemsize}")
        arrays[place] = array
    header = np.frombuffer(json.dumps({"key": key, "dtypes": dtypes}).encode(), np.uint8)
    np.savez(path, header=header, **arrays)  # type: ignore[arg-type]  # the keys are no options


def below(tensors: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Return the tensors whose places are in a folder, by the rest of their places."""
    found = (place.partition("/") for place in tensors)
    return {rest: tensors[f"{folder}/{rest}"] for head, _, rest in found if head == folder}


def run(model: str, given: str, results: str) -> None:
    """Write the inputs of the call, or, with its outputs, both answers."""
    key, tensors = read_values(given)
    loaded = tf.saved_model.load(model)
    request, outputs = below(tensors, "request"), below(tensors, "output")
    made = getattr(loaded, f"before_{key}")(**request)
    if not outputs:
        write_values(results, key, made)
        return
    beside = below(made, "beside")
    wanted = getattr(loaded, f"after_{key}")(**beside, **outputs)
    actual = loaded.signatures[key](**request)
    answers = {f"actual/{name}": tensor for name, tensor in actual.items()}
    write_values(results, key, answers | {f"wanted/{name}": t for name, t in wanted.items()})


if __name__ == "__main__":
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints goes to stderr
    message = ""
    try:
        run(*sys.argv[1:])
    except Exception as error:  # noqa: BLE001 - what it is, is for the caller to say
        message = f"{type(error).__name__}: {error}"
    print(json.dumps({"error": message}), file=lines, flush=True)
