"""Exported functions that are functions of JAX again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import bridge
from xla_call_module.errors import DtypeError, StructureError


def _recurrent(params, inputs):
    def step(state, row):
        state = jnp.tanh(state @ params["w"] + row)
        return state, state.sum()

    return lax.scan(step, params["start"], inputs)


@pytest.fixture(scope="module")
def example():
    params = {"w": jnp.eye(3) * 0.3, "start": jnp.ones(3)}
    return params, jnp.arange(21.0).reshape(7, 3) / 10


@pytest.fixture(scope="module")
def lifted(example):
    return bridge.to_jax(export.export(jax.jit(_recurrent))(*example))


def _loss(function):
    return lambda params, inputs: jnp.sum(function(params, inputs)[1] ** 2)


def test_results_are_bit_equal(example, lifted):
    jax.tree.map(np.testing.assert_array_equal, lifted(*example), jax.jit(_recurrent)(*example))


@pytest.mark.parametrize("transform", [jax.grad, jax.jacfwd, jax.hessian])
def test_derivatives(example, lifted, transform):
    expected = jax.jit(transform(_loss(_recurrent)))(*example)
    result = jax.jit(transform(_loss(lifted)))(*example)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5), result, expected)


def test_vmap_is_one_batched_program(example, lifted):
    params, inputs = example
    batch = jnp.stack([inputs, inputs + 1])
    mapped = jax.vmap(lifted, (None, 0))
    expected = jax.vmap(_recurrent, (None, 0))(params, batch)
    for one, other in zip(mapped(params, batch), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    assert str(jax.make_jaxpr(mapped)(params, batch)).count("scan[") == 1


def test_symbolic_sizes_leave_no_operation(lifted):
    def function(x):
        return jnp.mean(x.reshape(-1)) * (x.shape[0] // 2 + 1)

    spec = jax.ShapeDtypeStruct(export.symbolic_shape("b, 3"), jnp.float32)
    again = bridge.to_jax(export.export(jax.jit(function))(spec))
    x = jnp.arange(15.0).reshape(5, 3)
    assert again(x) == jax.jit(function)(x)
    assert "dim_as_value" not in str(jax.make_jaxpr(again)(x))
    exported = export.export(again)(jax.ShapeDtypeStruct(export.symbolic_shape("n, 3"), "float32"))
    assert str(exported.in_avals[0]) == "float32[n,3]"
    assert exported.call(x) == again(x)


def test_platforms_stay():
    def function(x):
        return lax.platform_dependent(x, cpu=jnp.sin, tpu=jnp.cos)

    exported = export.export(jax.jit(function), platforms=["cpu", "tpu"])(jnp.ones(3))
    again = bridge.to_jax(exported)
    np.testing.assert_array_equal(again(jnp.ones(3)), jnp.sin(jnp.ones(3)))
    both = export.export(again, platforms=["tpu"])(jnp.ones(3))
    assert "stablehlo.cosine" in both.mlir_module()


def test_wrong_arguments_are_refused(example, lifted):
    params, inputs = example
    with pytest.raises(StructureError, match="expected float32\\[7,3\\]"):
        lifted(params, inputs[:5])
    with pytest.raises(DtypeError, match="is int32; expected float32"):
        lifted(params, inputs.astype(int))
    with pytest.raises(StructureError, match="have the structure"):
        lifted(params)


@pytest.mark.parametrize("kind", ["text", "portable artifact"])
def test_wrong_arguments_of_a_module_are_refused(kind):
    x = jnp.ones(3)
    exported = export.export(jax.jit(lambda x, y: x + y))(x, x)
    text = kind == "text"
    lifted = bridge.to_jax(exported.mlir_module() if text else exported.mlir_module_serialized)
    np.testing.assert_array_equal(lifted(x, x), x + x)
    for given, named in (((x,), {}), ((x, x, x), {}), ((x,), {"y": x})):
        with pytest.raises(StructureError, match=r"pass arrays \(float32\[3\], float32\[3\]\)"):
            lifted(*given, **named)
    for other in (x.astype(int), x.astype(jnp.bfloat16), x.astype(complex), {"x": x}, None):
        with pytest.raises(DtypeError, match=r"args\[0\] is .*; expected float32"):
            lifted(other, other)


@pytest.mark.parametrize("kind", ["bytes", "file"])
@pytest.mark.parametrize("shape", ["2, 3", "b, 3"])
def test_portable_artifacts(kind, shape, tmp_path):
    def function(x):
        return jnp.sin(x) @ x.T

    spec = jax.ShapeDtypeStruct(export.symbolic_shape(shape), jnp.float32)
    artifact = bytes(export.export(jax.jit(function))(spec).mlir_module_serialized)
    (tmp_path / "model.mlirbc").write_bytes(artifact)
    again = bridge.to_jax(artifact if kind == "bytes" else tmp_path / "model.mlirbc")
    x = jnp.linspace(-1, 1, 6).reshape(2, 3)
    np.testing.assert_array_equal(again(x), jax.jit(function)(x))
    pairs = jnp.stack([x, 2 * x])
    np.testing.assert_allclose(jax.vmap(again)(pairs), jax.vmap(function)(pairs), rtol=1e-6)
    results = (jax.grad(lambda x, f=f: f(x).sum())(x) for f in (again, function))
    np.testing.assert_allclose(*results, rtol=1e-6)


def test_a_portable_artifact_of_several_platforms_is_refused():
    spec = jax.ShapeDtypeStruct((3,), jnp.float32)
    exported = export.export(jax.jit(jnp.sin), platforms=("cpu", "tpu"))(spec)
    with pytest.raises(StructureError, match="for several platforms, and does not say for which"):
        bridge.to_jax(bytes(exported.mlir_module_serialized))


def test_what_shard_map_becomes_without_shardy_is_refused():
    module = """func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {
      %b = stablehlo.custom_call @SPMDFullToShardShape(%a) {mhlo.sharding = "{manual}"} :
        (tensor<4xf32>) -> tensor<4xf32>
      return %b : tensor<4xf32> }"""
    with pytest.raises(
        bridge.UnsupportedError, match=r"shard_map becomes without Shardy.*export it with"
    ):
        bridge.to_jax(module)(jnp.ones(4))
