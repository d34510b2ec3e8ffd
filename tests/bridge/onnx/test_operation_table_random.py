"""Random numbers: those of keys bit for bit, and refusals of what has no seed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import bridge
from tests.bridge.onnx.checking import check, operations

KEY = np.array([3, 7], np.uint32)


def _of_key(function):
    return lambda data: function(jax.random.wrap_key_data(data))


def test_bits():
    def function(key):
        first, second = jax.random.split(key)
        return [
            jax.random.bits(first, (3, 5)),
            jax.random.bits(second, (7,), jnp.uint8),
            jax.random.bits(second, (4,), jnp.uint16),
            jax.random.key_data(jax.random.fold_in(key, 5)),
            jax.random.key_data(jax.random.split(first, 3)),
            jax.random.randint(second, (6,), -3, 100),
            jax.random.permutation(first, 9),
            jax.random.bernoulli(second, 0.3, (10,)),
        ]

    check(_of_key(function), KEY)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_uniform_is_bit_for_bit(dtype):
    model = check(
        _of_key(lambda key: jax.random.uniform(key, (9,), dtype).astype(jnp.float32)), KEY, rtol=0
    )
    assert ("Gather" in operations(model)) == (dtype != "float32")


def test_distributions():
    def function(key):
        keys = jax.random.split(key, 4)
        return [
            jax.random.normal(keys[0], (6,)),
            jax.random.gumbel(keys[1], (6,)),
            jax.random.categorical(keys[2], jnp.arange(5.0), shape=(6,)),
            jax.random.exponential(keys[3], (6,)),
        ]

    check(_of_key(function), KEY, rtol=1e-5, atol=1e-6)


def test_a_key_is_an_input():
    spec = jax.eval_shape(lambda: jax.random.key(0))
    exported = jax.export.export(jax.jit(lambda key: jax.random.bits(key, (2,))))(spec)
    (value,) = bridge.to_onnx(exported).graph.input
    assert value.type.tensor_type.shape.dim[0].dim_value == 2


@pytest.mark.parametrize(("shape", "dtype"), [((), "uint32"), ((3, 4), "uint8"), ((5, 3), "uint32"),
                                              ((3,), "uint64")])  # fmt: skip
def test_the_generator_of_threefry(shape, dtype):
    def function(key):
        algorithm = lax.RandomAlgorithm.RNG_THREE_FRY
        return lax.rng_bit_generator(key, shape, np.dtype(dtype), algorithm=algorithm)

    check(function, np.array([2**64 - 7, 2**64 - 2], np.uint64))


def test_the_default_generator_of_xla():
    def function(data):
        key = jax.random.wrap_key_data(data, impl="rbg")
        return jax.random.bits(key, (5,)), jax.random.normal(key, (3, 2))

    check(function, np.array([3, 2**31 + 5, 7, 2**32 - 1], np.uint32), atol=1e-6)


def test_random_numbers_without_a_seed_are_refused():
    with pytest.raises(bridge.InteropError, match=r"stablehlo\.rng at .*threefry2x32"):
        check(lambda x: lax.rng_uniform(x[0], x[1], (2,)), np.arange(2, dtype=np.float32))
