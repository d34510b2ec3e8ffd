"""Functions as blocks: what a target's emitter is given, in place of a jaxpr.

    a function ──jax.make_jaxpr──▶ equations ──`equations`──▶ `Block` of `Operation`s
                                                  │
                    `block_builder`: calls written out, constants folded, equal operations once,
                    broadcasts that kernels do themselves left out, one spelling for each meaning

Values have a shape, whose sizes may be symbolic (`xla_call_module.size_polynomials`), a dtype, and
perhaps an array. The bodies of loops and branches are blocks that see the values around them.
`checking` refuses a block in which something is not what its operation makes.

A `CallModule` becomes a block by what `bridge.core_ops.decompositions` has for it, as in
`bridge/litert/lowering/call_lowering.py`:

    made = decompose(call, DECOMPOSITIONS)    # what the target lacks altogether
    table = table_with(RULES, target="NumPy")    # the target's own rules; there may be none
    closed = retrace_to_jaxpr(made.call, table, SAME_ARRAYS, {})
    block = build_block(closed, BlockTarget(...))
    check_block(block)

Without rules the operations are primitives of JAX, as those of `bridge.lifting` make them, loops
are `while`, and the inputs are all arguments of the call.

To write a target: a function for each name of an operation, which reads `op.operands` (a constant
has its `array`) and `op.parameters`, and makes `op.results`, whose shapes and dtypes are known. The
operands of `while` are its state, which is also what its blocks `test` and `body` take; those of
`cond` are an index of its `branches`, which take nothing. Bodies use values of the blocks around
them, too. For another operation, in `op.bodies` as well, raise `UnsupportedError`. An entry in
`TARGETS` of `tests/operations/targets.py` runs the target on every case of the table.

To add an operation: the parameters that a target reads in `_READ` of `equations.py`, as others are
refused. Where it is one of each element, its name in `ELEMENTWISE` or `OF_EACH` of
`block_builder.py`, by which its broadcasts, transpositions and types are known. What it makes of
constants is in `_EVALUATORS` of `constant_folding.py`, and of which types in `_RULES` of
`checking.py`.
"""
