"""The runtimes that a case is brought to, each by the public verb that writes for it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
from jax import export

import bridge
from bridge.core_ops.decompositions.complex_pairs import COMPLEX_AS_PAIRS
from bridge.litert.lowering.storage_dtypes import at_boundary
from bridge.litert.runtime import Runtime
from bridge.litert.worker_process import LiteRTProcess
from tests.operations.artifacts import Artifact, Batch, precision, transformed
from tests.operations.boundary import from_boundary
from tests.operations.case import FORMS, FORMS_OF_FILES
from tests.operations.operands import Array


class Target(Protocol):
    """A runtime. It raises what the verb or the runtime raises.

    Attributes:
        name: its name.
        ulps: by how many units in the last place its results may differ from JAX's.
        zeros: whether the signs of zeros are JAX's.
        forms: the forms of cases that it is brought.
    """

    name: str
    ulps: float
    zeros: bool
    forms: tuple[str, ...]

    def run(self, batch: Batch, folder: Path) -> list[list[Array]]:
        """Return the results of each call of the artifact of a batch."""


class LiftedToJax:
    """The module lifted into JAX, which transforms it."""

    name = "JAX"
    ulps = 16.0
    zeros = True
    forms = FORMS

    def run(self, batch: Batch, folder: Path) -> list[list[Array]]:
        """Lift the plain form, and transform what was lifted."""
        is_plain = batch.form not in ("vmap", "gradient", "second gradient")
        plain = batch if is_plain else Batch(batch.cases, "static", batch.dtype)
        lifted = bridge.to_jax(plain.artifact(folder).serialized)
        function = transformed(batch, lambda *arrays: list(lifted(*arrays)))
        with precision(batch.dtype):
            run = jax.jit(function)
            calls = batch.artifact(folder).calls
            return [[np.asarray(each) for each in run(*call.arrays)] for call in calls]


class TensorFlowByXla:
    """The SavedModel with the module, in TensorFlow."""

    name = "TensorFlow"
    ulps = 16.0
    zeros = True
    forms = FORMS_OF_FILES

    def run(self, batch: Batch, folder: Path) -> list[list[Array]]:
        """Save, load, and call the signature."""
        import tensorflow as tf

        artifact = batch.artifact(folder)
        with tempfile.TemporaryDirectory() as saved:
            _save(artifact, saved, operations="xla")
            loaded = tf.saved_model.load(saved)
            signature = loaded.signatures["serving_default"]
            return [
                _in_order(signature(**_named(call.arrays, signature.structured_input_signature[1])))
                for call in artifact.calls
            ]


class TensorFlowOperations:
    """The SavedModel of TensorFlow's own operations, in a session without XLA."""

    name = "TensorFlow operations"
    ulps = 32.0
    zeros = True
    forms = FORMS_OF_FILES

    def __init__(self) -> None:
        """Start the process."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.operations.plain_session"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def run(self, batch: Batch, folder: Path) -> list[list[Array]]:
        """Save, and have the process run it."""
        artifact = batch.artifact(folder)
        with tempfile.TemporaryDirectory() as saved:
            _save(artifact, f"{saved}/model", operations="tensorflow")
            for number, call in enumerate(artifact.calls):
                np.savez(f"{saved}/{number}.npz", **_named(call.arrays))
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps([saved, len(artifact.calls)]) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
            if error := json.loads(answer or '"the process has ended"'):
                raise RuntimeError(error)
            found = []
            for number in range(len(artifact.calls)):
                with np.load(f"{saved}/{number}.found.npz") as results:
                    found.append([results[f"y{n}"] for n in range(len(results.files))])
            return found


class OnnxRuntime:
    """The model of ONNX's operations, in ONNX Runtime."""

    name = "ONNX Runtime"
    ulps = 64.0
    zeros = False
    forms = FORMS_OF_FILES

    def run(self, batch: Batch, folder: Path) -> list[list[Array]]:
        """Convert and run; complex numbers are pairs outside."""
        import onnxruntime

        artifact = batch.artifact(folder)
        inputs, outputs = _names(artifact)
        model = bridge.to_onnx(artifact.serialized, inputs=inputs, outputs=outputs)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        wanted = [value.name for value in session.get_inputs()]
        found = []
        for call in artifact.calls:
            given = _named([COMPLEX_AS_PAIRS.boundary.store(array) for array in call.arrays])
            results = session.run(outputs, {name: given[name] for name in wanted})
            pairs = zip(results, call.expected, strict=True)
            found.append([_of_pairs(array, other.dtype) for array, other in pairs])
        return found


class LiteRT:
    """The model of TFLite's kernels, in LiteRT."""

    name = "LiteRT"
    ulps = 64.0
    zeros = False
    forms = FORMS_OF_FILES

    def __init__(self) -> None:
        """Start the process."""
        self._process = LiteRTProcess()

    def close(self) -> None:
        """End the process."""
        self._process.close()

    def run(self, batch: Batch, folder: Path) -> list[list[Array]]:
        """Convert and run."""
        artifact = batch.artifact(folder)
        inputs, outputs = _names(artifact)
        model = bridge.to_litert(artifact.serialized, verify=False, inputs=inputs, outputs=outputs)
        found = []
        with Runtime(model, process=self._process) as runtime:
            (signature,) = runtime.contents.signatures
            wanted = {tensor.name for tensor in signature.inputs}
            for call in artifact.calls:
                given = _named([at_boundary(array) for array in call.arrays])
                results = runtime.run({name: given[name] for name in wanted})
                pairs = enumerate(call.expected)
                found.append([from_boundary(results[f"y{n}"], other.dtype) for n, other in pairs])
        return found


TARGETS: dict[str, type[Any]] = {
    target.name: target
    for target in (LiftedToJax, TensorFlowByXla, TensorFlowOperations, OnnxRuntime, LiteRT)
}


@contextlib.contextmanager
def opened(name: str) -> Iterator[Target]:
    """Have a target, with its process if it has one."""
    target = TARGETS[name]()
    try:
        yield target
    finally:
        if hasattr(target, "close"):
            target.close()


def _of_pairs(array: Array, dtype: np.dtype[Any]) -> Array:
    """Return complex numbers of their parts; another array as it is."""
    return np.ascontiguousarray(array).view(dtype)[..., 0] if dtype.kind == "c" else array


def _names(artifact: Artifact) -> tuple[list[str], list[str]]:
    call = artifact.calls[0]
    return [f"x{n}" for n in range(len(call.arrays))], [f"y{n}" for n in range(len(call.expected))]


def _named(arrays: list[Array], wanted: Any = None) -> dict[str, Array]:
    named = {f"x{n}": array for n, array in enumerate(arrays)}
    return named if wanted is None else {name: named[name] for name in wanted}


def _in_order(results: dict[str, Any]) -> list[Array]:
    return [results[f"y{n}"].numpy() for n in range(len(results))]


def _save(artifact: Artifact, path: str | os.PathLike[str], *, operations: Any) -> None:
    inputs, outputs = _names(artifact)
    exported = export.deserialize(bytearray(artifact.serialized))
    bridge.save(
        exported, path, inputs=inputs, outputs=outputs, gradient_order=0, operations=operations,
        overwrite=True,
    )  # fmt: skip
