"""`python write_jax2tf.py OUT`: what `jax2tf` and `tf.saved_model.save` write.

Parameters, a symbolic batch, gradients of the first order, and two signatures. Beside the
SavedModel in `OUT/model`, `OUT/values.npz` holds what JAX computes: entries `KEY/input/NAME`,
`KEY/output/NAME`, and for the default signature `KEY/cotangent/NAME`, `KEY/gradient/NAME` and
`KEY/parameter/PATH` (the gradient of a parameter).

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

PARAMS = {
    "layers": [
        {"w": np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3), "b": np.ones(3, np.float32)},
        {"w": np.linspace(1, -1, 6, dtype=np.float32).reshape(3, 2), "b": np.zeros(2, np.float32)},
    ]
}


def predict(params, image):
    """An MLP; `erf` is what older TensorFlow versions have no operation for.

    Its derivative has no older form where JAX 0.12 makes it.
    """
    hidden = image @ params["layers"][0]["w"] + params["layers"][0]["b"]
    hidden = hidden * jax.lax.erf(jax.lax.stop_gradient(hidden))
    return {"scores": jnp.tanh(hidden @ params["layers"][1]["w"] + params["layers"][1]["b"])}


def norm(params, image, scale):
    """Another function of the same parameters."""
    return {"norm": scale * jnp.sum((image @ params["layers"][0]["w"]) ** 2, axis=1)}


class Model(tf.Module):
    """As the guide to jax2tf has it: variables, and a function for each signature."""

    def __init__(self):
        """Make the variables."""
        super().__init__()
        self.params = tf.nest.map_structure(tf.Variable, PARAMS)
        self._predict = jax2tf.convert(predict, polymorphic_shapes=[None, "(b, 4)"])
        self._norm = jax2tf.convert(norm, polymorphic_shapes=[None, "(b, 4)", "()"])

    @tf.function(
        autograph=False, input_signature=[tf.TensorSpec([None, 4], tf.float32, name="image")]
    )
    def __call__(self, image):
        """The default signature."""
        return self._predict(self.params, image)

    @tf.function(
        autograph=False,
        input_signature=[
            tf.TensorSpec([None, 4], tf.float32, name="image"),
            tf.TensorSpec([], tf.float32, name="scale"),
        ],
    )
    def norm(self, image, scale):
        """The other signature."""
        return self._norm(self.params, image, scale)


def values():
    """Return what JAX computes."""
    image = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
    cotangent = np.linspace(1, 2, 6, dtype=np.float32).reshape(3, 2)
    scale = np.float32(1.5)
    result, pull_back = jax.vjp(predict, PARAMS, image)
    of_params, of_image = pull_back({"scores": jnp.asarray(cotangent)})
    key = "serving_default"
    found = {
        f"{key}/input/image": image,
        f"{key}/output/scores": result["scores"],
        f"{key}/cotangent/scores": cotangent,
        f"{key}/gradient/image": of_image,
        "norm/input/image": image,
        "norm/input/scale": scale,
        "norm/output/norm": norm(PARAMS, image, scale)["norm"],
    }
    for path, value in jax.tree_util.tree_leaves_with_path(of_params):
        names = [str(getattr(part, "key", getattr(part, "idx", ""))) for part in path]
        found[f"{key}/parameter/{'/'.join(names)}"] = value
    return {name: np.asarray(value) for name, value in found.items()}


def main(out):
    """Write the model and the values."""
    model = Model()
    signatures = {"serving_default": model.__call__, "norm": model.norm}
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    tf.saved_model.save(model, str(out / "model"), signatures=signatures, options=options)
    np.savez(out / "values.npz", **values())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
