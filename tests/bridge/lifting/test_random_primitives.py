"""Random numbers of lifted functions are those of the originals."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax, random

from bridge.lifting.module_lifting import walk_module
from tests.bridge.lifting.lifted import assert_same, lift, symbolic
from xla_call_module._jax import ir
from xla_call_module.errors import UnsupportedError
from xla_call_module.stablehlo.modules import open_context


def test_typed_keys():
    function = lambda key: (random.split(key), random.uniform(key, (3,)))  # noqa: E731
    (keys, numbers), (expected, others) = (
        f(random.key(5)) for f in (lift(function, random.key(5)), function)
    )
    assert keys.dtype == expected.dtype
    assert_same((random.key_data(keys), numbers), (random.key_data(expected), others))


def test_shapes_that_are_symbolic():
    def function(state, x):
        return x + lax.rng_bit_generator(state, x.shape)[1].astype("float32")

    state, x = jnp.arange(4, dtype="uint32"), jnp.ones(5)
    assert_same(lift(function, state, symbolic("n"))(state, x), jax.jit(function)(state, x))


def test_numbers_without_a_seed():
    numbers = lift(lambda low: lax.rng_uniform(low, low + 1, (100,)), 2.0)(2.0)
    assert numbers.shape == (100,)
    assert ((numbers >= 2) & (numbers < 3)).all()


def run(text, *arguments):
    """Return what the body of a module in MLIR's text is lifted to."""
    with open_context(0):
        return walk_module(ir.Module.parse(text), arguments)


THREEFRY = """
func.func public @main(%0: tensor<3xui32>) -> (tensor<3xui32>, tensor<3xui32>) {
%1:2 = stablehlo.custom_call @cu_threefry2x32_ffi(%0, %0, %0, %0) {mhlo.backend_config = {}} :
  (tensor<3xui32>, tensor<3xui32>, tensor<3xui32>, tensor<3xui32>) ->
  (tensor<3xui32>, tensor<3xui32>)
return %1#0, %1#1 : tensor<3xui32>, tensor<3xui32> }"""
OTHER_STATE = """
func.func public @main(%0: tensor<3xui64>) -> tensor<3xui64> {
%1, %2 = stablehlo.rng_bit_generator %0, algorithm = PHILOX :
  (tensor<3xui64>) -> (tensor<3xui64>, tensor<3xui64>)
return %1 : tensor<3xui64> }"""
NORMAL = """
func.func public @main(%0: tensor<f32>) -> tensor<3xf32> {
%1 = stablehlo.constant dense<3> : tensor<1xi64>
%2 = stablehlo.rng %0, %0, %1, distribution = NORMAL :
  (tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<3xf32>
return %2 : tensor<3xf32> }"""


def test_kernel_of_gpus():
    words = jnp.arange(3, dtype="uint32")
    found = jax.jit(lambda x: tuple(run(THREEFRY, x)))(words)
    assert_same(found, tuple(jax.extend.random.threefry2x32_p.bind(words, words, words, words)))


@pytest.mark.usefixtures("x64")
def test_what_jax_has_not_is_refused():
    message = r"its state is uint64\[3\], and JAX's generators have uint64\[2\]"
    with pytest.raises(UnsupportedError, match=message):
        run(OTHER_STATE, np.ones(3, "uint64"))
    message = r"no operation for these random numbers.* To do: draw them with jax\.random"
    with pytest.raises(UnsupportedError, match=message):
        run(NORMAL, jnp.float32(1))
