"""A concrete function as operations of the graph that is being built, and its gradient there.

The gradient of a call is a call, too, which takes what the first one has kept. The gradient of a
loop must know the lengths of the lists that it has kept, which XLA does not see across a call. That
of a slice is another one in a graph that is compiled, where the start may be computed.
"""

from __future__ import annotations

import uuid
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from bridge.calling_tf.graph_nodes import (
    CALLS,
    LOOPS,
    functions_called_by,
    operations_of,
    scopes_of,
)
from bridge.core._tf import function_inliner
from xla_call_module._tf import register_function

# What does not depend on the values of its inputs.
_SIZES = frozenset({"Rank", "Shape", "ShapeN", "Size"})


def is_differentiated_inline(concrete: Any) -> bool:
    """Return whether gradients are of operations in their own graph, and these can be put there."""
    if function_inliner() is None:
        return False
    operations = operations_of(concrete)
    return bool(operations & LOOPS) or ("Slice" in operations and _has_computed_starts(concrete))


def _has_computed_starts(concrete: Any) -> bool:
    """Return whether a slice starts where the values of arguments say."""
    for nodes, _ in scopes_of(concrete):
        scope = {node.name: node for node in nodes}
        pending = [node.input[1] for node in nodes if node.op == "Slice"]
        seen = set(pending)
        while pending:
            maker = scope.get(pending.pop().partition(":")[0].removeprefix("^"))
            if maker is None or maker.op == "Placeholder":
                return True
            if maker.op not in _SIZES:
                pending += {*maker.input} - seen
                seen |= {*maker.input}
    return False


def inline(concrete: Any, arguments: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return the results for tensors of the graph that is being built; nothing calls a function."""
    inline = function_inliner()
    assert inline is not None
    own = concrete.function_def
    library = concrete.graph.as_graph_def().library.function
    functions = {function.signature.name: function for function in (*library, own)}
    flat = _Inliner(functions)
    with concrete.graph.as_default():  # which knows the functions
        definition, names = inline(flat.function(own.signature.name))
    flat.add_to_library(definition)
    graph = tf.compat.v1.get_default_graph()
    for variable in concrete.graph.variables:
        graph.watch_variable(variable)
    captured = map(graph.capture, concrete.captured_inputs)
    parameters = [argument.name for argument in own.signature.input_arg]
    given = dict(zip(parameters, [*arguments, *captured], strict=True))
    # XLA refuses a placeholder even where nothing takes it.
    nodes = [node for node in definition.node if node.name not in given]
    del definition.node[:]
    definition.node.extend(nodes)
    used = {name.removesuffix(":0") for node in nodes for name in node.input}
    returned = flat.function(own.signature.name).ret
    results = [names[returned[output.name]] for output in own.signature.output_arg]
    imported = iter(
        tf.graph_util.import_graph_def(
            definition,
            input_map={f"{name}:0": value for name, value in given.items() if name in used},
            return_elements=[name for name in results if name.removesuffix(":0") not in given],
            name="inlined",
        )
    )
    return [
        given[plain] if (plain := name.removesuffix(":0")) in given else next(imported)
        for name in results
    ]


class _Inliner:
    """Functions whose calls of functions are in their bodies."""

    def __init__(self, functions: Mapping[str, Any]) -> None:
        self._functions = functions
        self._flat: dict[str, Any] = {}

    def function(self, name: str) -> Any:
        """Return the definition without calls."""
        if name not in self._flat:
            self._flat[name] = self._inline(self._functions[name])
        return self._flat[name]

    def add_to_library(self, graph: Any) -> None:
        """Give a graph the functions that its loops and branches have, under other names."""
        needed = self._needed(graph.node)
        # TensorFlow keeps what it derives from a function by the name of the function.
        suffix = f"_{uuid.uuid4().hex}"
        for name in needed:
            function = graph.library.function.add()
            function.CopyFrom(self.function(name))
            function.signature.name += suffix
            _rename_functions(function.node_def, needed, suffix)
            # What only another function calls is lost where the graph becomes a function.
            register_function(function)
        _rename_functions(graph.node, needed, suffix)

    def _needed(self, nodes: Iterable[Any]) -> dict[str, None]:
        needed: dict[str, None] = {}
        pending = list(nodes)
        while pending:
            for function in functions_called_by(pending.pop()):
                if function.name in self._functions and function.name not in needed:
                    needed[function.name] = None
                    pending += self.function(function.name).node_def
        return needed

    def _inline(self, function: Any) -> Any:
        flat = type(function)()
        flat.CopyFrom(function)
        del flat.node_def[:]
        renamed: dict[str, str] = {}
        for node in function.node_def:
            if node.op in CALLS and node.attr["f"].func.name in self._functions:
                body = self.function(node.attr["f"].func.name)
                renamed |= _results_of_call(node, body)
                flat.node_def.extend(_body_of_call(node, body))
            else:
                flat.node_def.add().CopyFrom(node)
        for node in flat.node_def:
            node.input[:] = [_follow(name, renamed) for name in _data_inputs(node)]
        for name, result in list(function.ret.items()):
            flat.ret[name] = _follow(result, renamed)
        return flat


def _rename_functions(nodes: Iterable[Any], known: Container[str], suffix: str) -> None:
    for node in nodes:
        for function in functions_called_by(node):
            if function.name in known:
                function.name += suffix


def _names_in_call(node: Any, body: Any) -> dict[str, str]:
    """Return the names outside of a call by the names of the arguments in its body."""
    arguments = (argument.name for argument in body.signature.input_arg)
    return dict(zip(arguments, _data_inputs(node), strict=True))


def _data_inputs(node: Any) -> list[str]:
    """Return the tensors that a node takes, without the nodes that only run before it."""
    return [name for name in node.input if not name.startswith("^")]


def _in_call(node: Any, name: str, arguments: Mapping[str, str]) -> str:
    return arguments.get(name) or f"{node.name}/{name}"


def _results_of_call(node: Any, body: Any) -> dict[str, str]:
    arguments = _names_in_call(node, body)
    return {
        f"{node.name}:output:{index}": _in_call(node, body.ret[result.name], arguments)
        for index, result in enumerate(body.signature.output_arg)
    }


def _body_of_call(node: Any, body: Any) -> Iterator[Any]:
    arguments = _names_in_call(node, body)
    for inner in body.node_def:
        copy = type(inner)()
        copy.CopyFrom(inner)
        copy.name = f"{node.name}/{inner.name}"
        # What has effects is not compiled, so that the order does not matter.
        copy.input[:] = [_in_call(node, name, arguments) for name in _data_inputs(inner)]
        yield copy


def _follow(name: str, renamed: Mapping[str, str]) -> str:
    """Return the name of a value that may be returned by several calls."""
    while name in renamed:
        name = renamed[name]
    return name


def gradient_in_graph(
    targets: Sequence[tf.Tensor],
    sources: Sequence[Any],
    output_gradients: Sequence[tf.Tensor],
) -> list[Any]:
    """Return the gradients by tensors or variables, zeros where nothing depends on them."""
    gradients: list[Any] = tf.gradients(
        list(targets),
        list(sources),
        grad_ys=list(output_gradients),
        unconnected_gradients=tf.UnconnectedGradients.ZERO,
    )
    return gradients
