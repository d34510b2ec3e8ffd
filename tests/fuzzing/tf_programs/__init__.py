"""Random TensorFlow functions, called in JAX programs: eagerly, compiled, transformed, exported."""
