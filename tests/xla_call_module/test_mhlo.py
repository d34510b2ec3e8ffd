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

from xla_call_module import from_exported, retarget
from xla_call_module.composites import COMPOSITE
from xla_call_module.errors import VersionError
from xla_call_module.op import Op
from xla_call_module.retargeting import oldest_release
from xla_call_module.stablehlo import custom_calls, open_module, serialize_module, walk

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


def _as_old_jax_writes_it(function, spec=X):
    """The call, with each composite of today's JAX as a custom call."""
    call = from_exported(export.export(jax.jit(function))(spec))
    with open_module(call.module) as module:
        for composite in [op for op in walk(module) if op.name == COMPOSITE]:
            _replace(composite)
        artifact = serialize_module(module, call.stablehlo_version)
    call = dataclasses.replace(call, module=artifact)
    if not any(target.startswith("mhlo.") for target in _targets(call)):
        pytest.skip("this JAX lowers the function to StableHLO")
    return call


def _replace(composite):
    name = str(composite.attributes["name"]).strip('"').removeprefix("chlo.")
    with composite.context, composite.location, ir.InsertionPoint(composite):
        found = {"k": _integer(2)} if name == "top_k" else {}
        call = ir.Operation.create(
            "stablehlo.custom_call",
            results=[result.type for result in composite.results],
            operands=list(composite.operands),
            attributes={
                "call_target_name": ir.StringAttr.get(f"mhlo.{name.replace('_', '')}"),
                "mhlo.attributes": ir.DictAttr.get(found),
                "mhlo.version": _integer(1),
            },
        )
    for old, new in zip(composite.results, call.results, strict=True):
        old.replace_all_uses_with(new)
    composite.erase()


def _integer(value):
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def _targets(call):
    with open_module(call.module) as module:
        return [found.target for found in custom_calls(module)]


@pytest.mark.parametrize("shapes", ["2, 5", "b, 5"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_is_expanded_for_the_oldest(name, shapes):
    spec = jax.ShapeDtypeStruct(export.symbolic_shape(shapes), np.float32)
    call = _as_old_jax_writes_it(FUNCTIONS[name], spec)
    assert f"mhlo.{name}" in _targets(call)
    old = retarget(call, "2.14")
    assert not [target for target in _targets(old) if target.startswith("mhlo.")]
    assert oldest_release(old).name == "2.14"
    results = Op(old).run([tf.constant(X)])
    for result, expected in zip(results, jax.tree.leaves(FUNCTIONS[name](X)), strict=True):
        np.testing.assert_allclose(result, expected, rtol=5e-6, atol=1e-6)


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
    call = retarget(_as_old_jax_writes_it(FUNCTIONS[name]), release)
    assert (f"mhlo.{name}" in _targets(call)) == kept


def test_the_smallest_are_not_taken_for_the_largest():
    call = _as_old_jax_writes_it(FUNCTIONS["topk"])
    with open_module(call.module) as module:
        (top_k,) = (op for op in walk(module) if op.name == "stablehlo.custom_call")
        with module.context:
            smallest = {"k": _integer(2), "largest": ir.BoolAttr.get(False)}
            top_k.attributes["mhlo.attributes"] = ir.DictAttr.get(smallest)
        artifact = serialize_module(module, call.stablehlo_version)
    call = dataclasses.replace(call, module=artifact)
    retarget(call, "2.16")
    with pytest.raises(VersionError, match=r"mhlo\.topk at .*The oldest .* that runs it is 2\.16"):
        retarget(call, "2.15")
