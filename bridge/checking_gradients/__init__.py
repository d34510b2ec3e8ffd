"""Values and gradients of a function in every mode of TensorFlow, against those of JAX."""
