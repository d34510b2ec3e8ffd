"""Calls traced again: they have the places of the operations that they were traced for."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from bridge.core_ops.decompositions.complex_pairs import COMPLEX_AS_PAIRS
from bridge.core_ops.decompositions.fourier_products import FOURIER_AS_PRODUCTS
from tests.bridge.core_ops.decompositions.decomposing import decomposed
from xla_call_module.errors import UnsupportedError
from xla_call_module.stablehlo.modules import open_module, walk
from xla_call_module.stablehlo.operation_locations import describe_location


def sine_of_product(z, x):
    with jax.named_scope("block"):
        product = z * x
    return jnp.abs(product), jnp.sin(x)


def test_operations_are_where_those_were_that_they_are_traced_for():
    specs = [jax.ShapeDtypeStruct((3,), dtype) for dtype in ("complex64", "float32")]
    made = decomposed(sine_of_product, specs, COMPLEX_AS_PAIRS)
    with open_module(made.call.module) as module:
        places = {one.name: describe_location(one) for one in walk(module)}
        scopes = [str(one.location) for one in walk(module) if one.name == "stablehlo.multiply"]
    line = sine_of_product.__code__.co_firstlineno + 3
    assert places["stablehlo.sine"].endswith(f"test_retracing.py:{line}")
    assert any("block" in scope for scope in scopes)


def test_an_operation_along_a_symbolic_size_is_refused():
    specs = [jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, n"), "complex64")]
    with pytest.raises(
        UnsupportedError, match=r"reduce at .*test_retracing.py:\d+: .*the sizes of this operation"
    ):
        decomposed(lambda z: jnp.prod(z, axis=0), specs, FOURIER_AS_PRODUCTS, COMPLEX_AS_PAIRS)
