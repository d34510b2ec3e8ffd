"""Every message that `savedmodel.protos.schema` declares, against the one that TensorFlow ships."""

from __future__ import annotations

import subprocess
import sys

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet
from tensorflow.core.framework import node_def_pb2
from tensorflow.core.protobuf import (
    fingerprint_pb2,
    saved_model_pb2,
    tensor_bundle_pb2,
    trackable_object_graph_pb2,
)

from savedmodel.protos import schema

OURS = schema.SavedModel.DESCRIPTOR.file
ENTRY_POINTS = (
    saved_model_pb2.SavedModel,
    fingerprint_pb2.FingerprintDef,
    tensor_bundle_pb2.BundleHeaderProto,
    tensor_bundle_pb2.BundleEntryProto,
    trackable_object_graph_pb2.TrackableObjectGraph,
)


def _nested(message):
    yield message
    for inner in message.nested_types:
        yield from _nested(inner)


def _upstream_files():
    """The files that hold TensorFlow's messages, with all that they import."""
    files, todo = {}, [message.DESCRIPTOR.file for message in ENTRY_POINTS]
    while todo:
        file = todo.pop()
        if file.name not in files:
            files[file.name] = file
            todo += file.dependencies
    return files.values()


MESSAGES = [m for top in OURS.message_types_by_name.values() for m in _nested(top)]
ENUMS = [e for m in MESSAGES for e in m.enum_types] + [*OURS.enum_types_by_name.values()]
UPSTREAM = {
    found.full_name: found
    for file in _upstream_files()
    for top in file.message_types_by_name.values()
    for message in _nested(top)
    for found in (message, *message.enum_types)
} | {e.full_name: e for file in _upstream_files() for e in file.enum_types_by_name.values()}


def _by_name(descriptors):
    return [pytest.param(d, id=d.full_name.removeprefix("tensorflow.")) for d in descriptors]


def _fields(descriptor):
    """Return what a message says of each of its fields."""
    message = DescriptorProto()
    descriptor.CopyToProto(message)
    return {
        field.name: {
            "number": field.number,
            "type": field.type,
            "type_name": field.type_name,
            "label": field.label,
            "oneof": message.oneof_decl[field.oneof_index].name if _in_oneof(field) else None,
            "presence": descriptor.fields_by_name[field.name].has_presence,
            "unpacked": field.options.HasField("packed") and not field.options.packed,
        }
        for field in message.field
    }


def _in_oneof(field):
    return field.HasField("oneof_index")


@pytest.mark.parametrize("descriptor", _by_name(MESSAGES))
def test_fields_are_upstreams(descriptor):
    upstream = _fields(UPSTREAM[descriptor.full_name])
    ours = _fields(descriptor)
    assert ours == {name: upstream.get(name) for name in ours}


@pytest.mark.parametrize("descriptor", _by_name(MESSAGES))
def test_maps_are_upstreams(descriptor):
    upstream = UPSTREAM[descriptor.full_name]
    assert descriptor.GetOptions().map_entry == upstream.GetOptions().map_entry


@pytest.mark.parametrize("descriptor", _by_name(ENUMS))
def test_enum_values_are_upstreams(descriptor):
    upstream = EnumDescriptorProto()
    UPSTREAM[descriptor.full_name].CopyToProto(upstream)
    assert {v.name: v.number for v in descriptor.values}.items() <= {
        v.name: v.number for v in upstream.value
    }.items()


def test_every_enum_value_below_the_references_is_declared():
    upstream = {v.name for v in UPSTREAM["tensorflow.DataType"].values if v.number < 33}
    assert upstream == set(OURS.enum_types_by_name["DataType"].values_by_name)


def _fill(message, *, depth=2):
    """Sets every field that is declared; of a oneof, the last one stays."""
    declared = DescriptorProto()
    message.DESCRIPTOR.CopyToProto(declared)
    for field, proto in zip(message.DESCRIPTOR.fields, declared.field, strict=True):
        value = getattr(message, field.name)
        repeated = proto.label == proto.LABEL_REPEATED
        if field.message_type is None:
            if repeated:
                value.extend([_sample(field)] * 2)
            else:
                setattr(message, field.name, _sample(field))
        elif field.message_type.GetOptions().map_entry:
            _fill_map(value, field.message_type.fields_by_name, depth=depth)
        elif depth:
            inner = value.add() if repeated else value
            inner.SetInParent()
            _fill(inner, depth=depth - 1)
    return message


def _fill_map(entries, fields, *, depth):
    key = _sample(fields["key"])
    if fields["value"].message_type is None:
        entries[key] = _sample(fields["value"])
    elif depth:
        _fill(entries[key], depth=depth - 1)


def _sample(field):
    if field.type == FieldDescriptor.TYPE_STRING:
        return "text"
    if field.type == FieldDescriptor.TYPE_BYTES:
        return b"\xff"
    if field.type == FieldDescriptor.TYPE_BOOL:
        return True
    return 2


@pytest.mark.parametrize(
    "descriptor", _by_name(m for m in MESSAGES if not m.GetOptions().map_entry)
)
def test_both_sides_write_the_same_bytes(descriptor):
    ours = _fill(GetMessageClass(descriptor)()).SerializeToString(deterministic=True)
    theirs = GetMessageClass(UPSTREAM[descriptor.full_name]).FromString(ours)
    assert len(UnknownFieldSet(theirs)) == 0
    assert theirs.SerializeToString(deterministic=True) == ours


def test_undeclared_fields_are_kept():
    theirs = node_def_pb2.NodeDef(name="n", attr={"a": {"i": 3}})
    theirs.experimental_debug_info.original_node_names.append("m")
    theirs.experimental_type.s = "full type"
    ours = schema.NodeDef.FromString(theirs.SerializeToString())
    ours.name = "changed"
    again = node_def_pb2.NodeDef.FromString(ours.SerializeToString())
    assert again.experimental_debug_info == theirs.experimental_debug_info
    assert again.experimental_type == theirs.experimental_type


def test_a_number_that_no_enum_has_is_kept():
    entry = schema.BundleEntryProto(dtype=101)
    assert schema.BundleEntryProto.FromString(entry.SerializeToString()).dtype == 101


@pytest.mark.parametrize(
    "order",
    [("savedmodel.protos.schema", "tensorflow"), ("tensorflow", "savedmodel.protos.schema")],
)
def test_both_import_orders_work(order):
    code = (
        f"import {order[0]}, {order[1]}\n"
        "from savedmodel.protos.schema import GraphDef\n"
        "graph = tensorflow.Graph()\n"
        "with graph.as_default():\n"
        "    tensorflow.constant(1.0, name='c')\n"
        "ours = GraphDef.FromString(graph.as_graph_def().SerializeToString())\n"
        "assert [node.name for node in ours.node] == ['c']\n"
        "assert type(ours) is not type(graph.as_graph_def())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
