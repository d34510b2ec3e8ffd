"""Sizes whose arithmetic passes through their signs, and numbers that depend on sizes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import bridge
from tests.bridge.lifting.lifted import assert_same, lift, symbolic
from tests.operations.cases.uncertain_sizes import FUNCTIONS

LENGTHS = (8, 9, 11, 12, 23)


def _length(x):
    return jnp.asarray(x.shape[0])


each_function = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)


def _spec():
    return symbolic("t", constraints=["t >= 8"])


def _vector(length):
    return np.random.default_rng(length).normal(size=length).astype(np.float32)


@each_function
def test_a_lifted_function_of_any_size(function):
    exported = export.export(jax.jit(function))(_spec())
    lifted = bridge.to_jax(exported)
    again = export.export(jax.jit(lifted))(_spec())
    shapes = ([[str(dim) for dim in aval.shape] for aval in e.out_avals] for e in (again, exported))
    assert next(shapes) == next(shapes)
    for x in map(_vector, LENGTHS):
        assert_same((lifted(x), again.call(x)), (function(x), function(x)), atol=1e-6, rtol=1e-7)


def test_sizes_of_two_variables_stay_arrays():
    """Which of two is greater is no number, and what follows is computed."""

    def function(x, y):
        return jnp.where(_length(x) * _length(y) // 3 == _length(y), x.sum(), y.sum())

    specs = export.symbolic_args_specs((_vector(3), _vector(3)), ("b", "c"))
    again = export.export(jax.jit(lift(function, *specs)))(*specs)
    for lengths in ((3, 4), (3, 5), (4, 4), (1, 7)):
        arrays = list(map(_vector, lengths))
        assert_same(again.call(*arrays), function(*arrays), atol=1e-6, rtol=1e-7)
