"""Shardings as text, as protos, as Shardy's attributes, as JSON and as classes of JAX."""

from __future__ import annotations

import dataclasses
import inspect
import json

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax._src.lib import xla_client
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy
from jax.interpreters.mlir import make_ir_context
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from tests.xla_call_module.sharding_strategies import named_shardings, tilings
from xla_call_module._jax import (
    has_hlo_shardings,
    logical_device_ids,
    with_logical_device_ids,
)
from xla_call_module.errors import FormatError, ShardingError, VersionError
from xla_call_module.exported import from_exported
from xla_call_module.shardings.array_sharding import Sharding, maximal, place, tiled
from xla_call_module.shardings.mesh_placement import DimAxes, Mesh, MeshAxis, Placement
from xla_call_module.shardings.sharding_jax import (
    exported_shardings,
    mesh_from_jax,
    mesh_to_jax,
    sharding_from_jax,
    sharding_to_jax,
)
from xla_call_module.shardings.sharding_json import decode_shardings, encode_shardings
from xla_call_module.shardings.sharding_protos import sharding_from_proto, sharding_to_proto
from xla_call_module.shardings.sharding_text import sharding_from_text, sharding_to_text
from xla_call_module.shardings.shardy import (
    mesh_from_shardy,
    placement_from_shardy,
)

WHOLE = st.sampled_from([*map(Sharding, ("replicated", "manual", "unknown", "unreduced"))])
LEAVES = st.one_of(tilings(), WHOLE, st.integers(0, 1000).map(maximal))
TUPLES = st.lists(LEAVES, min_size=1, max_size=12).map(
    lambda elements: Sharding("tuple", elements=tuple(elements))
)
NAMES = st.text(min_size=1, max_size=5)


def hlo_from_proto(data):
    message = xla_client.OpSharding()
    message.ParseFromString(data)
    return xla_client.HloSharding.from_proto(message)


@given(st.one_of(LEAVES, TUPLES))
def test_text(sharding):
    assert sharding_from_text(sharding_to_text(sharding)) == sharding


@given(st.one_of(LEAVES, TUPLES))
def test_protos(sharding):
    assert sharding_from_proto(sharding_to_proto(sharding)) == sharding
    first = sharding_from_proto(sharding_to_proto(sharding, version=1))
    assert first.is_equivalent_to(sharding)
    assert all(one.order is None or not one.order.is_iota for one in (first, *first.elements))


@given(LEAVES)
def test_xla_reads_the_protos(sharding):
    """And the text is the one that it has for what it has read."""
    if sharding.kind == "tiled" and sharding.num_devices == 1:
        return  # XLA refuses tiles on one device
    for version in (1, 2):
        found = hlo_from_proto(sharding_to_proto(sharding.canonical(), version=version))
        assert sharding_from_text(repr(found)).is_equivalent_to(sharding)


@pytest.mark.parametrize(
    "text",
    [
        "{replicated}",
        "{manual}",
        "{maximal device=3}",
        "{unknown}",
        "{devices=[4,2]<=[8]}",
        "{devices=[4,2]<=[2,4]T(1,0)}",
        "{devices=[4,2]7,6,5,4,3,2,1,0}",
        "{devices=[4,1,2]<=[8] last_tile_dim_replicate}",
        "{devices=[2,1,2,2]<=[8] last_tile_dims={manual, replicated}}",
        (
            "{{replicated}, {maximal device=0}, {devices=[2]<=[2]}, {manual}, {unknown}, "
            "/*index=5*/{devices=[1,2,2]<=[4] last_tile_dims={manual}}}"
        ),
    ],
)
def test_texts_of_xla(text):
    found = sharding_from_text(text)
    assert sharding_to_text(found) == text
    wanted = xla_client.HloSharding.from_string(text)
    assert repr(wanted) == text
    assert sharding_to_proto(found) == wanted.to_proto().SerializeToString()


def test_parts_are_summands():
    assert sharding_from_text(
        '{unreduced metadata={op_type="sdy::reduction_op" op_name="SUM"}}'
    ) == Sharding("unreduced")


def test_where_it_was_set_is_left_out():
    text = '{devices=[2]<=[2] metadata={op_name="a{}" source_file="f.py" source_line=3}}'
    assert sharding_from_text(text) == tiled([2])
    data = xla_client.HloSharding.from_string(text).to_proto().SerializeToString()
    assert sharding_from_proto(data) == tiled([2])


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{devices=[2]<=[2]", "another form than XLA's tiles"),
        ("{devices=[2]<=[2] shard_as 1}", "another form than XLA's tiles"),
        ("{mesh['a'=2], [{'a'}]}", "another form than XLA's tiles"),
        ("{devices=[3]<=[2]}", "names 2 devices; expected 3"),
        (
            '{unreduced metadata={op_type="sdy::reduction_op" op_name="MAX"}}',
            "another form than XLA's tiles",
        ),
        ("{{replicated}, {{manual}}}", "not a tuple of shardings"),
        ("{{replicated} {manual}}", "not a tuple of shardings"),
    ],
)
def test_other_texts(text, match):
    with pytest.raises(FormatError, match=match):
        sharding_from_text(text)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ("0809", "has the type 9"),
        ("0803 1a0102 220100", "names 1 devices; expected 2"),
        ("0803 1a05", "4 bytes are not an OpSharding message"),
        ("08", "1 bytes are not an OpSharding message"),
        ("08 ffffffffffffffffffff", "not an OpSharding message"),
        ("0804 5801 6005", "has the field 11"),
        ("72020801", "has the field 14"),
        ("0806" + b":\x18\n\x11sdy::reduction_op\x12\x03MAX".hex(), "that are not summands"),
        ("09 00", "not an OpSharding message"),
        ("0802 2a 06 0802 2a 02 0804", "has the field 5"),
    ],
)
def test_other_protos(data, match):
    with pytest.raises(FormatError, match=match):
        sharding_from_proto(bytes.fromhex(data))


@given(st.binary(max_size=40))
def test_any_bytes_are_a_sharding_or_refused(data):
    try:
        found = sharding_from_proto(data)
    except FormatError:
        return
    assert sharding_from_proto(sharding_to_proto(found)).is_equivalent_to(found)


@given(named_shardings())
def test_classes_of_jax(sharding):
    found = sharding_from_jax(sharding, 4)
    assert sharding_to_jax(found) == sharding
    assert mesh_to_jax(mesh_from_jax(sharding.mesh)) == sharding.mesh


def test_what_jax_cannot_say():
    mesh = Mesh((MeshAxis("a", 2),))
    half_open = place(Placement(mesh, (DimAxes(("a",), is_open=True),)), 1)
    with pytest.raises(ShardingError, match="open to more, which JAX cannot express"):
        sharding_to_jax(half_open)
    with pytest.raises(ShardingError, match="2 parts over 2 devices does not say the names"):
        sharding_to_jax(tiled([2]))


def _build_shardy(sharding):
    """The attribute that JAX makes; since 0.9 it takes a cache of those that it has made."""
    return sharding.build({}) if inspect.signature(sharding.build).parameters else sharding.build()


def _read_shardy(text, meshes=None):
    with make_ir_context():
        return placement_from_shardy(ir.Attribute.parse(text), meshes or {})


@given(named_shardings())
@settings(deadline=None)  # the first one loads what JAX builds attributes with
def test_attributes_of_shardy(sharding):
    wanted = sharding._to_sdy_sharding(4)
    placement = sharding_from_jax(sharding, 4).placement
    with make_ir_context():
        read = placement_from_shardy(_build_shardy(wanted), {})
    # Shardy has no types of axes, and says how many dimensions there are.
    assert read.dims == (*placement.dims, *[DimAxes()] * (4 - len(placement.dims)))
    assert read.mesh.shape == placement.mesh.shape
    assert (read.replicated, read.unreduced) == ((), placement.unreduced)


@given(st.lists(NAMES, min_size=1, max_size=3, unique=True), st.booleans())
def test_names_of_axes(names, reordered):
    devices = tuple(reversed(range(2 ** len(names)))) if reordered else ()
    with make_ir_context():
        axes = [sdy.MeshAxisAttr.get(name, 2) for name in names]
        mesh = mesh_from_shardy(sdy.MeshAttr.get(axes, devices))
    assert mesh == Mesh(tuple(MeshAxis(name, 2) for name in names), devices)


def test_axes_that_split_nothing():
    mesh = 'mesh<["a"=2, "b"=3, "c"=2], device_ids=[11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]>'
    text = f'#sdy.sharding<{mesh}, [{{"a", ?}}], replicated={{"b"}}, unreduced={{"c"}}>'
    read = _read_shardy(text)
    assert read.dims == (DimAxes(("a",), is_open=True),)
    assert (read.replicated, read.unreduced) == (("b",), ("c",))
    assert read.mesh.devices == tuple(reversed(range(12)))


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('#sdy.sharding<@mesh, [{"a":(1)2}]>', "no sharding of whole axes .* a part of an axis"),
        ('#sdy.sharding<@mesh, [{"a"}p1]>', "no sharding of whole axes .* has a priority"),
        ('#sdy.sharding<@other, [{"a"}]>', r"on the mesh other; known are \['mesh'\]"),
        ('#sdy.mesh<["a"=2]>', "no sharding of whole axes"),
    ],
)
def test_other_attributes(text, match):
    with pytest.raises(FormatError, match=match):
        _read_shardy(text, {"mesh": Mesh((MeshAxis("a", 2),))})


@pytest.mark.skipif(not hasattr(sdy, "ReductionOp"), reason="all parts are summands")
def test_parts_of_shardys_that_are_no_summands():
    with pytest.raises(FormatError, match="unreduced parts are not summands, but MAX"):
        _read_shardy('#sdy.sharding<@mesh, [{}], unreduced=max{"b"}>')


@pytest.mark.parametrize("text", ["3", r'#sdy.mesh<["\FF"=2]>'])
def test_no_mesh_of_shardys(text):
    with make_ir_context(), pytest.raises(FormatError, match="no mesh of Shardy's"):
        mesh_from_shardy(ir.Attribute.parse(text))


@given(st.lists(st.one_of(st.none(), LEAVES, named_shardings()), max_size=6))
def test_json(members):
    values = [sharding_from_jax(m, 4) if isinstance(m, NamedSharding) else m for m in members]
    fields = encode_shardings({"args": values, "results": []})
    assert decode_shardings(fields, {"args": len(values), "results": 0}) == {
        "args": values,
        "results": [],
    }
    assert bool(fields) == any(value is not None for value in values)


@pytest.mark.parametrize(
    "fields", [{"args": [0]}, {"args": [0, 0]}, {"unique": [{"hlo": "{manual}"}], "args": [-1]}]
)
def test_other_json(fields):
    with pytest.raises((LookupError, ValueError)):
        decode_shardings(fields, {"args": 1})


def test_the_order_of_devices_is_kept():
    """It is of one sharding, besides that of its mesh; JSON and JAX have it again."""
    mesh = AbstractMesh((2, 2), ("a", "b"))
    plain = NamedSharding(mesh, PartitionSpec("a", "b"))
    ordered = with_logical_device_ids(plain, (3, 1, 2, 0))
    assert with_logical_device_ids(plain, ()) is plain
    found = sharding_from_jax(ordered, 2)
    assert found.placement.mesh.devices == (3, 1, 2, 0)
    assert found.order.devices() == (3, 1, 2, 0)
    encoded = encode_shardings({"args": [found, sharding_from_jax(plain, 2)]})
    again, other = decode_shardings(json.loads(json.dumps(encoded)), {"args": 2})["args"]
    assert (again, other.placement.mesh.devices) == (found, ())
    given = sharding_to_jax(again)
    assert given == ordered
    assert given != plain
    assert logical_device_ids(given) == (3, 1, 2, 0)
    with pytest.raises(ShardingError, match=r"numbered \[3, 1\].*number each device once"):
        sharding_from_jax(with_logical_device_ids(plain, (3, 1)), 2)


def test_an_exported_has_its_shardings_in_one_of_two_ways():
    """By the names of axes, or in the compiler's form, as in files of JAX 0.8."""
    mesh = AbstractMesh((2, 2), ("a", "b"), axis_types=(AxisType.Explicit,) * 2)
    split = NamedSharding(mesh, PartitionSpec("a", ("b",)))
    fun = jax.jit(lambda x, y: (x, y.sum()), in_shardings=(split, None))
    exported = jax.export.export(fun)(np.zeros((4, 4), np.float32), np.zeros(3, np.float32))
    (found, other), results = exported_shardings(exported, (2, 1), (2, 0))
    assert (sharding_to_text(found), other) == ("{devices=[2,2]<=[4]}", None)
    assert len(results) == 2
    assert found.placement.dims == (DimAxes(("a",)), DimAxes(("b",)))
    if not has_hlo_shardings():
        return
    hlo = xla_client.HloSharding.from_string("{devices=[2,2]<=[4]}")
    of_compiler = dataclasses.replace(
        exported, in_shardings_hlo=(hlo, None), _in_named_shardings=(None, None)
    )
    # A key has one dimension more in the module than in JAX.
    (found, _), _ = exported_shardings(of_compiler, (3, 1), (2, 0))
    assert found == tiled([2, 2, 1])


@pytest.mark.skipif(jax.__version_info__ >= (0, 12), reason="a public name tells the shardings")
def test_shardings_that_cannot_be_found_are_not_left_out():
    """Where JAX has put its private field elsewhere, nothing is exported as if it had none."""
    mesh = AbstractMesh((2,), ("a",))
    split = NamedSharding(mesh, PartitionSpec("a"))
    fun = jax.jit(lambda x: x + 1, in_shardings=split)
    exported = jax.export.export(fun)(np.zeros(4, np.float32))
    assert from_exported(exported).args[0].sharding.parts(1) == (2,)
    del vars(exported)["_in_named_shardings"]
    with pytest.raises(VersionError, match="for several devices needs a private part of jax"):
        from_exported(exported)
    # On one device they mean nothing.
    alone = jax.export.export(jax.jit(lambda x: x + 1))(np.zeros(4, np.float32))
    del vars(alone)["_in_named_shardings"]
    assert exported_shardings(alone, (1,), (1,)) == ((None,), (None,))
