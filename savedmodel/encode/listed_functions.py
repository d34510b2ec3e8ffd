"""The types of functions in the object graph, without which TensorFlow loads them without results.

So it does where it maps calls of them over a dimension, in `tape.jacobian` and `tf.vectorized_map`
(`_convert_function_call` in tensorflow/python/ops/parallel_for/pfor.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from savedmodel.protos.schema import Proto, StructuredValue
from savedmodel.protos.structures import Leaf, as_dict, as_tuple, encode_structure


def list_functions(meta_graph: Proto) -> None:
    """Let the object graph have the types of each function that is there, and of no other."""
    if not meta_graph.HasField("object_graph_def"):
        return
    listed = meta_graph.object_graph_def.concrete_functions
    signatures = {str(f.signature.name): f.signature for f in meta_graph.graph_def.library.function}
    for name in [name for name in listed if name not in signatures]:
        del listed[name]
    for name, signature in signatures.items():
        arguments, results = signature.input_arg, signature.output_arg
        if name not in listed and all(one.type for one in (*arguments, *results)):
            listed[name].canonicalized_input_signature.CopyFrom(_encode(arguments, are_given=True))
            listed[name].output_signature.CopyFrom(_encode(results))


def _encode(tensors: Sequence[Proto], *, are_given: bool = False) -> Proto:
    """Return the StructuredValue of a flat tuple; of what is given, with no keywords."""
    flat = as_tuple([*map(Leaf, range(len(tensors)))])
    structure = as_tuple([flat, as_dict({})]) if are_given else flat
    return encode_structure(structure, lambda index: _tensor(tensors[index].type))


def _tensor(dtype: int) -> Proto:
    value = StructuredValue()
    value.tensor_spec_value.dtype = dtype
    value.tensor_spec_value.shape.unknown_rank = True
    return value
