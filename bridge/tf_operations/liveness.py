"""The nodes of a graph that something depends on, and what bodies take from around them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bridge.graphs.tensor_graph import Node, TensorGraph


def live_nodes(nodes: Sequence[Node], results: Sequence[str]) -> list[Node]:
    """Return the nodes that some results depend on, in their order."""
    needed, live = set(results), []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.outputs):
            live.append(node)
            needed.update(names_used(node))
    return live[::-1]


def names_used(node: Node) -> Iterator[str]:
    """Yield the names of all values that a node takes, or that bodies in it take from outside."""
    yield from node.inputs
    for body in node.attributes.values():
        if isinstance(body, TensorGraph):
            yield from free_names(body)


def free_names(body: TensorGraph) -> Iterator[str]:
    """Yield the names of all values that a body takes from the graph around it."""
    results = [result.reference for result in body.results]
    live = live_nodes(body.nodes, results)
    inside = {output for node in live for output in node.outputs}
    inside.update(given.name for given in body.inputs)
    taken = dict.fromkeys(results)
    for node in live:
        taken.update(dict.fromkeys(names_used(node)))
    yield from (name for name in taken if name and name not in inside)
