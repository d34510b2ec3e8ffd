"""StableHLO, understood once: what every target that is a graph shares.

stablehlo_operation.py   an operation, its regions and results, as rules see them; a target's table
graph_walk.py            a module is walked, each operation by its rule in that table

The way of the data: a target is a `GraphTarget`, which has a rule for each operation that it can
express, and a subclass of `bridge.graphs.tensor_graph.TensorGraph`. `graph_walk.walk_main` goes
through a parsed module and applies the rules to the values that stand for its tensors.

To add a target: write such a table, and the rules that are its own.
"""

from __future__ import annotations

__all__ = ()
