"""The arguments of the golden files' functions as TensorFlow takes them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import tensorflow as tf

from tests.golden.write_kinds import Pair


def for_tensorflow(argument):
    """An argument with the data of keys, and classes as mappings from names."""
    if isinstance(argument, Pair):
        return {name: tf.constant(getattr(argument, name)) for name in ("left", "right")}
    if isinstance(argument, dict):
        return {name: for_tensorflow(value) for name, value in argument.items()}
    if argument is None:
        return None
    is_key = jnp.issubdtype(argument.dtype, jax.dtypes.prng_key)
    return tf.constant(jax.random.key_data(argument) if is_key else argument)
