"""The rules of ONNX that targets do not share, a file for each family of operations."""
