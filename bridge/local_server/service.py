"""The methods of TensorFlow Serving: a message is answered with a message.

As tensorflow_serving/servables/tensorflow/{predict_util,classifier,regressor}.cc answer them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bridge.local_server.servable import RefusedError, Servable, to_proto
from bridge.local_server.versions import ServedModel
from bridge.serving.messages import (
    ClassificationRequest,
    ClassificationResponse,
    ErrorCode,
    GetModelMetadataRequest,
    GetModelMetadataResponse,
    GetModelStatusRequest,
    GetModelStatusResponse,
    PredictRequest,
    PredictResponse,
    RegressionRequest,
    RegressionResponse,
    SignatureDefMap,
)
from savedmodel.model import DEFAULT_SIGNATURE
from savedmodel.protos.schema import Proto

_METADATA = "signature_def"


def find_servable(model: ServedModel, spec: Proto) -> Servable:
    """Return the version that a `ModelSpec` names."""
    if spec.version_label:
        raise RefusedError(
            "INVALID_ARGUMENT",
            f"Unrecognized servable version label: {spec.version_label}; labels are of a server "
            "with a models.config",
        )
    return model.find(spec.name, spec.version.value if spec.HasField("version") else None)


def answer_prediction(model: ServedModel, request: Proto) -> Proto:
    """Answer a `PredictRequest`."""
    found = find_servable(model, request.model_spec)
    key = request.model_spec.signature_name
    outputs = found.predict(key, request.inputs, request.output_filter)
    response = PredictResponse()
    _fill_spec(response, model, found, key or DEFAULT_SIGNATURE)
    for name, value in outputs.items():
        response.outputs[name].CopyFrom(to_proto(value))
    return response


def answer_classification(model: ServedModel, request: Proto) -> Proto:
    """Answer a `ClassificationRequest`."""
    response, outputs, count = _answer_examples(
        model, request, "classify", ClassificationResponse()
    )
    like = next(iter(outputs.values()))
    if like.ndim != 2 or len(like) != count:
        raise RefusedError(
            "INVALID_ARGUMENT",
            f"Expected Tensor shape: [batch_size num_classes] but got {list(like.shape)}",
        )
    labels = outputs.get("classes", np.full(like.shape, b"", object))
    scores = outputs.get("scores", np.zeros(like.shape, np.float32))
    for row in zip(labels, scores, strict=True):
        classifications = response.result.classifications.add()
        for label, score in zip(*row, strict=True):
            classifications.classes.add(label=label.decode(errors="replace"), score=score)
    return response


def answer_regression(model: ServedModel, request: Proto) -> Proto:
    """Answer a `RegressionRequest`."""
    response, outputs, count = _answer_examples(model, request, "regress", RegressionResponse())
    values = outputs["outputs"].reshape(-1)
    if len(values) != count:
        raise RefusedError(
            "INVALID_ARGUMENT", f"Expected output batch size to be {count}. Got: {len(values)}"
        )
    for value in values:
        response.result.regressions.add(value=value)
    return response


def answer_metadata(model: ServedModel, request: Proto) -> Proto:
    """Answer a `GetModelMetadataRequest`."""
    for name in request.metadata_field:
        if name != _METADATA:
            raise RefusedError("INVALID_ARGUMENT", f"Metadata field {name} is not supported")
    found = find_servable(model, request.model_spec)
    response = GetModelMetadataResponse()
    _fill_spec(response, model, found, "")
    response.metadata[_METADATA].Pack(_signatures_of(found))
    return response


def answer_status(model: ServedModel, request: Proto) -> Proto:
    """Answer a `GetModelStatusRequest`."""
    spec = request.model_spec
    asked = spec.version.value if spec.HasField("version") else None
    states = {
        version: state
        for version, state in sorted(model.states.items(), reverse=True)
        if asked in (None, version)
    }
    if spec.name != model.name or not states:
        raise RefusedError("NOT_FOUND", f"Could not find any versions of model {spec.name}")
    response = GetModelStatusResponse()
    for version, state in states.items():
        status = response.model_version_status.add(version=version, state=state.state)
        status.status.error_code = ErrorCode.values_by_name[state.code].number
        status.status.error_message = state.message
    return response


_Answer = Callable[[ServedModel, Proto], Proto]
# For each service of tensorflow_serving/apis/*_service.proto its methods: the class of the request,
# and what answers it.
METHODS: Mapping[str, Mapping[str, tuple[Any, _Answer]]] = {
    "tensorflow.serving.PredictionService": {
        "Predict": (PredictRequest, answer_prediction),
        "Classify": (ClassificationRequest, answer_classification),
        "Regress": (RegressionRequest, answer_regression),
        "GetModelMetadata": (GetModelMetadataRequest, answer_metadata),
    },
    "tensorflow.serving.ModelService": {
        "GetModelStatus": (GetModelStatusRequest, answer_status),
    },
}


def _signatures_of(found: Servable) -> Proto:
    signatures = SignatureDefMap()
    for key, definition in found.signatures.items():
        signatures.signature_def[key].ParseFromString(definition.SerializeToString())
    return signatures


def _fill_spec(response: Proto, model: ServedModel, found: Servable, key: str) -> None:
    response.model_spec.name = model.name
    response.model_spec.signature_name = key
    response.model_spec.version.value = found.version


def _answer_examples(
    model: ServedModel, request: Proto, method: str, response: Proto
) -> tuple[Proto, dict[str, Any], int]:
    """Return a response without its result, the outputs, and the number of examples."""
    found, key = find_servable(model, request.model_spec), request.model_spec.signature_name
    serialized = _serialized(request.input)
    outputs = found.examples(key, method, serialized)
    _fill_spec(response, model, found, key or DEFAULT_SIGNATURE)
    return response, outputs, len(serialized)


def _serialized(given: Proto) -> Sequence[bytes]:
    """Return the serialized examples, each behind the context that they share."""
    if given.WhichOneof("kind") == "example_list":
        return [example.SerializeToString() for example in given.example_list.examples]
    context = given.example_list_with_context.context.SerializeToString()
    examples = given.example_list_with_context.examples
    return [context + example.SerializeToString() for example in examples]
