"""Cost of shape checks at each call of a file and of a graph."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks import models
from tests.benchmarks.measure import Ratio, compare, seconds


def shape_checks() -> Iterator[Ratio]:
    """Two inputs of the same batch: with the check, and saved with it disabled."""
    import jax.numpy as jnp

    image = models.TINY_INPUT
    arguments = (image, image)

    def function(x: Any, y: Any) -> Any:
        return jnp.sin(x) * y

    with tempfile.TemporaryDirectory() as folder:
        checked = _signature(function, arguments, Path(folder) / "checked", disabled=())
        disabled = ("shape_assertions",)
        bare = _signature(function, arguments, Path(folder) / "bare", disabled=disabled)
        yield compare(
            "signature, tiny: two inputs of one batch / without the check",
            lambda: seconds(checked, repeat=300),
            lambda: seconds(bare, repeat=300),
            limit=1.25,
            unit="us",
            scale=1e6,
            rounds=21,
        )
    checked, bare = (_graph(function, arguments, disabled=off) for off in ((), disabled))
    yield compare(
        "tf.function, tiny: two inputs of one batch / without the check",
        lambda: seconds(checked, repeat=300),
        lambda: seconds(bare, repeat=300),
        limit=1.25,
        unit="us",
        scale=1e6,
        rounds=21,
    )


def _signature(
    function: Any, arguments: tuple[Any, ...], folder: Path, *, disabled: tuple[str, ...]
) -> Callable[[], object]:
    """A call of the signature that TensorFlow has loaded."""
    import tensorflow as tf

    import bridge

    bridge.save(_exported(function, arguments), folder, disabled_checks=disabled)
    signature = tf.saved_model.load(str(folder)).signatures["serving_default"]
    tensors = {name: tf.constant(np.asarray(x)) for name, x in zip("xy", arguments, strict=True)}
    signature(**tensors)
    return lambda: signature(**tensors)


def _graph(
    function: Any, arguments: tuple[Any, ...], *, disabled: tuple[str, ...]
) -> Callable[[], object]:
    """A call of a graph, of an unknown batch, that makes the call of the module."""
    import tensorflow as tf

    import bridge

    converted = bridge.convert(_exported(function, arguments), disabled_checks=disabled)
    specs = [tf.TensorSpec([None, *x.shape[1:]], x.dtype) for x in arguments]
    run = tf.function(converted, input_signature=specs, autograph=False)
    tensors = [tf.constant(np.asarray(x)) for x in arguments]
    run(*tensors)
    return lambda: run(*tensors)


def _exported(function: Any, arguments: tuple[Any, ...]) -> Any:
    import jax
    from jax import export

    (batch,) = export.symbolic_shape("b")
    specs = [jax.ShapeDtypeStruct((batch, *x.shape[1:]), x.dtype) for x in arguments]
    return export.export(jax.jit(function), platforms=["cpu"])(*specs)
