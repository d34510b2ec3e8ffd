"""JAX's own serialization: what JAX reads of it, read without JAX, also where JAX refuses it."""

from __future__ import annotations

import dataclasses
import os
import random
import struct
import subprocess
import sys
import time
from pathlib import Path

import flatbuffers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from tests.fuzzing.mutations import damage_bytes
from tests.fuzzing.reading import outcome
from tests.golden.write_serialized import CASES, Pair, export_case, register_pair
from xla_call_module.descriptions.serialized_exported import (
    NEWEST_SERIALIZATION,
    read_serialized,
    serialization_version,
)
from xla_call_module.errors import FormatError, InteropError, StructureError, VersionError
from xla_call_module.exported import deserialize_exported

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "serialized"
FILES = sorted(GOLDEN.glob("*/*.bin"))
ON_ONE_DEVICE = [name for name in CASES if name != "sharded"]


@pytest.fixture(scope="module", autouse=True)
def _registered():
    register_pair()


def fields_that_differ(one, other):
    """The names of the fields that differ but for the scope of symbolic dimensions."""
    names = [f.name for f in dataclasses.fields(one) if f.name != "_get_vjp"]
    pairs = ((name, getattr(one, name), getattr(other, name)) for name in names)
    return [name for name, x, y in pairs if x != y and str(x) != str(y)]


@pytest.mark.parametrize("name", ON_ONE_DEVICE)
def test_as_jax_reads_it(name):
    data = export_case(name).serialize(vjp_order=int(name != "keys"))
    theirs, ours = export.deserialize(data), deserialize_exported(bytes(data))
    assert fields_that_differ(theirs, ours) == []
    assert ours.has_vjp() == theirs.has_vjp()
    if ours.has_vjp():
        assert fields_that_differ(theirs.vjp(), ours.vjp()) == []
    assert ours.serialize() == theirs.serialize()


@pytest.mark.parametrize("file", FILES, ids=lambda f: f"{f.parent.name}-{f.stem}")
def test_of_every_jax(file):
    """A newer one has other shardings, and otherwise the same fields."""
    found = read_serialized(file.read_bytes())
    assert (found.version == NEWEST_SERIALIZATION) == (found.jax == "0.12.0.1")
    assert found.module.startswith(b"ML\xefR")
    same = read_serialized((GOLDEN / "0.12.0.1" / file.name).read_bytes())
    for one, other in ((found, same), (found.vjp, same.vjp)):
        if one is None:
            assert other is None
            continue
        assert _common(one.description) == _common(other.description)


def _common(description):
    avals = [(a.shape, a.dtype) for a in (*description.in_avals, *description.out_avals)]
    others = ("device", "in_avals", "out_avals", "in_shardings", "out_shardings")
    names = [f.name for f in dataclasses.fields(description) if f.name not in others]
    return avals, [getattr(description, name) for name in names]


@pytest.mark.parametrize("version", ["0.7.1", "0.10.2", "0.12.0.1"])
def test_called_and_differentiated(version):
    """Those of JAX 0.7.1 are expired since 0.12."""
    x, pair = np.arange(16, dtype=np.float32).reshape(4, 4), Pair(jnp.ones((4, 4)), jnp.eye(4))
    params = {"w": np.eye(4, dtype=np.float32), "b": np.ones(4, np.float32)}
    plain, registered, keys = (
        deserialize_exported((GOLDEN / version / f"{name}.bin").read_bytes())
        for name in ("plain", "registered", "keys")
    )
    np.testing.assert_array_equal(plain.call(params, x)["y"], x + 1)
    gradient = jax.grad(lambda p: plain.call(p, x)["y"].sum())(params)
    np.testing.assert_array_equal(gradient["b"], np.full(4, 4, np.float32))
    result = registered.call(pair)
    np.testing.assert_array_equal(result.x, jnp.eye(4))
    assert isinstance(result, Pair)
    assert keys.in_avals[0].dtype == jax.random.key(0).dtype


@pytest.mark.parametrize("version", ["0.7.1", "0.10.2", "0.12.0.1"])
def test_shardings(version):
    found = read_serialized((GOLDEN / version / "sharded.bin").read_bytes()).description
    assert [sharding.parts(2) for sharding in found.in_shardings] == [(2, 1), (1, 2)]
    assert found.nr_devices == 4
    named = [sharding.placement is not None for sharding in found.in_shardings]
    assert named == [version != "0.7.1"] * 2


_ON_FOUR_DEVICES = """
import sys
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_num_cpu_devices", 4)
from pathlib import Path
from jax.sharding import Mesh
from xla_call_module.exported import deserialize_exported, from_exported, to_exported

x = np.arange(16, dtype=np.float32).reshape(4, 4)
mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
for file in sorted(Path(sys.argv[1]).glob("*/sharded.bin")):
    exported = deserialize_exported(file.read_bytes())
    for one in (exported, to_exported(from_exported(exported))):
        one, two = (one, jax.jit(one.call))
        args = [jax.device_put(x, s) for s in one.in_shardings_jax(mesh)]
        assert args[0].sharding.shard_shape((4, 4)) == (2, 4)
        np.testing.assert_array_equal(two(*args), 3 * x)
        assert one.serialize()
    gradient = jax.jit(jax.grad(lambda *a: jnp.sum(exported.call(*a) ** 2), argnums=(0, 1)))(*args)
    np.testing.assert_array_equal(gradient[0], 12 * x)
    np.testing.assert_array_equal(gradient[1], 6 * x)
    print(file.parent.name)
"""


def test_sharded_files_run():
    """Those of JAX 0.7.1 have the compiler's shardings, those of 0.12 the names of axes alone."""
    command = [sys.executable, "-W", "ignore", "-c", _ON_FOUR_DEVICES, str(GOLDEN)]
    environment = {**os.environ, "XLA_FLAGS": ""}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0.10.2", "0.12.0.1", "0.7.1"]


def test_a_class_that_is_not_registered():
    data = (GOLDEN / "0.10.2" / "registered.bin").read_bytes()
    data = data.replace(b"golden.Pair", b"golden.Pear")
    with pytest.raises(StructureError, match=r"registered for serialization as 'golden\.Pear'"):
        deserialize_exported(data)


def _with_version(data, version):
    (root,) = struct.unpack_from("<I", data)
    (back,) = struct.unpack_from("<i", data, root)
    (offset,) = struct.unpack_from("<H", data, root - back + 4)
    changed = bytearray(data)
    struct.pack_into("<H", changed, root + offset, version)
    return bytes(changed)


def test_a_newer_version():
    """JAX may read it itself; what is in it nobody knows here."""
    data = _with_version((GOLDEN / "0.10.2" / "platforms.bin").read_bytes(), 99)
    assert serialization_version(data) == 99
    with pytest.raises(VersionError, match="in version 99; understood are 2 to 12"):
        read_serialized(data)
    if jax.__version_info__ >= (0, 10):  # older ones refuse it as well
        assert deserialize_exported(data).fun_name == "tanh"


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "A FlatBuffer of 0 bytes"),
        (b"nothing", "an object of 4 bytes at byte"),
        (bytes(64), "no object for the distance at byte 0"),
        (b"\x04\0\0\0" * 30, "serialized in version 0; understood are 2 to 12"),
    ],
)
def test_something_else(data, match):
    with pytest.raises((FormatError, VersionError), match=match):
        read_serialized(data)


def test_objects_that_share_their_bytes():
    """A tree of 2^60 nodes, of which each has one and the same node twice."""
    builder = flatbuffers.Builder()
    node = 0
    for _ in range(60):
        children = None
        if node:
            builder.StartVector(4, 2, 4)
            builder.PrependUOffsetTRelative(node)
            builder.PrependUOffsetTRelative(node)
            children = builder.EndVector()
        builder.StartObject(5)
        if children is not None:
            builder.PrependInt8Slot(0, 2, 0)
            builder.PrependUOffsetTRelativeSlot(1, children, 0)
        node = builder.EndObject()
    builder.StartObject(27)
    builder.PrependUint16Slot(0, 3, 0)
    builder.PrependUOffsetTRelativeSlot(2, node, 0)
    builder.Finish(builder.EndObject())
    with pytest.raises(FormatError, match=r"objects, the last at byte .*that share their bytes"):
        read_serialized(bytes(builder.Output()))


def test_mutations():
    """Each ends in a value or an `InteropError`, and all together in seconds."""
    rng, files = random.Random(20), [file.read_bytes() for file in FILES]
    start, kinds, slowest = time.process_time(), set(), 0.0
    for _ in range(5000):
        before = time.process_time()
        data = damage_bytes(rng, rng.choice(files))
        kinds.add(type(outcome(lambda data=data: read_serialized(data))).__name__)
        slowest = max(slowest, time.process_time() - before)
    assert {"SerializedExported", "FormatError"} <= kinds
    assert slowest < 1
    assert time.process_time() - start < 60


def _modules(serialized):
    return [] if serialized is None else [serialized.module, *_modules(serialized.vjp)]


def test_mutations_that_become_an_exported():
    """Of whole modules: MLIR's reader can end the process on others."""
    rng, files = random.Random(21), [file.read_bytes() for file in FILES]
    whole = {module for data in files for module in _modules(read_serialized(data))}
    for _ in range(300):
        data = damage_bytes(rng, rng.choice(files))
        read = outcome(lambda data=data: read_serialized(data))
        if not isinstance(read, InteropError) and not whole.issuperset(_modules(read)):
            continue
        found = outcome(lambda data=data: deserialize_exported(data))
        assert isinstance(found, (export.Exported, InteropError))
