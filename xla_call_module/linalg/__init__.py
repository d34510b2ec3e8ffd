"""Factorizations of linear algebra in StableHLO that runs on every platform.

JAX lowers `jnp.linalg` to custom calls of LAPACK and of the libraries of GPUs, which are linked
into jaxlib and not into TensorFlow. The pass `passes.linear_algebra` finds such a call and makes a
`replacements.LibraryForm` of it, all on which its replacement depends; `lapack.parse_target` has
the routine by the name of the target; and `replacements.replacement` lowers that routine, for the
sizes and attributes of the call, to a module whose `main` takes the place of the call.

| file | computes |
|---|---|
| `library_calls` | nothing: it has the targets, options and arrays of the calls |
| `lapack` | what each routine of each library returns, in terms of those below |
| `factorizations` | Cholesky, LU, QR, with pivots and without |
| `spectra` | eigenvalues and singular values |
| `tridiagonals`, `triangular` | reductions and solves that they are built on |
| `matrices` | blocks, scales and `info`, which all of them have |

To add a routine, write it for one matrix in `jax.lax`, with loops whose shapes do not change, add
it to the table of its library at the end of `lapack`, and compare it with numpy and with JAX's own
result, batched and differentiated, in `tests/xla_call_module/passes/test_linear_algebra.py`. A name
that is part of no mark yet belongs into `lapack.MARKS`.
"""
