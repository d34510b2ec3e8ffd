"""Loops over the rows of arrays, which are ONNX's Scan.

A Scan is handed one row of each array in each round, so that nothing has to be looked up in it, and
its runtime puts the rows of a result where they belong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bridge.core.size_polynomials import Dim, Iteration, Shape, lower_bound, of_atom
from bridge.onnx.graph import nodes
from bridge.onnx.graph.graph_builder import Graph, Node, Row
from bridge.onnx.graph.values import Value

__all__ = ["Scan", "needed"]


@dataclass(frozen=True, slots=True)
class Scan:
    """A loop that may become a Scan.

    Attributes:
        graph: the graph that the operations are added to.
        body: the body of the loop, whose first inputs are the iteration number and condition.
        rounds: the number of iterations; 0 where it is not known.
    """

    graph: Graph
    body: Graph
    rounds: Dim

    def pays(self, *, has_rows: bool) -> bool:
        """Return whether a Scan is possible and has rows that it reads or writes.

        ONNX's reference evaluator has none without a round.
        """
        return (lower_bound(self.rounds) or 0) > 0 and (has_rows or bool(self._read()))

    def finish(
        self,
        inits: Sequence[Value],
        results: Sequence[Value],
        kinds: Sequence[tuple[Shape, np.dtype[Any]]],
    ) -> list[Value]:
        """The results of the Scan.

        Args:
            inits: the carried values before the first iteration.
            results: the results of the body: the carried values, and then rows.
            kinds: the shapes and dtypes of the results.
        """
        body, read = self.body, self._read()
        for value in results:
            body.add_result(value)
        products = self._products(read)
        number = body.inputs[0]
        body.inputs[:] = body.inputs[2:]
        body.nodes[:] = [n for n in body.nodes if n.outputs[0] not in {*read, *products}]
        used = needed(body, [result.reference for result in body.results])
        given = {name: self._in_order(row, number.name) for name, row in read.items()}
        arrays = [array for name, array in given.items() if name in used]
        names = [name for name in read if name in used]
        for name, (row, weight) in products.items():
            shape = (*given[row].shape[:-1], weight.shape[1])
            arrays.append(self.graph.node("MatMul", [given[row], weight], shape=shape))
            names.append(name)
        for name, array in zip(names, arrays, strict=True):
            body.add_input(name, array.dtype, array.shape[1:])
        if not arrays or number.name in used:
            arrays.append(nodes.count_up(self.graph, self.rounds))
            body.inputs.append(number)
        return self.graph.nodes_of(
            "Scan", [*inits, *arrays], kinds, body=body, num_scan_inputs=len(arrays)
        )

    def _in_order(self, row: Row, number: str) -> Value:
        """The array that a row is read of, from the one that is read first on."""
        is_forwards = row.index == self._done(number)
        return row.array if is_forwards else nodes.reverse(self.graph, row.array, [0])

    def _products(self, read: Mapping[str, Row]) -> dict[str, tuple[str, Value]]:
        """Return the products of rows with a matrix from outside, which are one MatMul."""
        inside = self._inside()
        products = {}
        for node in self.body.nodes:
            if node.op_type != "MatMul" or node.inputs[0] not in read or node.inputs[1] in inside:
                continue
            name, row = node.inputs[1], read[node.inputs[0]]
            array = self.body.initializers.get(name)
            shape = self.body.shape_of(name) if array is None else array.shape
            if shape is not None and len(shape) == 2 and row.array.rank > 1:
                weight = Value(row.array.dtype, shape, shape, name)
                products[node.outputs[0]] = (node.inputs[0], weight)
        return products

    def _inside(self) -> set[str]:
        """The names of what there is in the body only."""
        made = {name for node in self.body.nodes for name in node.outputs}
        return made | {given.name for given in self.body.inputs}

    def _read(self) -> dict[str, Row]:
        """Return the rows that are read of arrays outside of the loop, by the names of the rows."""
        body, inside = self.body, self._inside()
        done = self._done(body.inputs[0].name)
        return {
            node.outputs[0]: row
            for node in body.nodes
            if (row := body.rows.get(node.outputs[0])) is not None
            and node.inputs[0] not in inside
            and row.array.shape[0] == self.rounds
            and row.index in (done, self.rounds - 1 - done)
        }

    def _done(self, number: str) -> Dim:
        return of_atom(Iteration(number, self.rounds))


def needed(body: Graph, references: Sequence[str]) -> set[str]:
    """The names of all values that some values are computed from."""
    names = set(references)
    for node in reversed(body.nodes):
        if not names.isdisjoint(node.outputs):
            names.update(_taken(node))
    return names


def _taken(node: Node) -> Iterator[str]:
    """The names of what a node takes, and what the graphs in it may take."""
    yield from node.inputs
    for value in node.attributes.values():
        if isinstance(value, Graph):
            yield from (result.reference for result in value.results)
            for inner in value.nodes:
                yield from _taken(inner)
