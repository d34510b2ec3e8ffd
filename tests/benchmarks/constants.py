"""A function that closes over 50 MB."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.benchmarks.measure import Ratio, compare, seconds


def large_constant() -> Iterator[Ratio]:
    import jax
    import tensorflow as tf
    from jax.experimental import jax2tf

    import bridge

    table = np.random.default_rng(0).standard_normal((12_500, 1_000)).astype(np.float32)
    rows = np.array([3, 5, 7], np.int32)

    def look_up(rows: jax.Array) -> jax.Array:
        return jax.numpy.asarray(table)[rows]

    x = tf.constant(rows)
    ours, peer = bridge.convert(look_up), jax2tf.convert(look_up)
    np.testing.assert_array_equal(ours(x), peer(x))
    yield compare(
        "eager, 50 MB constant: convert / jax2tf",
        lambda: seconds(lambda: ours(x), repeat=100),
        lambda: seconds(lambda: peer(x)),
        limit=1 / 100,
        unit="ms",
        scale=1e3,
    )
    with tempfile.TemporaryDirectory() as folder:
        bridge.save(jax.export.export(jax.jit(look_up))(rows), f"{folder}/m")
        size = (Path(folder) / "m" / "saved_model.pb").stat().st_size
    yield Ratio(
        "saved_model.pb, 50 MB constant, in units of 100 kB",
        (size / 1e5,),
        1.0,
        f"{size / 1e3:.3g} kB",
        "100 kB",
    )
