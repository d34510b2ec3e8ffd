"""Rounding errors made visible in TensorFlow: random relative errors after each statement.

TensorFlow's compiled form of a function is one operation to JAX, in which the errors of
`tests.fuzzing.programs.accuracy` cannot be made. So the statements themselves make them, and their
gradients do.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

_EXACT = frozenset({"BatchMatMulV2"})
_source: contextvars.ContextVar[Any] = contextvars.ContextVar("noise", default=None)


@contextlib.contextmanager
def noise(seed: tf.Tensor) -> Iterator[None]:
    """Statements that are traced here have errors, which depend on the seed."""
    token = _source.set((seed, itertools.count()))
    try:
        yield
    finally:
        _source.reset(token)


def noisy(value: Any, ulps: float, whole: float) -> Any:
    """A tensor with errors of some units in the last place, and of its largest element."""
    source = _source.get()
    if source is None or not isinstance(value, tf.Tensor):
        return value
    if not (value.dtype.is_floating or value.dtype.is_complex) or value.dtype.size == 1:
        return value
    seed, count = source
    real = value.dtype.real_dtype
    epsilon = float(np.finfo(np.float32).eps)
    epsilon = {tf.float64: 2.3e-16, tf.float16: 9.8e-4, tf.bfloat16: 7.9e-3}.get(real, epsilon)

    def wrong(x: tf.Tensor, number: int) -> tf.Tensor:
        amount = tf.abs(x) * tf.cast(ulps * epsilon, real)
        if whole:
            largest = tf.reduce_max(tf.abs(x)) if x.shape.num_elements() != 0 else 0
            amount = amount + tf.cast(whole * epsilon, real) * tf.cast(largest, real)
        amount = tf.where(tf.math.is_finite(amount), amount, tf.zeros_like(amount))
        random = tf.random.stateless_uniform(tf.shape(x), [seed, number], -1, 1, alg="threefry")
        error = amount * tf.cast(random, real)
        return x + tf.stop_gradient(tf.cast(error, x.dtype))

    numbers = next(count) * 2

    @tf.custom_gradient
    def around(x: tf.Tensor) -> Any:
        return wrong(x, numbers), lambda upstream: wrong(upstream, numbers + 1)

    return around(value)
