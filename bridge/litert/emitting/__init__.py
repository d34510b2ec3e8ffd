"""Blocks of operations that LiteRT executes become its flatbuffer.

    `Block` ──`block_emitter`──▶ operators of a `Subgraph` ──`flatbuffer_file`──▶ bytes
                  │
      a function for each operation: `element_`, `shape_`, `index_`, `product_operators`, `loops`

To add an operation: a function in the file of its family, and its place in `EMITTERS` there. One of
each element is a line in `_KERNELS` of `element_operators.py`, with the dtypes that its kernel has;
`_NEVER_BROADCAST` names the kernels whose operands are broadcast before. Several operations that
are one operator are found by a rule in `fusions.py`.

Subgraphs see nothing but their inputs: what the body of a loop or a branch uses of the graphs
around it, it gets as inputs more.
"""
