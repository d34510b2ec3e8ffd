"""Nodes that something depends on."""

from __future__ import annotations

import numpy as np

from bridge.graphs import nodes
from bridge.tf_operations.liveness import free_names, live_nodes, names_used
from bridge.tf_operations.operation_graph import Graph


def _graph():
    outer = Graph()
    x = outer.add_input(outer.unique("x"), np.dtype(np.float32), (2,))
    return Graph(outer=outer), x


def test_what_nobody_uses_is_left_out():
    graph, x = _graph()
    used = nodes.elementwise(graph, "Sin", x)
    nodes.elementwise(graph, "Cos", x)
    assert [node.op_type for node in live_nodes(graph.nodes, [used.name])] == ["Sin"]


def test_bodies_use_what_they_see():
    graph, x = _graph()
    y = nodes.elementwise(graph, "Sin", x)
    (z,) = graph.loop(
        3, [x], lambda body, _, values: [nodes.elementwise(body, "Add", values[0], y)]
    )
    (node,) = [node for node in graph.nodes if node.op_type == "While"]
    assert y.name in list(free_names(node.attributes["body"]))
    assert {x.name, y.name} <= set(names_used(node))
    assert [n.op_type for n in live_nodes(graph.nodes, [z.name])] == ["Sin", "While"]
