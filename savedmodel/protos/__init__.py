"""The messages of the format, in a private descriptor pool, and bounds for parsing them.

`schema` declares the messages, `structures` has nested structures of tensors, `tensor_values`
arrays as TensorProtos, and `wire_format` refuses, before it is parsed, a message that would fill
the memory.

To add a message, add its paragraph to `schema`, and where code makes one its class at the end;
`tests/savedmodel/protos/test_schema.py` compares it with the one that TensorFlow ships.
"""
