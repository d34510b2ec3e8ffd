"""Modules that TensorFlow runs as JAX wrote them: the same at its own StableHLO."""

from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import export, lax

from tests.exports import call_of
from xla_call_module.analyses.readable import _OLD, is_read_as_written
from xla_call_module.passes.pipeline import Artifact, Target, prepare, retarget
from xla_call_module.runtime.op import Op
from xla_call_module.stablehlo.modules import open_module, serialize_module
from xla_call_module.versions import parse_release

NEWEST = parse_release("2.21")
X = np.linspace(0.1, 0.9, 16, dtype=np.float32).reshape(4, 4)

# Each with operations that the others do not have.
PROGRAMS = {
    "one for another": lambda x: jnp.sin(x) + jnp.cos(x) * jnp.tan(x) / jnp.tanh(x) - jnp.sqrt(x),
    "logarithms": lambda x: jnp.exp(x) + jnp.log(x) + jnp.expm1(x) ** jnp.log1p(x) + lax.rsqrt(x),
    "roundings": lambda x: jnp.floor(x) + jnp.ceil(x) + lax.round(x) + jnp.round(x) + jnp.cbrt(x),
    "signs": lambda x: jnp.sign(x) * jnp.abs(-x) + jnp.arctan2(x, x) + lax.rem(x, x),
    "bits": lambda x: (n := lax.bitcast_convert_type(x, jnp.int32), (n << 1) & (n >> 1) ^ ~n | 1),
    "counts": lambda x: (n := x.astype(jnp.uint32), lax.population_count(n) + lax.clz(n), n >> 1),
    "complex": lambda x: jnp.real(jnp.fft.fft(x)) + jnp.imag(lax.complex(x, x)),
    "shapes": lambda x: jnp.concatenate([x[::-1].T, jnp.pad(x, 1)[1:5, 1:5]]).reshape(-1),
    "products": lambda x: jnp.einsum("ij,kj->ik", x, x) + jnp.arange(4.0),
    "reductions": lambda x: (x.sum(0) + x.max(1) + x.min(), jnp.sort(x), jnp.isfinite(x)),
    "windows": jax.grad(
        lambda x: lax.reduce_window(x, -np.inf, lax.max, (2, 2), (2, 2), "VALID").sum()
    ),
    "images": lambda x: lax.conv_general_dilated(x[None, None], x[None, None], (1, 1), "SAME"),
    "places": lambda x: jnp.asarray(x).at[jnp.array([0, 2])].add(x[jnp.array([1, 3])]),
    "moving": lambda x: lax.dynamic_update_slice(x, lax.dynamic_slice_in_dim(x, 1, 2), (0, 0)),
    "loops": lambda x: lax.while_loop(lambda y: y.sum() < 20, lambda y: y * 2, x),
    "branches": lambda x: lax.switch(x.sum().astype(int), [jnp.sin, jnp.cos, jnp.tan], x),
    "choices": lambda x: jnp.where(x > 0.5, jnp.clip(x, 0.2, 0.7), lax.reduce_precision(x, 5, 10)),
    "barriers": lambda x: lax.optimization_barrier(jnp.maximum(x, jnp.minimum(x, 0.5))),
    "random": lambda x: x * jax.random.uniform(jax.random.PRNGKey(0), (4, 4)),
}


def _names(artifact):
    return {name.decode() for name in re.findall(rb"[A-Za-z0-9_]+_v\d+(?=\x00)", artifact)}


@pytest.fixture(scope="module")
def calls():
    return {name: call_of(program, X) for name, program in PROGRAMS.items()}


def _for_running(call, release):
    (made,) = prepare(call, Target(release, Artifact.IF_NEEDED)).calls
    return made


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_stays_as_it_is_and_runs(calls, name):
    call = calls[name]
    adapted = _for_running(call, NEWEST)
    assert adapted.module == call.module
    for found, wanted in zip(
        Op(adapted).run([tf.constant(X)]), jax.tree.leaves(PROGRAMS[name](X)), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_listed_is_the_same_in_the_oldest_release(calls, name):
    artifact = calls[name].module
    oldest = parse_release("2.20")
    with open_module(artifact) as module:
        older = serialize_module(module, oldest.stablehlo)
    assert _names(older) == _names(artifact)
    assert _names(artifact) <= _OLD


@pytest.mark.parametrize("function", [lax.erf, jnp.arccosh, lambda x: lax.top_k(x, 2)])
def test_a_composite_gets_another_form(function):
    call = call_of(function, X + 1)
    if not any("composite" in name or "custom_call" in name for name in _names(call.module)):
        pytest.skip("this JAX lowers the function to operations that are old")
    assert not is_read_as_written(call, NEWEST)
    assert _for_running(call, NEWEST) == retarget(call, NEWEST)


def test_other_releases_get_another_form(calls):
    call, old = calls["one for another"], parse_release("2.19")
    assert is_read_as_written(call, parse_release("2.20"))
    assert not is_read_as_written(call, old)
    assert _for_running(call, old).stablehlo_version == old.stablehlo
    newer = re.sub(rb"StableHLO_v1\.\d\d", b"StableHLO_v1.99", call.module, count=1)
    assert not is_read_as_written(dataclasses.replace(call, module=newer), NEWEST)


def test_shapes_that_are_asserted_get_another_form():
    spec = jax.ShapeDtypeStruct(export.symbolic_shape("b, b"), np.float32)
    assert not is_read_as_written(call_of(jnp.sin, spec), NEWEST)


def test_the_calling_convention_is_that_of_the_release(calls):
    assert (
        _for_running(calls["products"], NEWEST).version
        == retarget(calls["products"], NEWEST).version
    )
