"""Models that are written for converters, and inputs for them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

RANDOM = np.random.default_rng(0)


def _weights(*shape):
    return (RANDOM.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)


def cnn(params, x):
    for w in params["kernels"]:
        dims = ("NHWC", "HWIO", "NHWC")
        x = jax.nn.relu(lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=dims))
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return x.mean((1, 2)) @ params["out"]


def mlp(params, x):
    return jax.nn.softmax(jax.nn.gelu(x @ params["in"] + params["b"]) @ params["out"])


def _norm(x):
    x = x - x.mean(-1, keepdims=True)
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)


def block(params, x):
    b, t, d = x.shape
    heads = (_norm(x) @ params[key] for key in "qkv")
    q, k, v = (each.reshape(b, t, 4, 4).transpose(0, 2, 1, 3) for each in heads)
    made = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) / 2) @ v
    x = x + made.transpose(0, 2, 1, 3).reshape(b, t, d) @ params["o"]
    return x + jax.nn.gelu(_norm(x) @ params["up"]) @ params["down"]


def gru(params, x):
    def step(h, x):
        given, state = x @ params["w"], h @ params["u"]
        update = jax.nn.sigmoid(given[:, :8] + state[:, :8])
        reset = jax.nn.sigmoid(given[:, 8:16] + state[:, 8:16])
        new = jnp.tanh(given[:, 16:] + reset * state[:, 16:])
        h = (1 - update) * h + update * new
        return h, h

    first = jnp.zeros((x.shape[0], 8))
    return lax.scan(step, first, x.swapaxes(0, 1))[1].swapaxes(0, 1)


def rows(x):
    """Rows that are no part of what a loop carries, of a length that nobody knows."""
    return lax.scan(lambda total, row: (total + row, jnp.cos(total + row)), jnp.zeros(3), x)[1]


def resize(x):
    return jax.image.resize(x, (x.shape[0], 8, 8, 3), "bilinear")


def contract(params, x):
    return jnp.einsum("bhwc,hk->bkwc", x, params["w"])


def looped(params, x):
    return lax.fori_loop(0, 3, lambda _, y: jnp.tanh(y @ params["w"]), x)


def constants(x):
    """A loop of constants, which nobody may unroll on the stack."""
    return x + lax.scan(lambda c, i: (jnp.sin(c) + i, None), 0.0, jnp.arange(20000.0))[0]


# For each model the function, its parameters and its arguments.
MODELS = {
    "cnn": (
        cnn,
        {"kernels": [_weights(3, 3, 3, 8), _weights(3, 3, 8, 8)], "out": _weights(8, 4)},
        "f32[b,16,16,3]",
    ),
    "mlp": (
        mlp,
        {"in": _weights(8, 16), "b": _weights(16), "out": _weights(16, 4)},
        "f32[b,8]",
    ),
    "block": (
        block,
        {key: _weights(16, 16) for key in "qkvo"}
        | {"up": _weights(16, 32), "down": _weights(32, 16)},
        "f32[b,6,16]",
    ),
    "gru": (gru, {"w": _weights(4, 24), "u": _weights(8, 24)}, "f32[b,5,4]"),
    "rows": (rows, None, "f32[b,3]"),
    "resize": (resize, None, "f32[b,4,4,3]"),
    "contract": (contract, {"w": _weights(8, 6)}, "f32[b,8,5,3]"),
    "looped": (looped, {"w": _weights(8, 8)}, "f32[b,8]"),
    "constants": (constants, None, "f32[b]"),
}


def inputs_of(name):
    """Batches of one and of three for a model."""
    dims = MODELS[name][2].removesuffix("]").split(",")[1:]
    return [RANDOM.normal(size=(count, *map(int, dims))).astype(np.float32) for count in (1, 3)]


def result_of(name, x):
    """What JAX makes of an input."""
    function, params, _ = MODELS[name]
    return np.asarray(function(x) if params is None else function(params, x))
