"""The base of every verb: pytrees, names, keys, backends, progress, gates to JAX and TensorFlow."""
