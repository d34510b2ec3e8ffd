"""Whether TensorFlow computes what JAX does: inputs, both results, their comparison."""
