"""A graph of TensorFlow's operations as a function that TensorFlow runs, under Grappler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from savedmodel.tensorflow_graph import FunctionName, GraphFunction, TensorFlowGraph
from xla_call_module.dtypes import DType

__all__ = ["function_of"]


def function_of(graph: TensorFlowGraph) -> Callable[..., list[Any]]:
    """Return the function of a graph, of NumPy arrays."""
    definition = tf.compat.v1.GraphDef()
    definition.versions.producer = 1882
    definition.versions.min_consumer = 12
    for function in (*graph.functions, graph.main):
        definition.library.function.append(_function_def(function))
    main = graph.main
    for number, argument in enumerate(main.arguments):
        node = definition.node.add(name=f"argument_{number}", op="Placeholder")
        node.attr["dtype"].type = argument.dtype.enum
        _set_shape(node.attr["shape"].shape, argument.shape)
    call = definition.node.add(name="call", op="StatefulPartitionedCall")
    call.input.extend(f"argument_{number}" for number in range(len(main.arguments)))
    call.attr["Tin"].list.type.extend(argument.dtype.enum for argument in main.arguments)
    call.attr["Tout"].list.type.extend(result.dtype.enum for result in main.results)
    call.attr["f"].func.name = main.name
    wrapped = tf.compat.v1.wrap_function(
        lambda: tf.graph_util.import_graph_def(definition, name=""), []
    )
    inputs = [wrapped.graph.as_graph_element(f"argument_{n}:0") for n in range(len(main.arguments))]
    outputs = [wrapped.graph.as_graph_element(f"call:{n}") for n in range(len(main.results))]
    pruned = wrapped.prune(inputs, outputs)

    def run(*arrays: Any) -> list[Any]:
        pairs = zip(arrays, main.arguments, strict=True)
        tensors = [tf.constant(np.asarray(array), argument.dtype.enum) for array, argument in pairs]
        return [each.numpy() for each in pruned(*tensors)]

    return run


def _set_shape(proto: Any, shape: Sequence[int | None] | None) -> None:
    if shape is None:
        proto.unknown_rank = True
        return
    proto.SetInParent()
    for dim in shape:
        proto.dim.add(size=-1 if dim is None else dim)


def _function_def(function: GraphFunction) -> Any:
    proto = tf.compat.v1.GraphDef().library.function.add()
    proto.signature.name = function.name
    for argument in function.arguments:
        proto.signature.input_arg.add(name=argument.name, type=argument.dtype.enum)
    for result in function.results:
        proto.signature.output_arg.add(name=result.name, type=result.dtype.enum)
        proto.ret[result.name] = result.source
    for number, argument in enumerate(function.arguments):
        _set_shape(_output_shapes(proto.arg_attr[number]), argument.shape)
    for node in function.nodes:
        made = proto.node_def.add(name=node.name, op=node.op)
        made.input.extend(node.inputs)
        for key, value in node.attributes.items():
            _set_attribute(made.attr[key], value)
    return proto


def _output_shapes(attributes: Any) -> Any:
    return attributes.attr["_output_shapes"].list.shape.add()


def _set_attribute(proto: Any, value: Any) -> None:
    match value:
        case bool():
            proto.b = value
        case int() | np.integer():
            proto.i = int(value)
        case float():
            proto.f = value
        case str():
            proto.s = value.encode()
        case DType():
            proto.type = value.enum
        case FunctionName():
            proto.func.name = value.name
        case np.ndarray():
            dtype = tf.string if value.dtype == object else tf.as_dtype(value.dtype)
            proto.tensor.CopyFrom(tf.make_tensor_proto(value, dtype, value.shape))
        case tuple() | None:
            _set_shape(proto.shape, value)
        case list():
            _set_list(proto.list, value)
        case _:
            raise TypeError(f"{value!r} is no attribute")


def _set_list(proto: Any, values: Sequence[Any]) -> None:
    proto.SetInParent()
    for value in values:
        match value:
            case DType():
                proto.type.append(value.enum)
            case int():
                proto.i.append(value)
            case _:
                _set_shape(proto.shape.add(), value)
