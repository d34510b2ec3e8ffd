"""Decompositions: operations of StableHLO as other ones, for targets that lack them.

The way of the data: a target lists the `Decomposition`s that it needs. `decomposition.decompose`
looks which of them a call has use for, and `retracing.retrace` walks its module, by the rules of
lifting but for those of the decomposition, and exports it again. So a decomposition is written with
`jax.lax`, every other operation stays as it is, and what comes out is a call for the next one, or
for the target.

decomposition.py        the value, and the passes over a call
retracing.py            a call traced under a table of rules, and exported again
complex_pairs.py        complex numbers as pairs of arrays; complex_functions.py has the formulas
fourier_products.py     Fourier transforms as products of matrices
random_bits.py          the generators of XLA as arithmetic of integers
narrow_types.py         integers of few bits and small floats in wider dtypes
one_device.py           collectives and shardings, which do nothing there
control_flow.py         loops and branches over pairs of arrays

To add a decomposition: where the rule of lifting composes an operation of others already, its name
in `COMPOSED_OPERATIONS`. Otherwise a file with a `Decomposition`, which says what it replaces,
and the rules (`table_with`), which take an operation of lifting or a subclass of it; and its place
in `DECOMPOSITIONS` of each target that needs it (`bridge/onnx/decomposed_call.py`,
`bridge/litert/lowering/call_lowering.py`). One that replaces element types has a `Boundary`, where
arguments and results get another form. `check(function, *arrays, by=[...])` of
`tests/bridge/core_ops/decompositions/decomposing.py` compares what is decomposed with JAX, and says
that nothing of what is replaced is left.
"""

from __future__ import annotations
