"""Decompositions: which of them a call has use for, where its operations are, and on one device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import PartitionSpec

from bridge.core_ops.decompositions.complex_pairs import COMPLEX_AS_PAIRS
from bridge.core_ops.decompositions.decomposition import decompose
from bridge.core_ops.decompositions.fourier_products import FOURIER_AS_PRODUCTS
from tests.bridge.core_ops.decompositions.decomposing import check, decomposed
from tests.bridge.onnx.written import exported
from xla_call_module.errors import UnsupportedError
from xla_call_module.exported import from_exported
from xla_call_module.stablehlo.modules import open_module, walk
from xla_call_module.stablehlo.operation_locations import describe_location

BOTH = [FOURIER_AS_PRODUCTS, COMPLEX_AS_PAIRS]


def _call(function, *arrays):
    return from_exported(export.export(jax.jit(function))(*arrays), carried=False)


def test_a_call_without_what_is_replaced_is_the_same():
    call = _call(lambda x: jnp.sin(x) @ x, np.eye(3, dtype=np.float32))
    assert decompose(call, BOTH).call is call


def test_one_leaves_what_the_next_one_replaces():
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(2, 6)
    made = check(lambda x: jnp.abs(jnp.fft.rfft(x)), x, by=BOTH, rtol=1e-6)
    assert [spec.name for spec in made.call.args] == ["x"]


def test_only_what_is_there_is_applied():
    call = _call(jnp.exp, np.ones(2, np.complex64))
    made = decompose(call, BOTH, {0: np.array([1 + 2j, 3])})
    assert made.applied == (COMPLEX_AS_PAIRS,)
    np.testing.assert_array_equal(made.parameters[0], [[1, 2], [3, 0]])


def test_arguments_that_nobody_reads_stay_out():
    """`jax.export` drops them from the module, and so do decompositions of it."""
    parameters = {0: np.ones(3, np.float32), 1: np.array([1 + 2j, 3], np.complex64)}
    call = _call(lambda x, y, z: jnp.real(y) + z[0], *parameters.values(), np.ones((1, 2), "f"))
    made = decompose(call, BOTH, parameters)
    assert call.kept == made.call.kept == (1, 2)
    assert [spec.shape for spec in made.call.args] == [(3,), (2, 2), (1, 2)]
    np.testing.assert_array_equal(made.parameters[1], [[1, 2], [3, 0]])


def _sine_of_product(z, x):
    with jax.named_scope("block"):
        product = z * x
    return jnp.abs(product), jnp.sin(x)


def test_operations_are_where_those_were_that_they_are_traced_for():
    specs = [jax.ShapeDtypeStruct((3,), dtype) for dtype in ("complex64", "float32")]
    made = decomposed(_sine_of_product, specs, COMPLEX_AS_PAIRS)
    with open_module(made.call.module) as module:
        places = {one.name: describe_location(one) for one in walk(module)}
        scopes = [str(one.location) for one in walk(module) if one.name == "stablehlo.multiply"]
    line = _sine_of_product.__code__.co_firstlineno + 3
    assert places["stablehlo.sine"].endswith(f"test_decomposition.py:{line}")
    assert any("block" in scope for scope in scopes)


def test_an_operation_along_a_symbolic_size_is_refused():
    spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, n"), "complex64")
    message = r"custom_call at .*test_decomposition.py:\d+: it has no form in real and imaginary"
    with pytest.raises(UnsupportedError, match=message):
        decomposed(lambda z: lax.cumprod(z, axis=0), [spec], *BOTH)


def test_collectives_of_one_device_return_their_operands():
    mesh = jax.make_mesh((1,), ("x",), devices=jax.devices("cpu")[:1])

    def summed(z):
        return lax.psum(z, "x"), lax.axis_index("x") + z.real

    spec = PartitionSpec()
    mapped = jax.shard_map(summed, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    check(mapped, np.array([1 + 2j, -3j], np.complex64), by=[COMPLEX_AS_PAIRS])


def test_collectives_of_several_devices_are_refused():
    body = """%sum = "stablehlo.all_reduce"(%a) ({ ^bb0(%x: tensor<f32>, %y: tensor<f32>):
        %s = stablehlo.add %x, %y : tensor<f32>
        stablehlo.return %s : tensor<f32> })
        {replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>} : (tensor<2xf32>) -> tensor<2xf32>
        %c = stablehlo.complex %sum, %a : tensor<2xcomplex<f32>>
        %r0 = stablehlo.real %c : (tensor<2xcomplex<f32>>) -> tensor<2xf32>"""
    x = np.ones(2, np.float32)
    call = from_exported(exported(body, [x], [x]), carried=False)
    with pytest.raises(UnsupportedError, match="for several devices, and the module is for one"):
        decompose(call, [COMPLEX_AS_PAIRS])
