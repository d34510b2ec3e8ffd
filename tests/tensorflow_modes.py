"""The ways in which TensorFlow runs a function."""

from __future__ import annotations

import tensorflow as tf


def in_mode(mode, folder):
    """Return a decorator that runs a function eagerly, in a graph, compiled, or reloaded."""
    if mode == "eager":
        return lambda function: function
    if mode in ("graph", "jit"):
        return lambda function: tf.function(function, jit_compile=mode == "jit")
    return lambda function: _Reloaded(function, str(folder))


class _Reloaded:
    """A function that TensorFlow saved and loaded, for arguments like those of its first call."""

    def __init__(self, function, folder):
        self._module = tf.Module()
        self._module.run = tf.function(function)
        self._folder = folder
        self._loaded = None

    def __call__(self, *args):
        if self._loaded is None:
            specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, args)
            self._module.run.get_concrete_function(*specs)
            tf.saved_model.save(self._module, self._folder)
            self._loaded = tf.saved_model.load(self._folder)
        return self._loaded.run(*args)


def run_session(folder, key, feeds):
    """Return the outputs of a signature by name, from a session of TensorFlow 1."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        meta_graph = tf.compat.v1.saved_model.load(session, ["serve"], str(folder))
        definition = meta_graph.signature_def[key]
        return session.run(
            {name: info.name for name, info in definition.outputs.items()},
            {definition.inputs[name].name: value for name, value in feeds.items()},
        )
