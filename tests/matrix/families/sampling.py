"""`jax.random`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from tests.matrix.case import EXACT, SERIES, Case, family, floats

_KEY = np.array([3, 5], np.uint32)
_SHAPE = (5,)

_CONTINUOUS = {
    "normal": lambda key: random.normal(key, _SHAPE),
    "truncated_normal": lambda key: random.truncated_normal(key, -1.0, 1.0, (6,)),
    "beta_sampling": lambda key: random.beta(key, 1.5, 2.5, _SHAPE),
    "dirichlet": lambda key: random.dirichlet(key, jnp.array([0.5, 1.5, 2.5]), (3,)),
    "exponential": lambda key: random.exponential(key, _SHAPE),
    "logistic_sampling": lambda key: random.logistic(key, _SHAPE),
    "gumbel": lambda key: random.gumbel(key, _SHAPE),
    "cauchy": lambda key: random.cauchy(key, _SHAPE),
    "wald": lambda key: random.wald(key, 1.5, _SHAPE),
    "ball": lambda key: random.ball(key, 3, shape=(4,)),
    "triangular": lambda key: random.triangular(key, -1.0, 0.5, 2.0, _SHAPE),
    "chisquare": lambda key: random.chisquare(key, 3.0, shape=_SHAPE),
    "loggamma": lambda key: random.loggamma(key, 0.5, _SHAPE),
}
_DISCRETE = {
    "randint": lambda key: random.randint(key, _SHAPE, -3, 20),
    "bernoulli": lambda key: random.bernoulli(key, 0.3, _SHAPE),
    "poisson": lambda key: random.poisson(key, jnp.array([0.5, 3.0, 20.0])),
    "binomial": lambda key: random.binomial(key, 12.0, 0.4, _SHAPE),
    "geometric": lambda key: random.geometric(key, 0.3, _SHAPE),
    "choice": lambda key: random.choice(key, 9, (4,), replace=False),
    "other_generators": lambda key: random.bits(
        random.wrap_key_data(jnp.tile(random.key_data(key), 2), impl="rbg"), (4,)
    ),
}


def _sampling(key: Any) -> Any:
    bits, uniform, permutation, categorical = random.split(key, 4)
    return {
        "bits": random.bits(bits, (4,)),
        "uniform": random.uniform(uniform, (5,)),
        "permutation": random.permutation(permutation, 7),
        "categorical": random.categorical(categorical, jnp.log(jnp.arange(1.0, 5.0)), shape=(6,)),
    }


def _keys(key: Any, x: Any) -> Any:
    first, second = random.split(key)
    return first, random.fold_in(second, 3), x + random.normal(second, x.shape)


def _dropout(key: Any, x: Any) -> Any:
    return jax.numpy.where(random.bernoulli(key, 0.5, x.shape), x * 2, 0)


CASES = (
    *family(_CONTINUOUS, _KEY, keys=(0,), tolerance=SERIES),
    *family(_DISCRETE, _KEY, keys=(0,), tolerance=EXACT),
    Case("sampling", _sampling, (_KEY,), keys=(0,)),
    Case("random_gamma", random.gamma, (_KEY, floats(4, low=0.5)), keys=(0,), tolerance=SERIES),
    Case("keys", _keys, (_KEY, floats(3, 4)), keys=(0,)),
    Case("dropout", _dropout, (_KEY, floats(3, 4)), keys=(0,)),
)
