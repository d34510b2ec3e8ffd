"""Graphs of operations on tensors while they are built, whatever format they are written in.

values.py            a value: a constant, sizes, a name in the graph; broadcast as late as possible
tensor_graph.py      `TensorGraph`: names, equal operations once, bodies, sizes as tensors
nodes.py             the functions that rules are written with
layouts.py           transpositions, which are done as late as possible
size_arithmetic.py   integers that are sizes are computed here, not by the model
folding.py           operations of constants are computed here, too

Operations have the names of `folding`, such as Add, Reshape and Gather, and take what they take
there. To have graphs of another format, subclass `TensorGraph` as `bridge.onnx.graph` does: say in
`nodes_of`, `compose` and `_replaced` what its runtime computes otherwise, and write the nodes.
"""
