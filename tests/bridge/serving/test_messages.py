"""The messages that are declared here, against those of tensorflow-serving-api."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto

from bridge.serving import messages
from savedmodel.protos import schema

pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")

# No distribution has these two: tensorflow_serving/servables/tensorflow/session_bundle_config.proto
# and tensorflow_serving/config/monitoring_config.proto, as they are public.
ELSEWHERE = {
    "BatchingParameters": {
        "max_batch_size": (1, "google.protobuf.Int64Value"),
        "batch_timeout_micros": (2, "google.protobuf.Int64Value"),
        "max_enqueued_batches": (3, "google.protobuf.Int64Value"),
        "num_batch_threads": (4, "google.protobuf.Int64Value"),
        "thread_pool_name": (5, "google.protobuf.StringValue"),
        "allowed_batch_sizes": (6, FieldDescriptor.TYPE_INT64),
        "pad_variable_length_inputs": (7, FieldDescriptor.TYPE_BOOL),
    },
    "PrometheusConfig": {
        "enable": (1, FieldDescriptor.TYPE_BOOL),
        "path": (2, FieldDescriptor.TYPE_STRING),
    },
    "MonitoringConfig": {"prometheus_config": (1, "tensorflow.serving.PrometheusConfig")},
}


def _nested(message):
    yield message
    for inner in message.nested_types:
        yield from _nested(inner)


OURS = {
    message.full_name: message
    for kind in (messages.PredictionLog, messages.Example)
    for top in kind.DESCRIPTOR.file.message_types_by_name.values()
    for message in _nested(top)
}


def _upstream():
    from tensorflow_serving.apis import (
        get_model_metadata_pb2,
        get_model_status_pb2,
        prediction_log_pb2,
    )
    from tensorflow_serving.config import model_server_config_pb2

    modules = (get_model_metadata_pb2, get_model_status_pb2, prediction_log_pb2)
    files = [model_server_config_pb2.DESCRIPTOR, *(module.DESCRIPTOR for module in modules)]
    found = {}
    while files:
        file = files.pop()
        files += file.dependencies
        for top in file.message_types_by_name.values():
            found |= {message.full_name: message for message in _nested(top)}
    return found


def _fields(message):
    proto = DescriptorProto()
    message.CopyToProto(proto)
    return {
        field.name: (
            field.number,
            field.message_type.full_name if field.message_type is not None else field.type,
            field.containing_oneof.name if field.containing_oneof else None,
            label,
        )
        for field, label in zip(message.fields, [f.label for f in proto.field], strict=True)
    }


@pytest.mark.parametrize("name", sorted(OURS))
def test_fields_are_those_of_serving(name):
    ours = _fields(OURS[name])
    short = name.removeprefix("tensorflow.serving.")
    if short in ELSEWHERE:
        assert {key: found[:2] for key, found in ours.items()} == ELSEWHERE[short]
    else:
        assert ours.items() <= _fields(_upstream()[name]).items()


def test_enums_are_those_of_serving():
    from tensorflow.core.protobuf import error_codes_pb2
    from tensorflow_serving.apis.get_model_status_pb2 import ModelVersionStatus

    state = messages.GetModelStatusResponse.DESCRIPTOR.file.message_types_by_name[
        "ModelVersionStatus"
    ].enum_types_by_name["State"]
    pairs = [(messages.ErrorCode, error_codes_pb2.Code), (state, ModelVersionStatus.State)]
    for ours, theirs in pairs:
        assert {v.name: v.number for v in ours.values}.items() <= dict(theirs.items()).items()


def test_the_pools_are_apart():
    from tensorflow.core.framework import tensor_pb2

    ours = messages.TensorProto(dtype=1)
    assert messages.TensorProto is not tensor_pb2.TensorProto
    assert messages.TensorProto is not schema.TensorProto
    assert tensor_pb2.TensorProto.FromString(ours.SerializeToString()).dtype == 1
