"""Batches: the sizes that they may have, how they are padded, and calls for many elements."""
