"""The comparison of TensorFlow with JAX for `verify`: inputs, results of both, differences.

`reference.py` makes the trials of a loaded SavedModel (`trials.py`): inputs of every kind, random
cotangents, and what JAX computes of them. `tensorflow_process.py` runs `tensorflow_run.py` on a
file of trials, in a process that cannot import JAX, perhaps of another environment; with it runs
`tensorflow_probes.py`, which asks that TensorFlow for the known deviations of
`xla_call_module.versions`. `verification.py` compares the results by `comparison.py`, and makes a
row for each order of each trial. `composed.py` does the same for what `bridge.serving.compose` puts
around a call, with `composed_run.py`.

To add a kind of input, add it to `bridge.core.probes`; to add a known deviation, list it in
`xla_call_module.versions` and write a function of its name in `tensorflow_probes.py`.
"""
