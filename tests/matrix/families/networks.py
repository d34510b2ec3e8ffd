"""`jax.nn`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import nn

from tests.matrix.case import CANCELLATION, Case, family, floats

_X = floats(3, 4)

_ACTIVATIONS = {
    "relu": nn.relu,
    "elu": nn.elu,
    "glu": nn.glu,
    "hard_swish": nn.hard_swish,
    "log_sigmoid": nn.log_sigmoid,
    "mish": nn.mish,
    "squareplus": nn.squareplus,
    "sparse_plus": nn.sparse_plus,
    "gelu_exact": lambda x: nn.gelu(x, approximate=False),
    "masked_softmax": lambda x: nn.softmax(x, where=x > -1, axis=1),
    "one_hot": lambda x: x @ nn.one_hot(np.array([2, 0, 1, 5]), 3),
}


def _activations(x: Any) -> Any:
    return {
        "gelu": nn.gelu(x, approximate=True),
        "softmax": nn.softmax(x),
        "silu": nn.silu(x),
        "selu": nn.selu(x),
        "softplus": nn.softplus(x),
        "log_softmax": nn.log_softmax(x, axis=0),
    }


def _layer_norm(params: Any, x: Any) -> Any:
    return nn.standardize(x) * params["scale"] + params["bias"]


def _causal_attention(q: Any, k: Any, v: Any) -> Any:
    return nn.dot_product_attention(q, k, v, is_causal=True)


def _recurrent(params: Any, x: Any) -> Any:
    def step(state: Any, row: Any) -> Any:
        state = jnp.tanh(row @ params["w"] + state)
        return state, state

    return jax.lax.scan(step, params["b"], x)


_PARAMS = {"w": floats(4, 3), "b": floats(3)}

CASES = (
    *family(_ACTIVATIONS, _X),
    Case("activations", _activations, (_X,)),
    Case("layer_norm", _layer_norm, (_X,), params={"scale": floats(4), "bias": floats(4)},
         tolerance=CANCELLATION),
    Case("causal_attention", _causal_attention, (floats(1, 3, 2, 4), floats(1, 3, 2, 4, low=-1),
                                                 floats(1, 3, 2, 4, high=1))),
    Case("recurrent", _recurrent, (_X,), params=_PARAMS),
)  # fmt: skip
