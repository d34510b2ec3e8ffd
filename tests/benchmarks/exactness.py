"""What `exact=False` saves: nodes, bytes and the time of a call, in each target on one thread."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks import models
from tests.benchmarks.measure import Ratio, compare, seconds

_ROUNDS = 11
_TARGETS = ("ONNX Runtime", "LiteRT", "TensorFlow's operations")
# The number of nodes, of bytes, and a call.
_Made = tuple[int, int, Callable[[], Any]]


def exactness() -> Iterator[Ratio]:
    """Nodes, bytes and calls of each network in each target, without exactness and with it."""
    from tests.bridge import networks as drawn

    residual, vision = drawn.resnet((1, 1, 1, 1), 16, 64), drawn.vit()
    networks: Any = (
        ("MLP", models.mlp, *models.mlp_data(256, batch=8), 100),
        ("residual CNN", residual.function, residual.params, *residual.inputs(1), 5),
        ("vision transformer", vision.function, vision.params, *vision.inputs(1), 20),
        ("LSTM", models.lstm, *models.lstm_data(), 50),
    )
    for name, function, params, x, repeat in networks:
        for target in _TARGETS:
            with tempfile.TemporaryDirectory() as folder:
                made = partial(_MAKERS[target], function, params, x, Path(folder))
                inexact, exact = made(exact=False), made(exact=True)
                np.testing.assert_allclose(inexact[2](), exact[2](), rtol=1e-3, atol=1e-5)
                title = f"{name} in {target}: exact=False / exact"
                for what, mine, theirs in zip(("nodes", "bytes"), inexact, exact, strict=False):
                    ratio = (mine / theirs,)  # type: ignore[operator]  # numbers come first
                    yield Ratio(f"{title}, {what}", ratio, None, f"{mine:,}", f"{theirs:,}")
                yield compare(
                    f"{title}, calls",
                    *(partial(seconds, each[2], repeat=repeat) for each in (inexact, exact)),
                    limit=None, unit="ms", scale=1e3, rounds=_ROUNDS,
                )  # fmt: skip


def _in_onnx_runtime(function: Any, params: Any, x: Any, _: Path, *, exact: bool) -> _Made:
    import onnxruntime

    import bridge

    model = bridge.to_onnx(function, params=params, args=_spec(x), exact=exact)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    serialized = model.SerializeToString()
    session = onnxruntime.InferenceSession(serialized, options, ["CPUExecutionProvider"])
    feeds = {session.get_inputs()[0].name: x}
    count = len(model.graph.node) + sum(
        len(attribute.g.node) for node in model.graph.node for attribute in node.attribute
    )
    return count, len(serialized), lambda: session.run(None, feeds)[0]


def _in_litert(function: Any, params: Any, x: Any, _: Path, *, exact: bool) -> _Made:
    from ai_edge_litert.interpreter import Interpreter

    import bridge
    from bridge.litert.worker.model_execution import describe_model

    model = bridge.to_litert(function, params=params, args=_spec(x), exact=exact)
    run = Interpreter(model_content=model, num_threads=1).get_signature_runner()
    (name,) = run.get_input_details()
    count = sum(describe_model(model)["operators"].values())
    return count, len(model), lambda: next(iter(run(**{name: x}).values()))


def _in_tensorflow(function: Any, params: Any, x: Any, folder: Path, *, exact: bool) -> _Made:
    import tensorflow as tf

    import bridge

    path = folder / str(exact)
    written = bridge.save(
        function, path, params=params, args=_spec(x), gradient_order=0,
        operations="tensorflow", exact=exact,
    )  # fmt: skip
    with tf.Graph().as_default() as graph:
        config = tf.compat.v1.ConfigProto(
            intra_op_parallelism_threads=1, inter_op_parallelism_threads=1
        )
        session = tf.compat.v1.Session(config=config)
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(path))
    count = sum(len(each.node_def) for each in graph.as_graph_def().library.function)
    definition = loaded.signature_def["serving_default"]
    (given,), (result,) = (each.values() for each in (definition.inputs, definition.outputs))
    call = session.make_callable(result.name, [given.name])
    return count, written.bytes, lambda: call(x)


def _spec(x: Any) -> Any:
    import jax

    return jax.ShapeDtypeStruct(x.shape, x.dtype)


_MAKERS: dict[str, Callable[..., _Made]] = dict(
    zip(_TARGETS, (_in_onnx_runtime, _in_litert, _in_tensorflow), strict=True)
)
