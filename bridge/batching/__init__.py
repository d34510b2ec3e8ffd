"""Batches: the sizes that they may have, how they are padded, and calls for many elements.

batch_sizes.py   sizes as a user says them
buckets.py       `batch_buckets=` of `save`: refused where a function is not that of its rows
│ row_export.py   the function of rows: `jax.vmap` of that of a batch of one
│ trial.py        the function that was given, compared with it in JAX
batches.py       a loaded signature called for many elements at once (Beam)
"""
