"""A model as one call, bound to its parameters: the source of formats that are one call each.

The way of the data:

    bridge/exporting/source.py   `Source`: its call, with the names and variables of the source
        │
        ▼
    bound_call.py                `BoundCall`: one call, for one platform, with names and parameters
        │
        ▼
    bridge/onnx, bridge/litert

`target_file.py` says where such a model may be written. What a format takes is a `ModelFormat`: the
custom calls that it has rules for, and what its models are called in messages. To add a format,
make one of these where its rules are, and call `bind_source` with it.
"""

from __future__ import annotations
