"""`jax.random`: the same bits, or numbers made of the same bits."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from tests.operations.case import Lines
from tests.operations.operands import Operand, fixed

KEY = fixed([17, 42], "uint32")
LONG_KEY = fixed([17, 42, 3, 2**32 - 5], "uint32")
P = Operand((3,), 0.5, 3.0, extreme=False)
Q = Operand((3,), 1.0, 2.0, extreme=False)
PROBABILITY = Operand((3,), 0.1, 0.9, extreme=False)
LOGITS = Operand((2, 4), extreme=False)


def _drawn(f, key, *arrays):
    return f(jax.random.wrap_key_data(key), *arrays)


_WITHOUT = ("gradient", "second gradient", "one row", "empty", "symbolic")
_bits = Lines("jax.random", ("uint32",), without=_WITHOUT)
_floats = Lines("jax.random", ("float32", "float16", "bfloat16", "float64"), loose=16,
                without=_WITHOUT)  # fmt: skip
_of_shape = Lines("jax.random", ("float32", "float64"), loose=32, without=_WITHOUT)
_gradual = Lines("jax.random", ("float32",), loose=64, without=_WITHOUT)


def _of_kind(kind, *arguments):
    def run(f, data, **keywords):
        given = arguments[:1] if f.func is jax.random.bits else arguments
        return f(jax.random.wrap_key_data(data, impl=kind), *given, **keywords)

    return run


CASES = (
    *_bits("bits", KEY, shape=(5,), by=_drawn),
    *_bits(
        "bits",
        KEY,
        note="bytes",
        by=lambda f, k: _drawn(lambda key: [f(key, (5,), "uint8"), f(key, (3,), "uint16")], k),
    ),
    *[
        case
        for kind in ("rbg", "unsafe_rbg")
        for case in (
            *_bits("split", LONG_KEY, num=3, note=kind, by=_of_kind(kind)),
            *_bits("bits", LONG_KEY, note=kind, by=_of_kind(kind, (9,))),
            *_bits("fold_in", LONG_KEY, note=kind, by=_of_kind(kind, 7)),
            *_bits("randint", LONG_KEY, note=kind, by=_of_kind(kind, (9,), 0, 100)),
            *_bits("permutation", LONG_KEY, note=kind, by=_of_kind(kind, 11)),
            *_floats("normal", LONG_KEY, note=kind, by=_of_kind(kind, (3, 5))),
        )
    ],
    *_bits("key_data clone", KEY, by=_drawn),
    *_bits("split", KEY, num=3, by=_drawn),
    *_bits("fold_in", KEY, fixed(7, "uint32"), by=_drawn),
    *_bits("wrap_key_data", KEY),
    *_bits("key PRNGKey", fixed(7, "uint32")),
    *_bits("permutation", KEY, x=9, by=_drawn),
    *_bits("permutation", KEY, Operand((5, 2), 0, 9), note="of an array", by=_drawn),
    *_bits("choice", KEY, a=9, shape=(4,), replace=False, by=_drawn),
    *_bits("randint", KEY, shape=(6,), minval=-5, maxval=9, by=_drawn),
    *_bits(
        "randint", KEY, note="bytes", shape=(6,), minval=0, maxval=200, dtype="uint8", by=_drawn
    ),
    *_bits("bernoulli rademacher", KEY, shape=(6,), by=_drawn),
    *_floats(
        "uniform normal exponential gumbel laplace logistic cauchy maxwell",
        KEY,
        note="of dtype",
        by=lambda f, k: [
            _drawn(lambda key, dtype=dtype: f(key, (5,), dtype=dtype), k)
            for dtype in ("float32", "float16")
        ],
    ),
    *_of_shape("double_sided_maxwell", KEY, loc=0.5, scale=2.0, shape=(4,), by=_drawn),
    *_of_shape("truncated_normal", KEY, lower=-1.0, upper=2.0, shape=(5,), by=_drawn),
    *_of_shape("lognormal", KEY, shape=(4,), by=_drawn),
    *_of_shape("orthogonal", KEY, n=3, by=_drawn),
    *_of_shape("ball", KEY, d=3, shape=(2,), by=_drawn),
    *_of_shape("generalized_normal", KEY, p=1.5, shape=(4,), by=_drawn),
    *_of_shape("rayleigh pareto geometric", KEY, PROBABILITY, by=_drawn),
    *_of_shape("wald", KEY, PROBABILITY, by=_drawn),
    *_of_shape("weibull_min", KEY, P, Q, by=_drawn),
    *_of_shape(
        "triangular", KEY, by=lambda f, k: _drawn(lambda key: f(key, -1.0, 0.5, 2.0, (4,)), k)
    ),
    *_of_shape(
        "multivariate_normal",
        KEY,
        by=lambda f, k: _drawn(lambda key: f(key, jnp.zeros(2), jnp.eye(2) + 0.5), k),
    ),
    *_gradual("gamma loggamma chisquare t dirichlet poisson", KEY, P, by=_drawn),
    *Lines("jax.random", ("float32", "float16"), loose=64, without=_WITHOUT[1:])(
        "gamma loggamma", KEY, P, note="with its gradient", by=_drawn
    ),
    *_gradual("beta f", KEY, P, Q, by=_drawn),
    *_gradual("binomial", KEY, fixed([4.0, 9, 30]), PROBABILITY, by=_drawn),
    *_gradual(
        "multinomial",
        KEY,
        by=lambda f, k: _drawn(lambda key: f(key, 10.0, jnp.array([0.2, 0.3, 0.5])), k),
    ),
    *_gradual("categorical", KEY, LOGITS, by=_drawn),
)
