"""`python write_bare_graph.py OUT`: a bare XlaCallModule node in a tf.Module, saved.

A symbolic batch, no parameters, no gradients, no description: the op as a program without JAX at
hand would emit it. `OUT/model` and `OUT/values.npz` are as write_jax2tf.py says.

It stands alone; nothing of this project is imported.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax import export


def scale_and_sum(x, y):
    """Two results of two arguments whose sizes depend on each other."""
    return jnp.tanh(x) @ y, jnp.sum(x, axis=0).astype(jnp.int32)


def export_it():
    """The function for two platforms, with symbolic sizes."""
    b, n = export.symbolic_shape("b, n")
    x = jax.ShapeDtypeStruct((b, n), jnp.float32)
    y = jax.ShapeDtypeStruct((n, 2), jnp.float32)
    return export.export(jax.jit(scale_and_sum), platforms=("cpu", "cuda"))(x, y)


def attributes(exported):
    """Those of the op."""
    attr = tf.compat.v1.AttrValue
    values = {name: attr() for name in ("Sout", "platforms", "disabled_checks", "function_list")}
    values["Sout"].list.shape.add().dim.extend(tf.TensorShape([None, 2]).as_proto().dim)
    values["Sout"].list.shape.add().dim.extend(tf.TensorShape([None]).as_proto().dim)
    values["platforms"].list.s.extend(name.upper().encode() for name in exported.platforms)
    values["disabled_checks"].list.SetInParent()
    values["function_list"].list.SetInParent()
    types = {"Tin": [tf.float32, tf.float32], "Tout": [tf.float32, tf.int32]}
    for name, dtypes in types.items():
        values[name] = attr()
        values[name].list.type.extend(dtype.as_datatype_enum for dtype in dtypes)
    return values | {
        "module": attr(s=exported.mlir_module_serialized),
        "version": attr(i=exported.calling_convention_version),
    }


def main(out):
    """Write the model and the values."""
    exported = export_it()

    @tf.function(
        autograph=False,
        input_signature=[
            tf.TensorSpec([None, None], tf.float32, name="x"),
            tf.TensorSpec([None, 2], tf.float32, name="y"),
        ],
    )
    def serve(x, y):
        graph = tf.compat.v1.get_default_graph()
        call = graph.create_op(
            "XlaCallModule", [x, y], [tf.float32, tf.int32], attrs=attributes(exported)
        )
        return {"product": call.outputs[0], "total": call.outputs[1]}

    module = tf.Module()
    module.serve = serve
    tf.saved_model.save(module, str(out / "model"), signatures={"serving_default": serve})
    x = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
    y = np.linspace(1, 2, 8, dtype=np.float32).reshape(4, 2)
    product, total = scale_and_sum(x, y)
    key = "serving_default"
    np.savez(
        out / "values.npz",
        **{
            f"{key}/input/x": x,
            f"{key}/input/y": y,
            f"{key}/output/product": np.asarray(product),
            f"{key}/output/total": np.asarray(total),
        },
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
