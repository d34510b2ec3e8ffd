"""`python write_session_graph.py OUT`: a bare XlaCallModule node in the main graph.

A program of TensorFlow 1 writes it: no functions and no object graph, only a graph for sessions.
`OUT/model` and `OUT/values.npz` are as write_jax2tf.py says, without gradients.

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

SHAPE = (3, 4)


def attributes(exported):
    """Those of the op."""
    names = ("Tin", "Tout", "Sout", "platforms")
    values = {name: tf.compat.v1.AttrValue() for name in names}
    for name in ("Tin", "Tout"):
        values[name].list.type.append(tf.float32.as_datatype_enum)
    values["Sout"].list.shape.append(tf.TensorShape(SHAPE).as_proto())
    values["platforms"].list.s.append(b"CPU")
    return values | {
        "module": tf.compat.v1.AttrValue(s=exported.mlir_module_serialized),
        "version": tf.compat.v1.AttrValue(i=exported.calling_convention_version),
    }


def main(out):
    """Write the model and the values."""
    exported = export.export(jax.jit(jax.lax.erf))(jax.ShapeDtypeStruct(SHAPE, jnp.float32))
    v1 = tf.compat.v1
    with v1.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        x = v1.placeholder(tf.float32, SHAPE, name="x")
        call = graph.create_op("XlaCallModule", [x], [tf.float32], attrs=attributes(exported))
        v1.saved_model.simple_save(session, str(out / "model"), {"x": x}, {"y": call.outputs[0]})
    x = np.linspace(-2, 2, 12, dtype=np.float32).reshape(SHAPE)
    key = "serving_default"
    np.savez(
        out / "values.npz",
        **{f"{key}/input/x": x, f"{key}/output/y": np.asarray(jax.lax.erf(x))},
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
