"""Signatures of TensorFlow functions around a call, compared with JAX in the place of the call.

`bridge.serving.compose` keeps in the file what is before the call and what is after it. TensorFlow
makes the inputs of a request, JAX computes the outputs, and TensorFlow makes the response of them,
which is compared with that of the signature.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jax import tree_util

from bridge.loading.loaded_model import LoadedModel
from bridge.verifying.comparison import Tolerance, describe_difference, greatest_error, largest
from bridge.verifying.tensorflow_process import run_program
from bridge.verifying.trial_request import TrialRequest
from bridge.verifying.verification import VerifyRow
from savedmodel.files.model_folder import ModelFolder
from savedmodel.protos.schema import Proto
from savedmodel.read import read_proto, served_graphs
from xla_call_module.dtypes import DTYPES, Array, dtype_from_name

# What the loaded object has beside each composed signature.
BEFORE, AFTER = "before_", "after_"
_PROGRAM = "composed_run.py"
_STRING = 7  # DT_STRING in tensorflow/core/framework/types.proto
_DTYPES = {dtype.enum: dtype.numpy for dtype in DTYPES}
_ROWS = 3  # of a batch that is made up
_TITLE = "around JAX"

_Tensors = Mapping[str, Array]


def composed_keys(folder: ModelFolder, model: LoadedModel) -> list[str]:
    """Return the keys of the signatures that say what is around their calls."""
    names = {
        child.local_name
        for graph in served_graphs(read_proto(folder))
        for node in graph.object_graph_def.nodes[:1]
        for child in node.children
    }
    return [key for key in model.others if {f"{BEFORE}{key}", f"{AFTER}{key}"} <= names]


def composed_inputs(folder: ModelFolder, keys: Sequence[str]) -> dict[str, dict[str, Proto]]:
    """Return for each composed signature its inputs by name, as the file declares them."""
    return {
        key: dict(graph.signature_def[key].inputs)
        for graph in served_graphs(read_proto(folder))
        for key in keys
        if key in graph.signature_def
    }


def verify_composed(
    path: str,
    model: LoadedModel,
    inputs: Mapping[str, Mapping[str, Proto]],
    request: TrialRequest,
    *,
    tolerance: Tolerance,
    seed: int,
    python: str | os.PathLike[str] | None,
) -> tuple[list[VerifyRow], list[str]]:
    """Return a row for each request, and the keys for which no request can be made up."""
    rows, left = [], []
    for key, tensors in inputs.items():
        requests = dict(_requests(key, tensors, request, seed))
        left += [] if requests else [key]
        for title, arrays in requests.items():
            rows.append(_verify(path, model, key, title, arrays, tolerance, python))
    return rows, left


def _requests(
    key: str, tensors: Mapping[str, Proto], request: TrialRequest, seed: int
) -> Iterator[tuple[str, _Tensors]]:
    given = request.inputs_of(key, tensors)
    if given is not None:
        yield "given", given
    if request.kinds and not any(tensor.dtype == _STRING for tensor in tensors.values()):
        random = np.random.default_rng(seed)
        yield "random", {name: _draw(tensor, random) for name, tensor in tensors.items()}


def _draw(tensor: Any, random: np.random.Generator) -> Array:
    """Return random floating-point numbers, and zeros for others, which may be indices."""
    shape = [dim.size if dim.size >= 0 else _ROWS for dim in tensor.tensor_shape.dim]
    dtype = _DTYPES.get(tensor.dtype, np.dtype(np.float32))
    drawn = random.normal(size=shape) if dtype.kind in "fcV" else np.zeros(shape)
    return np.asarray(drawn).astype(dtype)


def _verify(
    path: str,
    model: LoadedModel,
    key: str,
    title: str,
    request: _Tensors,
    tolerance: Tolerance,
    python: str | os.PathLike[str] | None,
) -> VerifyRow:
    """Return the comparison of one request."""
    named = {f"request/{name}": array for name, array in request.items()}
    title = f"{title}, {_TITLE}"
    made, problem = _run(path, key, named, python)
    if problem:
        return VerifyRow(key, title, 0, math.inf, problem)
    bare = next(place.split("/")[1] for place in made if place.startswith("input/"))
    function = model.signatures[bare]
    arguments = {name: made[f"input/{bare}/{name}"] for name in function.binding.inputs}
    leaves = [np.asarray(leaf) for leaf in tree_util.tree_leaves(function(**arguments))]
    named |= {f"output/{name}": leaves[i] for name, i in function.binding.outputs.items()}
    answers, problem = _run(path, key, named, python)
    if problem:
        return VerifyRow(key, title, 0, math.inf, problem)
    return _compared(key, title, answers, tolerance)


def _compared(key: str, title: str, answers: _Tensors, tolerance: Tolerance) -> VerifyRow:
    problems, errors = [], [0.0]
    for place, wanted in answers.items():
        kind, _, name = place.partition("/")
        if kind != "wanted":
            continue
        actual = answers[f"actual/{name}"]
        if wanted.dtype.kind == "O":
            differ = actual.shape != wanted.shape or bool((actual != wanted).any())
            problems += [f"{name}: {actual.tolist()!r:.80}, not {wanted.tolist()!r:.80}"] * differ
            continue
        difference = describe_difference(actual, wanted, tolerance, scale=largest([wanted]))
        problems += [] if difference is None else [f"{name} {difference}"]
        errors.append(greatest_error(actual, wanted))
    return VerifyRow(key, title, 0, max(errors), "; ".join(problems))


def _run(
    path: str, key: str, tensors: _Tensors, python: str | os.PathLike[str] | None
) -> tuple[dict[str, Array], str]:
    """Return what TensorFlow makes of tensors in a process of its own, or its error."""
    with tempfile.TemporaryDirectory() as name:
        given, results = Path(name, "given.npz"), Path(name, "results.npz")
        _write(given, key, tensors)
        files = [os.path.abspath(path), str(given), str(results)]
        lines, status, words = run_program([_PROGRAM], files, python=python)
        if not lines:
            return {}, f"The process ended with {status}. {words[-500:]}"
        problem = lines[-1]["error"]
        return ({}, problem) if problem else (_read(results), "")


def _write(path: Path, key: str, tensors: _Tensors) -> None:
    stored, dtypes = {}, {}
    for place, array in tensors.items():
        if array.dtype.kind in "USO":
            texts = [x.encode().hex() if isinstance(x, str) else x.hex() for x in array.ravel()]
            stored[place] = np.array(texts, "U").reshape(array.shape)
            dtypes[place] = "string"
            continue
        dtypes[place] = array.dtype.name
        plain = array.dtype.isbuiltin == 1
        stored[place] = array if plain else array.view(f"u{array.dtype.itemsize}")
    header = np.frombuffer(json.dumps({"key": key, "dtypes": dtypes}).encode(), np.uint8)
    np.savez(path, header=header, **stored)  # type: ignore[arg-type]  # no options


def _read(path: Path) -> dict[str, Array]:
    with np.load(path, allow_pickle=False) as entries:
        header = json.loads(entries["header"].tobytes())
        return {place: _decoded(entries[place], name) for place, name in header["dtypes"].items()}


def _decoded(array: Array, name: str) -> Array:
    if name != "string":
        return array.view(dtype_from_name(name, where="TensorFlow's answer").numpy)
    texts = np.empty(array.size, object)
    texts[:] = [bytes.fromhex(text) for text in array.reshape(-1).tolist()]
    return texts.reshape(array.shape)
