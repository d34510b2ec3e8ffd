"""Decompositions: what each leaves of a module, and that it computes what JAX computes."""
