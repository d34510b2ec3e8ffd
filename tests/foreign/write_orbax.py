"""`python write_orbax.py OUT`: what orbax-export writes (0.0.8; `pip install orbax-export`).

Parameters, gradients, a symbolic batch and two signatures. `OUT/model` and `OUT/values.npz` are as
write_jax2tf.py says.

It stands alone; nothing of this project is imported.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from orbax.export import ExportManager, JaxModule, ServingConfig

PARAMS = {
    "w": np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2),
    "b": np.ones(2, np.float32),
}


def predict(params, inputs):
    """A linear layer and a nonlinearity."""
    hidden = inputs["image"] @ params["w"] + params["b"]
    # JAX 0.12 makes the derivative of `erf` of operations that have no older form.
    return {"scores": hidden * jax.lax.erf(jax.lax.stop_gradient(hidden))}


def norm(params, inputs):
    """Another function of the same parameters."""
    return {"norm": jnp.sum((inputs["image"] @ params["w"]) ** 2, axis=1)}


def main(out):
    """Write the model and the values."""
    module = JaxModule(
        PARAMS,
        {"predict": predict, "norm": norm},
        trainable=True,
        input_polymorphic_shape={"predict": "b, ...", "norm": "b, ..."},
        jax2tf_kwargs={"predict": {"with_gradient": True}, "norm": {"with_gradient": True}},
    )
    spec = [{"image": tf.TensorSpec([None, 4], tf.float32, name="image")}]
    configurations = [
        ServingConfig("serving_default", spec, method_key="predict"),
        ServingConfig("norm", spec, method_key="norm"),
    ]
    ExportManager(module, configurations).save(
        str(out / "model"),
        save_options=tf.saved_model.SaveOptions(experimental_custom_gradients=True),
    )
    image = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
    key = "serving_default"
    result = predict(PARAMS, {"image": image})["scores"]
    np.savez(
        out / "values.npz",
        **{
            f"{key}/input/image": image,
            f"{key}/output/scores": np.asarray(result),
            "norm/input/image": image,
            "norm/output/norm": np.asarray(norm(PARAMS, {"image": image})["norm"]),
        },
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
