"""A module is walked from `main` on: each operation by its rule, calls where they are."""

from __future__ import annotations

import functools
import re
from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bridge.core_ops.stablehlo_operation import GraphTarget, Operation, Rule, read
from bridge.graphs.tensor_graph import TensorGraph
from bridge.graphs.values import Value, constant_array
from xla_call_module.errors import InteropError
from xla_call_module.stablehlo.modules import find_main, functions_of
from xla_call_module.stablehlo.operation_locations import describe_location
from xla_call_module.stablehlo.walking import (
    check_attributes,
    describe_operation,
    find_rule,
    walk_block,
)

_Values = ChainMap[Any, Value]

_NODES_OF_ONE = 100  # that an operation is worth; bits of small floats take about half as many


def walk_main(
    graph: TensorGraph, module: Any, arguments: Sequence[Value], target: GraphTarget
) -> list[Value]:
    """Return the results of the public function of a parsed module, which is added to a graph."""
    walker = _Walker(functions_of(module), target)
    main = find_main(module)
    return walker.walk(ChainMap(), graph, main.regions[0].blocks[0], arguments)


class _Walker:
    """Walks the functions of one module."""

    def __init__(self, functions: Mapping[str, Any], target: GraphTarget) -> None:
        self._functions = functions
        self._target = target
        self._scope = ""

    def walk(
        self, outside: _Values, graph: TensorGraph, block: Any, arguments: Sequence[Value]
    ) -> list[Value]:
        """Return the operands of the last operation of a block, which is added to a graph.

        Its operations see the values `outside` besides those of the block.
        """

        def emit(raw: Any, operands: list[Value], values: _Values) -> Sequence[Value]:
            graph.enter(self._scope_of(raw) or raw.name.rpartition(".")[2])
            graph.allow(_NODES_OF_ONE)
            return self._emit(values, graph, raw, operands)

        before = graph.enter(self._scope)
        results = walk_block(block, arguments, outside, emit, target=self._target.name)
        graph.enter(before)
        return results

    def _emit(
        self, values: _Values, graph: TensorGraph, raw: Any, operands: Sequence[Value]
    ) -> Sequence[Value]:
        if raw.name == "func.call":
            return self._call(graph, raw, str(raw.attributes["callee"]), operands)
        if raw.name == "stablehlo.composite":
            return self._composite(values, graph, raw, operands)
        target = self._target
        rule = find_rule(raw, target.rules, target.custom_calls, target.name)
        check_attributes(raw, rule.attributes)
        return self._apply(rule, values, graph, raw, operands)

    def _composite(
        self, values: _Values, graph: TensorGraph, raw: Any, operands: Sequence[Value]
    ) -> Sequence[Value]:
        rule = self._target.composites.get(_text(raw, "name"))
        if rule is not None and (results := self._apply(rule, values, graph, raw, operands)):
            return results
        return self._call(graph, raw, str(raw.attributes["decomposition"]), operands)

    def _apply(
        self, rule: Rule, values: _Values, graph: TensorGraph, raw: Any, operands: Sequence[Value]
    ) -> Sequence[Value]:
        given = [graph.expand(operand) for operand in operands] if rule.expand else operands
        try:
            walk = functools.partial(self.walk, values)
            op = read(raw, given, walk, values, self._target)
            emitted = _without_elements(op) or rule.emit(graph, op)
        except InteropError as error:
            what, text = describe_operation(raw), str(error)
            if describe_location(raw) in text or text.startswith(what):
                raise
            raise type(error)(f"{what}: {error}") from error
        return [emitted] if isinstance(emitted, Value) else emitted or []

    def _call(
        self, graph: TensorGraph, raw: Any, reference: str, operands: Sequence[Value]
    ) -> list[Value]:
        function = self._functions[reference.strip('@"')]
        before, self._scope = self._scope, self._scope_of(raw) or self._scope
        results = self.walk(ChainMap(), graph, function.regions[0].blocks[0], operands)
        self._scope = before
        return results

    def _scope_of(self, raw: Any) -> str:
        """The names in the source that lead to an operation, such as `mlp/dense/dot_general`.

        What JAX lowers once for several calls has only the last of them.
        """
        location = re.match(r'loc\("([^"]*)"', str(raw.location))
        own = _NESTED.sub(r"\1", location[1]) if location and ":" not in location[1] else ""
        if not own or "/" in own or not self._scope:
            return own or self._scope
        return f"{self._scope}/{own}"


def _without_elements(op: Operation) -> list[Value]:
    """The results of an operation if none of them has any elements; empty if one may have some."""
    shapes = [tuple(dim for dim in result.shape if dim is not None) for result in op.results]
    pairs = list(zip(op.results, shapes, strict=True))
    if any(0 not in shape or len(shape) != len(result.shape) for result, shape in pairs):
        return []
    return [constant_array(np.empty(shape, result.dtype)) for result, shape in pairs]


_NESTED = re.compile(r"p?jit\(([^()]*)\)")


def _text(raw: Any, name: str) -> str:
    return str(raw.attributes[name]).strip('"')
