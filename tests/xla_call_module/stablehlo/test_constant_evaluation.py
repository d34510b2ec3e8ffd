"""Operations of constants: numpy computes what XLA does, or leaves it to XLA."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

from xla_call_module.stablehlo.constant_evaluation import (
    ConstantValues,
    evaluate,
    evaluate_block,
    repeated_element,
)
from xla_call_module.stablehlo.modules import find_main, open_module, walk

N = np.array([-7, 7, -8, 8, 0, -(2**31)], np.int32)
D = np.array([2, -2, 3, -3, 5, -1], np.int32)
U = np.array([0, 1, 200, 255], np.uint8)
F = np.array([np.nan, -0.0, 0.0, -np.inf, 1.5], np.float32)
FUNCTIONS = {
    "arithmetic": lambda: [N + D, N * D, N - D, lax.abs(lax.neg(jnp.asarray(N)))],
    "quotients": lambda: [lax.div(N, D), lax.rem(N, D), lax.div(U, U + jnp.uint8(1) | 1)],
    "extremes": lambda: [lax.max(N, D), lax.min(U, U[::-1]), lax.sign(jnp.asarray(N))],
    "bits": lambda: [lax.shift_left(U, U), lax.shift_right_logical(N, D), ~jnp.asarray(U), N ^ D],
    "counts": lambda: [lax.clz(jnp.asarray(N)), lax.population_count(jnp.asarray(U))],
    "comparisons": lambda: [
        jnp.asarray(F) < F[::-1],
        lax.eq(N, D),
        lax.select(jnp.asarray(F) > 0, F, F[::-1]),
    ],
    "moves": lambda: [
        lax.bitcast_convert_type(jnp.asarray(F), np.int32),
        lax.concatenate([N, D], 0).reshape(3, 4)[1:, ::2],
        lax.broadcast_in_dim(N, (2, 6), (1,)),
        lax.broadcast(jnp.int32(3), (5000,)) + 4,
    ],
    "indices": lambda: [
        lax.broadcasted_iota(np.int32, (3, 2, 4), 1) >= lax.broadcasted_iota(np.int32, (3, 2, 4), 2)
    ],
    "wrapping": lambda: [jnp.asarray(N).astype(np.int8), jnp.asarray(U) + U],
}


def _evaluated(function, **limits):
    """The results of a function without arguments, evaluated from its module."""
    exported = export.export(jax.jit(lambda: [jnp.asarray(x) for x in function()]))()
    with open_module(exported.mlir_module_serialized) as module:
        *_, last = find_main(module).regions[0].blocks[0].operations
        values = ConstantValues({}, **limits)
        return [values.of(operand) for operand in last.operands]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_numbers_are_those_of_jax(name):
    expected = FUNCTIONS[name]()
    for found, wanted in zip(_evaluated(FUNCTIONS[name]), expected, strict=True):
        np.testing.assert_array_equal(found, np.asarray(wanted))
        assert found.dtype == wanted.dtype


def test_what_xla_may_compute_otherwise_is_left_to_it():
    x = jnp.asarray
    for function in (
        lambda: [x(F) + x(F)],
        lambda: [lax.div(x(N), x(N))],
        lambda: [lax.exp(x(F))],
    ):
        assert _evaluated(function) == [None]


def test_limits():
    def long():
        return [lax.iota(np.int32, 2000) + lax.iota(np.int32, 2000)]

    def chain():
        return [jnp.asarray(N) + 1 + 2 + 3]

    assert _evaluated(long) == [None]
    (found,) = _evaluated(long, evaluate=lambda v, o: evaluate(v.owner, o, most=2000))
    assert found[-1] == 3998
    assert _evaluated(chain, depth=1) == [None]
    assert _evaluated(chain, fits=lambda shape: not shape) == [None]
    assert _evaluated(chain, names=("stablehlo.multiply",)) == [None]


def test_what_repeats_an_element_takes_no_memory():
    (found,) = _evaluated(lambda: [lax.broadcast(jnp.int32(3), (1 << 20,)) + 4])
    assert repeated_element(found) == 7
    assert repeated_element(np.arange(3)) is None


@pytest.mark.parametrize(
    ("combine", "expected"),
    [(lambda a, b: a | b, [3, 3]), (lambda a, b: jnp.where(a < b, 7, b) * 1.5, None)],
)
def test_a_region_is_evaluated_for_each_element(combine, expected):
    def reduced(x):
        return lax.reduce(x, x.dtype.type(0), lambda a, b: combine(a, b).astype(x.dtype), [0])

    exported = export.export(jax.jit(reduced))(jax.ShapeDtypeStruct((4,), np.int32))
    with open_module(exported.mlir_module_serialized) as module:
        (reduce,) = (op for op in walk(module) if op.name == "stablehlo.reduce")
        arrays = [np.array([1, 2], np.int32), np.array([2, 1], np.int32)]
        found = evaluate_block(reduce.regions[0].blocks[0], arrays)
    assert (found if found is None else found[0].tolist()) == expected
