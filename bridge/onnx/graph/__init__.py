"""The ONNX graph while it is built, and what is known of ONNX Runtime.

stablehlo_operation.py   an operation, its regions and results, as its rule sees them
values.py                a value: a constant, sizes, a name in the graph
nodes.py                 the functions that rules are written with
layouts.py               transpositions, which are done as late as possible
size_arithmetic.py       integers that are sizes are computed here, not by the model
graph_builder.py         `Graph`: names, equal operations, sizes as tensors
folding.py               operations of constants are computed here, too
kernels.py               the dtype in which each operation is computed
onnx_runtime.py          the record of ONNX Runtime: its kernels and its deviations
protos.py                the finished graph is pruned, rewritten and written as a message
"""
