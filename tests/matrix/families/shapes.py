"""Symbolic shapes, and several platforms in one module."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.matrix.case import EXACT, SERIES, Case, family, floats

_X = floats(3, 4)

_OF_BATCHES = {
    "symbolic_sinh": jnp.sinh,
    "symbolic_gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "symbolic_top_k": lambda x: lax.top_k(x, 2)[0],
    "symbolic_sort": lambda x: jnp.sort(x, axis=0),
    "symbolic_scan": lambda x: lax.scan(lambda total, row: (total + row, total), jnp.zeros(4), x),
    "symbolic_cumsum": lambda x: jnp.cumsum(x, axis=0),
    "symbolic_concatenate": lambda x: jnp.concatenate([x, jnp.ones((x.shape[0], 1))], axis=1),
    "symbolic_softmax": lambda x: jax.nn.softmax(x, axis=0),
    "symbolic_random": lambda x: x + jax.random.uniform(jax.random.key(0), x.shape),
    "symbolic_gather": lambda x: x[::-1] + jnp.take(x, jnp.array([0]), axis=0),
}


def _attention(q: Any, k: Any) -> Any:
    weights = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", q, k) / np.sqrt(q.shape[-1]))
    return {"out": jnp.einsum("bqk,bkd->bqd", weights, k), "size": jnp.int32(q.shape[0])}


def _batch(params: Any, x: Any) -> Any:
    hidden = jax.nn.relu(x @ params["w"] + params["b"])
    return hidden, hidden.reshape((-1,)), jnp.full((x.shape[0],), x.shape[0])


def _two_symbols(x: Any, y: Any) -> Any:
    batch, time, _ = x.shape
    return x.reshape((batch * time, 2)), x.sum(2) + y.reshape((batch, 2)).sum(1)[:, None]


def _network(x: Any, kernel: Any) -> Any:
    layout = ("NHWC", "HWIO", "NHWC")
    hidden = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=layout)
    pooled = lax.reduce_window(hidden, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return jax.image.resize(pooled, (*x.shape[:3], 2), "linear").mean((1, 2))


def _on_platforms(params: Any, x: Any) -> Any:
    shifted = lax.platform_dependent(x, cpu=lambda x: x + 1, default=lambda x: x - 1)
    return shifted @ params["w"], jax.nn.gelu(shifted, approximate=False)


def _on_each(x: Any) -> Any:
    return lax.platform_dependent(
        x, tpu=lambda x: x * 2, cuda=lambda x: x * 3, rocm=lambda x: x * 5, cpu=lambda x: x * 7
    )


_PARAMS = {"w": floats(4, 3), "b": floats(3)}

CASES = (
    *family(_OF_BATCHES, _X, more=[(floats(5, 4),)], shapes=("b, 4",)),
    Case("attention", _attention, (floats(2, 3, 4), floats(2, 5, 4)),
         more=[(floats(1, 3, 4), floats(1, 2, 4))], shapes=("b, 3, 4", "b, k, 4"),
         tolerance=SERIES),
    Case("batch", _batch, (floats(3, 4),), more=[(floats(5, 4),)], params=_PARAMS,
         shapes=("b, 4",)),
    Case("two_symbols", _two_symbols, (floats(2, 3, 2), floats(4)),
         more=[(floats(3, 1, 2), floats(6))], shapes=("b, t, 2", "2*b")),
    Case("symbolic_network", _network, (floats(2, 4, 4, 1), floats(3, 3, 1, 2)),
         more=[(floats(1, 4, 4, 1), floats(3, 3, 1, 2))], shapes=("b, 4, 4, 1", "3, 3, 1, 2")),
    Case("platforms", _on_platforms, (_X,), params=_PARAMS, platforms=("cpu", "cuda", "tpu")),
    Case("platforms_last", _on_each, (_X,), platforms=("tpu", "cuda", "rocm", "cpu"),
         tolerance=EXACT),
    Case("platforms_symbolic", _on_each, (_X,), more=[(floats(2, 4),)], shapes=("b, 4",),
         platforms=("cuda", "cpu"), tolerance=EXACT),
)  # fmt: skip
