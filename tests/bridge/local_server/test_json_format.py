"""Requests in JSON: what becomes of them, and what is refused, as TensorFlow Serving does."""

from __future__ import annotations

import base64
import json
import math

import numpy as np
import pytest
import tensorflow as tf

from bridge.local_server.json_format import (
    examples_request,
    parse_body,
    prediction_to_json,
    read_inputs,
)
from bridge.local_server.servable import RefusedError, to_proto
from bridge.serving.messages import ClassificationRequest, PredictRequest, PredictResponse
from savedmodel.protos.schema import SignatureDef
from xla_call_module.dtypes import DTYPES


def _definition(**dtypes):
    definition = SignatureDef()
    for name, dtype in dtypes.items():
        definition.inputs[name].dtype = tf.as_dtype(dtype).as_datatype_enum
    return definition


def _read(body, **dtypes):
    parsed = parse_body(body if isinstance(body, bytes) else json.dumps(body).encode())
    inputs = read_inputs(parsed, _definition(**dtypes))
    return {name: tf.make_ndarray(proto) for name, proto in inputs.items()}


B64 = {"b64": base64.b64encode(b"\x00\xff").decode()}


@pytest.mark.parametrize(
    ("body", "dtype", "value"),
    [
        ({"instances": [1, 2.5]}, "float32", np.float32([1, 2.5])),
        ({"inputs": [[1], [2]]}, "float64", np.float64([[1], [2]])),
        ({"inputs": 3}, "int32", np.int32(3)),
        ({"inputs": {"x": [255]}}, "uint8", np.uint8([255])),
        ({"instances": [{"x": [1]}, {"x": [2]}]}, "int64", np.int64([[1], [2]])),
        ({"instances": [True]}, "bool", np.array([True])),
        ({"inputs": []}, "float32", np.zeros([0], np.float32)),
        ({"inputs": [[], []]}, "float32", np.zeros([2, 0], np.float32)),
        (b'{"inputs": [NaN, -Infinity, 1e50]}', "float32", np.float32([np.nan, -np.inf, np.inf])),
        (
            {"instances": ["\u00e4", B64]},
            "string",
            np.array(["\u00e4".encode(), b"\0\xff"], object),
        ),
        ({"inputs": B64}, "string", np.array(b"\0\xff", object)),
    ],
)
def test_inputs(body, dtype, value):
    (found,) = _read(body, x=dtype).values()
    assert (found.dtype, found.shape) == (value.dtype, value.shape)
    np.testing.assert_array_equal(found, value)


def test_rows_and_columns_of_several_inputs():
    rows = {"instances": [{"x": 1, "y": [2]}, {"x": 3, "y": [4]}]}
    columns = {"inputs": {"x": [1, 3], "y": [[2], [4]]}}
    for body in (rows, columns):
        found = _read(body, x="float32", y="int32")
        assert {name: value.tolist() for name, value in found.items()} == columns["inputs"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "JSON Parse error"),
        (b"[1]", "Is not object"),
        (b"[" * 100_000, "JSON Parse error"),
        ({}, "Missing 'inputs' or 'instances'"),
        ({"inputs": 1, "instances": [1]}, "only one of"),
        ({"instances": 1}, "to be an list/array"),
        ({"instances": []}, "No values in 'instances'"),
        ({"inputs": {"y": 1}}, "Missing named input: x"),
        ({"instances": [{"y": 1}]}, "keys must be equal to: x"),
        ({"instances": [{"x": 1, "y": 1}]}, "keys must be equal to: x"),
        ({"instances": [1, {"x": 1}]}, "Expecting value/list at item 1"),
        ({"instances": [{"x": 1}, 1]}, "Expecting object at item 1"),
        ({"inputs": [[1, 2], [3]]}, "unexpected size: 1 at level: 1 expected size: 2"),
        ({"inputs": [1, [2]]}, "unexpected level: 1"),
        ({"inputs": [[1], 2]}, "found at incorrect level: 2"),
        ({"inputs": ["1"]}, '"1" is not of expected type: int8'),
        ({"inputs": [1.0]}, "1.0 is not of expected type: int8"),
        ({"inputs": [128]}, "128 is not of expected type: int8"),
        ({"inputs": [True]}, "true is not of expected type: int8"),
        ({"inputs": [None]}, "null is not of expected type: int8"),
    ],
)
def test_inputs_that_are_refused(body, message):
    with pytest.raises(RefusedError, match=message) as refused:
        _read(body, x="int8")
    assert refused.value.code == "INVALID_ARGUMENT"


def test_two_inputs_need_names():
    for body in ({"instances": [1]}, {"inputs": [1]}):
        with pytest.raises(RefusedError, match="plain"):
            _read(body, x="int8", y="int8")


# Serving has neither half precision, complex numbers nor uint16 in JSON.
IN_JSON = {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)} - {"uint16"}
IN_JSON |= {"bool", "float32", "float64"}


@pytest.mark.parametrize(
    "dtype", [each for each in DTYPES if each.enum], ids=lambda each: each.name
)
def test_dtypes_of_json(dtype):
    body = {"inputs": [True if dtype.name == "bool" else 1]}
    response = _response(y=np.ones(1, dtype.numpy))
    if dtype.name in IN_JSON:
        (read,) = _read(body, x=dtype.name).values()
        np.testing.assert_array_equal(read, np.ones(1, dtype.numpy))
        assert prediction_to_json(response, by_row=False) == {"outputs": [1]}
        return
    with pytest.raises(RefusedError, match=r"Conversion of JSON|is not of expected type"):
        _read(body, x=dtype.name)
    with pytest.raises(RefusedError, match="Failed to write JSON value"):
        prediction_to_json(response, by_row=False)


def _response(**outputs):
    response = PredictResponse()
    for name, value in outputs.items():
        response.outputs[name].CopyFrom(to_proto(value))
    return response


def test_outputs():
    texts = np.array([b"a", b"\xff"], object)
    both = _response(y=np.float32([1, math.inf]), image_bytes=texts)
    rows = prediction_to_json(both, by_row=True)["predictions"]
    assert rows[0] == {"image_bytes": {"b64": "YQ=="}, "y": 1.0}
    assert json.dumps(rows[1]["y"]) == "Infinity"
    assert prediction_to_json(_response(y=texts), by_row=False) == {"outputs": ["a", "\ufffd"]}
    assert prediction_to_json(_response(y=np.int32(7)), by_row=False) == {"outputs": 7}
    with pytest.raises(RefusedError, match="y has no shape information"):
        prediction_to_json(_response(y=np.int32(7)), by_row=True)
    with pytest.raises(RefusedError, match="inconsistent batch sizes"):
        prediction_to_json(_response(y=np.zeros(2), z=np.zeros(3)), by_row=True)


def _features(example):
    kinds = {name: feature.WhichOneof("kind") for name, feature in example.features.feature.items()}
    found = example.features.feature
    return {name: list(getattr(found[name], kind).value) for name, kind in kinds.items() if kind}


def test_examples():
    spec = PredictRequest().model_spec
    rows = [{"x": [1.5, 2.0], "n": 7, "flag": True, "text": ["a", B64]}]
    request = examples_request(ClassificationRequest, {"examples": rows}, spec)
    (example,) = request.input.example_list.examples
    texts = [b"a", b"\x00\xff"]
    assert _features(example) == {"x": [1.5, 2.0], "n": [7], "flag": [1], "text": texts}
    shared = {"examples": [{"n": 1}], "context": {"m": 2}}
    listed = examples_request(ClassificationRequest, shared, spec).input.example_list_with_context
    assert [_features(each) for each in (listed.context, *listed.examples)] == [
        {"m": [2]},
        {"n": [1]},
    ]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"examples": []},
        {"examples": [1]},
        {"examples": [{"x": None}]},
        {"examples": [{"x": [[1]]}]},
        {"examples": [{"x": [1, 2.5]}]},
        {"examples": [{"x": 2**63}]},
        {"examples": [{"x": 1}], "signature_name": 1},
    ],
)
def test_examples_that_are_refused(body):
    with pytest.raises(RefusedError, match=r"examples|Example|[Ff]eature|signature_name"):
        examples_request(ClassificationRequest, body, PredictRequest().model_spec)
