"""`TensorFlowGraph` -> FunctionDefs, which calls run in the place of a module.

`savedmodel.decode.graph_functions` reads them again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from savedmodel.protos.schema import FunctionDef, Proto
from savedmodel.protos.structures import fill_shape
from savedmodel.protos.tensor_values import fill_tensor
from savedmodel.tensorflow_graph import FunctionName, GraphFunction, GraphNode, TensorFlowGraph
from xla_call_module.dtypes import DType
from xla_call_module.node import NOT_INLINED, NOT_OPTIMIZED

# Operations that run for their effect alone.
_EFFECTS = frozenset({"Assert"})
_STATEFUL = _EFFECTS | {"If", "While"}
_DIGITS = 16


def encode_graph(
    graph: TensorFlowGraph, new_function: Callable[[str], Proto] | None = None
) -> tuple[Proto, ...]:
    """Return the FunctionDefs of a graph; the first is that of its main function.

    Example:
        >>> from savedmodel.encode.graph_functions import encode_graph
        >>> from savedmodel.tensorflow_graph import (
        ...     GraphFunction, GraphNode, GraphTensor, TensorFlowGraph)
        >>> from xla_call_module.dtypes import dtype_from_name
        >>> f32 = dtype_from_name("float32", where="x")
        >>> node = GraphNode("Tanh", "tanh", ("x",), {"T": f32})
        >>> main = GraphFunction("main", (GraphTensor("x", f32, (3,)),), (node,),
        ...                      (GraphTensor("y", f32, (3,), "tanh:y:0"),))
        >>> (function,) = encode_graph(TensorFlowGraph(main))
        >>> function.signature.name, function.ret["y"]
        ('main', 'tanh:y:0')
    """
    functions = (graph.main, *graph.functions)
    protos = [(new_function or _named)(function.name) for function in functions]
    names = {
        function.name: str(proto.signature.name)
        for function, proto in zip(functions, protos, strict=True)
    }
    for function, proto in zip(functions, protos, strict=True):
        _fill_function(proto, function, names)
        if not graph.for_converters:
            proto.attr[NOT_OPTIMIZED].b = True
    if not graph.for_converters:
        protos[0].attr[NOT_INLINED].b = True
    return tuple(protos)


def serialize_graph(graph: TensorFlowGraph) -> tuple[bytes, ...]:
    """Return the FunctionDefs of a graph, with names that only graphs of the same functions have.

    The first is that of the main function.
    """
    plain = b"".join(f.SerializeToString(deterministic=True) for f in encode_graph(graph))
    digest = hashlib.sha256(plain).hexdigest()[:_DIGITS]
    protos = encode_graph(
        graph, lambda name: _named(f"{re.sub('[^A-Za-z0-9_]', '_', name)}_{digest}")
    )
    return tuple(proto.SerializeToString(deterministic=True) for proto in protos)


def _named(name: str) -> Proto:
    proto: Any = FunctionDef()
    proto.signature.name = name
    return proto  # type: ignore[no-any-return]  # it was made as Any to reach its fields


def _fill_function(proto: Proto, function: GraphFunction, names: Mapping[str, str]) -> None:
    for index, argument in enumerate(function.arguments):
        proto.signature.input_arg.add(name=argument.name, type=argument.dtype.enum)
        shapes = proto.arg_attr[index].attr["_output_shapes"].list.shape
        fill_shape(shapes.add(), argument.shape)
        fill_shape(proto.attr["_input_shapes"].list.shape.add(), argument.shape)
    for result in function.results:
        proto.signature.output_arg.add(name=result.name, type=result.dtype.enum)
        proto.ret[result.name] = result.source
    for node in function.nodes:
        _fill_node(proto.node_def.add(name=node.name, op=node.op, input=node.inputs), node, names)
        if node.op in _STATEFUL:
            proto.signature.is_stateful = True
        if node.op in _EFFECTS:
            proto.signature.control_output.append(node.name)
            proto.control_ret[node.name] = node.name


def _fill_node(proto: Proto, node: GraphNode, names: Mapping[str, str]) -> None:
    for key, value in node.attributes.items():
        attribute = proto.attr[key]
        if isinstance(value, list):
            attribute.list.SetInParent()
            for element in value:
                _fill_element(attribute.list, element, names)
        else:
            _fill_value(attribute, value, names)


def _fill_value(attribute: Proto, value: Any, names: Mapping[str, str]) -> None:
    match value:
        case DType():
            attribute.type = value.enum
        case FunctionName(name):
            attribute.func.name = names.get(name, name)
        case np.ndarray():
            fill_tensor(attribute.tensor, value)
        case None | tuple():
            fill_shape(attribute.shape, value)
        case _:
            field, plain = _plain(value)
            setattr(attribute, field, plain)


def _fill_element(values: Proto, value: Any, names: Mapping[str, str]) -> None:
    match value:
        case DType():
            values.type.append(value.enum)
        case FunctionName(name):
            values.func.add(name=names.get(name, name))
        case np.ndarray():
            fill_tensor(values.tensor.add(), value)
        case None | tuple():
            fill_shape(values.shape.add(), value)
        case _:
            field, plain = _plain(value)
            getattr(values, field).append(plain)


def _plain(value: Any) -> tuple[str, Any]:
    """Return the field of an AttrValue for a number, flag or text, and the value in it."""
    match value:
        case bool():
            return "b", value
        case int():
            return "i", value
        case float():
            return "f", value
        case str():
            return "s", value.encode()
        case bytes():
            return "s", value
    raise TypeError(f"{type(value).__name__} is not an attribute of a node.")
