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
