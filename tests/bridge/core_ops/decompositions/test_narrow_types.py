"""Narrow types in wider ones: what comes in of the type need not be made to fit."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from bridge.core.narrow_types import NARROW_TYPES
from bridge.core_ops.decompositions.decomposition import decompose
from bridge.core_ops.decompositions.narrow_types import NARROW_TYPES_IN_WIDER
from bridge.exporting.boundary_casts import with_boundary_casts
from bridge.loading.exported_from_call import exported_from_call
from tests.bridge.core_ops.decompositions.decomposing import contents
from tests.bridge.onnx.checking import to_storage
from xla_call_module.exported import from_exported

NIBBLES = np.arange(-8, 8).astype(ml_dtypes.int4)


def check(function, *arrays, parameters=None):
    """Assert that a function of narrow types is that of the wider ones, and return its call."""
    exported = jax.export.export(jax.jit(function), platforms=["cpu"])(*arrays)
    call = from_exported(with_boundary_casts(exported), carried=False)
    made = decompose(call, [NARROW_TYPES_IN_WIDER], parameters).call
    assert not contents(made)[1] & set(NARROW_TYPES)
    found = exported_from_call(made).call(*map(to_storage, arrays))
    expected = map(to_storage, jax.tree.leaves(jax.jit(function)(*arrays)))
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    return made


def test_parameters_with_values_of_the_type_are_not_fitted():
    convert = lambda a: a.astype(jnp.float32)  # noqa: E731
    made = check(convert, NIBBLES, parameters={0: to_storage(NIBBLES)})
    assert contents(made)[0] == {"builtin.module", "func.func", "func.return", "stablehlo.convert"}
    assert "stablehlo.and" in contents(check(convert, NIBBLES))[0]
