"""`python write_jax2tf_kinds.py OUT`: jax2tf with integers and complex numbers, in and out.

Beside the SavedModel in `OUT/model`, `OUT/values.npz` has what JAX computes: `y`, `k`, `c`, and the
gradients `e` (of the sum of `y`) and `z` (of the real part of the sum of `c`).

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

PARAMS = {"e": np.arange(12, dtype=np.float32).reshape(4, 3), "n": np.int32(2)}
IDS = np.array([1, 2, 1], np.int32)
Z = np.array([1 + 2j, 3], np.complex64)


def embed(params, ids, z):
    """Rows of a table, and what has no gradient."""
    return {"y": params["e"][ids] * params["n"], "k": ids + 1, "c": z * z}


def main(out):
    """Write the model and the values."""
    module = tf.Module()
    module.params = tf.nest.map_structure(tf.Variable, PARAMS)
    converted = jax2tf.convert(embed, polymorphic_shapes=[None, "(b,)", None])
    module.f = tf.function(
        lambda ids, z: converted(module.params, ids, z),
        autograph=False,
        input_signature=[
            tf.TensorSpec([None], tf.int32, name="ids"),
            tf.TensorSpec([2], tf.complex64, name="z"),
        ],
    )
    tf.saved_model.save(module, out / "model", signatures={"serving_default": module.f})
    of_e = jax.grad(lambda e: embed({**PARAMS, "e": e}, IDS, Z)["y"].sum())(PARAMS["e"])
    of_z = jax.grad(lambda z: jnp.real(embed(PARAMS, IDS, z)["c"].sum()))(Z)
    np.savez(out / "values.npz", e=of_e, z=of_z, **embed(PARAMS, IDS, Z))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
