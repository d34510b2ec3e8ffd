"""Functions as blocks: what a target's emitter is given, in place of a jaxpr.

    a function ──jax.make_jaxpr──▶ equations ──`equations`──▶ `Block` of `Operation`s
                                                  │
                    `block_builder`: calls written out, constants folded, equal operations once,
                    broadcasts that kernels do themselves left out, one spelling for each meaning

Values have a shape, whose sizes may be symbolic (`xla_call_module.size_polynomials`), a dtype, and
perhaps an array. The bodies of loops and branches are blocks that see the values around them.
`checking` refuses a block in which something is not what its operation makes.
"""
