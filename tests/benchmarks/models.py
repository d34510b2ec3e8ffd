"""The functions that are measured."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def tiny(x: Any) -> Any:
    return jnp.sin(x) * 2


TINY_INPUT = np.ones((4,), np.float32)


def mlp(params: Any, x: Any) -> Any:
    for layer in params:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x


def mlp_data(width: int = 1024, depth: int = 3, batch: int = 64) -> tuple[Any, np.ndarray]:
    draw = np.random.default_rng(0)
    params = [
        {
            "w": (draw.standard_normal((width, width)) / width**0.5).astype(np.float32),
            "b": np.zeros(width, np.float32),
        }
        for _ in range(depth)
    ]
    return params, draw.standard_normal((batch, width)).astype(np.float32)


def transformer_block(params: Any, x: Any) -> Any:
    """Pre-norm attention and feed-forward, 8 heads."""

    def norm(x: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-6)

    batch, time, width = x.shape
    q, k, v = (
        (norm(x) @ params[name]).reshape(batch, time, 8, width // 8) for name in ("q", "k", "v")
    )
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / (width // 8) ** 0.5)
    attended = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(batch, time, width)
    x = x + attended @ params["o"]
    return x + jax.nn.gelu(norm(x) @ params["up"]) @ params["down"]


def transformer_data(width: int = 512, batch: int = 8, time: int = 128) -> tuple[Any, np.ndarray]:
    draw = np.random.default_rng(0)
    shapes = dict.fromkeys(("q", "k", "v", "o"), (width, width))
    shapes |= {"up": (width, 4 * width), "down": (4 * width, width)}
    params = {
        name: (draw.standard_normal(shape) / width**0.5).astype(np.float32)
        for name, shape in shapes.items()
    }
    return params, draw.standard_normal((batch, time, width)).astype(np.float32)


def transformer(layers: Any, x: Any) -> Any:
    for params in layers:
        x = transformer_block(params, x)
    return x


def transformer_layers(depth: int = 12, batch: int = 2) -> tuple[Any, np.ndarray]:
    params, x = transformer_data(batch=batch)
    return [{k: v * (1 + i / 64) for k, v in params.items()} for i in range(depth)], x


def cnn(params: Any, x: Any) -> Any:
    """Two convolutions, the second with a batch norm of stored statistics, and a dense layer."""

    def convolved(x: Any, kernel: Any) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers)

    x = jax.nn.relu(convolved(x, params["first"]) + params["bias"])
    x = convolved(x, params["second"]) - params["mean"]
    x = x * jax.lax.rsqrt(params["variance"] + 1e-5) * params["scale"] + params["shift"]
    return jax.nn.relu(x).mean((1, 2)) @ params["out"]


def cnn_data(batch: int = 8) -> tuple[Any, np.ndarray]:
    shapes = {"first": (3, 3, 3, 32), "bias": (32,), "second": (3, 3, 32, 64), "out": (64, 10)}
    shapes |= dict.fromkeys(("mean", "variance", "scale", "shift"), (64,))
    return _drawn(shapes), np.random.default_rng(1).random((batch, 28, 28, 3), np.float32)


def lstm(params: Any, x: Any) -> Any:
    """The last state of an LSTM over time."""

    def step(state: Any, row: Any) -> tuple[Any, None]:
        hidden, cell = state
        gates = row @ params["input"] + hidden @ params["hidden"] + params["bias"]
        i, f, g, o = jnp.split(gates, 4, -1)
        cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(cell), cell), None

    zeros = jnp.zeros((x.shape[0], params["hidden"].shape[0]), x.dtype)
    return jax.lax.scan(step, (zeros, zeros), x.swapaxes(0, 1))[0][0]


def lstm_data(width: int = 64, batch: int = 8, time: int = 20) -> tuple[Any, np.ndarray]:
    shapes = {"input": (32, 4 * width), "hidden": (width, 4 * width), "bias": (4 * width,)}
    return _drawn(shapes), np.random.default_rng(1).random((batch, time, 32), np.float32)


def _drawn(shapes: Any) -> Any:
    draw = np.random.default_rng(0)
    return {name: draw.random(shape, np.float32) * 0.1 for name, shape in shapes.items()}
