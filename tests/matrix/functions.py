"""The functions of the matrix: one small case for each corner of JAX that a file may contain.

A case takes flat positional arrays, so that a process without JAX can call what was written.
"""

from __future__ import annotations

from tests.matrix.families import (
    arrays,
    control_flow,
    dtypes,
    linear_algebra,
    networks,
    plain_operations,
    primitives,
    sampling,
    shapes,
    shardings,
    special_functions,
    transforms,
)

FAMILIES = {
    "jax.numpy": arrays.CASES,
    "jax.scipy": special_functions.CASES,
    "jax.lax": primitives.CASES,
    "control flow": control_flow.CASES,
    "jax.nn": networks.CASES,
    "jax.random": sampling.CASES,
    "jax.numpy.fft and jax.image": transforms.CASES,
    "dtypes": dtypes.CASES,
    "shapes and platforms": shapes.CASES,
    "linear algebra": linear_algebra.CASES,
    "shardings": shardings.CASES,
}
# These run in every TensorFlow, and are no functions of their own in the tables of coverage.
PLAIN_CASES = plain_operations.CASES
CASES = tuple(case for cases in FAMILIES.values() for case in cases)
