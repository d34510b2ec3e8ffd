"""Exported functions as ONNX models: `bridge.to_onnx` and `bridge.save_onnx`.

The way of the data:

    Exported, artifact or SavedModel; a text or artifact of StableHLO, a CallModule (modules.py)
        │ sources.py      one platform, linear algebra in portable operations, names, parameters
        ▼
    StableHLO module ──── walker.py     each operation by its rule in table.py; calls are inlined
        │                    │ operation.py: what a rule sees of an operation
        ▼                    ▼
    values.py             graph.py      names, folds, does nothing twice, widens (kernels.py)
        │                    │
        ▼                    ▼
    protos.py ──────────▶ model.py, saving.py: onnx.ModelProto, a file (called by conversion.py)

A `Value` is in the graph only in as far as it must be. It may be a constant (`array`), sizes that
only a run knows (`sizes`, a scalar or vector of `sizes.Dim`), or something smaller that broadcasts
to its shape (`held`). A rule whose operands are `whole` (the default) never sees the last kind, and
`graph.node` takes all of them: it makes initializers of constants and Shape nodes of sizes.

To add an operation:

1. Write `_name(graph, op) -> Value` (or a list of them for several results) in the file of its
   family, from `nodes.py` (elementwise, where, reshape, transpose, concat, slice_, gather, place)
   and `graph.node("Op", inputs, shape=..., dtype=..., **attributes)`. The shape is that of the
   result, in `sizes.Dim`s; None for a size that nothing is known of. `op` has the attributes
   (`op.integer`, `op.integers`, `op.flag`, `op.text`, `op.fields`, `op.matrix`), operands that
   must be known (`op.constant`, `op.sizes`) and the regions: `op.regions[0].apply(graph, values)`
   adds what a region computes, of whole tensors too where the region is one of scalars.
2. Put it into `RULES` of the file with all attributes that it reads: one that is not listed is
   refused. A new file is listed in `table.py`.
3. What cannot be expressed exactly: `op.refuse("reason", "what to do instead")`.
4. Elements of few bits (int4, float8_e3m4, …) are in int8, uint8 or float32 (`held.py`): a rule
   sees only these, and the walker has the results fitted (`narrow.py`, `fitting.py`). An operation
   that hands on values as they are is listed in `narrow.py`, as is one that depends on how many
   bits there are. A dtype for which the runtime has no kernel is widened by the graph: add the
   ONNX operation to `kernels.py` if it is not there. That ONNX and StableHLO mean the same by an
   operation on NaN, infinities, -0, bounds and overflow is for the rule to see to.
5. Bodies of If, Loop and Scan: `body = graph.body()`, `body.add_input(body.unique("x"), ...)`,
   apply the region with `body` as its graph, `body.add_result(value)`, and pass `body` as an
   attribute. It sees the values around it; what is measured in it is not seen outside, so the
   shapes of the node's results have None there.
6. Test it in `tests/onnx/test_<family>.py` with `check(function, *arrays)` of
   `tests/onnx/checking.py`: JAX, ONNX Runtime and ONNX's reference evaluator agree, over dtypes
   and edge values.
"""

from __future__ import annotations

__all__ = ()
