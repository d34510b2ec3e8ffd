"""Calls of StableHLO as graphs of TensorFlow's own operations, made without TensorFlow.

The way of the data:

    a `CallModule` of any order
        │
        ▼
    lowering.py            chooses a platform, replaces calls of LAPACK that have no kernel
        │
        ▼
    bridge.core_ops        each operation by its rule in operation_table.py
        │                        │ rules: elementwise.py bits.py reductions.py sorting.py loops.py
        │                        │ convolutions.py fourier.py linear_algebra.py, and shared ones
        ▼                        ▼
    operation_graph.py     dtypes without kernels (signatures.py)
        │
        ▼
    function_writer.py ──▶ `savedmodel.tensorflow_graph.TensorFlowGraph`

A graph names operations as `bridge.graphs` does; `signatures.py` has TensorFlow's name of each,
its inputs and outputs, and the dtypes of which it has kernels. What is several operations of
TensorFlow, or takes what a graph has as an attribute, is in the table at the end of
`function_writer.py`.

To add an operation: its line in `signatures.py`, if it is new, with the dtypes of its CPU kernels
in TensorFlow 2.14, and its name in `BROADCASTING` there if it broadcasts; a rule in the file of its
family; a line in `tests/operations/cases/`, which runs over dtypes and edge values; and one in
`CHANGELOG.md`.
"""

from __future__ import annotations
