"""Rules of LiteRT, a file for each family: what each computes is what JAX computes."""
