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
    yield from _sessions("MLP", models.mlp, _mlp, *models.mlp_data(), repeat=20)
    yield from _sessions("CNN", models.cnn, _cnn, *models.cnn_data(), repeat=2)
    data = models.transformer_data(128, time=32)
    yield from _sessions("transformer block", block, _block, *data, repeat=4)
    yield from _sessions("LSTM", models.lstm, _lstm, *models.lstm_data(), repeat=10)


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


def _sessions(
    name: str, function: Any, by_hand: Any, params: Any, x: np.ndarray, *, repeat: int
) -> Iterator[Ratio]:
    """Yield what it costs in a server that TensorFlow's optimizer does not change a file."""
    import jax
    import tensorflow as tf

    import bridge

    sizes = jax.export.symbolic_shape(", ".join(["b", *map(str, x.shape[1:])]))
    exported = jax.export.export(jax.jit(function))(params, jax.ShapeDtypeStruct(sizes, x.dtype))
    with tempfile.TemporaryDirectory() as folder:
        for is_open in (False, True):
            bridge.save(
                exported, f"{folder}/{is_open}", params=params, operations="tensorflow",
                for_converters=is_open, gradient_order=0,
            )  # fmt: skip
        module = tf.Module()
        module.weights = tf.nest.map_structure(tf.Variable, params)
        specified = tf.TensorSpec((None, *x.shape[1:]), x.dtype)
        module.run = tf.function(lambda x: by_hand(module.weights, x), input_signature=[specified])
        tf.saved_model.save(module, f"{folder}/hand", signatures=module.run)
        runs = [_session(f"{folder}/{form}") for form in ("False", "True", "hand")]
    for batch, limit in ((1, 1.1), (64, 1.03)):
        rows = np.resize(x, (batch, *x.shape[1:]))
        exact, open_, hand = (_timed(partial(run, rows), repeat) for run in runs)
        np.testing.assert_allclose(runs[0](rows), runs[2](rows), rtol=1e-3, atol=1e-4)
        label = f"{name} in a session, batch {batch}: as the file says"
        options: Any = {"unit": "ms", "scale": 1e3, "rounds": _ROUNDS}
        yield compare(f"{label} / as TensorFlow optimizes it", exact, open_, limit=limit, **options)
        yield compare(f"{label} / by hand", exact, hand, limit=None, **options)


def _session(folder: str) -> Callable[[np.ndarray], np.ndarray]:
    import tensorflow as tf

    with tf.Graph().as_default():
        session = tf.compat.v1.Session()
        meta_graph = tf.compat.v1.saved_model.load(session, ["serve"], folder)
    definition = meta_graph.signature_def["serving_default"]
    (given,), (result,) = (each.values() for each in (definition.inputs, definition.outputs))
    return session.make_callable(result.name, [given.name])  # type: ignore[no-any-return]


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


def _cnn(params: Any, x: Any) -> Any:
    import tensorflow as tf

    x = tf.nn.relu(tf.nn.conv2d(x, params["first"], 1, "SAME") + params["bias"])
    x = tf.nn.conv2d(x, params["second"], 1, "SAME")
    x = (x - params["mean"]) * tf.math.rsqrt(params["variance"] + 1e-5) * params["scale"]
    return tf.reduce_mean(tf.nn.relu(x + params["shift"]), (1, 2)) @ params["out"]


def _lstm(params: Any, x: Any) -> Any:
    import tensorflow as tf

    def step(state: Any, row: Any) -> Any:
        hidden, cell = state
        gates = row @ params["input"] + hidden @ params["hidden"] + params["bias"]
        i, f, g, o = tf.split(gates, 4, -1)
        cell = tf.sigmoid(f) * cell + tf.sigmoid(i) * tf.tanh(g)
        return tf.sigmoid(o) * tf.tanh(cell), cell

    zeros = tf.zeros((tf.shape(x)[0], params["hidden"].shape[0]))
    return tf.foldl(step, tf.transpose(x, (1, 0, 2)), (zeros, zeros))[0]
