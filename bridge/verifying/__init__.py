"""The comparison of a runtime with JAX: inputs, results of both, differences.

A trial (`trials.py`) has inputs and what JAX computes of them. `reference.py` makes the trials of a
loaded SavedModel, with random cotangents and gradients; `bound_trials.py` those of a call that
becomes a file of another format. Each runtime runs them in a process of its own
(`bridge.core.limited_process`), and `verification.py` compares: `compare` every order of a trial in
TensorFlow, `compare_calls` the outputs that any other runtime returns.

`tensorflow_process.py` runs `tensorflow_run.py` on a file of trials, in a process that cannot
import JAX, perhaps of another environment; with it runs `tensorflow_probes.py`, which asks that
TensorFlow for the known deviations of `xla_call_module.versions`. `comparison.py` has the
tolerances and the text about the worst element. `composed.py` compares what
`bridge.serving.compose` puts around a call, with `composed_run.py`.

To add a kind of input, add it to `bridge.core.probes`; to add a known deviation, list it in
`xla_call_module.versions` and write a function of its name in `tensorflow_probes.py`.
"""
