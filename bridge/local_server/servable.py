"""A version of a model, loaded by TensorFlow's session loader as TensorFlow Serving loads it.

That is the tag `serve`, the init op, signatures by name and their tensors by name, and the warmup
records before anybody else may call it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bridge.serving.messages import ErrorCode, PredictionLog, TensorProto
from savedmodel.files.assets import WARMUP_FILE
from savedmodel.model import DEFAULT_SIGNATURE, SERVE_TAG
from savedmodel.protos.schema import Proto
from xla_call_module.dtypes import Array
from xla_call_module.node import OP

_NO_XLA = "XLA compilation disabled"
WITH_XLA = (
    ' To do: publish with operations="tensorflow", or start the server with XLA: '
    "jax-tf-bridge serve --xla, tensorflow_model_server --xla_cpu_compilation_enabled=true."
)


class RefusedError(Exception):
    """A request that cannot be answered.

    Attributes:
        code: the name of its code in gRPC, such as INVALID_ARGUMENT.
        message: what is wrong.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Servable:
    """A loaded version.

    Attributes:
        version: its number.
        signatures: TensorFlow's `SignatureDef` of each key.
        calls_modules: whether it calls StableHLO modules, which XLA compiles.
        warmed: the number of warmup records that it has answered.
    """

    def __init__(self, folder: str, version: int) -> None:
        """Load it, and answer its warmup records."""
        self.version = version
        with tf.Graph().as_default():
            self._session = tf.compat.v1.Session()
            graph = tf.compat.v1.saved_model.load(self._session, [SERVE_TAG], folder)
        self.signatures: Mapping[str, Any] = dict(graph.signature_def)
        self.calls_modules = any(node.op == OP for node in _nodes(graph.graph_def))
        self.warmed = sum(map(self._answer_record, _warmup_records(folder)))

    def _answer_record(self, record: bytes) -> int:
        log = PredictionLog.FromString(record)
        if not log.HasField("predict_log"):
            return 0
        request = log.predict_log.request
        self.predict(request.model_spec.signature_name, request.inputs)
        return 1

    def predict(
        self, key: str, inputs: Mapping[str, Proto], outputs: Sequence[str] = ()
    ) -> dict[str, Array]:
        """Return the outputs by name; those that are asked for, or all."""
        key = key or DEFAULT_SIGNATURE
        definition = self.signatures.get(key)
        if definition is None:
            raise RefusedError("FAILED_PRECONDITION", f'Serving signature key "{key}" not found.')
        feeds = dict(_feeds(definition, inputs))
        if unknown := sorted(set(outputs) - definition.outputs.keys()):
            raise RefusedError(
                "INVALID_ARGUMENT",
                f"output tensor alias not found in signature: {unknown[0]} Outputs expected to be "
                f"in the set {{{','.join(sorted(definition.outputs))}}}.",
            )
        names = outputs or sorted(definition.outputs)
        return self._run({name: definition.outputs[name].name for name in names}, feeds)

    def examples(self, key: str, method: str, serialized: Sequence[bytes]) -> dict[str, Any]:
        """Return the outputs of a signature of `tf.Example`s, which has to have the method."""
        definition = self.signatures.get(key or DEFAULT_SIGNATURE)
        if definition is None:
            raise RefusedError("INVALID_ARGUMENT", f"No signature was found with the name: {key}")
        name = f"tensorflow/serving/{method}"
        if definition.method_name != name:
            raise RefusedError(
                "INVALID_ARGUMENT",
                f"Expected signature method_name to be {name}. Was: {definition.method_name}",
            )
        if not serialized:
            raise RefusedError("INVALID_ARGUMENT", "Input is empty.")
        fed = {definition.inputs["inputs"].name: np.array(serialized, object)}
        return self._run({key: info.name for key, info in definition.outputs.items()}, fed)

    def _run(self, fetches: Mapping[str, str], feeds: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return dict(self._session.run(dict(fetches), dict(feeds)))
        except ValueError as error:  # a shape that the placeholder does not take
            raise RefusedError("INVALID_ARGUMENT", str(error)) from error
        except tf.errors.OpError as error:
            code = ErrorCode.values_by_number[error.error_code].name
            cure = WITH_XLA if _NO_XLA in error.message else ""
            raise RefusedError(code, error.message + cure) from error


def _warmup_records(folder: str) -> list[bytes]:
    file = f"{folder}/{WARMUP_FILE}"
    records = tf.data.TFRecordDataset(file) if tf.io.gfile.exists(file) else ()
    return [record.numpy() for record in records]


def _feeds(definition: Any, inputs: Mapping[str, Proto]) -> Iterator[tuple[str, Any]]:
    """Yield the tensor of each input with its value or its default."""
    missing = definition.inputs.keys() - inputs.keys() - definition.defaults.keys()
    if missing or inputs.keys() - definition.inputs.keys():
        extra = sorted(inputs.keys() - definition.inputs.keys())
        raise RefusedError(
            "INVALID_ARGUMENT",
            f"input size does not match signature: Sent extra: {{{','.join(extra)}}}. Missing but "
            f"required: {{{','.join(sorted(missing))}}}.",
        )
    for name, info in definition.inputs.items():
        proto = inputs[name] if name in inputs else definition.defaults[name]
        if proto.dtype != info.dtype:
            wanted, sent = (tf.as_dtype(each.dtype).name for each in (info, proto))
            raise RefusedError(
                "INVALID_ARGUMENT", f"Expects {name} to be {wanted} but {sent} is provided"
            )
        try:
            yield info.name, tf.make_ndarray(proto)
        except (ValueError, TypeError) as error:
            raise RefusedError("INVALID_ARGUMENT", f"{name} is not a tensor: {error}") from error


def to_proto(value: Any) -> Proto:
    """Return an array as a message of this package's pool."""
    return TensorProto.FromString(tf.make_tensor_proto(value).SerializeToString())


def _nodes(graph: Any) -> Iterator[Any]:
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def
