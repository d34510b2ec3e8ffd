"""The XlaCallModule op in a live TensorFlow.

1. `op.Op` takes a call that passes have made for the imported release, and runs it eagerly or adds
   it to a graph, with the platforms and checks that TensorFlow has in force.
   `function_op.FunctionOp` does so with a function of TensorFlow's own operations in its place.
2. `shape_guard.ShapeGuard` asserts beside it what the module says of its dimension variables, so
   that wrong sizes are refused by name and not by a message of MLIR.
3. `tensorflow_errors` has the errors that are TensorFlow's and this project's at once.

Private names of TensorFlow are in `xla_call_module/_tf.py`, as gates; those that tell from the text
of an error of the kernel that there is a better one are there, too.

To add an attribute of the op, add it to `Op.__init__` for eager calls, and to `node.encode_node`
and `node.decode_node` for graphs and files.
"""
