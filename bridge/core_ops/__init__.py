"""StableHLO, understood once: what targets share.

stablehlo_operation.py   an operation, its regions and results, as rules see them; a target's table
graph_walk.py            a module is walked, each operation by its rule in that table
decompositions/          operations as other ones, for targets that lack them: calls before the walk

The way of the data: what a target lacks, such as complex numbers, is decomposed
(`decompositions.decomposition.decompose`). A target is a `GraphTarget`, which has a rule for each
operation that it can express, and a subclass of `bridge.graphs.tensor_graph.TensorGraph`.
`graph_walk.walk_main` goes through a parsed module and applies the rules to the values that stand
for its tensors.

To add a target: write such a table, and the rules that are its own.
"""

from __future__ import annotations

__all__ = ()
