"""Rules that lower the operations of a module to those that LiteRT executes rightly.

The way of the data: `call_lowering.py` decomposes what LiteRT lacks altogether, such as complex
numbers (`bridge.core_ops.decompositions`), and retraces the call by the rules in
`lowering_table.py`. They are in the `*_lowerings.py`, a file for each family. What comes out is a
`bridge.blocks.Block`, which `bridge.litert.emitting` writes.

The walk over a module, and all rules that are not of LiteRT, are those of `bridge.lifting`: a
`LiftingTable` says which rules are taken. A rule takes a `LoweredOperation`, whose operands have
their storage dtypes (`storage_dtypes.py`): integers are int32, and small floats float32. It
computes its result by functions of JAX whose operations LiteRT has kernels for.

To add an operation: a function `_name(op)` in the file of its family, and its place in the `RULES`
there, and of the family in `lowering_table.py`, where `moved` has results that are computed rounded
to the dtype of the module. What LiteRT cannot express exactly:
`op.refuse("reason", "what to do instead")`. `python -m tests.operations NAME --target LiteRT` says
whether JAX and LiteRT agree.
"""

from __future__ import annotations
