"""StableHLO modules: parsed once, asked and rewritten in place, and serialized once.

`modules.open_module` parses a portable artifact in an MLIR context that lasts as long as its `with`
block; what is known of a module is asked of it there, and not of its bytes or its text.
`modules.serialize_module` makes an artifact of a StableHLO version of it again. JAX and jaxlib are
reached through the gate `xla_call_module._jax` alone.

| file | question or rewriting |
|---|---|
| `modules` | the functions of a module, its `main`, its operations and constants |
| `attributes` | the attributes of an operation, of arguments and results, and what was changed |
| `operation_locations` | the line of the user's program that an operation comes from |
| `elements` | the elements of a constant as a numpy array |
| `constant_evaluation` | the results of operations of constants |
| `call_graph` | which functions call which, and that none calls itself |
| `serialized_shardings` | Shardy's operations, written as attributes of StableHLO and read back |
| `bytecode` | what can be said of an artifact before it is parsed |
| `rewriting` | steps of any rewriting: new functions, replaced operations, MLIR's passes |
| `common_subexpressions` | equal operations as one, loops and branches too |
| `inlining` | calls written out, composites as calls of their definitions |
| `splicing`, `unique_names` | functions of one module in another one |
| `refining` | a module with symbolic shapes, for known sizes |
| `chlo`, `mhlo` | operations of other dialects, in those of StableHLO |

To add a question, write a function of a parsed module or operation that returns plain values, which
outlive the MLIR context; to add a rewriting, one that changes the module in place, and a pass in
`xla_call_module/passes/` that says when it is needed. Modules of `tests/xla_call_module/stablehlo/`
are written as text or exported by JAX.
"""
