"""Batches: the sizes that they may have, how they are padded, and calls for many elements.

batch_sizes.py   sizes as a user says them
buckets.py       `batch_buckets=` of `save`: refused where padding changes results
│ rowwise/   the proof from the operations of the module that no row depends on others
│ trial.py   the same tried in JAX, with rows added
batches.py       a loaded signature called for many elements at once (Beam)
"""
