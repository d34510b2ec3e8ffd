"""Forward pass and gradient together, and the size of a file that holds both."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks import models
from tests.benchmarks.measure import Ratio, compare, seconds

# Name, function, arguments, calls in a round: of ours eagerly, of the peer eagerly, in a function.
_CASES = (
    ("tiny", models.tiny, (models.TINY_INPUT,), (100, 3, 300)),
    ("MLP", models.mlp, models.mlp_data(), (10, 3, 10)),
    ("transformer block", models.transformer_block, models.transformer_data(), (2, 2, 2)),
)


def gradients_eager() -> Iterator[Ratio]:
    import tensorflow as tf
    from jax.experimental import jax2tf

    import bridge

    for name, function, arguments, (ours_repeat, peer_repeat, _) in _CASES:
        tensors = tf.nest.map_structure(tf.constant, arguments)
        ours = _loss_and_gradients(bridge.convert(function), tensors)
        peer = _loss_and_gradients(jax2tf.convert(function), tensors)
        _agree(ours(), peer())
        yield compare(
            f"forward and gradient, eager, {name}: convert / jax2tf",
            lambda f=ours, n=ours_repeat: seconds(f, repeat=n),
            lambda f=peer, n=peer_repeat: seconds(f, repeat=n),
            limit=0.1,
            unit="ms",
            scale=1e3,
        )


def gradients_in_function() -> Iterator[Ratio]:
    import tensorflow as tf
    from jax.experimental import jax2tf

    import bridge

    for name, function, arguments, (_, _, repeat) in _CASES:
        tensors = tf.nest.map_structure(tf.constant, arguments)
        peer = tf.function(_loss_and_gradients(jax2tf.convert(function), tensors), autograph=False)
        for residuals in (False, True):
            if residuals and name == "tiny":
                continue
            converted = bridge.convert(function, residuals=residuals)
            ours = tf.function(_loss_and_gradients(converted, tensors), autograph=False)
            _agree(ours(), peer())
            yield compare(
                f"forward and gradient, tf.function, {name}: convert"
                f"{' with residuals' if residuals else ''} / jax2tf",
                lambda f=ours, n=repeat: seconds(f, repeat=n),
                lambda f=peer, n=repeat: seconds(f, repeat=n),
                limit=0.9 if residuals else 1.0,
                unit="ms",
                scale=1e3,
                rounds=15,
            )


def _loss_and_gradients(function: Callable[..., Any], tensors: Any) -> Callable[[], Any]:
    import tensorflow as tf

    leaves = tf.nest.flatten(tensors)

    def run() -> Any:
        with tf.GradientTape() as tape:
            tape.watch(leaves)
            loss = tf.reduce_sum(function(*tensors) ** 2)
        return tape.gradient(loss, leaves)

    return run


def saved_size() -> Iterator[Ratio]:
    """saved_model.pb with gradients of order 1; the variables' bytes are the same for both."""
    import jax
    import tensorflow as tf
    from jax.experimental import jax2tf

    import bridge

    for name, function, (params, x) in (
        ("MLP", models.mlp, models.mlp_data(width=64)),
        ("transformer block", models.transformer_block, models.transformer_data(width=64)),
    ):
        module = _peer_module(jax2tf.convert(function), params, x)
        exported = jax.export.export(jax.jit(function))(params, x)
        with tempfile.TemporaryDirectory() as folder:
            bridge.save(exported, f"{folder}/ours", params=params)
            tf.saved_model.save(
                module,
                f"{folder}/peer",
                signatures={"serving_default": module.f},
                options=tf.saved_model.SaveOptions(experimental_custom_gradients=True),
            )
            ours, peer = (
                (Path(folder) / which / "saved_model.pb").stat().st_size
                for which in ("ours", "peer")
            )
        yield Ratio(
            f"saved_model.pb with gradients, {name}: save / jax2tf",
            (ours / peer,),
            0.6,
            f"{ours / 1e3:.3g} kB",
            f"{peer / 1e3:.3g} kB",
        )


def _peer_module(converted: Callable[..., Any], params: Any, x: Any) -> Any:
    import tensorflow as tf

    variables = tf.nest.map_structure(tf.Variable, params)
    module = tf.Module()
    module.params = tf.nest.flatten(variables)
    module.f = tf.function(
        lambda x: converted(variables, x),
        autograph=False,
        input_signature=[tf.TensorSpec(x.shape, tf.float32)],
    )
    return module


def _agree(ours: Any, peer: Any) -> None:
    """A comparison of two different computations would mean nothing."""
    for one, other in zip(ours, peer, strict=True):
        scale = float(np.abs(other).max())
        np.testing.assert_allclose(one.numpy() / scale, other.numpy() / scale, atol=1e-4)
