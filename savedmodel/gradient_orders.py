"""The orders of the gradient functions in a graph, of any writer, and a graph with fewer of them.

A gradient function is what the attribute `_gradient_op_type` of a node leads to
(tensorflow/python/saved_model/function_deserialization.py, `load_function_def_library`); a function
that only gradients of order k call is of that order, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from savedmodel.protos.schema import Proto

OP_TYPE = "_gradient_op_type"
# The name of a gradient that the file does not have, which no process has, either.
ABSENT_GRADIENT = b"CustomGradient-not-in-this-file"
_REFUSAL = (
    "the file was retargeted with gradient_order={most}, and has no gradients of higher orders. To "
    "do: retarget it with a higher gradient_order."
)
_PLAIN_OBJECT = "_generic_user_object"


def order_of_functions(meta_graph: Proto) -> dict[str, int]:
    """Return the least order of each function: 0 where something besides a gradient calls it."""
    library = meta_graph.graph_def.library
    gradients = {g.registered_op_type: g.gradient_func for g in library.registered_gradients}
    bodies = {function.signature.name: function.node_def for function in library.function}
    below = {name: _references(nodes, bodies, gradients) for name, nodes in bodies.items()}
    called, differentiated = _references(meta_graph.graph_def.node, bodies, gradients)
    orders: dict[str, int] = {}
    own = {*called, *_listed_functions(meta_graph)}
    _spread(orders, own, below, 0)
    _spread(orders, differentiated, below, 1)
    # What nothing refers to is a function that a loader offers, or a gradient that waits for one.
    registered = {*gradients.values()}
    _spread(orders, bodies.keys() - orders.keys() - _reached(registered, below), below, 0)
    _spread(orders, registered & bodies.keys() - orders.keys(), below, 1)
    return {name: order for name, order in orders.items() if name in bodies}


def called_functions(nodes: Sequence[Proto], known: Mapping[str, object]) -> set[str]:
    """Return those of the known functions that nodes call, without gradients."""
    return _references(nodes, known, {})[0]


def drop_functions(library: Proto, names: Collection[str]) -> None:
    """Take functions out of a library, and those that they call, as far as no other calls them."""
    bodies = {function.signature.name: function.node_def for function in library.function}
    below = {name: called_functions(nodes, bodies) for name, nodes in bodies.items()}
    gone, pending = set[str](), [*names]
    while pending:
        name = pending.pop()
        callers = {caller for caller, called in below.items() if name in called}
        if name not in gone and name in below and callers <= gone:
            gone.add(name)
            pending += below[name]
    _keep(library.function, lambda function: function.signature.name not in gone)


def drop_gradients(meta_graph: Proto, most: int) -> None:
    """Take the gradients of higher orders out of a graph, with the functions that only they call.

    TensorFlow refuses to differentiate what had one of them, with a LookupError that says why.
    """
    orders = order_of_functions(meta_graph)
    gone = {name for name, order in orders.items() if order > most}
    library = meta_graph.graph_def.library
    types = {g.registered_op_type for g in library.registered_gradients if g.gradient_func in gone}
    _keep(library.registered_gradients, lambda g: g.gradient_func not in gone)
    _keep(library.gradient, lambda g: not {g.function_name, g.gradient_func} & gone)
    _keep(library.function, lambda function: function.signature.name not in gone)
    _prevent_gradients(meta_graph.graph_def.node, types, most, output="")
    for function in library.function:
        _prevent_gradients(function.node_def, types, most, output=":output:0")
    objects = meta_graph.object_graph_def
    for name in gone & {*objects.concrete_functions}:
        del objects.concrete_functions[name]
    for node in objects.nodes:
        # Nobody captures it any more; nodes have numbers, so that one stays in its place.
        if node.HasField("captured_tensor") and node.captured_tensor.concrete_function in gone:
            node.ClearField("captured_tensor")
            node.user_object.identifier = _PLAIN_OBJECT
            node.user_object.version.producer = node.user_object.version.min_consumer = 1


def _prevent_gradients(nodes: Any, types: set[str], most: int, *, output: str) -> None:
    """Let what had a gradient of one of these types pass a PreventGradient instead."""
    for node in [n for n in nodes if OP_TYPE in n.attr and _text(n.attr[OP_TYPE].s) in types]:
        del node.attr[OP_TYPE]
        for index, dtype in enumerate(node.attr["T"].list.type):
            barrier = nodes.add(name=f"{node.name}_without_gradient_{index}", op="PreventGradient")
            barrier.input.append(node.input[index])
            barrier.attr["T"].type = dtype
            barrier.attr["message"].s = _REFUSAL.format(most=most).encode()
            node.input[index] = f"{barrier.name}{output}"


def _keep(messages: Any, wanted: Callable[[Any], bool]) -> None:
    """Remove the other messages of a repeated field."""
    for index in reversed(range(len(messages))):
        if not wanted(messages[index]):
            del messages[index]


def _spread(
    orders: dict[str, int],
    names: set[str],
    below: Mapping[str, tuple[set[str], set[str]]],
    order: int,
) -> None:
    """Give functions, and those that they call, their order; and their gradients the next."""
    pending = deque((name, order) for name in sorted(names))
    while pending:
        name, order = pending.popleft()
        if name not in below or orders.get(name, order + 1) <= order:
            continue
        orders[name] = order
        called, differentiated = below[name]
        pending.extendleft((callee, order) for callee in called)
        pending.extend((gradient, order + 1) for gradient in differentiated)


def _reached(names: set[str], below: Mapping[str, tuple[set[str], set[str]]]) -> set[str]:
    orders: dict[str, int] = {}
    _spread(orders, names, below, 0)
    return {*orders}


def _references(
    nodes: Sequence[Proto], known: Mapping[str, object], gradients: Mapping[str, str]
) -> tuple[set[str], set[str]]:
    """Return the functions that nodes call, by an attribute or as their op, and their gradients."""
    called, differentiated = set(), set()
    for node in nodes:
        if node.op in known:
            called.add(str(node.op))
        for name, value in node.attr.items():
            if name == OP_TYPE:
                differentiated.add(gradients.get(_text(value.s), ""))
            elif value.HasField("func"):
                called.add(str(value.func.name))
            elif value.HasField("list"):
                called.update(str(function.name) for function in value.list.func)
    return called & known.keys(), differentiated & known.keys()


def _listed_functions(meta_graph: Proto) -> Iterator[str]:
    """Yield the functions that the object graph offers to whoever loads the file."""
    for node in meta_graph.object_graph_def.nodes:
        yield from node.function.concrete_functions
        if node.HasField("bare_concrete_function"):
            yield node.bare_concrete_function.concrete_function_name


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")
