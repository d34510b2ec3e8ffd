"""The value of a sharding, against what JAX and XLA compute of the same."""

from __future__ import annotations

import subprocess
import sys

import jax
import numpy as np
import pytest
from hypothesis import given
from jax._src.lib import xla_client
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from tests.policy.source import ROOT
from tests.xla_call_module.sharding_strategies import (
    array_of,
    device_indices,
    named_shardings,
    pairs_of_named_shardings,
    shard_shape,
    tilings,
)
from xla_call_module.errors import FormatError, ShardingError
from xla_call_module.shardings.array_sharding import Sharding, place, tiled
from xla_call_module.shardings.device_order import iota_order, listed_order
from xla_call_module.shardings.mesh_placement import DimAxes, Mesh, MeshAxis, Placement
from xla_call_module.shardings.sharding_jax import sharding_from_jax
from xla_call_module.shardings.sharding_protos import sharding_from_proto, sharding_to_proto
from xla_call_module.shardings.sharding_text import sharding_to_text

RANK = 4
# What newer versions of XLA add to parts that are summands, as they all were before.
SUM = b":\x18\n\x11sdy::reduction_op\x12\x03SUM"
_TYPES = xla_client.OpSharding.Type


def to_hlo(sharding):
    """The same as XLA makes it of its parts, which it puts into its own form."""
    kinds = [getattr(_TYPES, kind.upper()) for kind in sharding.subgroups]
    if sharding.order.is_iota:
        found = xla_client.HloSharding.iota_tile(
            sharding.tiles, sharding.order.reshape, sharding.order.transpose, kinds
        )
    else:
        devices = np.array(sharding.order.listed, np.int64).reshape(sharding.tiles)
        found = xla_client.HloSharding.subgroup_with_device_ordering(devices, kinds)
    # Its form of an array that is whole and unreduced has another form in turn.
    return xla_client.HloSharding.from_proto(found.to_proto())


@given(tilings())
def test_the_form_is_the_one_that_xla_gives_it(sharding):
    if sharding.num_devices == 1:
        return  # XLA leaves a tile of no dimensions, and refuses to read it
    found, wanted = sharding.canonical(), to_hlo(sharding)
    assert found.canonical() == found
    assert (sharding_to_text(found), sharding_to_proto(found)) == (
        repr(wanted),
        wanted.to_proto().SerializeToString().replace(SUM, b""),
    )


@given(named_shardings())
def test_names_are_what_jax_makes_of_them(sharding):
    found, wanted = sharding_from_jax(sharding, RANK), sharding._to_xla_hlo_sharding(RANK)
    # JAX 0.9 writes tiles, too, where there is one device.
    one_tile = jax.__version_info__ < (0, 10) and wanted.num_devices() == 1
    assert sharding_to_text(found) == ("{replicated}" if one_tile else repr(wanted))
    assert found.is_fully_replicated == sharding.is_fully_replicated
    shape = array_of(sharding, RANK)
    assert shard_shape(found, shape) == sharding.shard_shape(shape)
    assert found.memory == (sharding.memory_kind or "")


@given(pairs_of_named_shardings())
def test_equivalence(pair):
    left, right = (sharding_from_jax(sharding, RANK) for sharding in pair)
    assert left.is_equivalent_to(right) == _is_equivalent(*pair)


def _is_equivalent(left, right):
    """Return what `is_equivalent_to` says, which in JAX 0.9 asks for the devices of a mesh."""
    if jax.__version_info__ >= (0, 10):
        return left.is_equivalent_to(right, RANK)
    forms = [sharding._to_xla_hlo_sharding(RANK) for sharding in (left, right)]
    whole = left.is_fully_replicated and right.is_fully_replicated
    return (whole or forms[0] == forms[1]) and left.memory_kind == right.memory_kind


def test_both_versions_of_an_order_are_equivalent():
    short = tiled([2, 3, 4], iota_order([4, 6], [1, 0]), ["manual"])
    listed = tiled([2, 3, 4], short.order.devices(), ["manual"])
    assert short.is_equivalent_to(listed)
    assert not short.is_equivalent_to(tiled([2, 3, 4], iota_order([24]), ["manual"]))
    assert not short.is_equivalent_to(Sharding(memory="pinned_host"))


def test_on_eight_devices():
    """`devices_indices_map`, `shard_shape` and equivalence on real devices, in their own process.

    How many devices JAX has on a CPU is settled when it starts.
    """
    command = [sys.executable, "-m", "tests.xla_call_module.shardings.shardings_on_devices"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) == 110


@pytest.mark.parametrize(
    ("sharding", "shape", "match"),
    [
        (tiled([4, 2]), (8,), "does not say how an array of rank 1"),
        (Sharding("manual"), (8,), "The sharding manual does not say"),
        (tiled([2, 4], subgroups=["manual"]), (8,), "outside of jax.shard_map"),
    ],
)
def test_what_cannot_be_split(sharding, shape, match):
    with pytest.raises(ShardingError, match=match):
        sharding.parts(len(shape))


def test_more_dimensions():
    found = tiled([2, 4], subgroups=["replicated"]).of_rank(3)
    assert (found.tiles, found.rank) == ((2, 1, 1, 4), 3)
    assert Sharding().of_rank(3) == Sharding()


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: tiled([4, 2], [0, 1, 2]), "names 3 devices; expected 8"),
        (lambda: tiled([4], [0, 1, 1, 2]), "each device and each axis once"),
        (lambda: iota_order([2, 2], [0, 0]), "are not an order of devices"),
        (lambda: iota_order([1 << 11, 1 << 11]).devices(), "over 4,194,304 devices"),
        (lambda: Sharding("scattered"), "kind 'scattered'"),
        (lambda: tiled([2], subgroups=["maximal"]), r"subgroups \['maximal'\]"),
        (lambda: Sharding("replicated", tiles=(2,)), "A replicated sharding of tiles"),
    ],
)
def test_what_is_no_sharding(make, match):
    with pytest.raises(FormatError, match=match):
        make()


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: MeshAxis("a", 0), "has the size 0"),
        (lambda: MeshAxis("a", 2, "open"), "'open'; expected"),
        (lambda: Mesh((MeshAxis("a", 2), MeshAxis("a", 2))), "expected each name once"),
        (lambda: Mesh((MeshAxis("a", 2),), (0, 2)), r"2 devices, but .* \[0, 2\]"),
        (lambda: Placement(Mesh(()), (DimAxes(("a",)),)), r"\['a'\] are none of its axes"),
        (
            lambda: Placement(Mesh((MeshAxis("a", 2),)), (DimAxes(("a",)), DimAxes(("a",)))),
            r"\['a'\] are named twice",
        ),
        (
            lambda: Placement(Mesh((MeshAxis("a", 2),)), (DimAxes(("a",)),), unreduced=("a",)),
            r"\['a'\] are named twice",
        ),
        (
            lambda: place(Placement(Mesh((MeshAxis("a", 2),)), (DimAxes(),) * 2), 1),
            "2 dimensions was given for an array of rank 1",
        ),
    ],
)
def test_what_is_no_mesh_or_placement(make, match):
    with pytest.raises(ShardingError, match=match):
        make()


def test_manual_and_unreduced_axes():
    kinds = (AxisType.Manual, AxisType.Explicit, AxisType.Auto)
    mesh = AbstractMesh((2, 3, 4), ("m", "e", "a"), axis_types=kinds)
    for spec in (PartitionSpec("a"), PartitionSpec("e", "a"), PartitionSpec()):
        sharding = NamedSharding(mesh, spec)
        found = sharding_from_jax(sharding, 2)
        assert sharding_to_text(found) == repr(sharding._to_xla_hlo_sharding(2))
    mesh = AbstractMesh((2, 4), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    sharding = NamedSharding(mesh, PartitionSpec("y", unreduced={"x"}))
    found = sharding_from_jax(sharding, 2)
    assert found.placement.unreduced == ("x",)
    assert sharding_to_text(found) == repr(sharding._to_xla_hlo_sharding(2))


@pytest.mark.skipif(not hasattr(jax.sharding, "UnreducedKind"), reason="all parts are summands")
def test_parts_that_are_no_summands():
    mesh = AbstractMesh((2, 4), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    kinds = jax.sharding.UnreducedKind
    summed, largest = (
        NamedSharding(mesh, PartitionSpec("y", unreduced={"x"}, unreduced_kind=kind))
        for kind in (kinds.sum, kinds.max)
    )
    found = sharding_from_jax(summed, 2)
    message = summed._to_xla_hlo_sharding(2).to_proto().SerializeToString()
    assert SUM in message
    assert sharding_from_proto(message).is_equivalent_to(found)
    with pytest.raises(ShardingError, match="parts that are reduced by max"):
        sharding_from_jax(largest, 2)


def test_the_order_of_a_mesh_is_that_of_its_devices():
    mesh = Mesh((MeshAxis("a", 2), MeshAxis("b", 2)), (3, 1, 2, 0))
    found = place(Placement(mesh, (DimAxes(("b",)), DimAxes(("a",)))), 2)
    assert found.order == listed_order([3, 2, 1, 0])
    alone = place(Placement(Mesh((), (3,))), 2)
    assert device_indices(alone, (2, 2)) == {3: (slice(None), slice(None))}


@pytest.mark.parametrize(
    ("sharding", "text"),
    [
        (Sharding(), "replicated"),
        (tiled([4, 1, 2], subgroups=["replicated"]), "4 x 1 parts over 8 devices"),
        (
            place(Placement(Mesh((MeshAxis("a", 2),)), (DimAxes(), DimAxes(("a",)))), 2),
            "(whole, a) on the mesh a 2",
        ),
    ],
)
def test_how_it_is_said_in_messages(sharding, text):
    assert str(sharding) == text
