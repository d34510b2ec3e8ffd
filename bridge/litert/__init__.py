"""Exported functions as LiteRT models (TFLite): `bridge.to_litert` and `bridge.save_litert`.

The way of the data:

    what `bridge.sources` binds: a `BoundCall` for each signature
        │ litert_model.py        lowers each by `lowering/`
        ▼
    bridge.blocks.Block          of operations that LiteRT executes rightly
        │ emitting/              writes them as operators, subgraphs and constants
        ▼
    flatbuffer
        │ quantization.py        if the user asks for it, in a process of its own
        │                        (`worker_process.py`), in which `worker/` works with LiteRT's wheels
        │ runtime.py             run on probes, in that process too, and compared with JAX
        ▼
    conversion.py                a file, which appears whole

`first_difference.py` finds the operation from which on a model differs, and `litert_report.py` says
for `bridge.inspect` what is in a file.
"""

from __future__ import annotations
