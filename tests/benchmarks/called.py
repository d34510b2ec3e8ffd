"""TensorFlow functions called from JAX."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.benchmarks import models
from tests.benchmarks.measure import Ratio, compare, seconds


def call_tf() -> Iterator[Ratio]:
    import jax
    import jax.numpy as jnp
    import numpy as np
    import tensorflow as tf
    from jax.experimental import jax2tf

    import bridge

    def tiny(x: Any) -> Any:
        return tf.sin(x) * x

    x = jnp.asarray(models.TINY_INPUT)
    ours, peer = bridge.call_tf(tiny), jax2tf.call_tf(tiny)
    compiled, peer_compiled = jax.jit(ours), jax.jit(peer)
    for function in (peer, compiled, peer_compiled):
        np.testing.assert_allclose(ours(x), function(x), rtol=1e-6)

    def timed(function: Callable[[Any], Any], repeat: int) -> Callable[[], float]:
        return lambda: seconds(lambda: function(x), repeat=repeat)

    for how, mine, theirs, limit in (
        ("jit", compiled, peer_compiled, 0.3),
        ("eager", ours, peer, 0.5),
    ):
        yield compare(
            f"call_tf, {how}, tiny: ours / jax2tf",
            timed(mine, 500),
            timed(theirs, 200),
            limit=limit,
            unit="us",
            scale=1e6,
            rounds=21,
        )
    yield _live(compiled, x)


def _live(without: Callable[[Any], Any], x: Any) -> Ratio:
    """The cost of reading a variable at each run; nothing is claimed."""
    import jax
    import tensorflow as tf

    import bridge

    variable = tf.Variable(1.0)
    live = jax.jit(bridge.call_tf(lambda x: tf.sin(x) * x * variable))
    return compare(
        "call_tf, jit, tiny: with a live variable / without",
        lambda: seconds(lambda: live(x).block_until_ready(), repeat=200),
        lambda: seconds(lambda: without(x).block_until_ready(), repeat=200),
        limit=None,
        unit="us",
        scale=1e6,
        rounds=11,
    )
