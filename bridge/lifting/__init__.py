"""Exported functions as functions of JAX again: `bridge.to_jax`.

A `jax.export.Exported` is called as it is, its module a sealed box: it cannot be mapped by
`jax.vmap` or differentiated forwards, and its gradients end at the order that was serialized. Here
its module is walked, and each operation becomes the primitive of JAX that is lowered to it, so that
what results is traced, transformed and compiled like the function that was exported.

The way of the data:

    CallModule
        │ lifted_function.py   for the arguments at hand: checks, platform index, 64-bit dtypes
        ▼
    module_lifting.py          each operation by its rule in lifting_table.py, calls as `jax.jit`
        │                │ lifted_operation.py: what a rule sees of an operation
        ▼                ▼
    *_primitives.py  compile_time_folding.py: sizes and constants, of known_values.py
        │
        ▼
    what JAX traces

A value is an array of JAX, or it is known (`known_values.py`): constants, sizes, which are numbers
or the dimension expressions of `jax.export`, and the numbers of the platform and of the device.
What is computed of sizes leaves no operation behind. A `StructuredArray` is an array of which more
is known than its elements, such as the Householder vectors of a QR decomposition, or a number that
depends on a size, whose quotients and remainders are sizes again (`uncertain_sizes.py`).

What JAX has a primitive for is that primitive again, since it is what has the derivative:

- regions of reductions, windows, scatters and sorts, which are recognized by what they compute
  (`xla_call_module.stablehlo.combiners`, `sort_keys`);
- loops that count, as `jax.lax.scan` (`loops.py`, of the integers in `step_integers.py`);
- slices that are the parts of one array, as `jax.lax.split` (`splits.py`);
- functions that JAX lowers to many operations, such as `erf_inv`, by what this JAX lowers them to
  (`derivatives/`);
- calls of LAPACK and its like (`linalg_primitives.py`), and cases of platforms that are one
  primitive (`platform_branches.py`);
- shardings and manual computations, as `with_sharding_constraint` and `jax.shard_map` on the mesh
  that the function is lifted for (`sharding_primitives.py`, `collective_primitives.py`).

Each operation is bound under the name stack and the line in its location (`name_stacks.py`).

To add an operation: a function `_name(op) -> value` (or a list of them) in the file of its family,
and its place in `RULES` with the attributes that it reads; one that is not listed is refused. An
operation that JAX cannot express says `op.refuse("reason", "what to do instead")`. The walk over
the module, with its regions, tuples and calls, is that of `xla_call_module.stablehlo.walking`,
which ONNX shares.
"""

from __future__ import annotations
