"""A file run by every runtime at hand, side by side: `jax-tf-bridge benchmark`.

`benchmark.py` has each format (`bridge.formats`) make a file of a SavedModel or an artifact, draws
inputs, and has `bridge.formats.runtime_calls` call the file in a process for each runtime, on one
core: so that the memory of one is not that of another, and the death of one ends no other. JAX's
results are what the others are compared with. `benchmark_report.py` is the table, as text, JSON and
SVG.

A runtime is that of a format; to add one, write its `Runtime` where the format is.
"""
