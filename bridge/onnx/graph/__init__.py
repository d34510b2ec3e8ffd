"""The graph of ONNX while it is built, and the record of ONNX Runtime.

graph_builder.py         `Graph`: that of `bridge.graphs`, with opsets, kernels and deviations
loop_nodes.py            ONNX's Loop, as rules write it
wide_integers.py         the extremes of int64, of which ONNX Runtime compares the low halves
kernels.py               the dtype in which each operation is computed
onnx_runtime.py          the record of ONNX Runtime: its kernels and its deviations
protos.py                the finished graph is pruned, rewritten and written as a message
"""
