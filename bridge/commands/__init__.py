"""The longer commands of `jax-tf-bridge`, one module each; `bridge.cli` has the table of all."""
