"""The comparison of gradients for `bridge.testing`: the same orders in JAX and in TensorFlow.

`gradient_check.py` makes a problem of a function and its arguments, with random cotangents, and
compares both sides. `pullbacks.py` computes gradients of gradients in each framework, and
`modes.py` has the ways in which TensorFlow runs the function: eagerly, in graphs, compiled, and
from files.

To add a mode, name it in `bridge.testing`, and prepare the function for it in `TensorFlowModes`.
"""
