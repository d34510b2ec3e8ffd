"""A call becomes a node and comes back the same; a node that says something else is refused."""

from __future__ import annotations

import dataclasses
import functools
import json
import zlib

import jax
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from jax import export

from savedmodel.protos import schema
from tests.xla_call_module.sharding_strategies import named_shardings, tilings
from tests.xla_call_module.trees import tree_nodes
from xla_call_module import CallModule, DisabledCheck, TensorSpec, decode_node, encode_node
from xla_call_module.dtypes import DTYPES
from xla_call_module.errors import (
    DtypeError,
    FormatError,
    InteropError,
    PlatformError,
    StructureError,
    VersionError,
)
from xla_call_module.exported import from_exported
from xla_call_module.node import update_node
from xla_call_module.pytrees.tree_nodes import Trees
from xla_call_module.shardings.sharding_jax import sharding_from_jax

NODES = [tf.compat.v1.NodeDef, schema.NodeDef]
ARTIFACT = b"ML\xefR\x0dStableHLO_v1.2.3\x00"

dims = st.integers(0, 1 << 40) | st.sampled_from(["b", "2*b", "floordiv(b, 3) + 1", "é"])
specs = st.builds(
    TensorSpec,
    shape=st.none() | st.lists(dims, max_size=3).map(tuple),
    dtype=st.sampled_from(DTYPES),
    path=st.text(max_size=8),
    name=st.text(max_size=8),
    element=st.sampled_from(["", "float0", "key<fry>"]),
    is_zero=st.booleans(),
    sharding=st.none() | tilings() | named_shardings().map(lambda s: sharding_from_jax(s, 4)),
)
checks = st.sampled_from(["platform", "shape_assertions", "custom_call:é"]).map(DisabledCheck)


@st.composite
def calls(draw):
    args = tuple(draw(st.lists(specs, max_size=4)))
    return CallModule(
        name=draw(st.text(max_size=8)),
        module=ARTIFACT + draw(st.binary(max_size=20)),
        version=draw(st.integers(6, 10)),
        platforms=tuple(draw(st.permutations(["cpu", "cuda", "tpu"])))[: draw(st.integers(1, 3))],
        args=args,
        results=tuple(draw(st.lists(specs, max_size=3))),
        kept=tuple(i for i in range(len(args)) if draw(st.booleans())),
        disabled_checks=tuple(draw(st.lists(checks, max_size=2))),
        uses_shardy=draw(st.booleans()),
        nr_devices=draw(st.integers(1, 64)),
        function_list=tuple(draw(st.lists(st.text(max_size=8), max_size=2))),
        exported=draw(st.binary(max_size=20)),
        changes=tuple(draw(st.lists(st.text(max_size=8), max_size=2))),
        trees=draw(st.none() | st.builds(Trees, tree_nodes, tree_nodes)),
    )


def _encode(call, new_node=tf.compat.v1.NodeDef):
    inputs = [f"input_{index}" for index in call.kept]
    return encode_node(call, name="call", inputs=inputs, new_node=new_node)


@pytest.fixture(scope="module")
def call():
    shape = export.symbolic_shape("b, 3")
    args = jax.ShapeDtypeStruct(shape, "float32"), jax.ShapeDtypeStruct((), "int32")
    return from_exported(export.export(jax.jit(lambda x, n: {"y": x * n}))(*args))


@pytest.fixture
def node(call):
    return _encode(call)


@pytest.mark.parametrize("new_node", NODES, ids=["tensorflow", "private pool"])
@given(call=calls())
def test_a_call_round_trips(call, new_node):
    node = _encode(call, new_node)
    before = node.SerializeToString(deterministic=True)
    decoded = decode_node(node)
    assert (decoded, decoded.changes) == (call, call.changes)
    assert node.SerializeToString(deterministic=True) == before, "decoding changed the node"


@given(call=calls())
def test_both_pools_write_the_same_bytes(call):
    ours, theirs = (
        _encode(call, new_node).SerializeToString(deterministic=True) for new_node in NODES
    )
    assert ours == theirs


def test_every_attribute(call):
    attr = _encode(call).attr
    assert list(attr["Tin"].list.type) == [tf.float32.as_datatype_enum, tf.int32.as_datatype_enum]
    assert list(attr["Tout"].list.type) == [tf.float32.as_datatype_enum]
    assert [[dim.size for dim in s.dim] for s in attr["Sout"].list.shape] == [[-1, 3]]
    assert attr["module"].s == call.module
    assert attr["version"].i == call.version
    assert list(attr["platforms"].list.s) == [b"CPU"]
    assert attr["disabled_checks"].WhichOneof("value") == "list"
    assert zlib.decompress(attr["_jax_exported"].s) == call.exported
    assert len(attr["_jax_exported"].s) < 1000
    described = json.loads(zlib.decompress(attr["_jax_call"].s))
    assert [spec["path"] for spec in described["args"]] == ["args[0]", "args[1]"]
    assert [spec["shape"] for spec in described["args"]] == [["b", 3], []]


def test_the_attributes_are_those_that_tensorflow_registered(node):
    """An operation with an attribute that the op does not have cannot be made."""
    with tf.Graph().as_default() as graph:
        inputs = [tf.zeros((2, 3)), tf.constant(2)]
        operation = graph.create_op("XlaCallModule", inputs, [tf.float32], attrs=dict(node.attr))
        again = operation.node_def
    registered = {attr.name for attr in operation.op_def.attr}
    assert {key for key in node.attr if not key.startswith("_")} <= registered
    assert decode_node(again) == decode_node(node)


def test_the_number_of_inputs(call):
    with pytest.raises(FormatError, match="Node n has 1 inputs; <lambda> takes 2"):
        encode_node(call, name="n", inputs=["x"], new_node=tf.compat.v1.NodeDef)


class TestForeignNodes:
    """Other programs write the op without our description."""

    def test_dtypes_and_result_shapes(self, node, call):
        del node.attr["_jax_call"], node.attr["_jax_exported"]
        foreign = decode_node(node)
        assert [str(spec) for spec in foreign.args] == ["float32[...]", "int32[...]"]
        assert [str(spec) for spec in foreign.results] == ["float32[_0_0,3]"]
        assert [spec.path for spec in foreign.args] == ["args[0]", "args[1]"]
        assert (foreign.name, foreign.kept, foreign.exported) == ("call", (0, 1), b"")
        assert foreign.module == call.module

    def test_it_round_trips(self, node):
        del node.attr["_jax_call"], node.attr["_jax_exported"]
        foreign = decode_node(node)
        assert decode_node(_encode(foreign)) == foreign

    def test_the_numbers_of_results_differ(self, node):
        del node.attr["_jax_call"]
        node.attr["Sout"].list.shape.add()
        with pytest.raises(FormatError, match="has 1 result dtypes and 2 shapes"):
            decode_node(node)

    @pytest.mark.parametrize(("key", "where"), [("Tin", "input 2"), ("Tout", "output 1")])
    def test_a_dtype_that_jax_lacks(self, node, key, where):
        del node.attr["_jax_call"]
        node.attr[key].list.type.append(tf.string.as_datatype_enum)
        node.attr["Sout"].list.shape.add()
        if key == "Tin":
            del node.attr["Sout"].list.shape[1:]
        with pytest.raises(DtypeError, match=f"{where} of call has TensorFlow dtype number 7"):
            decode_node(node)


def _set(key, field, value):
    def change(node):
        setattr(node.attr[key], field, value)

    return change


def _extend(key, field, value):
    return lambda node: getattr(node.attr[key].list, field).append(value)


def _clear(key):
    return lambda node: node.attr[key].list.Clear()


def _describe(**fields):
    def change(node):
        described = json.loads(zlib.decompress(node.attr["_jax_call"].s)) | fields
        node.attr["_jax_call"].s = zlib.compress(json.dumps(described).encode())

    return change


CHANGES = {
    "another op": (lambda node: setattr(node, "op", "AddV2"), FormatError, "is a AddV2, not an"),
    "an unknown attribute": (
        _set("shape", "i", 1),
        FormatError,
        r"attributes \['shape'\] are unkn",
    ),
    "no module": (lambda node: node.attr.pop("module"), FormatError, r"\['module'\] are missing"),
    "tokens": (
        _set("has_token_input_output", "b", True),
        FormatError,
        "passes tokens or dimension",
    ),
    "dimension arguments": (_extend("dim_args_spec", "s", b"0.1"), FormatError, "passes tokens or"),
    "a convention to come": (
        _set("version", "i", 11),
        VersionError,
        "calling convention 11; under",
    ),
    "an old convention": (
        _set("version", "i", 3),
        VersionError,
        "calling convention 3; understood",
    ),
    "a version of another type": (_set("version", "s", b"9"), VersionError, "calling convention 0"),
    "no platform": (_clear("platforms"), PlatformError, r"is for the platforms \[\]"),
    "an unknown platform": (
        _extend("platforms", "s", b"METAL"),
        PlatformError,
        "'METAL' is unknown",
    ),
    "a lower-case platform": (
        _extend("platforms", "s", b"tpu"),
        PlatformError,
        "not in upper case",
    ),
    "a platform in no encoding": (
        _extend("platforms", "s", b"\xff"),
        FormatError,
        "not UTF-8 text",
    ),
    "an unknown check": (
        _extend("disabled_checks", "s", b"all"),
        StructureError,
        "'all' is unknown",
    ),
    "more inputs": (_extend("Tin", "type", 1), FormatError, r"Tin is \[1, 3, 1\], but its descrip"),
    "another dtype": (
        _extend("Tout", "type", 1),
        FormatError,
        r"Tout is \[1, 1\], but its descript",
    ),
    "another shape": (
        lambda node: setattr(node.attr["Sout"].list.shape[0].dim[1], "size", 4),
        FormatError,
        r"Sout is \[\(None, 4\)\], but its description says \[\(None, 3\)\]",
    ),
    "a description that is no text": (
        _set("_jax_call", "s", zlib.compress(b"\xff")),
        FormatError,
        "is damaged",
    ),
    "a description that is no JSON": (
        _set("_jax_call", "s", zlib.compress(b"{")),
        FormatError,
        "is damaged",
    ),
    "an empty description": (_set("_jax_call", "s", zlib.compress(b"")), FormatError, "is damaged"),
    "a description that is a list": (
        _set("_jax_call", "s", zlib.compress(b"[]")),
        FormatError,
        "is damaged",
    ),
    "a description that is not compressed": (
        _set("_jax_call", "s", b"{}"),
        FormatError,
        "_jax_call is damaged: .*incorrect header",
    ),
    "a description that is cut off": (
        _set("_jax_call", "s", zlib.compress(b"{}")[:-1]),
        FormatError,
        "_jax_call is damaged: 9 bytes are cut off",
    ),
    "a description that goes on": (
        _set("_jax_call", "s", zlib.compress(b"{}") + b"{"),
        FormatError,
        "_jax_call is damaged: 11 bytes are cut off, go on",
    ),
    "a nested description": (
        _set("_jax_call", "s", zlib.compress(b"[" * 100_000)),
        FormatError,
        "is damaged",
    ),
    "a sharding that is none": (
        _describe(shardings={"unique": [{"hlo": "{devices=[2]<=[4]}"}]}),
        FormatError,
        "names 4 devices; expected 2",
    ),
    "a sharding on no mesh": (
        _describe(shardings={"unique": [{"hlo": "{manual}", "mesh": [["a", 0, "auto"]]}]}),
        InteropError,
        "'a' of a mesh has the size 0",
    ),
    "a sharding that is not there": (
        _describe(shardings={"args": [3], "results": [0]}),
        FormatError,
        "is damaged",
    ),
    "one pytree": (_describe(trees={"args": "*"}), FormatError, "does not describe two pytrees"),
    "a pytree that is none": (
        _describe(trees={"args": {"class": "m:C", "fields": [["x"]]}, "results": "*"}),
        FormatError,
        "does not describe a pytree",
    ),
    "a deep pytree": (
        _describe(
            trees={"args": functools.reduce(lambda t, _: [t], range(300), "*"), "results": 0}
        ),
        FormatError,
        "more than 200 levels deep",
    ),
    "no checksum": (_describe(module_crc32=None), FormatError, "another checksum than those"),
    "arguments that are none": (_describe(args=3), FormatError, "is damaged"),
    "arguments that are texts": (_describe(args=["x"]), FormatError, "is damaged"),
    "kept in fractions": (_describe(kept=[0.0, 1]), FormatError, "is damaged"),
    "kept in no order": (_describe(kept=[1, 0]), StructureError, "are not ascending indices"),
    "devices without end": (_describe(nr_devices=float("inf")), FormatError, "is damaged"),
}


@pytest.mark.parametrize(("change", "error", "match"), CHANGES.values(), ids=CHANGES.keys())
def test_what_is_refused(node, change, error, match):
    change(node)
    with pytest.raises(error, match=match):
        decode_node(node)


def test_an_attribute_with_an_underscore_is_another_programs_business(node, call):
    node.attr["_output_shapes"].s = b"anything"
    assert decode_node(node) == call


@given(position=st.floats(0, 1, exclude_max=True), value=st.integers(1, 255))
def test_a_damaged_module_is_seen_before_it_is_parsed(call, position, value):
    """MLIR's reader can end the process on damaged bytecode."""
    node = _encode(call)
    module = bytearray(node.attr["module"].s)
    module[int(position * len(module))] ^= value
    node.attr["module"].s = bytes(module)
    with pytest.raises(FormatError, match=r"bytes of its module have another checksum.*write the"):
        decode_node(node)


@given(data=st.data())
def test_a_damaged_node_is_decoded_or_refused(call, data):
    bytes_ = bytearray(_encode(call, schema.NodeDef).SerializeToString(deterministic=True))
    for _ in range(data.draw(st.integers(1, 3))):
        bytes_[data.draw(st.integers(0, len(bytes_) - 1))] = data.draw(st.integers(0, 255))
    node = schema.NodeDef()
    try:
        node.ParseFromString(bytes(bytes_))
    except Exception as error:  # noqa: BLE001 - protobuf's own, of which each version has another
        assert "pars" in str(error).lower()  # noqa: PT017
        return
    try:
        decoded = decode_node(node)
    except InteropError as error:
        assert str(error)  # noqa: PT017
    else:
        assert decoded.module == node.attr["module"].s


@pytest.mark.parametrize("new_node", NODES, ids=["tensorflow", "private pool"])
@given(before=calls(), after=calls())
def test_an_updated_node_makes_the_other_call(new_node, before, after):
    after = dataclasses.replace(
        after, args=before.args, results=before.results, kept=before.kept, exported=before.exported
    )
    node = _encode(before, new_node)
    node.attr["_other"].s = b"kept"
    node.input.append("^control")
    update_node(node, before, after)
    wanted = _encode(after, new_node)
    assert node.attr.pop("_other").s == b"kept"
    assert list(node.input) == [*wanted.input, "^control"]
    assert {key: node.attr[key] for key in node.attr} == {
        key: wanted.attr[key] for key in wanted.attr
    }


def test_an_updated_node_of_another_program_gets_no_description(call, node):
    for key in ("_jax_call", "_jax_exported"):
        del node.attr[key]
    before = decode_node(node)
    node.attr["platforms"].list.s.append(b"TPU")
    update_node(node, before, dataclasses.replace(before, version=before.version - 1))
    assert not any(key.startswith("_") for key in node.attr)
    assert node.attr["version"].i == before.version - 1
    assert list(node.attr["platforms"].list.s) == [b"CPU", b"TPU"]  # it did not differ


def test_a_node_is_not_updated_to_other_operands(call, node):
    with pytest.raises(StructureError, match=r"Node call takes .* that is to take its place"):
        update_node(node, call, dataclasses.replace(call, kept=call.kept[:1]))
