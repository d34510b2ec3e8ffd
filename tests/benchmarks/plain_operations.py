"""Functions of plain TensorFlow operations, against the same written by hand, and against XLA."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from tests.benchmarks import models
from tests.benchmarks.measure import Ratio, compare

_ROUNDS = 11


def plain_operations() -> Iterator[Ratio]:
    """Processor time of calls, of the first call of a new batch size, and of saving.

    A first call computes its batch as well.
    """
    yield from _compared("MLP", models.mlp, _mlp, *models.mlp_data(), repeat=20)
    block = models.transformer_block
    yield from _compared("transformer block", block, _block, *models.transformer_data(), repeat=2)


def _compared(
    name: str, function: Any, by_hand: Any, params: Any, x: np.ndarray, *, repeat: int
) -> Iterator[Ratio]:
    import jax
    import tensorflow as tf

    import bridge

    sizes = jax.export.symbolic_shape(", ".join(["b", *map(str, x.shape[1:])]))
    exported = jax.export.export(jax.jit(function))(params, jax.ShapeDtypeStruct(sizes, x.dtype))
    variables = tf.nest.map_structure(tf.Variable, params)
    plain, compiled, written = (
        tf.function(partial(call, variables), autograph=False)
        for call in (
            bridge.convert(exported, operations="tensorflow"),
            bridge.convert(exported),
            by_hand,
        )
    )
    for batch in (1, 64):
        rows = tf.constant(np.resize(x, (batch, *x.shape[1:])))
        np.testing.assert_allclose(plain(rows), written(rows), rtol=1e-4, atol=1e-4)
        yield compare(
            f"{name}, batch {batch}: TensorFlow's operations / by hand",
            *(_timed(partial(call, rows), repeat) for call in (plain, written)),
            limit=1.1, unit="ms", scale=1e3, rounds=_ROUNDS,
        )  # fmt: skip
    yield compare(
        f"{name}, first call of a batch size: TensorFlow's operations / XLA",
        *(_first_call(call, x) for call in (plain, compiled)),
        limit=0.2, unit="ms", scale=1e3,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        save = partial(bridge.save, exported, folder, params=params, overwrite=True)
        yield compare(
            f"{name}, save: TensorFlow's operations / XLA",
            *(_timed(partial(save, operations=form), 1) for form in ("tensorflow", "xla")),
            limit=2.0, unit="s",
        )  # fmt: skip


def _timed(action: Callable[[], object], repeat: int) -> Callable[[], float]:
    def processor_seconds() -> float:
        started = time.process_time()
        for _ in range(repeat):
            action()
        return (time.process_time() - started) / repeat

    return processor_seconds


def _first_call(call: Callable[[Any], object], x: np.ndarray) -> Callable[[], float]:
    import tensorflow as tf

    specified = tf.function(
        call, input_signature=[tf.TensorSpec((None, *x.shape[1:]), x.dtype)], autograph=False
    )
    sizes = itertools.count(3)

    def processor_seconds() -> float:
        rows = tf.constant(np.resize(x, (next(sizes), *x.shape[1:])))
        started = time.process_time()
        specified(rows)
        return time.process_time() - started

    return processor_seconds


def _mlp(params: Any, x: Any) -> Any:
    import tensorflow as tf

    for layer in params:
        x = tf.tanh(x @ layer["w"] + layer["b"])
    return x


def _block(params: Any, x: Any) -> Any:
    """Pre-norm attention and feed-forward, 8 heads, as `models.transformer_block`."""
    import tensorflow as tf

    def norm(x: Any) -> Any:
        centred = x - tf.reduce_mean(x, -1, keepdims=True)
        return centred * tf.math.rsqrt(tf.reduce_mean(centred**2, -1, keepdims=True) + 1e-6)

    time, width = x.shape[1:]
    q, k, v = (
        tf.transpose(tf.reshape(norm(x) @ params[name], (-1, time, 8, width // 8)), (0, 2, 1, 3))
        for name in ("q", "k", "v")
    )
    scores = tf.matmul(q, k, transpose_b=True) / np.float32((width // 8) ** 0.5)
    attended = tf.transpose(tf.nn.softmax(scores) @ v, (0, 2, 1, 3))
    x = x + tf.reshape(attended, (-1, time, width)) @ params["o"]
    return x + tf.nn.gelu(norm(x) @ params["up"], approximate=True) @ params["down"]
