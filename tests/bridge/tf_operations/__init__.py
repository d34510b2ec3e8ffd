"""Tests of `bridge.tf_operations`: TensorFlow runs what was lowered, and JAX says what is right."""
