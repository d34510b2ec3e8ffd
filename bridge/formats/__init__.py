"""The formats of files that hold functions, each a value of one class, and the list of them.

    a path ── format_registry.format_of ──▶ FileFormat       file_format.py
                  inspect             its report, for `bridge.inspect`
                  open                a `Runnable` (runnable.py), for the command `run`
                  compare             for `bridge.verify`
                  convert, command    the command that writes such files
                  runtime             what calls it, in a process of its own (runtime_calls.py)

The verbs and the command look a format up, and import the room of none. SavedModels are in
`saved_model_format.py`, serialized `Exported`s and StableHLO in `exported_format.py`; another
format is in the room of its target, such as `bridge/onnx/onnx_format.py`.

To add a format, write its `FileFormat` there, and its line in `format_registry.FORMATS`. The
module is imported by every command and by `bridge.inspect`, so what it needs is imported in its
functions.
"""

from __future__ import annotations
