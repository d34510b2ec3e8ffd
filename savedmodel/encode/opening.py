"""A graph for what reads it and does not run it: without nodes that refuse, lock or compile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from savedmodel.encode.mutexes import to_open
from savedmodel.gradient_orders import drop_functions
from savedmodel.protos.schema import Proto
from xla_call_module.node import is_call

_REFUSING = {"EnsureShape": "shape", "PreventGradient": "message"}
_CALLED = ("f", "then_branch", "else_branch")


def open_graph(graph: Proto) -> None:
    """Take the nodes out of a GraphDef that compare shapes, refuse gradients or lock variables."""
    to_open(graph)
    functions = graph.library.function
    asserting = {f.signature.name for f in functions if any(map(_only_asserts, f.node_def))}
    gone: set[str] = set()
    for owner in (graph, *functions):
        nodes = owner.node if owner is graph else owner.node_def
        for node in nodes:
            if node.op in _REFUSING:
                del node.attr[_REFUSING[node.op]]
                node.op = "Identity"
        checks = {
            str(node.name): {*_called(node)}
            for node in nodes
            if _only_asserts(node) or not asserting.isdisjoint(_called(node))
        }
        gone = gone.union(*checks.values())
        _drop(owner, nodes, {*checks})
    drop_functions(graph.library, gone)


def _only_asserts(node: Proto) -> bool:
    """Return whether a node calls a module that returns nothing."""
    return is_call(node) and not _returns(node)


def _called(node: Proto) -> Iterator[str]:
    """Yield the functions that a node calls which returns nothing."""
    if not _returns(node):
        yield from (str(node.attr[key].func.name) for key in _CALLED if key in node.attr)


def _returns(node: Proto) -> bool:
    return "Tout" in node.attr and bool(node.attr["Tout"].list.type)


def _drop(owner: Proto, nodes: Any, names: set[str]) -> None:
    """Remove nodes, for which others only wait, and what nobody else takes."""
    if not names:
        return
    taken = {
        source.partition(":")[0] for node in nodes if node.name in names for source in node.input
    }
    for index in reversed(range(len(nodes))):
        if nodes[index].name in names:
            del nodes[index]
    for node in nodes:
        kept = [source for source in node.input if source.removeprefix("^") not in names]
        del node.input[:]
        node.input.extend(kept)
    used = {source.partition(":")[0].removeprefix("^") for node in nodes for source in node.input}
    if owner.DESCRIPTOR.name == "FunctionDef":
        for key in [key for key, node in owner.control_ret.items() if node in names]:
            del owner.control_ret[key]
            owner.signature.control_output.remove(key)
        used |= {source.partition(":")[0] for source in owner.ret.values()}
        used |= {*owner.control_ret.values()}
    _drop(owner, nodes, taken & {str(node.name) for node in nodes} - used)
