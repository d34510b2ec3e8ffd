"""A call of StableHLO as a graph of TensorFlow's own operations."""

from __future__ import annotations

from bridge.core_ops.graph_walk import walk_main
from bridge.graphs.values import Value
from bridge.tf_operations.function_writer import FunctionWriter
from bridge.tf_operations.operation_graph import Graph
from bridge.tf_operations.operation_table import TARGET
from savedmodel.tensorflow_graph import TensorFlowGraph
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.dimensions import linear_form, parse_size
from xla_call_module.errors import StructureError
from xla_call_module.size_polynomials import Shape
from xla_call_module.stablehlo.modules import open_module

__all__ = ["lower_call"]


def lower_call(
    call: CallModule, *, shape_assertions: bool = True, name_prefix: str = ""
) -> TensorFlowGraph:
    """Return the computation of a call in TensorFlow's own operations.

    Args:
        call: the call, for one platform.
        shape_assertions: whether it asserts what the export asks of sizes.
        name_prefix: what the names of all functions begin with.

    Raises:
        InteropError: an operation that TensorFlow cannot express; the message names it and its
            place in the source.
    """
    outermost = Graph(asserts_shapes=shape_assertions)
    arguments = [_argument(outermost, call.args[index]) for index in call.kept]
    graph = Graph(outer=outermost)
    with open_module(call.module) as module:
        results = walk_main(graph, module, arguments, TARGET)
    for value in results:
        graph.add_result(value)
    writer = FunctionWriter(f"{name_prefix}{call.name}")
    main = writer.main(graph)
    return TensorFlowGraph(main, tuple(writer.functions))


def _argument(graph: Graph, spec: TensorSpec) -> Value:
    """Return the value of an argument, from whose shape dimension variables follow."""
    name = graph.unique(spec.path)
    value = graph.add_input(name, spec.dtype.numpy, _shape_of(spec))
    for axis, dim in enumerate(spec.shape or ()):
        if isinstance(dim, str) and (form := linear_form(dim)) is not None:
            graph.define(form[0], value, axis, form[1], form[2])
    return value


def _shape_of(spec: TensorSpec) -> Shape:
    if spec.shape is None:
        raise StructureError(
            f"{spec.path} has no known rank, which a graph of operations needs. To do: export it "
            "for a shape with names for its sizes."
        )
    return tuple(map(parse_size, spec.shape))
