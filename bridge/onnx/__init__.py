"""Exported functions as ONNX models: `bridge.to_onnx` and `bridge.save_onnx`.

The way of the data:

    what `bridge.sources` binds: a `BoundCall`, for one platform, with names and parameters
        │
        ▼
    decomposed_call.py  operations and elements that ONNX lacks become others, where there are some
        │
        ▼
    bridge.core_ops   walks the module: each operation by its rule in operation_table.py
        │
        ▼
    bridge.graphs     a `Value`, and the graph that names, folds and does nothing twice
        │                │ graph/graph_builder.py widens dtypes
        │                │
        ▼                ▼
    graph/protos.py ──▶ onnx_model.py: onnx.ModelProto, a file (called by conversion.py)

The rooms: `graph` is the graph in the making and the record of ONNX Runtime; `rules` has the
rules, a file for each family of operations.

A `Value` is in the graph only as far as it must be. It may be a constant (`array`), integers that
are sizes of dynamic dimensions (`sizes`, of `size_polynomials.Dim`), or something smaller that
broadcasts to its shape (`unbroadcast_shape`). A rule whose operands are expanded (the default)
never sees the last kind, and `graph.node` takes all of them: it makes initializers of constants and
Shape nodes of sizes.

What ONNX lacks is decomposed before (`bridge.core_ops.decompositions`): complex numbers, Fourier
transforms of most lengths, narrow types (int4, float8_e3m4, …) and random bits. To add an operation
that it has, four files are opened besides this one, which says all that a rule needs to know:

1. The file of its family, such as `rules/elementwise.py`: a function
   `_name(graph, op) -> Value` (or a list of them for several results), and its place in `RULES`
   with all attributes that it reads (one that is not listed is refused).
2. `graph/onnx_runtime.py`, where the ONNX operation is a new one: the dtypes for which the runtime
   has a kernel. Others are widened by the graph. What the runtime computes wrongly goes to
   `DEVIATIONS`. That ONNX and StableHLO mean the same by an operation on NaN, infinities, -0,
   bounds and overflow is for the rule to see to.
3. `tests/operations/cases/`: a line, which runs over dtypes and edge values. `check(function,
   *arrays)` of `tests/bridge/onnx/checking.py` says that JAX, ONNX Runtime and ONNX's reference
   evaluator agree, for what is no case of the table.
4. `CHANGELOG.md`, and the README where it says what is refused.

What a rule reads of its operation: `op.operands`; `op.result` or `op.results` (`dtype`, `shape`);
attributes by `op.integer`, `op.integers`, `op.flag`, `op.text`, `op.padding` and
`op.dimension_numbers`; an operand that must be known by `op.constant(index)`, one that says sizes
by `op.sizes(graph, index)`; and `op.regions[0].apply(graph, values)`, which adds what a region
computes, of whole tensors too where the region is one of scalars. What cannot be expressed exactly:
`op.refuse("reason", "what to do instead")`.

What it makes of it, with the functions of `bridge.graphs.nodes`, which broadcast late and keep
sizes symbolic: `elementwise(graph, "Add", value, 1)`, where numbers have the value's dtype;
`where`, `cast`, `reshape`, `transpose`, `broadcast_in_dim`, `expand_dims`, `squeeze`, `concat`,
`slice_`, `slice_along`, `reverse`, `gather`, `look_up` (in a table), `count_up` (0, 1, 2, …); and
`loop` of `graph/loop_nodes.py`. Any other: `graph.node("Op", inputs, shape=..., dtype=...,
**attributes)`. The shape is that of the result, in `Dim`s; None for a size that nothing is known
of.

To add a fusion, several operations that are one of ONNX: a function in `rules/fusions.py`, which
asks the graph what made the operands (`graph.source`), called by the function there of the last
one, such as `fuse_product`. What an older opset lacks has a constant beside `GELU_OPSET` in
`graph/onnx_runtime.py`, and is made where `graph.opset` is no less; where numbers may be others,
where `graph.exact` is false.

A new family is listed in `operation_table.py`, as are composites and custom calls.

Bodies of If, Loop and Scan: `body = graph.body()`, `body.add_input(body.unique("x"), ...)`, apply
the region with `body` as its graph, `body.add_result(value)`, and pass `body` as an attribute. It
sees the values around it; what is measured in it is not seen outside, so the shapes of the node's
results have None there.
"""

from __future__ import annotations
