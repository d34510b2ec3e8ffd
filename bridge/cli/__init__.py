"""The command `jax-tf-bridge`: one module for each of its longer commands."""
