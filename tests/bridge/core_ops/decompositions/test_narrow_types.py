"""Narrow types in wider ones: each operation on all pairs of values, as XLA computes it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from bridge.core.narrow_types import NARROW_TYPES, storage_dtype_of
from bridge.core_ops.decompositions.decomposition import decompose
from bridge.core_ops.decompositions.narrow_types import NARROW_TYPES_IN_WIDER
from bridge.exporting.boundary_casts import with_boundary_casts
from bridge.loading.exported_from_call import exported_from_call
from tests.bridge.core_ops.decompositions.decomposing import contents
from xla_call_module.exported import from_exported

NIBBLES = np.arange(-8, 8).astype(ml_dtypes.int4)


def check(function, *arrays, parameters=None):
    """Assert that a function of narrow types is that of the wider ones, and return its call."""
    exported = jax.export.export(jax.jit(function), platforms=["cpu"])(*arrays)
    call = from_exported(with_boundary_casts(exported), carried=False)
    made = decompose(call, [NARROW_TYPES_IN_WIDER], parameters).call
    assert not contents(made)[1] & set(NARROW_TYPES)
    found = exported_from_call(made).call(*map(stored, arrays))
    expected = map(stored, jax.tree.leaves(jax.jit(function)(*arrays)))
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    return made


def stored(array):
    array = np.asarray(array)
    return array.astype(storage_dtype_of(array.dtype) or array.dtype)


@pytest.mark.parametrize("name", ["int4", "uint4"])
def test_integers(name):
    every = (np.arange(16) - 8 * (name == "int4")).astype(getattr(ml_dtypes, name))
    left, right = (part.reshape(-1) for part in np.meshgrid(every, every, indexing="ij"))

    def function(a, b):
        pairs = (lax.add, lax.div, lax.shift_left, lax.shift_right_logical)
        return [do(a, b) for do in pairs], -a, a < b, jnp.where(a == b, a, b), lax.iota(a.dtype, 40)

    check(function, left, right)


def test_conversions_and_bits():
    floats = np.array([-9, -8.5, -0.6, 0, 0.6, 7.4, 7.6, np.nan, np.inf], np.float32)

    def function(x, a):
        made = [x.astype(dtype) for dtype in (jnp.int4, jnp.uint4)]
        read = [a.astype(dtype) for dtype in (jnp.float32, jnp.int32, jnp.int2)]
        return made, read, lax.bitcast_convert_type(a, jnp.uint4)

    check(function, floats, NIBBLES)


def test_sums_and_products_are_fitted_once():
    a = np.tile(NIBBLES, 16).reshape(16, 16)
    check(lambda a: (a @ a, jnp.sum(a, 0, dtype=a.dtype), jnp.max(a, 1), jnp.sort(a, 0)), a)


def test_parameters_with_values_of_the_type_are_not_fitted():
    convert = lambda a: a.astype(jnp.float32)  # noqa: E731
    made = check(convert, NIBBLES, parameters={0: stored(NIBBLES)})
    assert contents(made)[0] == {"builtin.module", "func.func", "func.return", "stablehlo.convert"}
    assert "stablehlo.and" in contents(check(convert, NIBBLES))[0]
