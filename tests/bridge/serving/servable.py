"""A version of a model, loaded by TensorFlow's session loader as TensorFlow Serving loads it.

The tag `serve`, the init op, signatures by name and their tensors by name, and the warmup records
before anybody else may call it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

__all__ = ["RefusedError", "Servable", "disable_xla", "newest_version"]

WARMUP = "assets.extra/tf_serving_warmup_requests"


class RefusedError(Exception):
    """A request that cannot be answered.

    Attributes:
        code: of gRPC, such as INVALID_ARGUMENT.
        message: what is wrong.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Servable:
    """A loaded version."""

    def __init__(self, folder: Path, *, warm: bool = True) -> None:
        """Load it, and answer its warmup records."""
        self.version = int(folder.name)
        with tf.Graph().as_default(), tf.device("/CPU:0"):
            self._session = tf.compat.v1.Session()
            graph = tf.compat.v1.saved_model.load(self._session, ["serve"], str(folder))
        self.signatures = dict(graph.signature_def)
        self.warmed = sum(map(self._replay, self._records(folder))) if warm else 0

    @staticmethod
    def _records(folder: Path) -> Sequence[bytes]:
        file = folder / WARMUP
        records = tf.data.TFRecordDataset(str(file)) if file.is_file() else ()
        return [record.numpy() for record in records]

    def _replay(self, record: bytes) -> int:
        request = PredictionLog.FromString(record).predict_log.request
        inputs = {name: tf.make_ndarray(proto) for name, proto in request.inputs.items()}
        self.predict(request.model_spec.signature_name, inputs)
        return 1

    def signature(self, key: str) -> Any:
        """The SignatureDef."""
        key = key or "serving_default"
        if key not in self.signatures:
            raise RefusedError("FAILED_PRECONDITION", f"no signature {key!r}")
        return self.signatures[key]

    def predict(
        self,
        key: str,
        inputs: Mapping[str, np.ndarray[Any, Any]],
        outputs: Sequence[str] = (),
    ) -> dict[str, np.ndarray[Any, Any]]:
        """The outputs by name; those that are asked for, or all."""
        definition = self.signature(key)
        if unknown := sorted(inputs.keys() - definition.inputs.keys()):
            raise RefusedError("INVALID_ARGUMENT", f"no input {unknown[0]!r}")
        if missing := inputs_without_defaults(definition) - inputs.keys():
            raise RefusedError("INVALID_ARGUMENT", f"missing input {sorted(missing)[0]!r}")
        names = outputs or sorted(definition.outputs)
        feeds = {definition.inputs[name].name: value for name, value in inputs.items()}
        for name in definition.inputs.keys() - inputs.keys():
            default = tf.make_ndarray(definition.defaults[name])
            feeds[definition.inputs[name].name] = default
        fetches = {name: definition.outputs[name].name for name in names}
        try:
            found: dict[str, np.ndarray[Any, Any]] = self._session.run(fetches, feeds)
        except (tf.errors.InvalidArgumentError, ValueError) as error:
            raise RefusedError("INVALID_ARGUMENT", str(error)) from error
        return found

    def examples(self, key: str, method: str, serialized: Sequence[bytes]) -> dict[str, Any]:
        """The outputs of a signature of `tf.Example`s, which has to have the method."""
        definition = self.signature(key)
        if definition.method_name != f"tensorflow/serving/{method}":
            raise RefusedError(
                "INVALID_ARGUMENT", f"no {method} signature: {definition.method_name}"
            )
        (name,) = definition.inputs
        return self.predict(key, {name: np.array(serialized, object)})

    def close(self) -> None:
        """Let go of it."""
        self._session.close()


def disable_xla() -> None:
    """Do what a server does that is started without `--xla_cpu_compilation_enabled`.

    That is for the whole process (main in tensorflow_serving/model_servers/main.cc).
    """
    library = next(Path(tf.sysconfig.get_lib()).glob("libtensorflow_cc.*2"))
    ctypes.CDLL(str(library))._ZN10tensorflow21DisableXlaCompilationEv()


def inputs_without_defaults(definition: Any) -> set[str]:
    return set(definition.inputs) - set(definition.defaults)


def newest_version(base: Path) -> Path | None:
    """The folder with the highest number, as Serving chooses it."""
    found = [child for child in base.iterdir() if child.name.isdecimal()] if base.is_dir() else []
    return max(found, key=lambda child: int(child.name), default=None)
