"""Networks of a symbolic batch and a symbolic time, in each runtime, at several sizes of both."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

from tests.operations.artifacts import Artifact, Call
from tests.operations.judging import difference
from tests.operations.targets import TARGETS, opened

RANDOM = np.random.default_rng(0)
WIDTH = 8
QUERY, KEY, VALUE, STEP = (
    RANDOM.normal(size=(4, WIDTH, WIDTH)).astype(np.float32) / np.sqrt(WIDTH)
).astype(np.float32)
KERNEL = RANDOM.normal(size=(3, WIDTH, WIDTH)).astype(np.float32) / 5
EMBEDDING = RANDOM.normal(size=(11, WIDTH)).astype(np.float32)
# One of both, one of each, and as many rows as steps.
SIZES = [(2, 3), (1, 1), (4, 4), (1, 6)]


def recurrent(x, tokens):
    def step(state, row):
        state = jnp.tanh(row @ QUERY + state @ STEP)
        return state, state

    start = jnp.zeros((x.shape[0], WIDTH))
    last, states = lax.scan(step, start, jnp.swapaxes(x, 0, 1))
    back, _ = lax.scan(step, start, jnp.swapaxes(x, 0, 1), reverse=True)
    return last, back, jnp.swapaxes(states, 0, 1)


def attention(x, tokens):
    batch, time, _ = x.shape
    angles = jnp.arange(time)[:, None] / 10 ** (jnp.arange(4) / 4)
    first, second = x[..., :4], x[..., 4:]
    turned = [first * jnp.cos(angles) - second * jnp.sin(angles), second * jnp.cos(angles)]
    x = jnp.concatenate(turned, -1)
    query, key, value = ((x @ each).reshape(batch, time, 2, 4) for each in (QUERY, KEY, VALUE))
    scores = jnp.einsum("bthd,bshd->bhts", query, key)
    places = [lax.broadcasted_iota(jnp.int32, (time, time), axis) for axis in (0, 1)]
    scores = jax.nn.softmax(jnp.where(places[0] >= places[1], scores, -jnp.inf))
    return jnp.einsum("bhts,bshd->bthd", scores, value).reshape(batch, time, WIDTH) @ STEP


def convolved(x, tokens):
    numbers = ("NHC", "HIO", "NHC")
    causal = lax.conv_general_dilated(
        x, KERNEL, (1,), [(4, 0)], rhs_dilation=(2,), dimension_numbers=numbers
    )
    return jax.nn.relu(causal), lax.conv_transpose(x, KERNEL, (2,), "SAME")


def normalized(x, tokens):
    far = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-3)
    over_all = (x - x.mean((0, 1))) / jnp.sqrt(x.var((0, 1)) + 1e-3)
    return far, over_all, jax.nn.softmax(x, 1), jnp.cumsum(x, 1), x.sum((0, 1)) / x[..., 0].size


def masked(x, tokens):
    count = (tokens > 2).sum(1)
    mask = jnp.arange(x.shape[1]) < count[:, None]
    mean = (x * mask[..., None]).sum(1) / jnp.maximum(count, 1)[:, None]
    place = jnp.argmax(jnp.where(mask, x[..., 0], -1), 1)
    rows = jnp.arange(x.shape[0])
    return mean, x[rows, place], x.at[rows, place].set(0.0), jnp.pad(x, ((0, 0), (1, 0), (0, 0)))


def embedded(x, tokens):
    table = jnp.asarray(EMBEDDING)
    last = jax.nn.one_hot(tokens, x.shape[1]) * x[..., :1]
    return table[tokens] * x, jax.nn.one_hot(tokens, 11) @ table + x, last, x[:, ::-1][:, :1]


NETWORKS = (recurrent, attention, convolved, normalized, masked, embedded)


def values(x, tokens):
    return [each for network in NETWORKS for each in jax.tree.leaves(network(x, tokens))]


def gradients(x, tokens):
    """Those of each network."""

    def total(network, x):
        return sum(jnp.sin(each).sum() for each in jax.tree.leaves(network(x, tokens)))

    return [jax.grad(total, 1)(network, x) for network in NETWORKS]


def strided(x, tokens):
    """A convolution, the padding of which follows from the time; JAX has no gradient of it."""
    numbers = ("NHC", "HIO", "NHC")
    halved = lax.conv_general_dilated(x, KERNEL, (2,), "SAME", dimension_numbers=numbers)
    return [halved, lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 1), (1, 2, 1), "SAME")]


@dataclass(frozen=True)
class Program:
    """A function of both sizes, as the targets of the table take it."""

    made: Artifact

    def artifact(self, folder):
        return self.made


def _program(function):
    arguments = [
        (
            RANDOM.normal(size=(*size, WIDTH)).astype(np.float32),
            RANDOM.integers(0, 11, size).astype(np.int32),
        )
        for size in SIZES
    ]
    scope = export.SymbolicScope()
    shapes = [export.symbolic_shape(text, scope=scope) for text in ("b, t, 8", "b, t")]
    specs = [jax.ShapeDtypeStruct(*each) for each in zip(shapes, ("float32", "int32"), strict=True)]
    run = jax.jit(function)
    serialized = bytes(export.export(run, platforms=["cpu"])(*specs).serialize())
    calls = [Call("plain", [*each], [np.asarray(one) for one in run(*each)]) for each in arguments]
    return Program(Artifact(serialized, calls, []))


@pytest.mark.parametrize("name", [name for name in TARGETS if name != "JAX"])
@pytest.mark.parametrize("function", [values, gradients, strided])
def test_a_batch_and_a_time(function, name, tmp_path):
    program = _program(function)
    with opened(name) as target:
        found = target.run(program, tmp_path)
    for call, results in zip(program.made.calls, found, strict=True):
        for number, pair in enumerate(zip(results, call.expected, strict=True)):
            fault = difference(*pair, ulps=64, dtype="float32", each=False)
            assert not fault, (number, call.arrays[0].shape, fault)
