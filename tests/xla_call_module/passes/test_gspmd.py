"""Modules with Shardy's shardings for a TensorFlow that has GSPMD alone."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import export, lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from xla_call_module import from_exported, retarget
from xla_call_module.errors import VersionError
from xla_call_module.passes.exported_form import DROP_LOCATIONS
from xla_call_module.passes.gspmd import to_gspmd
from xla_call_module.passes.module_pass import run_passes
from xla_call_module.runtime.op import Op
from xla_call_module.stablehlo.modules import open_module, uses_shardy
from xla_call_module.versions import parse_release

MESH = AbstractMesh((2,), ("d",), axis_types=(AxisType.Auto,))
SPLIT = NamedSharding(MESH, PartitionSpec("d"))
WHOLE = NamedSharding(MESH, PartitionSpec())
X = np.arange(12, dtype=np.float32).reshape(4, 3)


def _constrained(x):
    return lax.with_sharding_constraint(jnp.sin(x) * 2, WHOLE).sum(0)


def _export(function):
    return export.export(jax.jit(function, in_shardings=SPLIT))(X)


@pytest.fixture(scope="module")
def call():
    return from_exported(_export(_constrained))


def _text(call):
    with open_module(call.module) as module:
        return str(module)


@pytest.mark.parametrize("release", ["2.14", "2.17", "2.19"])
def test_only_the_shardings_of_gspmd_are_left(call, release):
    old = retarget(call, release)
    text = _text(old)
    assert "sdy" not in text
    assert text.count("mhlo.sharding") >= 2
    assert (old.uses_shardy, old.version <= 9) == (False, True)
    np.testing.assert_allclose(Op(old).run([tf.constant(X)])[0], _function(X), rtol=2e-6)


def _function(x):
    return (np.sin(x) * 2).sum(0)


def test_both_are_there_for_a_release_with_shardy(call):
    text = _text(retarget(call, "2.21"))
    assert "xla.sdy.meshes" in text
    assert "mhlo.sharding" in text


def test_a_call_without_shardys_is_of_the_convention_before_it(call):
    made = run_passes(dataclasses.replace(call, version=10), [to_gspmd(parse_release("2.17"))])
    assert (made.uses_shardy, made.version) == (False, 9)


def test_the_gradient_too():
    vjp = from_exported(_export(_constrained).vjp())
    assert "sdy" not in _text(retarget(vjp, "2.16"))


def test_a_module_without_shardings_stays_as_it_is():
    call = from_exported(export.export(jax.jit(jnp.sin))(X))
    assert run_passes(call, [to_gspmd(parse_release("2.16"))]) is call


def test_what_only_shardy_has_is_refused():
    def manual(x):
        spec = PartitionSpec("d")
        return jax.shard_map(
            lambda x: lax.psum(x, "d"), mesh=MESH, in_specs=spec, out_specs=PartitionSpec()
        )(x)

    call = from_exported(_export(manual))
    match = r"a sharding that only Shardy has at .*test_gspmd\.py.* that runs it is 2\.20"
    with pytest.raises(VersionError, match=match):
        retarget(call, "2.17")
    assert retarget(call).uses_shardy


@pytest.mark.parametrize("release", ["2.16", "2.21"])
def test_symbolic_dimensions(release):
    """TensorFlow finds the sizes of what a sharding is set on, and of sharded results."""
    spec = jax.ShapeDtypeStruct(export.symbolic_shape("2*b, 3"), np.float32)
    function = jax.jit(
        lambda x: lax.with_sharding_constraint(jnp.sin(x), WHOLE) * 2,
        in_shardings=SPLIT,
        out_shardings=SPLIT,
    )
    call = retarget(from_exported(export.export(function)(spec)), release)
    assert not call.uses_shardy
    assert "indices_of_shape_operands" in _text(call)
    np.testing.assert_allclose(Op(call).run([tf.constant(X)])[0], np.sin(X) * 2, rtol=2e-6)


def test_a_module_that_was_written_again_is_still_shardys(call):
    """Its marks are attributes then, and no operations."""
    again = run_passes(call, [DROP_LOCATIONS])
    with open_module(again.module) as module:
        assert uses_shardy(module)
    assert "sdy" not in _text(retarget(again, "2.16"))
