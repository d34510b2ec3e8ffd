"""Decompositions as values: which of them a call has use for, and what they make of it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from bridge.core_ops.decompositions.complex_pairs import COMPLEX_AS_PAIRS
from bridge.core_ops.decompositions.decomposition import decompose
from bridge.core_ops.decompositions.fourier_products import FOURIER_AS_PRODUCTS
from tests.bridge.core_ops.decompositions.decomposing import check
from xla_call_module.exported import from_exported

BOTH = [FOURIER_AS_PRODUCTS, COMPLEX_AS_PAIRS]


def test_a_call_without_what_is_replaced_is_the_same():
    exported = export.export(jax.jit(lambda x: jnp.sin(x) @ x))(np.eye(3, dtype=np.float32))
    call = from_exported(exported, carried=False)
    assert decompose(call, BOTH).call is call


def test_one_leaves_what_the_next_one_replaces():
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(2, 6)
    made = check(lambda x: jnp.abs(jnp.fft.rfft(x)), x, by=BOTH, rtol=1e-6)
    assert [spec.name for spec in made.call.args] == ["x"]


def test_only_what_is_there_is_applied():
    call = from_exported(export.export(jax.jit(jnp.exp))(np.ones(2, np.complex64)), carried=False)
    made = decompose(call, BOTH, {0: np.array([1 + 2j, 3])})
    assert made.applied == (COMPLEX_AS_PAIRS,)
    np.testing.assert_array_equal(made.parameters[0], [[1, 2], [3, 0]])


def test_arguments_that_nobody_reads_stay_out():
    """`jax.export` drops them from the module, and so do decompositions of it."""
    exported = export.export(jax.jit(lambda x, y, z: jnp.real(y) + z[0]))(
        np.ones(3, np.float32), np.ones(2, np.complex64), np.ones((1, 2), np.float32)
    )
    call = from_exported(exported, carried=False)
    parameters = {0: np.ones(3, np.float32), 1: np.array([1 + 2j, 3], np.complex64)}
    made = decompose(call, BOTH, parameters)
    assert call.kept == made.call.kept == (1, 2)
    assert [spec.shape for spec in made.call.args] == [(3,), (2, 2), (1, 2)]
    np.testing.assert_array_equal(made.parameters[1], [[1, 2], [3, 0]])
