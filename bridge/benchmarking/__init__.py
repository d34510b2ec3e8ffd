"""A file run by every runtime at hand, side by side: `jax-tf-bridge benchmark`.

`benchmark.py` makes of a SavedModel or an artifact what each runtime takes, draws inputs, and has
`runtime_calls.py` call the file in a process for each runtime, on one core: so that the memory of
one is not that of another, and the death of one ends no other. JAX's results are what the others
are compared with. `benchmark_report.py` is the table, as text, JSON and SVG.

To add a runtime, write a function of its name in `runtime_calls.CALLS`, and how a file for it is
made in `benchmark._FILES`.
"""
