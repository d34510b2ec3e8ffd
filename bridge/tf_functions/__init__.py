"""A TensorFlow function as a JAX function: what `bridge.call_tf` is made of."""
