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
batch_norms.py          batch normalizations as sums
narrow_types.py         integers of few bits and small floats in wider dtypes
one_device.py           collectives and shardings, which do nothing there
control_flow.py         loops and branches over pairs of arrays

To add a decomposition: a file with its rules, which are those of lifting (`bridge.lifting`) or
subclasses of its operation, and a `Decomposition` that says what it replaces; the list of each
target that needs it; and a test that decomposes functions and compares them with JAX
(`tests/bridge/core_ops/decompositions/decomposing.py`).
"""

from __future__ import annotations

__all__ = ()
