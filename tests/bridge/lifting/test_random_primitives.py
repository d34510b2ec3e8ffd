"""Random numbers of lifted functions are those of the originals."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax, random

import bridge
from bridge.lifting.module_lifting import walk_module
from xla_call_module._jax import ir
from xla_call_module.errors import UnsupportedError
from xla_call_module.stablehlo.modules import open_context

KEY = random.PRNGKey(3)


def lifted(function, *arguments, platforms=None):
    return bridge.to_jax(export.export(jax.jit(function), platforms=platforms)(*arguments))


def drawn(key):
    """Numbers of several distributions, the keys that follow, and bits of several widths."""
    ours, *others = random.split(key, 3)
    return (
        random.normal(ours, (3, 5)),
        random.randint(others[0], (8,), 0, 100),
        random.permutation(others[1], 11),
        random.categorical(ours, jnp.arange(5.0), shape=(6,)),
        random.bits(random.fold_in(ours, 7), (9,), "uint8"),
        random.key_data(others[0]),
    )


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_same_numbers_one_by_one_and_mapped(impl):
    function = lambda data: drawn(random.wrap_key_data(data, impl=impl))  # noqa: E731
    data = random.key_data(random.key(3, impl=impl))
    ours = lifted(function, data)
    for run in (lambda f: jax.jit(f)(data), lambda f: jax.jit(jax.vmap(f))(jnp.stack([data] * 2))):
        jax.tree.map(np.testing.assert_array_equal, run(ours), run(function))


def test_typed_keys():
    function = lambda key: (random.split(key), random.uniform(key, (3,)))  # noqa: E731
    keys, numbers = lifted(function, random.key(5))(random.key(5))
    expected, others = function(random.key(5))
    assert keys.dtype == expected.dtype
    np.testing.assert_array_equal(random.key_data(keys), random.key_data(expected))
    np.testing.assert_array_equal(numbers, others)


@pytest.mark.parametrize("algorithm", list(lax.RandomAlgorithm))
def test_generators(algorithm):
    def function(state):
        return [
            lax.rng_bit_generator(state, (5,), dtype, algorithm)
            for dtype in ("uint8", "uint16", "uint32")
        ]

    state = jnp.arange(4, dtype="uint32")
    expected = jax.jit(function)(state)
    jax.tree.map(np.testing.assert_array_equal, lifted(function, state)(state), expected)


def test_shapes_that_are_symbolic():
    (size,) = export.symbolic_shape("n")

    def function(state, x):
        return x + lax.rng_bit_generator(state, x.shape)[1].astype("float32")

    state, x = jnp.arange(4, dtype="uint32"), jnp.ones(5)
    ours = lifted(function, state, jax.ShapeDtypeStruct((size,), "float32"))
    np.testing.assert_array_equal(jax.jit(ours)(state, x), jax.jit(function)(state, x))


def test_numbers_without_a_seed():
    ours = lifted(lambda low: lax.rng_uniform(low, low + 1, (100,)), 2.0)
    numbers = ours(2.0)
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


def test_kernel_of_gpus():
    words = jnp.arange(3, dtype="uint32")
    first, second = jax.jit(lambda x: tuple(run(THREEFRY, x)))(words)
    expected = jax.extend.random.threefry2x32_p.bind(words, words, words, words)
    np.testing.assert_array_equal([first, second], expected)


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


@pytest.mark.usefixtures("x64")
def test_what_jax_has_not_is_refused():
    message = r"its state is uint64\[3\], and JAX's generators have uint64\[2\]"
    with pytest.raises(UnsupportedError, match=message):
        run(OTHER_STATE, jnp.ones(3, "uint64"))
    message = r"no operation for these random numbers.* To do: draw them with jax\.random"
    with pytest.raises(UnsupportedError, match=message):
        run(NORMAL, jnp.float32(1))
