"""Exported functions as LiteRT models (TFLite): `bridge.to_litert` and `bridge.save_litert`.

The way of the data:

    what `bridge.sources` binds: a `BoundCall` for each signature
        │ call_lowering.py    its module is walked, each operation by its rule in lowering_table.py
        │    *_lowerings.py   rules, a file for each family: operations that LiteRT executes rightly
        ▼
    jax.export.Exported       of these operations alone
        │ converter.py        in a process of its own: worker.py, module_conversion.py and what
        ▼                     these import convert it by the package litert-converter
    flatbuffer
        │ model_verification.py  run on probes by runtime.py, in that process too, against JAX
        ▼
    conversion.py             a file, which appears whole

The walk over a module, and all rules that are not of LiteRT, are those of `bridge.lifting`: a
`LiftingTable` says which rules are taken. A rule takes a `LoweredOperation`, whose operands have
their storage dtypes (`storage_dtypes.py`): integers are int32, small floats float32, and complex
numbers pairs (`ComplexParts`). It computes its result by functions of JAX whose operations LiteRT
has kernels for.

To add an operation: a function `_name(op)` in the file of its family, and its place in the `RULES`
there; `kept(rule)` where elements are only moved, so that complex numbers are, too, and
`moved(rule)` where results are computed, which rounds them to the dtype of the module. What LiteRT
cannot express exactly: `op.refuse("reason", "what to do instead")`. `check(function, *arrays)` of
`tests/bridge/litert/checking.py` says that JAX and LiteRT agree.
"""

from __future__ import annotations

__all__ = ()
