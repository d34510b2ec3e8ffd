"""The protos of saved_model.pb -> the value of a SavedModel; nothing is run.

`objects` finds the signatures and variables in the object graph, or `graph` in the session graph of
a file that has no other. `dataflow` follows the results of a signature through whatever functions
and identities TensorFlow has put around the calls, up to XlaCallModule nodes, operations and
arguments. `functions` makes a `Signature` of these: `gradients` has the gradients of each call, and
`padding` knows batches that are padded to buckets, and `graph_functions` the graphs of plain
operations that calls run. What is anything else is refused, with its operations.

To read something new, let `dataflow` pass it on or leave it an `Operation`, and make a value of it
in `functions`. Whatever is followed spends from an `Allowance`, since files may be hostile.
"""
