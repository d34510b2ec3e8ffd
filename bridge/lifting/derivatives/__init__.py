"""Functions that have a derivative of their own, which their operations do not say.

`composed_functions.py` has the list of them, and calls each in place of its operations where
`own_lowerings.py` finds these: what this JAX lowers the function to. Rules of single operations
that have the derivative of another function get it by `custom_derivatives.py`.

To add a function, list it in `composed_functions.py`, with the dtypes and the number of its
arguments; `tests/bridge/lifting/derivatives/` compares all of them with JAX, at their edges too.
"""

from __future__ import annotations
