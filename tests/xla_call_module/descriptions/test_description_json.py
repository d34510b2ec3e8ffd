"""The JSON description of an `Exported`: canonical, as its schema says, and read with suspicion."""

from __future__ import annotations

import dataclasses
import json
import random
import time
import zlib

import jax
import jax.numpy as jnp
import pytest

from tests.exports import export_of
from tests.fuzzing.mutations import damage_bytes, mutate_json
from tests.fuzzing.reading import outcome
from tests.golden.write_serialized import export_case, register_pair
from tests.json_schema import SCHEMA, violations
from xla_call_module.descriptions.description_json import (
    SCHEMA_VERSION,
    description_from_json,
    description_to_json,
    read_description,
)
from xla_call_module.descriptions.exported_description import AvalDescription
from xla_call_module.descriptions.serialized_exported import read_serialized
from xla_call_module.errors import FormatError, StructureError, VersionError
from xla_call_module.exported import strip_exported
from xla_call_module.pytrees.tree_nodes import LEAF, TreeNode
from xla_call_module.shardings.array_sharding import place, tiled
from xla_call_module.shardings.mesh_placement import DimAxes, Mesh, MeshAxis, Placement

NAMES = ("plain", "platforms", "symbolic", "registered", "keys")
MESH = Mesh((MeshAxis("data", 2, "explicit"), MeshAxis("model", 2)))


@pytest.fixture(scope="module")
def exporteds():
    register_pair()
    return {name: export_case(name) for name in NAMES}


@pytest.fixture(scope="module")
def texts(exporteds):
    made = {
        name: strip_exported(exported, allow_flat_trees=False)
        for name, exported in exporteds.items()
    }
    plain = description_from_json(made["plain"])
    named = place(Placement(MESH, (DimAxes(("data",)), DimAxes((), True))), 2, memory="pinned_host")
    unnamed = tiled([2, 1, 2], subgroups=["replicated"])
    count = len(plain.in_avals)
    avals = (AvalDescription((4, 4), "float32", True, "host", named),) * count
    sharded = dataclasses.replace(
        plain, nr_devices=4, in_avals=avals, in_shardings=(named, None, unnamed)[:count]
    )
    return {**made, "sharded": description_to_json(sharded)}


def test_there_and_back(texts):
    for text in texts.values():
        assert description_to_json(description_from_json(text)) == text


def test_each_field_of_an_aval_is_there(texts):
    (first, *_) = description_from_json(texts["sharded"]).in_avals
    assert (first.shape, first.dtype, first.weak_type, first.memory) == (
        (4, 4), "float32", True, "host",
    )  # fmt: skip
    assert first.sharding.memory == "pinned_host"


def test_the_schema(texts):
    for name, text in texts.items():
        assert violations(json.loads(text)) == [], name


def test_the_schema_refuses(texts):
    plain = json.loads(texts["plain"])
    for key in SCHEMA["required"]:
        assert violations({k: v for k, v in plain.items() if k != key}), key
    assert violations({**plain, "nr_devices": "1"})
    assert violations({**plain, "platforms": [1]})
    assert violations({**plain, "in_tree": {"what": []}})


def test_the_same_bytes(exporteds):
    """Also in another process, since nothing in it is an address or in the order of a set."""
    for name, exported in exporteds.items():
        again = strip_exported(export_case(name), allow_flat_trees=False)
        assert strip_exported(exported, allow_flat_trees=False) == again
        assert (
            again == json.dumps(json.loads(again), sort_keys=True, separators=(",", ":")).encode()
        )


def test_it_is_no_larger_than_by_a_third(exporteds):
    params = {f"layer{n}": {"w": jnp.ones((4, 4)), "b": jnp.ones(4)} for n in range(50)}
    many = export_of(lambda p: sum(layer["w"].sum() for layer in p.values()), params)
    for name, exported in {**exporteds, "many": many}.items():
        bare = dataclasses.replace(exported, mlir_module_serialized=b"").serialize()
        text = strip_exported(exported, allow_flat_trees=False)
        sizes = len(text), len(zlib.compress(text, 9)), len(bare), len(zlib.compress(bare, 9))
        assert sizes[0] * 3 <= sizes[2] * 4, name
        assert sizes[1] * 3 <= sizes[3] * 4, name


def test_constraints(texts):
    """JAX's own serialization loses them."""
    said = description_from_json(texts["symbolic"])
    assert said.constraints == ("b >= 4", "mod(b, 2) == 0", "c <= 2*b")


def test_a_newer_minor_version(texts):
    fields = json.loads(texts["plain"]) | {"version": [1, 7], "tiles": {"x": [1, None]}}
    found = description_from_json(json.dumps(fields).encode())
    assert json.loads(found.unknown) == {"version": [1, 7], "tiles": {"x": [1, None]}}
    assert json.loads(description_to_json(found)) == fields
    retargeted = json.loads(description_to_json(found.with_platforms(("tpu",))))
    assert retargeted == fields | {"platforms": ["tpu"]}
    assert violations(fields) == []


@pytest.mark.parametrize(
    ("changes", "kind", "match"),
    [
        (
            {"version": [2, 0], "read_by": "jax-tf-bridge 7.1"},
            VersionError,
            r"version 2\.0 of its schema; understood is 1\. To do: read it with jax-tf-bridge 7\.1",
        ),
        ({"version": [2, 0]}, VersionError, "read it with a newer jax-tf-bridge"),
        ({"version": None}, FormatError, "says no version"),
        ({"version": [0, 1]}, VersionError, r"version 0\.1"),
        ({"tiles": 1}, FormatError, r"fields \['tiles'\], which are unknown"),
        ({"kept": [5]}, FormatError, "there are 3 arguments"),
        ({"kept": [3]}, FormatError, "there are 3 arguments"),
        ({"kept": [[0, 10**12]]}, FormatError, "there are 3 arguments"),
        ({"kept": [[0, 2]] * 9}, FormatError, "more than the 3 arguments"),
        ({"kept": [1, 0]}, FormatError, "not ascending"),
        ({"in_avals": [0, 99, 0]}, FormatError, "numbers of avals that it does not have"),
        ({"in_avals": [0], "kept": []}, FormatError, "pytrees of 3 leaves, 1 avals"),
        ({"nr_devices": 0}, FormatError, "for 0 devices"),
        ({"nr_devices": True}, FormatError, "a bool where a number is expected"),
        ({"uses_global_constants": 1}, FormatError, "neither true nor false"),
        ({"platforms": "cpu"}, FormatError, "expected a list of texts"),
        ({"constraints": ["b"]}, StructureError, "not a constraint of symbolic dimensions"),
        ({"constraints": ["b^999999999999 >= 1"]}, StructureError, "b"),
        ({"in_tree": {"tuple": 3}}, FormatError, "does not describe a pytree"),
        ({"fun_name": None}, FormatError, "fun_name .*expected a text"),
    ],
)
def test_what_is_refused(texts, changes, kind, match):
    fields = json.loads(texts["plain"]) | changes
    with pytest.raises(kind, match=match):
        description_from_json(json.dumps(fields).encode())


@pytest.mark.parametrize("text", [b"{", b"{}", b"[]", b"3", b'{"version":NaN}', b"[" * 100_000])
def test_what_is_no_description(text):
    with pytest.raises(FormatError, match="description of an Exported"):
        description_from_json(text)


def test_what_an_older_file_carries(exporteds):
    bare = dataclasses.replace(exporteds["plain"], mlir_module_serialized=b"")
    data = bytes(bare.serialize())
    found = read_description(data, where="f")
    assert found == read_serialized(data).description
    assert found == read_description(description_to_json(found), where="f")


def test_registered_data_is_kept():
    node = TreeNode("registered", "mine", children=(LEAF,), value="AAH/")
    assert TreeNode.from_json(node.to_json(), where="here") == node
    assert SCHEMA_VERSION == (1, 0)


def test_mutations(texts):
    """Each ends in a value or an `InteropError`, and all together in seconds."""
    rng, given = random.Random(20), list(texts.values())
    start, kinds, slowest = time.process_time(), set(), 0.0
    for number in range(5000):
        text = rng.choice(given)
        if number % 2:
            changed = damage_bytes(rng, text)
        else:
            changed = json.dumps(mutate_json(rng, json.loads(text))).encode()
        before = time.process_time()
        kinds.add(type(outcome(lambda data=changed: read_description(data, where="f"))).__name__)
        slowest = max(slowest, time.process_time() - before)
    assert {"ExportedDescription", "FormatError"} <= kinds
    assert slowest < 1
    assert time.process_time() - start < 60


def test_keys_and_weak_types():
    exported = export_of(lambda x, key: (x * 2, key), 3.0, jax.random.key(0, impl="rbg"))
    said = description_from_json(strip_exported(exported, allow_flat_trees=False))
    assert [(aval.dtype, aval.weak_type) for aval in said.in_avals] == [
        ("float32", True), ("key<rbg>", False),
    ]  # fmt: skip
