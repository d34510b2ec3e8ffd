"""The ONNX graph in the making: values, sizes, nodes, and its last form as protos."""
