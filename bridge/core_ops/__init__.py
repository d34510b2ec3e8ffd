"""StableHLO, understood once: what targets share.

stablehlo_operation.py   an operation, its regions and results, as rules see them; a target's table
transform_composite.py   a Fourier transform, which a target may know
graph_walk.py            a module is walked, each operation by its rule in that table
shapes.py slicing.py gathers.py scatters.py windows.py dots.py branches.py collectives.py
                         rules in the language of `bridge.graphs`, which targets share
reductions.py sort_comparators.py convolution_windows.py elementary.py
                         what rules of these families share, each with what is a target's own
regions.py               the function that a region of two elements is, and reductions by any
decompositions/          operations as other ones, for targets that lack them: calls before the walk

The way of the data: what a target lacks, such as complex numbers, is decomposed
(`decompositions.decomposition.decompose`). A target is a `GraphTarget`, which has a rule for each
operation that it can express, and a subclass of `bridge.graphs.tensor_graph.TensorGraph`.
`graph_walk.walk_main` goes through a parsed module and applies the rules to the values that stand
for its tensors.

To add a target: write such a table, and the rules that are its own. Its graph says by `loop`,
`scatter_rows` and `pooled` how it does what the shared rules cannot say in operations of
`bridge.graphs`.
"""

from __future__ import annotations
