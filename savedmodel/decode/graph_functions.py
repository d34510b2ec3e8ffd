"""FunctionDefs -> the `TensorFlowGraph`s that calls run in the place of their modules.

`savedmodel.encode.graph_functions` writes them. What TensorFlow adds when it saves a function again
is among the attributes; the lines of the source are not in the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from savedmodel.decode.dataflow import find_function
from savedmodel.protos.schema import Proto
from savedmodel.protos.tensor_values import decode_tensor
from savedmodel.tensorflow_graph import (
    STRING,
    VARIANT,
    FunctionName,
    GraphFunction,
    GraphNode,
    GraphTensor,
    TensorFlowGraph,
)
from xla_call_module.allowance import Allowance
from xla_call_module.dtypes import DType, dtype_from_tensorflow
from xla_call_module.errors import FormatError
from xla_call_module.node import INEXACT, called_function, is_for_converters

_OF_TENSORFLOW = {dtype.enum: dtype for dtype in (STRING, VARIANT)}
_PLAIN_FIELDS = ("i", "f", "b")


def read_operations(
    nodes: Sequence[Proto], library: Mapping[str, Proto], allowance: Allowance
) -> tuple[TensorFlowGraph, ...]:
    """Return the graphs of the functions that the nodes of a chain of calls run."""
    if not all(map(called_function, nodes)):
        return ()
    return tuple(_read_graph(node, library, allowance) for node in nodes)


def _read_graph(node: Proto, library: Mapping[str, Proto], allowance: Allowance) -> TensorFlowGraph:
    pending, found = [called_function(node)], dict[str, GraphFunction]()
    while pending:
        if (name := pending.pop(0)) in found:
            continue
        proto = find_function(library, name)
        allowance.spend(1 + len(proto.node_def))
        found[name] = _read_function(proto)
        pending += _callees(found[name])
    main, *functions = found.values()
    exact = INEXACT not in node.attr
    return TensorFlowGraph(main, tuple(functions), is_for_converters(node), exact)


def _callees(function: GraphFunction) -> Iterator[str]:
    for node in function.nodes:
        for value in node.attributes.values():
            listed = value if isinstance(value, list) else [value]
            yield from (one.name for one in listed if isinstance(one, FunctionName))


def _read_function(proto: Proto) -> GraphFunction:
    signature = proto.signature
    arguments = tuple(
        GraphTensor(str(a.name), _dtype(a.type), _argument_shape(proto, index))
        for index, a in enumerate(signature.input_arg)
    )
    return GraphFunction(
        name=str(signature.name),
        arguments=arguments,
        nodes=tuple(map(_read_node, proto.node_def)),
        results=tuple(
            GraphTensor(str(r.name), _dtype(r.type), None, str(proto.ret[r.name]))
            for r in signature.output_arg
        ),
    )


def _argument_shape(proto: Proto, index: int) -> tuple[int | None, ...] | None:
    shapes = proto.attr["_input_shapes"].list.shape if "_input_shapes" in proto.attr else ()
    return _shape(shapes[index]) if index < len(shapes) else None


def _read_node(proto: Proto) -> GraphNode:
    attributes = {str(key): _read_value(proto.attr[key]) for key in sorted(proto.attr)}
    return GraphNode(str(proto.op), str(proto.name), tuple(map(str, proto.input)), attributes)


def _read_value(value: Proto) -> Any:
    match value.WhichOneof("value"):
        case "list":
            return _read_list(value.list)
        case "s":
            return _text(value.s)
        case "type":
            return _dtype(value.type)
        case "func":
            return FunctionName(str(value.func.name))
        case "tensor":
            return decode_tensor(value.tensor)
        case "shape":
            return _shape(value.shape)
        case field if field in _PLAIN_FIELDS:
            return getattr(value, field)
    raise FormatError("A node of the file has an attribute without a value.")


def _read_list(values: Proto) -> list[Any]:
    return [
        *map(_text, values.s),
        *values.i,
        *values.f,
        *values.b,
        *map(_dtype, values.type),
        *map(_shape, values.shape),
        *map(decode_tensor, values.tensor),
        *(FunctionName(str(function.name)) for function in values.func),
    ]


def _dtype(enum: int) -> DType:
    return _OF_TENSORFLOW.get(enum) or dtype_from_tensorflow(enum, where="A node")


def _shape(proto: Proto) -> tuple[int | None, ...] | None:
    if proto.unknown_rank:
        return None
    return tuple(None if dim.size < 0 else int(dim.size) for dim in proto.dim)


def _text(value: bytes) -> str | bytes:
    """Return a text, or bytes that are none, as what the readers of a graph put into it."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
