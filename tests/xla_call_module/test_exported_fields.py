"""From an `Exported` to its description and back: every field is what it was at the export."""

from __future__ import annotations

import dataclasses
import json
import random
import subprocess
import sys
from collections import OrderedDict

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

import xla_call_module.exported_fields
from tests.exports import export_of
from tests.fuzzing.mutations import mutate_json
from tests.fuzzing.reading import outcome
from xla_call_module import from_exported
from xla_call_module._jax import effect_of, with_logical_device_ids
from xla_call_module.descriptions.description_json import description_from_json, read_description
from xla_call_module.errors import DtypeError, FormatError, InteropError, UnsupportedError
from xla_call_module.exported import strip_exported, to_exported

X = jax.ShapeDtypeStruct((4, 4), "float32")


def _symbolic():
    scope = export.SymbolicScope(("b >= 4", "mod(b, 2) == 0", "c <= 2*b", "d == 3*b"))
    b, c, _ = export.symbolic_shape("b, c, d", scope=scope)
    return export_of(
        lambda x, y: (x * 2, jnp.concatenate([y, y])),
        jax.ShapeDtypeStruct((b, 3), "float32"),
        jax.ShapeDtypeStruct((c, 2 * b + 1), "bfloat16"),
    )


def _sharded():
    mesh = AbstractMesh((2, 2), ("data", "model"))
    specs = (PartitionSpec("data"), PartitionSpec(None, ("model", "data")), PartitionSpec())
    arrays = (
        jax.ShapeDtypeStruct((4, 4), "float32", sharding=NamedSharding(mesh, spec))
        for spec in specs
    )
    return export_of(lambda x, y, z: (x * 2, {"y": y, "z": z}), *arrays)


def _ordered_devices():
    """JAX exports none, and says in the module alone that the devices are in another order."""
    mesh = AbstractMesh((2, 2), ("data", "model"))
    plain = NamedSharding(mesh, PartitionSpec("data", "model"))
    ordered = with_logical_device_ids(plain, (3, 1, 2, 0))
    exported = export.export(jax.jit(lambda x: x * 2, in_shardings=ordered))(X)
    return dataclasses.replace(exported, _in_named_shardings=(ordered,))


def _effects():
    """The effect of a call with side effects; not of callbacks, which JAX cannot make again."""
    effect = effect_of("jax._src.ffi.FfiEffect")
    return dataclasses.replace(export_of(jnp.sin, X), unordered_effects=(effect,))


EXPORTEDS = {
    "effects": _effects,
    "plain": lambda: export_of(lambda tree, *, n: (tree["a"][0] + n, [None, ()]), {"a": [X]}, n=X),
    "unused": lambda: export_of(lambda *arrays: arrays[3], *[X] * 8),
    "weak": lambda: export_of(lambda x: (x, x * 2), 3.0),
    "keys": lambda: export_of(jax.random.split, jax.random.key(0, impl="unsafe_rbg")),
    "symbolic": _symbolic,
    "sharded": _sharded,
    "ordered": lambda: export_of(lambda x: OrderedDict(b=x, a=x), X),
    "platforms": lambda: export_of(
        jnp.sin,
        X,
        platforms=["tpu", "cpu"],
        checks=[
            export.DisabledSafetyCheck.custom_call("z"),
            export.DisabledSafetyCheck.platform(),
            export.DisabledSafetyCheck.custom_call("a"),
        ],
    ),
    "ordered devices": _ordered_devices,
}


def _differing(one, other):
    names = [f.name for f in dataclasses.fields(one) if f.name != "_get_vjp"]
    pairs = ((name, getattr(one, name), getattr(other, name)) for name in names)
    return [name for name, x, y in pairs if x != y and not (name == "in_avals" or "avals" in name)]


def _scope(exported):
    dims = [dim for aval in exported.in_avals for dim in aval.shape]
    return next((str(d.scope).partition(" with")[2] for d in dims if hasattr(d, "scope")), "")


@pytest.fixture(scope="module", params=EXPORTEDS)
def exported(request):
    return EXPORTEDS[request.param]()


def test_all_fields(exported):
    orders = [exported, exported.vjp()] if exported.nr_devices == 1 else [exported]
    if any(jnp.issubdtype(a.dtype, jax.dtypes.prng_key) for a in exported.in_avals):
        orders = orders[:1]
    for order in orders:
        again = to_exported(from_exported(order))
        assert _differing(order, again) == []
        assert _scope(again) == _scope(order)
        for side in ("in_avals", "out_avals"):
            theirs, ours = getattr(order, side), getattr(again, side)
            assert list(map(str, ours)) == list(map(str, theirs))
            for one, other in zip(theirs, ours, strict=True):
                assert (one.weak_type, one.dtype) == (other.weak_type, other.dtype)
                assert _scope(exported) or one == other
        bare = strip_exported(order, allow_flat_trees=False)
        assert strip_exported(again, allow_flat_trees=False) == bare


def test_what_jax_does_with_it(exported):
    again = to_exported(from_exported(exported))
    theirs, ours = (export.deserialize(e.serialize()) for e in (exported, again))
    assert _differing(theirs, ours) == []
    if exported.nr_devices > 1:
        mesh = AbstractMesh((2, 2), ("data", "model"))
        assert again.in_shardings_jax(mesh) == exported.in_shardings_jax(mesh)


def test_a_constraint_is_in_force():
    again = to_exported(from_exported(_symbolic()))
    b = again.in_avals[0].shape[0]
    assert b >= 4
    assert b % 2 == 0
    ones = np.ones((3, 3), np.float32), np.ones((3, 7), jnp.bfloat16)
    with pytest.raises(ValueError, match=r"b >= 4|constraint"):
        again.call(*ones)


def test_fields_of_a_newer_release_are_passed_on():
    """Also by what is saved again, and by copies of any kind."""
    call = from_exported(EXPORTEDS["plain"]())
    fields = json.loads(call.exported) | {"version": [1, 3], "layouts": [1, 2]}
    call = dataclasses.replace(call, exported=json.dumps(fields).encode())
    again = to_exported(call)
    assert again.fun_name == call.name
    copy = dataclasses.replace(again, platforms=again.platforms)
    assert json.loads(from_exported(copy).exported) == fields


def test_one_device_again():
    """What was described by the compiler's form alone, on the JAX that has only names."""
    text = json.loads(strip_exported(_sharded(), allow_flat_trees=False))
    for sharding in text["shardings"]["unique"]:
        for key in ("mesh", "dims"):
            sharding.pop(key, None)
    text["shardings"]["avals"] = [None] * len(text["avals"])
    description = description_from_json(json.dumps(text).encode())
    fields = xla_call_module.exported_fields
    namer = fields._Namer(description, (), invents=True)
    named = list(map(namer.named, description.in_avals, description.in_shardings))
    given = [sharding.canonical() for sharding in description.in_shardings]
    again = [fields.sharding_from_jax(sharding, 2) for sharding in named]
    assert all(map(lambda one, other: one.is_equivalent_to(other), given, again))


@pytest.mark.parametrize(
    ("changes", "kind", "match"),
    [
        ({"avals": [{"dtype": "float1", "shape": [4, 4]}]}, DtypeError, "'float1'"),
        ({"unordered_effects": ["os.system"]}, UnsupportedError, r"the effect 'os\.system'"),
        ({"disabled_checks": ["all"]}, FormatError, "does not fit|check 'all'"),
        ({"constraints": ["b >= b + 1"]}, FormatError, "Unsatisfiable"),
    ],
)
def test_what_jax_does_not_have(changes, kind, match):
    text = strip_exported(export_of(jnp.sin, X), allow_flat_trees=False)
    description = description_from_json(json.dumps(json.loads(text) | changes).encode())
    with pytest.raises(kind, match=match):
        xla_call_module.exported_fields.restore_fields(description, size=len(text))


def test_mutations():
    rng = random.Random(22)
    calls = [from_exported(EXPORTEDS[name]()) for name in ("plain", "symbolic", "ordered")]
    for _ in range(300):
        call = rng.choice(calls)
        changed = json.dumps(mutate_json(rng, json.loads(call.exported))).encode()
        call = dataclasses.replace(call, exported=changed)
        found = outcome(lambda call=call: to_exported(call))
        assert isinstance(found, (export.Exported, InteropError))


def test_the_same_bytes_in_another_process():
    program = (
        "import jax, jax.numpy as jnp\n"
        "from xla_call_module.exported import strip_exported\n"
        "e = jax.export.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((4, 4), 'float32'))\n"
        "print(strip_exported(e, allow_flat_trees=False).decode())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.strip() == strip_exported(export_of(jnp.sin, X), allow_flat_trees=False)
    assert read_description(done.stdout.strip(), where="sin").kept == (0,)
