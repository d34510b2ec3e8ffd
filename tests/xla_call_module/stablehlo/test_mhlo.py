"""Custom calls of MHLO, as JAX before 0.9.1 writes them, for a TensorFlow that lacks them."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import export, lax
from jax.extend.mlir import ir

from tests.xla_call_module.stablehlo.mhlo_calls import as_old_jax_writes_it, integer
from xla_call_module import from_exported, retarget
from xla_call_module.errors import VersionError
from xla_call_module.passes.obstacles import oldest_release
from xla_call_module.runtime.op import Op
from xla_call_module.stablehlo.call_graph import COMPOSITE
from xla_call_module.stablehlo.mhlo import compose_custom_calls
from xla_call_module.stablehlo.modules import (
    custom_call_targets,
    open_module,
    serialize_module,
    walk,
)

X = np.linspace(-0.9, 0.9, 10, dtype=np.float32).reshape(2, 5)
FUNCTIONS = {
    "acos": jnp.arccos,
    "acosh": lambda x: jnp.arccosh(x + 2),
    "asin": jnp.arcsin,
    "asinh": jnp.arcsinh,
    "atanh": jnp.arctanh,
    "cosh": jnp.cosh,
    "erf": lax.erf,
    "sinh": jnp.sinh,
    "topk": functools.partial(lax.top_k, k=2),
}


def _old(function, spec=X):
    call = from_exported(as_old_jax_writes_it(export.export(jax.jit(function))(spec)))
    if not any(target.startswith("mhlo.") for target in _targets(call)):
        pytest.skip("this JAX lowers the function to StableHLO")
    return call


def _targets(call):
    with open_module(call.module) as module:
        return custom_call_targets(walk(module))


@pytest.mark.parametrize("shapes", ["2, 5", "b, 5"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_is_expanded_for_the_oldest(name, shapes):
    spec = jax.ShapeDtypeStruct(export.symbolic_shape(shapes), np.float32)
    call = _old(FUNCTIONS[name], spec)
    assert f"mhlo.{name}" in _targets(call)
    old = retarget(call, "2.14")
    assert not [target for target in _targets(old) if target.startswith("mhlo.")]
    assert oldest_release(old).name == "2.14"
    _check(old, FUNCTIONS[name])


def _check(call, function):
    results = Op(call).run([tf.constant(X)])
    for result, expected in zip(results, jax.tree.leaves(function(X)), strict=True):
        np.testing.assert_allclose(result, expected, rtol=5e-6, atol=1e-6)


@pytest.mark.parametrize("shapes", ["2, 5", "b, 5"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_becomes_a_composite_with_its_definition(name, shapes):
    spec = jax.ShapeDtypeStruct(export.symbolic_shape(shapes), np.float32)
    call = _old(FUNCTIONS[name], spec)
    with open_module(call.module) as module:
        compose_custom_calls(module)
        names = [str(op.attributes["name"]) for op in walk(module) if op.name == COMPOSITE]
        artifact = serialize_module(module, call.stablehlo_version)
    composed = dataclasses.replace(call, module=artifact)
    assert [found.strip('"') for found in names] == [_composite(name)]
    assert not [target for target in _targets(composed) if target.startswith("mhlo.")]
    # The definition takes the composite's place for a TensorFlow that knows none.
    _check(retarget(composed, "2.14"), FUNCTIONS[name])


def _composite(name):
    return "chlo.top_k" if name == "topk" else f"chlo.{name}"


@pytest.mark.parametrize(
    ("name", "release", "kept"),
    [
        ("erf", "2.15", False),
        ("erf", "2.16", True),
        ("topk", "2.16", True),
        ("asin", "2.20", False),
        ("asin", "2.21", True),
        ("erf", None, True),
        ("asin", None, False),
    ],
)
def test_what_a_release_runs_is_kept(name, release, kept):
    call = retarget(_old(FUNCTIONS[name]), release)
    assert (f"mhlo.{name}" in _targets(call)) == kept


def test_the_smallest_are_not_taken_for_the_largest():
    call = _old(FUNCTIONS["topk"])
    with open_module(call.module) as module:
        (top_k,) = (op for op in walk(module) if op.name == "stablehlo.custom_call")
        with module.context:
            smallest = {"k": integer(2), "largest": ir.BoolAttr.get(False)}
            top_k.attributes["mhlo.attributes"] = ir.DictAttr.get(smallest)
        artifact = serialize_module(module, call.stablehlo_version)
    call = dataclasses.replace(call, module=artifact)
    retarget(call, "2.16")
    with pytest.raises(VersionError, match=r"mhlo\.topk at .*The oldest .* that runs it is 2\.16"):
        retarget(call, "2.15")
