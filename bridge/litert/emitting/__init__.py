"""Blocks of operations that LiteRT executes become its flatbuffer.

    `Block` ──`block_emitter`──▶ operators of a `Subgraph` ──`flatbuffer_file`──▶ bytes
                  │
      a function for each operation: `element_`, `shape_`, `index_`, `product_operators`, `loops`

Subgraphs see nothing but their inputs: what the body of a loop or a branch uses of the graphs
around it, it gets as inputs more.
"""
