"""`python write_jax2tf_slices.py OUT`: jax2tf with results whose sizes are no polynomials.

Beside the SavedModel in `OUT/model`, `OUT/values.npz` has, for some batch sizes `b`, what JAX
computes of `input(b)`: `first/b`, `odd/b` and the gradient `x/b` of the sum of their squares.

It stands alone; nothing of this project is imported.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it is deprecated
    from jax.experimental import jax2tf

BATCHES = (1, 4, 11, 30)


def input_of(batch):
    """Return a batch."""
    return np.linspace(-1, 1, batch * 3, dtype=np.float32).reshape(batch, 3)


def slices(x):
    """The first rows, and every second one."""
    return {"first": jnp.sin(x[:10]), "odd": x[1::2] * 2}


def loss(x):
    """A number that depends on all of it."""
    return sum((part**2).sum() for part in slices(x).values())


def main(out):
    """Write the model and the values."""
    module = tf.Module()
    converted = jax2tf.convert(slices, polymorphic_shapes=["(b, 3)"])
    spec = tf.TensorSpec([None, 3], tf.float32, name="x")
    module.f = tf.function(converted, autograph=False, input_signature=[spec])
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    tf.saved_model.save(
        module, out / "model", signatures={"serving_default": module.f}, options=options
    )
    values = {}
    for batch in BATCHES:
        x = input_of(batch)
        values |= {f"{name}/{batch}": value for name, value in slices(x).items()}
        values[f"x/{batch}"] = jax.grad(loss)(x)
    np.savez(out / "values.npz", **values)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
