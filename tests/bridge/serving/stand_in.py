"""The command line and the two protocols of a model server: `python -m` this module.

It answers as TensorFlow Serving documents it
(https://www.tensorflow.org/tfx/serving/api_rest, tensorflow_serving/apis/*.proto), with the real
messages, over sessions of the real TensorFlow. The tests run against it where there is no
`tensorflow_model_server`, so that what they send and how they read the answers is known to work.
Like that one it disables XLA unless it is started with an option that enables it.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import grpc
import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from google.protobuf.json_format import MessageToDict
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)
from tensorflow_serving.config import model_server_config_pb2

from tests.bridge.serving.servable import RefusedError, Servable, disable_xla, newest_version

__all__ = ["Model", "main"]

_AVAILABLE, _END = 30, 50  # get_model_status.proto, ModelVersionStatus.State
_STATES = {_AVAILABLE: "AVAILABLE", _END: "END"}


class Model:
    """The newest version below a folder, which is looked at again and again."""

    def __init__(self, name: str, base: Path) -> None:
        self.name = name
        self._base = base
        self._current: Servable | None = None
        self.states: dict[int, int] = {}

    def poll(self) -> None:
        """Load the newest version, and let go of the older one once that can be called."""
        folder = newest_version(self._base)
        if folder is None or int(folder.name) in self.states:
            return
        loaded, older = Servable(folder), self._current
        self._current = loaded
        self.states[loaded.version] = _AVAILABLE
        if older is not None:
            self.states[older.version] = _END

    def get(self, name: str, version: int = 0) -> Servable:
        """The version that can be called."""
        found = self._current
        if name != self.name or found is None or version not in (0, found.version):
            raise RefusedError(
                "NOT_FOUND", f"Servable not found for request: {name} {version or ''}"
            )
        return found


def _fill_spec(spec: Any, name: str, found: Servable, key: str = "") -> None:
    spec.name, spec.signature_name = name, key
    spec.version.value = found.version


class _Grpc(
    prediction_service_pb2_grpc.PredictionServiceServicer,
    model_service_pb2_grpc.ModelServiceServicer,
):
    """PredictionService and ModelService."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def _answer(self, context: Any, answer: Callable[[], Any]) -> Any:
        try:
            return answer()
        except RefusedError as refused:
            context.abort(getattr(grpc.StatusCode, refused.code), refused.message)

    def _find(self, request: Any) -> tuple[Servable, str]:
        spec = request.model_spec
        return self._model.get(spec.name, spec.version.value), spec.signature_name

    def Predict(self, request: Any, context: Any) -> Any:  # noqa: N802 - the name in the proto
        def answer() -> Any:
            found, key = self._find(request)
            inputs = {name: tf.make_ndarray(proto) for name, proto in request.inputs.items()}
            response = predict_pb2.PredictResponse()
            _fill_spec(response.model_spec, self._model.name, found, key or "serving_default")
            for name, value in found.predict(key, inputs, request.output_filter).items():
                response.outputs[name].CopyFrom(tf.make_tensor_proto(value))
            return response

        return self._answer(context, answer)

    def Classify(self, request: Any, context: Any) -> Any:  # noqa: N802
        def answer() -> Any:
            found, key = self._find(request)
            serialized = [e.SerializeToString() for e in request.input.example_list.examples]
            outputs = found.examples(key, "classify", serialized)
            response = classification_pb2.ClassificationResponse()
            _fill_spec(response.model_spec, self._model.name, found, key)
            for row in _classes(outputs):
                classifications = response.result.classifications.add()
                for label, score in row:
                    classifications.classes.add(label=label, score=score)
            return response

        return self._answer(context, answer)

    def Regress(self, request: Any, context: Any) -> Any:  # noqa: N802
        def answer() -> Any:
            found, key = self._find(request)
            serialized = [e.SerializeToString() for e in request.input.example_list.examples]
            outputs = found.examples(key, "regress", serialized)
            response = regression_pb2.RegressionResponse()
            _fill_spec(response.model_spec, self._model.name, found, key)
            for value in outputs["outputs"].reshape(-1):
                response.result.regressions.add(value=value)
            return response

        return self._answer(context, answer)

    def GetModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        def answer() -> Any:
            found, _ = self._find(request)
            response = get_model_metadata_pb2.GetModelMetadataResponse()
            _fill_spec(response.model_spec, self._model.name, found)
            response.metadata["signature_def"].Pack(_signature_map(found))
            return response

        return self._answer(context, answer)

    def GetModelStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        response = get_model_status_pb2.GetModelStatusResponse()
        for version, state in self._model.states.items():
            response.model_version_status.add(version=version, state=state)
        if not response.model_version_status:
            context.abort(grpc.StatusCode.NOT_FOUND, "no version yet")
        return response


def _signature_map(found: Servable) -> Any:
    signatures = get_model_metadata_pb2.SignatureDefMap()
    for key, definition in found.signatures.items():
        signatures.signature_def[key].CopyFrom(definition)
    return signatures


def _classes(outputs: Mapping[str, Any]) -> list[list[tuple[str, float]]]:
    """For each example its classes: labels, scores, or both."""
    like = next(iter(outputs.values()))
    labels = outputs.get("classes", np.full(like.shape, b"", object))
    scores = outputs.get("scores", np.zeros(like.shape, np.float32))
    return [
        [(label.decode(), float(score)) for label, score in zip(*row, strict=True)]
        for row in zip(labels, scores, strict=True)
    ]


def _rest(model: Model) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """The RESTful API."""

        def log_message(self, *_: Any) -> None:
            """Nothing is logged."""

        def do_GET(self) -> None:
            self._answer(lambda: _get(model, self.path))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(lambda: _post(model, self.path, json.loads(body)))

        def _answer(self, answer: Callable[[], Any]) -> None:
            status, value = 200, None
            try:
                value = answer()
            except RefusedError as refused:
                status = 404 if refused.code == "NOT_FOUND" else 400
                value = {"error": refused.message}
            text = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    return Handler


_PATH = re.compile(r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>\d+))?(?P<rest>.*)")


def _parse_path(model: Model, path: str) -> tuple[str, int, str]:
    found = _PATH.fullmatch(path)
    if found is None or found["name"] != model.name or not model.states:
        raise RefusedError("NOT_FOUND", f"Malformed request or no such model: {path}")
    return found["name"], int(found["version"] or 0), found["rest"]


def _get(model: Model, path: str) -> Any:
    name, version, rest = _parse_path(model, path)
    if rest == "/metadata":
        found = model.get(name, version)
        signatures = MessageToDict(_signature_map(found), preserving_proto_field_name=True)
        spec = {"name": name, "signature_name": "", "version": str(found.version)}
        return {"model_spec": spec, "metadata": {"signature_def": signatures}}
    status = {"error_code": "OK", "error_message": ""}
    return {
        "model_version_status": [
            {"version": str(number), "state": _STATES[state], "status": status}
            for number, state in sorted(model.states.items(), reverse=True)
        ]
    }


def _post(model: Model, path: str, body: Any) -> Any:
    name, version, verb = _parse_path(model, path)
    found, key = model.get(name, version), body.get("signature_name", "serving_default")
    if verb == ":predict":
        return _predict(found, key, body)
    serialized = [_example(features).SerializeToString() for features in body["examples"]]
    outputs = found.examples(key, verb.removeprefix(":"), serialized)
    if verb == ":classify":
        return {"results": _classes(outputs)}
    return {"results": outputs["outputs"].reshape(-1).tolist()}


def _predict(found: Servable, key: str, body: Any) -> Any:
    definition, by_row = found.signature(key), "instances" in body
    given = body["instances"] if by_row else body["inputs"]
    if by_row and isinstance(given[0], dict) and "b64" not in given[0]:
        given = {name: [row[name] for row in given] for name in given[0]}
    if not isinstance(given, dict):
        (name,) = definition.inputs
        given = {name: given}
    inputs = {name: _array(definition, name, value) for name, value in given.items()}
    outputs = {name: _plain(value) for name, value in found.predict(key, inputs).items()}
    if not by_row:
        return {"outputs": outputs if len(outputs) > 1 else next(iter(outputs.values()))}
    if len(outputs) == 1:
        return {"predictions": next(iter(outputs.values()))}
    rows = zip(*outputs.values(), strict=True)
    return {"predictions": [dict(zip(outputs, row, strict=True)) for row in rows]}


def _array(definition: Any, name: str, value: Any) -> np.ndarray[Any, Any]:
    if name not in definition.inputs:
        raise RefusedError("INVALID_ARGUMENT", f"no input {name!r}")
    dtype = tf.as_dtype(definition.inputs[name].dtype)
    try:
        return np.array(_decoded(value), dtype.as_numpy_dtype)
    except (ValueError, TypeError) as error:
        raise RefusedError("INVALID_ARGUMENT", f"{name} is no tensor: {error}") from error


def _decoded(value: Any) -> Any:
    match value:
        case {"b64": text}:
            return base64.b64decode(text)
        case list():
            return [_decoded(child) for child in value]
        case str():
            return value.encode()
    return value


def _plain(array: np.ndarray[Any, Any]) -> Any:
    def text(value: Any) -> Any:
        return [text(child) for child in value] if isinstance(value, list) else value.decode()

    values = np.asarray(array).tolist()
    return text(values) if array.dtype == object else values


def _example(features: Mapping[str, Any]) -> tf.train.Example:
    example = tf.train.Example()
    for name, value in features.items():
        values = _decoded(value if isinstance(value, list) else [value])
        feature = example.features.feature[name]
        if isinstance(values[0], bytes):
            feature.bytes_list.value.extend(values)
        elif isinstance(values[0], int):
            feature.int64_list.value.extend(values)
        else:
            feature.float_list.value.extend(values)
    return example


def _configured(options: argparse.Namespace) -> tuple[str, Path]:
    """The name and the folder of the model."""
    if options.model_config_file is None:
        return options.model_name, options.model_base_path
    text = options.model_config_file.read_text()
    found = text_format.Parse(text, model_server_config_pb2.ModelServerConfig())
    (config,) = found.model_config_list.config
    assert config.model_platform == "tensorflow"
    return config.name, Path(config.base_path)


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for option in ("port", "rest_api_port", "file_system_poll_wait_seconds"):
        parser.add_argument(f"--{option}", type=int, required=True)
    parser.add_argument("--model_name")
    parser.add_argument("--model_base_path", type=Path)
    parser.add_argument("--model_config_file", type=Path)
    # What they say is about speed and metrics.
    for option in ("monitoring_config_file", "batching_parameters_file", "enable_batching"):
        parser.add_argument(f"--{option}")
    for platform in ("cpu", "gpu"):
        parser.add_argument(f"--xla_{platform}_compilation_enabled", choices=["true"])
    options = parser.parse_args()
    if not (options.xla_cpu_compilation_enabled or options.xla_gpu_compilation_enabled):
        disable_xla()
    model = Model(*_configured(options))
    server = grpc.server(ThreadPoolExecutor(8))
    service = _Grpc(model)
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(service, server)
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(service, server)
    if server.add_insecure_port(f"127.0.0.1:{options.port}") != options.port:
        parser.error(f"--port {options.port} is taken")
    server.start()
    http = ThreadingHTTPServer(("127.0.0.1", options.rest_api_port), _rest(model))
    threading.Thread(target=http.serve_forever, daemon=True).start()
    while True:
        model.poll()
        time.sleep(min(options.file_system_poll_wait_seconds, 0.1))


if __name__ == "__main__":
    main()
