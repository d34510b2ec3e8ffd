"""Requests and responses of Serving's REST API: JSON to messages, and messages to JSON.

What it takes and what it refuses is what tensorflow_serving/util/json_tensor.cc does:
https://www.tensorflow.org/tfx/serving/api_rest.
"""

from __future__ import annotations

import base64
import binascii
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.json_format import MessageToDict

from bridge.local_server.servable import RefusedError, to_proto
from bridge.serving.messages import ClassificationRequest, Example, RegressionRequest
from bridge.serving.signatures import DTYPES_BY_ENUM, STRING
from savedmodel.protos.schema import Proto

_MAX_QUOTED = 256
_MAX_EXAMPLE = 1000
_FLOATS = frozenset({"float32", "float64"})
_INTEGERS = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint32", "uint64"})
_WRITABLE = _FLOATS | _INTEGERS | {"bool"}
# Protobuf has renamed the option in 5.26.
_WITH_DEFAULTS = (
    "always_print_fields_with_no_presence"
    if "always_print_fields_with_no_presence" in inspect.signature(MessageToDict).parameters
    else "including_default_value_fields"
)


def parse_body(body: bytes) -> dict[str, Any]:
    """Return the object of a request."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _refused(f"JSON Parse error: {error}") from error
    if not isinstance(parsed, dict):
        raise _refused(f"JSON Value: {_quoted(parsed)} Is not object")
    return parsed


def signature_key(body: Mapping[str, Any]) -> str:
    """Return the key of the signature that a request names; empty for the default one."""
    key = body.get("signature_name", "")
    if not isinstance(key, str):
        raise _refused(f"'signature_name' key must be a string value, not {_quoted(key)}.")
    return key


def is_by_row(body: Mapping[str, Any]) -> bool:
    """Return whether a request has its inputs row by row, and is answered so."""
    formats = [name for name in ("instances", "inputs") if name in body]
    if len(formats) == 2:
        raise _refused("expecting only one of 'inputs' or 'instances' keys to exist")
    if not formats:
        raise _refused("Missing 'inputs' or 'instances' key")
    return formats == ["instances"]


def read_inputs(body: Mapping[str, Any], definition: Any) -> dict[str, Proto]:
    """Return the inputs of a prediction by name."""
    infos = definition.inputs
    columns = _columns_of_rows(body["instances"], infos) if is_by_row(body) else body["inputs"]
    if not isinstance(columns, dict) or _is_base64(columns):
        if len(infos) > 1:
            raise _refused(
                "inputs is a plain value/list, but expecting an object as multiple input tensors "
                "required as per tensorinfo_map"
            )
        columns = dict.fromkeys(infos, columns)
    if missing := sorted(infos.keys() - columns.keys()):
        raise _refused(f"Missing named input: {missing[0]} in 'inputs' object.")
    return {name: _tensor(columns[name], info.dtype) for name, info in infos.items()}


def _columns_of_rows(rows: Any, names: Mapping[str, Any]) -> Any:
    """Return an object with the values of each name, or the values of the only one."""
    if not isinstance(rows, list):
        raise _refused("Expecting 'instances' to be an list/array")
    if not rows:
        raise _refused("No values in 'instances' array")
    are_objects = isinstance(rows[0], dict) and not _is_base64(rows[0])
    if not are_objects and len(names) > 1:
        raise _refused(
            "instances is a plain list, but expecting list of objects as multiple input tensors "
            "required as per tensorinfo_map"
        )
    for number, row in enumerate(rows):
        if are_objects != (isinstance(row, dict) and not _is_base64(row)):
            raise _refused(
                f"Expecting {'object' if are_objects else 'value/list'} at item {number}"
            )
        if are_objects and row.keys() != names.keys():
            raise _refused(
                f"Failed to process element: {number} of 'instances' list. JSON object: "
                f"{_quoted(row)} keys must be equal to: {','.join(sorted(names))}"
            )
    return {name: [row[name] for row in rows] for name in names} if are_objects else rows


def _tensor(value: Any, enum: int) -> Proto:
    """Return the tensor of a value or of nested lists of values."""
    shape = []
    inner = value
    while isinstance(inner, list):
        shape.append(len(inner))
        inner = inner[0] if inner else None
    leaves = list(_leaves(value, shape, 0))
    if enum == STRING:
        strings = np.empty(len(leaves), object)
        strings[:] = [_text(leaf) for leaf in leaves]
        return to_proto(strings.reshape(shape))
    dtype = DTYPES_BY_ENUM.get(enum)
    name = f"DataType {enum}" if dtype is None else dtype.name
    for leaf in leaves:
        _check_leaf(leaf, name)
    if dtype is None or name not in _WRITABLE:
        raise RefusedError("UNIMPLEMENTED", f"Conversion of JSON Value to type: {name}")
    with np.errstate(over="ignore"):
        return to_proto(np.array(leaves, dtype.numpy).reshape(shape))


def _leaves(value: Any, shape: Sequence[int], level: int) -> Iterator[Any]:
    """Yield the values of nested lists, which have to have the same lengths at each level."""
    if not isinstance(value, list):
        if level != len(shape):
            raise _refused(
                f"JSON Value: {_quoted(value)} found at incorrect level: {level + 1} in the JSON "
                f"DOM. Expected at level: {len(shape)}"
            )
        yield value
        return
    if level >= len(shape):
        raise _refused(f"Encountered list at unexpected level: {level} expected < {len(shape)}")
    if len(value) != shape[level]:
        raise _refused(
            f"Encountered list at unexpected size: {len(value)} at level: {level} expected size: "
            f"{shape[level]}"
        )
    for child in value:
        yield from _leaves(child, shape, level + 1)


def _check_leaf(leaf: Any, name: str) -> None:
    is_bool = isinstance(leaf, bool)
    if name in _INTEGERS:
        limits = np.iinfo(name)
        fits = isinstance(leaf, int) and not is_bool and limits.min <= leaf <= limits.max
    elif name == "bool":
        fits = is_bool
    else:
        fits = isinstance(leaf, int | float) and not is_bool
    if not fits:
        raise _refused(f"JSON Value: {_quoted(leaf)} is not of expected type: {name}")


def _text(leaf: Any) -> bytes:
    if isinstance(leaf, str):
        return leaf.encode(errors="surrogatepass")
    if not _is_base64(leaf):
        raise _refused(f"JSON Value: {_quoted(leaf)} is not of expected type: string")
    try:
        return base64.b64decode(leaf["b64"], validate=True)
    except (binascii.Error, ValueError) as error:
        raise _refused("Unable to base64 decode") from error


def _is_base64(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str)


def examples_request(kind: type[Proto], body: Mapping[str, Any], spec: Proto) -> Proto:
    """Return the request of a classification or a regression."""
    assert kind in (ClassificationRequest, RegressionRequest)
    request = kind(model_spec=spec)
    request.model_spec.signature_name = signature_key(body)
    rows = body.get("examples")
    if not isinstance(rows, list) or not rows:
        raise _refused("key 'examples' is expected to be a list/array with values")
    examples = [_example(row) for row in rows]
    if "context" in body:
        request.input.example_list_with_context.context.CopyFrom(_example(body["context"]))
        request.input.example_list_with_context.examples.extend(examples)
    else:
        request.input.example_list.examples.extend(examples)
    return request


def _example(features: Any) -> Proto:
    if not isinstance(features, dict):
        raise _refused(f"Example must be JSON object but got JSON {_quoted(features)}")
    example = Example()
    for name, value in features.items():
        feature = example.features.feature[name]
        for element in value if isinstance(value, list) else [value]:
            kind, element = _feature_value(name, element)
            if feature.WhichOneof("kind") not in (None, kind):
                raise _refused(f"Unexpected element type in feature: {name}")
            getattr(feature, kind).value.append(element)
    return example


def _feature_value(name: str, element: Any) -> tuple[str, Any]:
    """Return the list of a feature that an element goes to, and the element for it."""
    if isinstance(element, str) or _is_base64(element):
        return "bytes_list", _text(element)
    if isinstance(element, float):
        return "float_list", element
    if isinstance(element, int) and -(2**63) <= element < 2**63:
        return "int64_list", int(element)
    raise _refused(f"Feature: {name} has element with unexpected JSON type: {_quoted(element)}")


def prediction_to_json(response: Proto, *, by_row: bool) -> dict[str, Any]:
    """Return the outputs of a `PredictResponse`, a single one without its name."""
    values = {name: _plain(name, proto) for name, proto in sorted(response.outputs.items())}
    if not by_row:
        return {"outputs": values if len(values) > 1 else next(iter(values.values()))}
    sizes = {}
    for name, proto in sorted(response.outputs.items()):
        if not proto.tensor_shape.dim:
            raise _refused(f"Tensor name: {name} has no shape information ")
        sizes[name] = proto.tensor_shape.dim[0].size
    if len(set(sizes.values())) > 1:
        raise _refused(f"The outputs have inconsistent batch sizes: {sizes}")
    if len(values) == 1:
        return {"predictions": next(iter(values.values()))}
    rows = zip(*values.values(), strict=True)
    return {"predictions": [dict(zip(values, row, strict=True)) for row in rows]}


def _plain(name: str, proto: Proto) -> Any:
    """Return a tensor as nested lists."""
    import tensorflow as tf

    array = tf.make_ndarray(proto)
    if proto.dtype == STRING:
        encode = _to_base64 if name.endswith("_bytes") else _decode
        return _mapped(array.tolist(), encode)
    dtype = DTYPES_BY_ENUM.get(proto.dtype)
    if dtype is None or dtype.name not in _WRITABLE:
        name = f"DataType {proto.dtype}" if dtype is None else dtype.name
        raise _refused(f"Failed to write JSON value for tensor type: {name}")
    return array.tolist()


def _mapped(value: Any, encode: Any) -> Any:
    return [_mapped(child, encode) for child in value] if isinstance(value, list) else encode(value)


def _decode(value: bytes) -> str:
    return value.decode(errors="replace")


def _to_base64(value: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(value).decode()}


def message_to_json(message: Proto) -> dict[str, Any]:
    """Return a message as Serving prints it: all fields, by the names of the declaration."""
    options: dict[str, Any] = {_WITH_DEFAULTS: True}
    return dict(MessageToDict(message, preserving_proto_field_name=True, **options))


def _quoted(value: Any) -> str:
    return json.dumps(value)[:_MAX_QUOTED]


def example_body(definition: Any) -> str | None:
    """Return a request with zeros, and sizes of 1 where any is taken; None where none is sure."""
    inputs = {}
    for name, info in sorted(definition.inputs.items()):
        dtype = DTYPES_BY_ENUM.get(info.dtype)
        if dtype is None or dtype.name not in _WRITABLE or info.tensor_shape.unknown_rank:
            return None
        shape = [max(dim.size, 1) if dim.size else 0 for dim in info.tensor_shape.dim]
        inputs[name] = np.zeros(shape, dtype.numpy).tolist()
    body = json.dumps({"inputs": inputs})
    return body if len(body) <= _MAX_EXAMPLE else None


def _refused(message: str) -> RefusedError:
    return RefusedError("INVALID_ARGUMENT", message)
