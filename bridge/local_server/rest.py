"""The REST API of TensorFlow Serving over HTTP: https://www.tensorflow.org/tfx/serving/api_rest."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote, urlsplit

from bridge.local_server.json_format import (
    examples_request,
    is_by_row,
    message_to_json,
    parse_body,
    prediction_to_json,
    read_inputs,
    signature_key,
)
from bridge.local_server.servable import RefusedError
from bridge.local_server.service import (
    answer_classification,
    answer_metadata,
    answer_prediction,
    answer_regression,
    answer_status,
    find_servable,
)
from bridge.local_server.versions import ServedModel
from bridge.serving.messages import (
    ClassificationRequest,
    GetModelMetadataRequest,
    GetModelStatusRequest,
    PredictRequest,
    RegressionRequest,
    SignatureDefMap,
)
from savedmodel.model import DEFAULT_SIGNATURE
from savedmodel.protos.schema import Proto

# tensorflow_serving/model_servers/http_rest_api_handler.cc
_MODEL = r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>\d+)|/labels/(?P<label>[^/:]+))?"
_POST = re.compile(_MODEL + r":(?P<verb>classify|regress|predict)", re.IGNORECASE)
_GET = re.compile(_MODEL + r"(?P<verb>/metadata)?", re.IGNORECASE)
# tensorflow_serving/model_servers/http_server.cc; every other code is 500.
_STATUS = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "OUT_OF_RANGE": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "ABORTED": 409,
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 499,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}


def rest_handler(model: ServedModel) -> type[BaseHTTPRequestHandler]:
    """Return the class that answers the requests of `http.server` for a model."""

    class Handler(BaseHTTPRequestHandler):
        """The REST API."""

        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Log no request."""

        def do_GET(self) -> None:
            """Answer the state of the versions, or the signatures of one."""
            self._answer(lambda: _get(model, *_parse_path(_GET, "GET", self.path)))

        def do_POST(self) -> None:
            """Answer a prediction, a classification or a regression."""
            length = self.headers.get("Content-Length", "")
            if not length.isdecimal():
                self.close_connection = True
                self._send(411, {"error": "The request has no Content-Length."})
                return
            body = self.rfile.read(int(length))
            self._answer(lambda: _post(model, *_parse_path(_POST, "POST", self.path), body))

        def _answer(self, answer: Callable[[], Any]) -> None:
            try:
                self._send(200, answer())
            except RefusedError as refused:
                self._send(_STATUS.get(refused.code, 500), {"error": refused.message})

        def _send(self, status: int, value: Any) -> None:
            text = json.dumps(value, indent=4).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    return Handler


def _parse_path(pattern: re.Pattern[str], method: str, path: str) -> tuple[Proto, str]:
    """Return what a path names: the model with its version, and what is asked of it."""
    found = pattern.fullmatch(urlsplit(path).path)
    if found is None:
        raise RefusedError("INVALID_ARGUMENT", f"Malformed request: {method} {path}")
    spec = PredictRequest().model_spec
    spec.name = unquote(found["name"])
    if found["version"]:
        if int(found["version"]) >= 2**63:
            raise RefusedError("INVALID_ARGUMENT", f"Failed to convert version: {found['version']}")
        spec.version.value = int(found["version"])
    if found["label"]:
        spec.version_label = unquote(found["label"])
    return spec, (found["verb"] or "").lower()


def _get(model: ServedModel, spec: Proto, verb: str) -> Any:
    if not verb:
        return message_to_json(answer_status(model, GetModelStatusRequest(model_spec=spec)))
    asked = GetModelMetadataRequest(model_spec=spec, metadata_field=["signature_def"])
    response = answer_metadata(model, asked)
    signatures = SignatureDefMap.FromString(response.metadata["signature_def"].value)
    return {
        "model_spec": message_to_json(response.model_spec),
        "metadata": {"signature_def": message_to_json(signatures)},
    }


def _post(model: ServedModel, spec: Proto, verb: str, data: bytes) -> Any:
    body = parse_body(data)
    if verb == "predict":
        return _predict(model, spec, body)
    if verb == "regress":
        request = examples_request(RegressionRequest, body, spec)
        found = answer_regression(model, request).result.regressions
        return {"results": [each.value for each in found]}
    request = examples_request(ClassificationRequest, body, spec)
    rows = answer_classification(model, request).result.classifications
    return {"results": [[[c.label, c.score] for c in row.classes] for row in rows]}


def _predict(model: ServedModel, spec: Proto, body: dict[str, Any]) -> Any:
    key, by_row = signature_key(body), is_by_row(body)
    definition = find_servable(model, spec).signatures.get(key or DEFAULT_SIGNATURE)
    if definition is None:
        raise RefusedError(
            "INVALID_ARGUMENT",
            f'Serving signature name: "{key or DEFAULT_SIGNATURE}" not found in signature def',
        )
    request = PredictRequest(model_spec=spec, inputs=read_inputs(body, definition))
    request.model_spec.signature_name = key
    return prediction_to_json(answer_prediction(model, request), by_row=by_row)
