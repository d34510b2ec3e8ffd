"""A TensorFlow function as a JAX function: the parts of `bridge.call_tf`."""
