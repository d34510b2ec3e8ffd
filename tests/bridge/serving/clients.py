"""Requests to a model server, by gRPC and by REST, and what it answers."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

_PATIENCE = 60.0  # seconds: a server compiles while it answers a first request
_STATES = get_model_status_pb2.ModelVersionStatus.State


class RequestError(Exception):
    """The server answered with an error, or not at all."""


@dataclass(frozen=True)
class Answer:
    """Outputs by name, and which version computed them; REST does not tell."""

    outputs: Mapping[str, np.ndarray[Any, Any]]
    version: int | None


class GrpcClient:
    """By gRPC."""

    def __init__(self, address: str, model: str) -> None:
        self._model = model
        self._channel = grpc.insecure_channel(address)
        self._predictions = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)
        self._models = model_service_pb2_grpc.ModelServiceStub(self._channel)

    def close(self) -> None:
        """Let go of the connection."""
        self._channel.close()

    def states(self) -> dict[int, str]:
        """By version its state, such as AVAILABLE."""
        request = get_model_status_pb2.GetModelStatusRequest()
        request.model_spec.name = self._model
        response = self._send(self._models.GetModelStatus, request)
        return {s.version: _STATES.Name(s.state) for s in response.model_version_status}

    def predict(
        self, inputs: Mapping[str, Any], key: str = "", version: int | None = None
    ) -> Answer:
        """The outputs of a signature."""
        request = predict_pb2.PredictRequest()
        self._fill_spec(request.model_spec, key, version)
        for name, value in inputs.items():
            request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
        response = self._send(self._predictions.Predict, request)
        outputs = {name: tf.make_ndarray(proto) for name, proto in response.outputs.items()}
        return Answer(outputs, response.model_spec.version.value)

    def classify(
        self, examples: Sequence[tf.train.Example], key: str = ""
    ) -> list[list[tuple[str, float]]]:
        """For each example labels and scores."""
        request = classification_pb2.ClassificationRequest()
        self._fill_spec(request.model_spec, key, None)
        request.input.example_list.examples.extend(examples)
        result = self._send(self._predictions.Classify, request).result
        return [[(c.label, c.score) for c in row.classes] for row in result.classifications]

    def regress(self, examples: Sequence[tf.train.Example], key: str = "") -> list[float]:
        """For each example a value."""
        request = regression_pb2.RegressionRequest()
        self._fill_spec(request.model_spec, key, None)
        request.input.example_list.examples.extend(examples)
        result = self._send(self._predictions.Regress, request).result
        return [found.value for found in result.regressions]

    def signatures(self) -> dict[str, set[str]]:
        """By signature key the names of its inputs and outputs."""
        request = get_model_metadata_pb2.GetModelMetadataRequest()
        self._fill_spec(request.model_spec, "", None)
        request.metadata_field.append("signature_def")
        response = self._send(self._predictions.GetModelMetadata, request)
        found = get_model_metadata_pb2.SignatureDefMap()
        assert response.metadata["signature_def"].Unpack(found)
        return {key: {*d.inputs, *d.outputs} for key, d in found.signature_def.items()}

    def _fill_spec(self, spec: Any, key: str, version: int | None) -> None:
        spec.name, spec.signature_name = self._model, key
        if version is not None:
            spec.version.value = version

    @staticmethod
    def _send(method: Any, request: Any) -> Any:
        try:
            return method(request, timeout=_PATIENCE)
        except grpc.RpcError as error:
            raise RequestError(f"{error.code().name}: {error.details()}") from error


class RestClient:
    """By REST."""

    def __init__(self, address: str, model: str) -> None:
        self._url = f"http://{address}/v1/models/{model}"

    def close(self) -> None:
        """Nothing is kept."""

    def states(self) -> dict[int, str]:
        """By version its state, such as AVAILABLE."""
        found = self._send("")["model_version_status"]
        return {int(status["version"]): status["state"] for status in found}

    def predict(
        self, inputs: Mapping[str, Any], key: str = "", version: int | None = None
    ) -> Answer:
        """The outputs of a signature, in columns."""
        body = {"inputs": {name: np.asarray(value).tolist() for name, value in inputs.items()}}
        found = self._send(self._version(version) + ":predict", body | self._key(key))["outputs"]
        named = found if isinstance(found, dict) else {"": found}
        return Answer({name: np.asarray(value) for name, value in named.items()}, version)

    def predict_rows(self, rows: Sequence[Any], key: str = "") -> list[Any]:
        """An answer for each row."""
        answers: list[Any] = self._send(":predict", {"instances": rows} | self._key(key))[
            "predictions"
        ]
        return answers

    def classify(
        self, examples: Sequence[tf.train.Example], key: str = ""
    ) -> list[list[tuple[str, float]]]:
        """For each example labels and scores."""
        body = {"examples": [_features(example) for example in examples]} | self._key(key)
        return [[(label, score) for label, score in row] for row in self._result(":classify", body)]

    def regress(self, examples: Sequence[tf.train.Example], key: str = "") -> list[float]:
        """For each example a value."""
        body = {"examples": [_features(example) for example in examples]} | self._key(key)
        return [float(value) for value in self._result(":regress", body)]

    def signatures(self) -> dict[str, set[str]]:
        """By signature key the names of its inputs and outputs."""
        found = self._send("/metadata")["metadata"]["signature_def"]["signature_def"]
        return {
            key: {*definition.get("inputs", ()), *definition.get("outputs", ())}
            for key, definition in found.items()
        }

    def _result(self, verb: str, body: Mapping[str, Any]) -> Any:
        # The documentation says "result"; tensorflow_serving/util/json_tensor.cc has this.
        return self._send(verb, body)["results"]

    @staticmethod
    def _version(version: int | None) -> str:
        return "" if version is None else f"/versions/{version}"

    @staticmethod
    def _key(key: str) -> dict[str, str]:
        return {"signature_name": key} if key else {}

    def _send(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(self._url + path, data, timeout=_PATIENCE) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                raise RequestError(f"{error.code}: {error.read().decode()}") from error
        except OSError as error:
            raise RequestError(str(error)) from error


def _features(example: tf.train.Example) -> dict[str, Any]:
    features = {}
    for name, feature in example.features.feature.items():
        values = list(getattr(feature, feature.WhichOneof("kind")).value)
        texts = [v.decode() if isinstance(v, bytes) else v for v in values]
        features[name] = texts if len(texts) > 1 else texts[0]
    return features
