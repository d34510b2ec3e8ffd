"""Networks and other programs, in plain JAX, each with parameters and inputs of any batch size."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


@dataclass(frozen=True)
class Model:
    """A function of parameters and inputs.

    Attributes:
        function: `function(params, *inputs)`.
        params: its parameters, a pytree of NumPy arrays.
        inputs: the inputs for some batch size.
        shapes: the symbolic shape of each input.
    """

    function: Callable[..., Any]
    params: Any
    inputs: Callable[[int], tuple[np.ndarray, ...]]
    shapes: tuple[str, ...]


class Draw:
    """Random parameters and inputs, the same ones every time."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)

    def numbers(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        """Normally distributed numbers."""
        return (scale * self._random.standard_normal(shape)).astype(np.float32)

    def weight(self, *shape: int) -> np.ndarray:
        """A weight that keeps the variance of what it is multiplied with."""
        return self.numbers(*shape, scale=float(np.prod(shape[:-1])) ** -0.5)

    def dense(self, inputs: int, outputs: int) -> dict[str, np.ndarray]:
        """The weight and bias of a dense layer."""
        return {"w": self.weight(inputs, outputs), "b": self.numbers(outputs, scale=0.1)}

    def convolution(self, size: int, inputs: int, outputs: int) -> dict[str, np.ndarray]:
        """The kernel and bias of a convolution."""
        return {
            "w": self.weight(size, size, inputs, outputs),
            "b": self.numbers(outputs, scale=0.1),
        }

    def normalization(self, features: int) -> dict[str, np.ndarray]:
        """Scale, shift and what a batch normalization has seen."""
        return {
            "scale": 1 + self.numbers(features, scale=0.1),
            "shift": self.numbers(features, scale=0.1),
            "mean": self.numbers(features, scale=0.1),
            "variance": 1 + np.abs(self.numbers(features, scale=0.1)),
        }


def draws(*shape: int) -> Callable[[int], tuple[np.ndarray, ...]]:
    """One input of this shape behind the batch."""
    return lambda batch: (Draw().numbers(batch, *shape),)


def _dense(params: Mapping[str, Any], x: Any) -> Any:
    return x @ params["w"] + params["b"]


def convolve(w: Any, x: Any, *, stride: int = 1, groups: int = 1, padding: str = "SAME") -> Any:
    return lax.conv_general_dilated(
        x,
        w,
        (stride, stride),
        padding,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def _batch_norm(params: Mapping[str, Any], x: Any) -> Any:
    scale = params["scale"] * lax.rsqrt(params["variance"] + 1e-5)
    return (x - params["mean"]) * scale + params["shift"]


def _layer_norm(params: Mapping[str, Any], x: Any) -> Any:
    mean = jnp.mean(x, -1, keepdims=True)
    variance = jnp.var(x, -1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * params["scale"] + params["shift"]


def mlp() -> Model:
    """Three dense layers."""
    draw = Draw()
    sizes = (8, 16, 16, 4)
    params = [draw.dense(a, b) for a, b in itertools.pairwise(sizes)]

    def function(params: Any, x: Any) -> Any:
        for layer in params[:-1]:
            x = jnp.tanh(_dense(layer, x))
        return _dense(params[-1], x)

    return Model(function, params, draws(8), ("batch, 8",))


def _bottleneck(params: Any, x: Any, stride: int) -> Any:
    y = jax.nn.relu(_batch_norm(params["n1"], convolve(params["c1"], x)))
    y = jax.nn.relu(_batch_norm(params["n2"], convolve(params["c2"], y, stride=stride)))
    y = _batch_norm(params["n3"], convolve(params["c3"], y))
    if "c0" in params:
        x = _batch_norm(params["n0"], convolve(params["c0"], x, stride=stride))
    return jax.nn.relu(x + y)


def _bottleneck_params(draw: Draw, inputs: int, width: int, stride: int) -> dict[str, Any]:
    params = {
        "c1": draw.weight(1, 1, inputs, width),
        "c2": draw.weight(3, 3, width, width),
        "c3": draw.weight(1, 1, width, 4 * width),
        "n1": draw.normalization(width),
        "n2": draw.normalization(width),
        "n3": draw.normalization(4 * width),
    }
    if stride != 1 or inputs != 4 * width:
        params["c0"] = draw.weight(1, 1, inputs, 4 * width)
        params["n0"] = draw.normalization(4 * width)
    return params


def resnet(plan: tuple[int, ...] = (3, 4, 6, 3), width: int = 64, size: int = 224) -> Model:
    """A residual network of bottlenecks; ResNet-50 by default."""
    draw = Draw()
    params: dict[str, Any] = {
        "stem": draw.weight(7, 7, 3, width),
        "norm": draw.normalization(width),
        "blocks": [],
    }
    strides: list[int] = []
    features = width
    for stage, count in enumerate(plan):
        for index in range(count):
            strides.append(2 if stage and not index else 1)
            stage_width = width * 2**stage
            params["blocks"].append(_bottleneck_params(draw, features, stage_width, strides[-1]))
            features = 4 * stage_width
    params["head"] = draw.dense(features, 10)

    def function(params: Any, x: Any) -> Any:
        x = jax.nn.relu(_batch_norm(params["norm"], convolve(params["stem"], x, stride=2)))
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        for block, stride in zip(params["blocks"], strides, strict=True):
            x = _bottleneck(block, x, stride)
        return _dense(params["head"], x.mean((1, 2)))

    return Model(function, params, draws(size, size, 3), (f"batch, {size}, {size}, 3",))


def mobilenet() -> Model:
    """Depthwise and pointwise convolutions, inverted residuals, and a squeeze and excitation."""
    draw, width = Draw(), 6
    params = {
        "stem": draw.convolution(3, 3, width),
        "expand": draw.convolution(1, width, 4 * width),
        "depth": {"w": draw.weight(3, 3, 1, 4 * width), "norm": draw.normalization(4 * width)},
        "squeeze": draw.dense(4 * width, 4),
        "excite": draw.dense(4, 4 * width),
        "project": draw.convolution(1, 4 * width, width),
        "down": {"w": draw.weight(3, 3, 1, width), "b": draw.numbers(width)},
        "head": draw.dense(width, 5),
    }

    def layer(params: Any, x: Any, **options: Any) -> Any:
        return convolve(params["w"], x, **options) + params["b"]

    def function(params: Any, x: Any) -> Any:
        x = jax.nn.relu6(layer(params["stem"], x, stride=2))
        y = jax.nn.hard_swish(layer(params["expand"], x))
        depth = convolve(params["depth"]["w"], y, groups=4 * width)
        y = jax.nn.silu(_batch_norm(params["depth"]["norm"], depth))
        squeezed = jax.nn.relu(_dense(params["squeeze"], y.mean((1, 2))))
        y *= jax.nn.sigmoid(_dense(params["excite"], squeezed))[:, None, None]
        x = x + layer(params["project"], y)
        x = jax.nn.relu6(layer(params["down"], x, stride=2, groups=width))
        return _dense(params["head"], x.mean((1, 2)))

    return Model(function, params, draws(16, 16, 3), ("batch, 16, 16, 3",))


# Of MobileNetV2: expansion, features, blocks and the stride of the first of each stage.
_MOBILENET_V2 = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
    (6, 320, 1, 1),
)  # fmt: skip


def mobilenet_v2(stages: int = len(_MOBILENET_V2), size: int = 224) -> Model:
    """MobileNetV2, or its first stages: inverted residuals with linear bottlenecks."""
    draw = Draw()

    def normalized(*shape: int) -> dict[str, Any]:
        return {"w": draw.weight(*shape), "norm": draw.normalization(shape[-1])}

    blocks: list[dict[str, Any]] = []
    strides: list[int] = []
    width = 32
    for expansion, features, count, first in _MOBILENET_V2[:stages]:
        for number in range(count):
            inner = expansion * width
            block = {
                "depth": normalized(3, 3, 1, inner),
                "project": normalized(1, 1, inner, features),
            }
            blocks.append(
                block | ({"expand": normalized(1, 1, width, inner)} if expansion > 1 else {})
            )
            strides.append(1 if number else first)
            width = features
    params = {
        "stem": normalized(3, 3, 3, 32),
        "blocks": blocks,
        "last": normalized(1, 1, width, 1280),
        "head": draw.dense(1280, 10),
    }

    def layer(params: Any, x: Any, **options: Any) -> Any:
        return _batch_norm(params["norm"], convolve(params["w"], x, **options))

    def function(params: Any, x: Any) -> Any:
        x = jax.nn.relu6(layer(params["stem"], x, stride=2))
        for block, stride in zip(params["blocks"], strides, strict=True):
            y = jax.nn.relu6(layer(block["expand"], x)) if "expand" in block else x
            y = jax.nn.relu6(layer(block["depth"], y, stride=stride, groups=y.shape[-1]))
            y = layer(block["project"], y)
            x = x + y if x.shape == y.shape else y
        x = jax.nn.relu6(layer(params["last"], x))
        return _dense(params["head"], x.mean((1, 2)))

    return Model(function, params, draws(size, size, 3), (f"batch, {size}, {size}, 3",))


def unet(width: int = 4, size: int = 8) -> Model:
    """Down by a pool and up again by a transposed convolution and by a resize, with skips."""
    draw = Draw()
    params = {
        "first": draw.convolution(3, 2, width),
        "down": draw.convolution(3, width, 2 * width),
        "bottom": draw.convolution(3, 2 * width, 2 * width),
        "up": draw.weight(2, 2, 2 * width, width),
        "join": draw.convolution(3, 2 * width + 2 * width, width),
        "last": draw.convolution(1, width + width, 2),
    }

    def layer(params: Any, x: Any) -> Any:
        return jax.nn.relu(convolve(params["w"], x) + params["b"])

    def pool(x: Any) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    def function(params: Any, x: Any) -> Any:
        top = layer(params["first"], x)
        middle = layer(params["down"], pool(top))
        bottom = layer(params["bottom"], pool(middle))
        shape = (x.shape[0], *middle.shape[1:3], bottom.shape[3])
        y = jnp.concatenate([jax.image.resize(bottom, shape, "bilinear"), middle], -1)
        y = layer(params["join"], y)
        y = jnp.concatenate([y, y], -1)
        y = lax.conv_transpose(
            y, params["up"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        y = jnp.concatenate([jax.nn.relu(y), top], -1)
        return convolve(params["last"]["w"], y) + params["last"]["b"]

    return Model(function, params, draws(size, size, 2), (f"batch, {size}, {size}, 2",))


def block_params(draw: Draw, width: int) -> dict[str, Any]:
    norm = {"scale": 1 + draw.numbers(width, scale=0.1), "shift": draw.numbers(width, scale=0.1)}
    return {
        "norm": norm,
        "qkv": draw.dense(width, 3 * width),
        "out": draw.dense(width, width),
        "norm2": norm,
        "up": draw.dense(width, 4 * width),
        "down": draw.dense(4 * width, width),
    }


def transformer_block(params: Any, x: Any, *, heads: int, causal: bool) -> Any:
    """Pre-norm attention and feed-forward."""
    batch, time, width = x.shape
    qkv = _dense(params["qkv"], _layer_norm(params["norm"], x))
    q, k, v = (
        part.reshape(batch, time, heads, width // heads) for part in jnp.split(qkv, 3, axis=-1)
    )
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (width // heads) ** 0.5
    if causal:
        mask = jnp.arange(time)[:, None] >= jnp.arange(time)[None]
        scores = jnp.where(mask, scores, -1e9)
    attended = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
    x = x + _dense(params["out"], attended.reshape(batch, time, width))
    hidden = jax.nn.gelu(_dense(params["up"], _layer_norm(params["norm2"], x)), approximate=causal)
    return x + _dense(params["down"], hidden)


def vit() -> Model:
    """A vision transformer: patches by a convolution, a class token, two blocks."""
    draw, width = Draw(), 16
    params = {
        "patch": draw.convolution(4, 3, width),
        "token": draw.numbers(1, 1, width),
        "position": draw.numbers(1, 17, width),
        "blocks": [block_params(draw, width) for _ in range(2)],
        "norm": {"scale": draw.numbers(width), "shift": draw.numbers(width)},
        "head": draw.dense(width, 5),
    }

    def function(params: Any, x: Any) -> Any:
        patches = convolve(params["patch"]["w"], x, stride=4, padding="VALID")
        tokens = (patches + params["patch"]["b"]).reshape(x.shape[0], 16, width)
        first = jnp.broadcast_to(params["token"], (x.shape[0], 1, width))
        y = jnp.concatenate([first, tokens], axis=1) + params["position"]
        for block in params["blocks"]:
            y = transformer_block(block, y, heads=4, causal=False)
        return _dense(params["head"], _layer_norm(params["norm"], y[:, 0]))

    return Model(function, params, draws(16, 16, 3), ("batch, 16, 16, 3",))


def gpt() -> Model:
    """A language model whose batch and time are both dynamic; embeddings are tied."""
    draw, width, words = Draw(), 16, 11
    params = {
        "words": draw.numbers(words, width),
        "positions": draw.numbers(32, width),
        "blocks": [block_params(draw, width) for _ in range(2)],
        "norm": {"scale": 1 + draw.numbers(width, scale=0.1), "shift": draw.numbers(width)},
    }

    def function(params: Any, tokens: Any) -> Any:
        x = params["words"][tokens] + params["positions"][jnp.arange(tokens.shape[1])]
        for block in params["blocks"]:
            x = transformer_block(block, x, heads=4, causal=True)
        return _layer_norm(params["norm"], x) @ params["words"].T

    def inputs(batch: int) -> tuple[np.ndarray, ...]:
        return (np.random.default_rng(0).integers(0, words, (batch, 5 + batch), np.int32),)

    return Model(function, params, inputs, ("batch, time",))


def gpt_step(layers: int = 2, width: int = 16, length: int = 8, words: int = 11) -> Model:
    """A step of a language model: a token, and the keys and values of those before it."""
    draw, heads = Draw(), 4
    params = {
        "words": draw.numbers(words, width),
        "positions": draw.numbers(length, width),
        "blocks": [block_params(draw, width) for _ in range(layers)],
    }

    def attended(block: Any, x: Any, k: Any, v: Any, at: Any) -> tuple[Any, Any, Any]:
        parts = jnp.split(_dense(block["qkv"], _layer_norm(block["norm"], x)), 3, axis=-1)
        q, new_k, new_v = (part.reshape(-1, 1, heads, width // heads) for part in parts)
        k = lax.dynamic_update_slice(k, new_k, (0, at, 0, 0))
        v = lax.dynamic_update_slice(v, new_v, (0, at, 0, 0))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (width // heads) ** 0.5
        weights = jax.nn.softmax(jnp.where(jnp.arange(length) <= at, scores, -1e9))
        return jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(-1, width), k, v

    def function(params: Any, token: Any, at: Any, k: Any, v: Any) -> Any:
        x, keys, values = params["words"][token] + params["positions"][at], [], []
        for number, block in enumerate(params["blocks"]):
            y, key, value = attended(block, x, k[number], v[number], at)
            x = x + _dense(block["out"], y)
            hidden = jax.nn.gelu(_dense(block["up"], _layer_norm(block["norm2"], x)))
            x = x + _dense(block["down"], hidden)
            keys.append(key)
            values.append(value)
        return x @ params["words"].T, jnp.stack(keys), jnp.stack(values)

    def inputs(batch: int) -> tuple[np.ndarray, ...]:
        shape = (layers, batch, length, heads, width // heads)
        drawn = Draw()
        token = np.arange(batch, dtype=np.int32) % words
        return token, np.array(length // 2, np.int32), drawn.numbers(*shape), drawn.numbers(*shape)

    cache = f"{layers}, batch, {length}, {heads}, {width // heads}"
    return Model(function, params, inputs, ("batch", "", cache, cache))


def _cell_params(draw: Draw, inputs: int, width: int, gates: int) -> dict[str, Any]:
    return {
        "x": draw.weight(inputs, gates * width),
        "h": draw.weight(width, gates * width),
        "b": draw.numbers(gates * width, scale=0.1),
    }


def _lstm_step(params: Any, carry: Any, x: Any) -> Any:
    h, c = carry
    i, f, g, o = jnp.split(x @ params["x"] + h @ params["h"] + params["b"], 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (h, c), h


def lstm(steps: int = 200, inputs: int = 4, width: int = 8) -> Model:
    """A long short-term memory of `lax.scan`."""
    draw = Draw()
    params = {"cell": _cell_params(draw, inputs, width, 4), "head": draw.dense(width, 3)}

    def function(params: Any, x: Any) -> Any:
        zeros = jnp.zeros((x.shape[0], width), x.dtype)
        step = partial(_lstm_step, params["cell"])
        (h, _), hs = lax.scan(step, (zeros, zeros), jnp.swapaxes(x, 0, 1))
        return _dense(params["head"], h), jnp.swapaxes(hs, 0, 1)

    return Model(function, params, draws(steps, inputs), (f"batch, {steps}, {inputs}",))


def _gru_step(params: Any, h: Any, x: Any) -> Any:
    width = h.shape[-1]
    from_x, from_h = x @ params["x"] + params["b"], h @ params["h"]
    reset = jax.nn.sigmoid(from_x[:, :width] + from_h[:, :width])
    update = jax.nn.sigmoid(from_x[:, width:-width] + from_h[:, width:-width])
    new = jnp.tanh(from_x[:, -width:] + reset * from_h[:, -width:])
    h = (1 - update) * new + update * h
    return h, h


def bigru() -> Model:
    """Gated recurrent units in both directions, over a dynamic time."""
    draw, inputs, width = Draw(), 3, 5
    params = {name: _cell_params(draw, inputs, width, 3) for name in ("forwards", "backwards")}

    def function(params: Any, x: Any) -> Any:
        start = jnp.zeros((x.shape[0], width), x.dtype)
        rows = jnp.swapaxes(x, 0, 1)
        _, there = lax.scan(partial(_gru_step, params["forwards"]), start, rows)
        _, back = lax.scan(partial(_gru_step, params["backwards"]), start, rows, reverse=True)
        return jnp.swapaxes(jnp.concatenate([there, back], -1), 0, 1)

    def several(batch: int) -> tuple[np.ndarray, ...]:
        return (Draw().numbers(batch, 4 + batch, inputs),)

    return Model(function, params, several, (f"batch, time, {inputs}",))


def solver() -> Model:
    """Conjugate gradients until the residual is small; differentiated by the implicit function."""
    draw, size = Draw(), 5
    half = draw.numbers(size, size)
    params = half @ half.T + 5 * np.eye(size, dtype=np.float32)

    def solve(matrix: Any, right: Any) -> Any:
        def step(state: Any) -> Any:
            x, residual, direction, square, count = state
            image = direction @ matrix
            length = square / jnp.sum(direction * image)
            residual_ = residual - length * image
            square_ = jnp.sum(residual_**2)
            turned = residual_ + square_ / square * direction
            return x + length * direction, residual_, turned, square_, count + 1

        state = (jnp.zeros_like(right), right, right, jnp.sum(right**2), 0)
        return lax.while_loop(lambda s: (s[3] > 1e-10) & (s[4] < 100), step, state)[0]

    def function(matrix: Any, right: Any) -> Any:
        return lax.custom_linear_solve(
            lambda x: x @ matrix, right, lambda _, b: solve(matrix, b), symmetric=True
        )

    return Model(function, params, draws(size), (f"batch, {size}",))


def kalman() -> Model:
    """A Kalman filter over a sequence of measurements; each gain solves a linear system."""
    draw, states, measured = Draw(), 3, 2
    params = {
        "motion": np.eye(states, dtype=np.float32) + draw.numbers(states, states, scale=0.1),
        "sensor": draw.numbers(measured, states),
        "motion_noise": 0.1 * np.eye(states, dtype=np.float32),
        "sensor_noise": 0.5 * np.eye(measured, dtype=np.float32),
    }

    def step(params: Any, carry: Any, measurement: Any) -> Any:
        mean, covariance = carry
        mean = mean @ params["motion"].T
        covariance = params["motion"] @ covariance @ params["motion"].T + params["motion_noise"]
        innovation = measurement - mean @ params["sensor"].T
        spread = params["sensor"] @ covariance @ params["sensor"].T + params["sensor_noise"]
        factor = jnp.linalg.cholesky(spread)
        gain = jax.scipy.linalg.cho_solve((factor, True), params["sensor"] @ covariance).T
        mean = mean + innovation @ gain.T
        covariance = covariance - gain @ params["sensor"] @ covariance
        return (mean, covariance), mean

    def function(params: Any, measurements: Any) -> Any:
        mean = jnp.zeros((measurements.shape[0], states), jnp.float32)
        start = (mean, jnp.eye(states, dtype=jnp.float32))
        (_, covariance), means = lax.scan(
            partial(step, params), start, jnp.swapaxes(measurements, 0, 1)
        )
        return jnp.swapaxes(means, 0, 1), covariance

    return Model(function, params, draws(6, measured), (f"batch, 6, {measured}",))


def sample(key: Any, x: Any) -> Any:
    """Words that are drawn, noise and dropout, from the bits of a threefry key."""
    draws_, noise, drop = jax.random.split(key, 3)
    words = jax.random.categorical(draws_, x)
    uniform = jax.random.uniform(noise, x.shape)
    kept = jax.random.bernoulli(drop, 0.7, x.shape)
    return words, uniform, jnp.where(kept, x, 0), jax.random.bits(drop, (3, 4))
