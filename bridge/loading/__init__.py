"""From the calls in a file to JAX functions on a mesh: what `bridge.load` is made of."""
