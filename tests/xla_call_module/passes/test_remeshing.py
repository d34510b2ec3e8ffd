"""Modules for meshes of other sizes; that they compute the same is in `tests/eight_devices`."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from xla_call_module.call import CallModule
from xla_call_module.errors import FormatError, ShardingError
from xla_call_module.passes.gspmd import to_gspmd
from xla_call_module.passes.module_pass import run_passes
from xla_call_module.passes.remeshing import read_meshes, remesh_module
from xla_call_module.shardings.mesh_placement import Mesh, MeshAxis
from xla_call_module.stablehlo.modules import open_module, serialize_module, uses_shardy
from xla_call_module.stablehlo.serialized_shardings import import_shardings
from xla_call_module.versions import parse_release

AUTO = AxisType.Auto
X = np.zeros((24, 16), np.float32)


def _mesh(**axes):
    return Mesh(tuple(MeshAxis(name, size) for name, size in axes.items()))


SAVED = _mesh(data=4, model=2)


def _export(function=jnp.tanh, *, names=("data", "model"), sizes=(4, 2), arguments=(X,)):
    mesh = AbstractMesh(sizes, names, axis_types=(AUTO,) * len(sizes))
    sharding = NamedSharding(mesh, PartitionSpec(*names))

    def constrained(*xs):
        return jax.lax.with_sharding_constraint(function(*xs), sharding) + 1

    jitted = jax.jit(constrained, in_shardings=sharding, out_shardings=sharding)
    return jax.export.export(jitted)(*arguments).mlir_module_serialized


def _as_attributes(artifact):
    with open_module(artifact) as module:
        return serialize_module(module, (1, 9, 0))


def _for_gspmd(artifact):
    call = CallModule("f", artifact, 9, ("cpu",), args=(), results=(), kept=())
    return run_passes(call, [to_gspmd(parse_release("2.16"))]).module


def _text(artifact):
    with open_module(artifact) as module:
        return str(module)


@pytest.fixture(scope="module", params=["as JAX exports it", "as attributes"])
def artifact(request):
    exported = _export()
    return exported if request.param == "as JAX exports it" else _as_attributes(exported)


def test_the_mesh_is_read(artifact):
    assert read_meshes(artifact) == (_mesh(data=4, model=2),)


@pytest.mark.parametrize(
    "mesh",
    [
        _mesh(data=2, model=4),
        _mesh(model=8, data=3),
        _mesh(data=1, model=1),
        _mesh(data=2, pipe=3, model=1),
    ],
    ids=str,
)
def test_another_mesh(artifact, mesh):
    changed = remesh_module(artifact, SAVED, mesh, where="f")
    assert read_meshes(changed) == (mesh,)
    text = _text(changed)
    assert f"mhlo.num_partitions = {mesh.size} : i32" in text
    # as StableHLO's attributes the shardings are those of the new mesh, too
    attributes = _text(_as_attributes(changed))
    used = {
        "data 2 x model 4": "{devices=[2,4]<=[8]}",
        "model 8 x data 3": "{devices=[3,8]<=[8,3]T(1,0)}",
        "data 1 x model 1": "{devices=[1,1]<=[1]}",
        "data 2 x pipe 3 x model 1": "{devices=[2,1,3]<=[6] last_tile_dim_replicate}",
    }[str(mesh)]
    assert attributes.count(f'mhlo.sharding = "{used}"') == 3
    if "pipe" in mesh.shape:
        return
    # back again, it is the module that it was
    again = remesh_module(changed, SAVED, _mesh(data=4, model=2), where="f")
    assert _text(_as_attributes(again)) == _text(_as_attributes(artifact))


@pytest.mark.parametrize("name", ["<b>", "a b", "{@mesh}"])
def test_any_name_of_an_axis(name):
    artifact = _as_attributes(_export(names=(name,), sizes=(4,)))
    changed = remesh_module(artifact, SAVED, _mesh(**{name: 2}), where="f")
    assert read_meshes(changed) == (_mesh(**{name: 2}),)


@pytest.mark.parametrize("name", ['say "hi"', "back\\slash", "größe"])
def test_names_that_cannot_be_read_back(name):
    """XLA's own pass crashes on them; as JAX exports it, it has not been written yet."""
    exported = _export(names=(name,), sizes=(4,))
    assert read_meshes(remesh_module(exported, SAVED, _mesh(**{name: 2}), where="f")) == (
        _mesh(**{name: 2}),
    )
    with pytest.raises(FormatError, match="A name of an axis has letters besides"):
        read_meshes(_as_attributes(exported))


_OF_ARGUMENT = r'"#sdy.sharding<@mesh, [{\22data\22}, {\22model\22}]>"'
_OF_RESULTS = r'"#sdy.sharding_per_value<[<@mesh, [{\22data\22}, {\22model\22}]>]>"'


@pytest.mark.parametrize(
    ("text", "damaged", "message"),
    [
        ("#sdy.mesh<", "#sdy.mosh<", "Unable to parse"),
        ("{mesh = #sdy", "{mush = #sdy", "Failure while executing"),
        (r'"{mesh = #sdy.mesh<[\22data\22=4, \22model\22=2]>}"', '"3"', "to DictAttr"),
        (r'"{mesh = #sdy.mesh<[\22data\22=4, \22model\22=2]>}"', '"{mesh = 3}"', "to MeshAttr"),
        (r'"{mesh = #sdy.mesh<[\22data\22=4, \22model\22=2]>}"', "3", "to StringAttr"),
        (_OF_ARGUMENT, r'"#sdy.sharding<@mesh, [{\22data\22}]>"', "Failure while executing"),
        (_OF_ARGUMENT, r'"#sdy.sharding<@mush, [{}, {}]>"', "Failure while executing"),
        (_OF_ARGUMENT, '"@@"', "Unable to parse"),
        (_OF_ARGUMENT, _OF_RESULTS, "to TensorShardingAttr"),
        (_OF_RESULTS, _OF_ARGUMENT, "to TensorShardingPerValueAttr"),
        (_OF_RESULTS, '"#sdy.sharding_per_value<[]>"', "0 shardings for 1 values"),
    ],
)
def test_damaged_shardings(text, damaged, message):
    """Most of these crash XLA's pass."""
    with open_module(_as_attributes(_export())) as module:
        written = str(module)
        assert text in written
        changed = ir.Module.parse(written.replace(text, damaged), module.context)
        artifact = serialize_module(changed, (1, 9, 0))
    with pytest.raises(FormatError, match=f"shardings in the module are damaged: .*{message}"):
        import_shardings(artifact)


def _manual():
    """Return a manual computation as a file has it."""
    mesh = AbstractMesh((4,), ("data",), axis_types=(AUTO,))
    spec = PartitionSpec("data")
    mapped = jax.shard_map(lambda x: (jnp.sin(x), -x), mesh=mesh, in_specs=spec, out_specs=spec)
    jitted = jax.jit(mapped, in_shardings=NamedSharding(mesh, spec))
    return _as_attributes(jax.export.export(jitted)(X).mlir_module_serialized)


def test_manual_computations_come_back_from_calls():
    text = _text(import_shardings(_manual()))
    assert "sdy.manual_computation" in text
    assert "custom_call" not in text
    assert "func.call" not in text
    assert "manual_computation_body" not in text


@pytest.mark.parametrize(
    ("text", "damaged", "message"),
    [
        ("@xla.sdy.GlobalToLocalShape", "@Else", "has no xla.sdy.GlobalToLocalShape of its own"),
        ("@xla.sdy.LocalToGlobalShape", "@Else", "has no xla.sdy.LocalToGlobalShape of its own"),
        ("@xla.sdy.manual_computation_body", "@other", "a custom call of a manual computation"),
        (r"#sdy<manual_axes{\22data\22}>", "3", "Verification failed"),
        ("xla.sdy.manual_axes", "xla.sdy.automatic_axes", "xla.sdy.manual_axes"),
        ("xla.sdy.in_shardings", "xla.sdy.shardings", "xla.sdy.in_shardings"),
        (r"[<@mesh, [{\22data\22}, {}]>]", "[]", "Verification failed"),
        ("LocalToGlobalShape(%1#0, %1#1)", "LocalToGlobalShape(%1#1, %1#0)", "other neighbours"),
    ],
)
def test_damaged_manual_computations(text, damaged, message):
    """XLA ends the process on most of these."""
    with open_module(_manual()) as module:
        written = str(module)
        assert text in written
        changed = ir.Module.parse(written.replace(text, damaged), module.context)
        artifact = serialize_module(changed, (1, 9, 0))
    with pytest.raises(FormatError, match=f"shardings in the module are damaged: .*({message})"):
        import_shardings(artifact)


def test_shardings_come_back_from_attributes(artifact):
    found = import_shardings(artifact)
    assert "sdy.sharding_constraint" in _text(found) or "sdy.sharding_per_value" in _text(found)
    assert "mhlo.sharding" not in _text(found)
    assert import_shardings(found) is found


def test_without_shardings_nothing_is_changed():
    artifact = jax.export.export(jax.jit(jnp.tanh))(X).mlir_module_serialized
    assert import_shardings(artifact) is artifact
    assert read_meshes(artifact) == ()


def test_both_forms_use_shardy(artifact):
    with open_module(artifact) as module:
        assert uses_shardy(module)


@pytest.mark.parametrize("mesh", [_mesh(data=8), _mesh(x=4, y=2)], ids=str)
def test_names_that_do_not_fit(artifact, mesh):
    with pytest.raises(ShardingError, match=f"f has shardings on the mesh data 4 x mod.*{mesh}"):
        remesh_module(artifact, SAVED, mesh, where="f")


@pytest.mark.parametrize("convert", [lambda a: a, _as_attributes], ids=["exported", "attributes"])
def test_what_runs_on_each_device_alone(convert):
    mesh = AbstractMesh((4, 2), ("data", "model"), axis_types=(AUTO, AUTO))
    spec = PartitionSpec("data", "model")
    inner = jax.shard_map(lambda x: x + 1, mesh=mesh, in_specs=spec, out_specs=spec)
    jitted = jax.jit(inner, in_shardings=NamedSharding(mesh, spec))
    artifact = convert(jax.export.export(jitted)(X).mlir_module_serialized)
    with pytest.raises(ShardingError, match=r"f has a part that runs on each device by itself"):
        remesh_module(artifact, SAVED, _mesh(data=2, model=4), where="f")


@pytest.mark.parametrize("mesh", [_mesh(data=2, model=4), _mesh(model=8, x=2, data=3)], ids=str)
def test_without_names(artifact, mesh):
    """What GSPMD reads becomes what Shardy's shardings become."""
    changed = remesh_module(_for_gspmd(artifact), SAVED, mesh, where="f")
    pattern = 'mhlo.sharding = "[^"]*"'
    found = re.findall(pattern, _text(changed))
    named = re.findall(pattern, _text(_for_gspmd(remesh_module(artifact, SAVED, mesh, where="f"))))
    assert found == named
    assert len(found) == 3
    assert f"mhlo.num_partitions = {mesh.size} : i32" in _text(changed)


def test_without_names_of_another_mesh(artifact):
    with pytest.raises(ShardingError, match="4 x 2 parts over 8 devices does not fit the axes"):
        remesh_module(
            _for_gspmd(artifact), _mesh(data=2, model=4), _mesh(data=2, model=4), where="f"
        )


def test_damage(artifact):
    with pytest.raises(FormatError, match="not a StableHLO portable artifact"):
        remesh_module(artifact[:200], SAVED, _mesh(data=2, model=4), where="f")
