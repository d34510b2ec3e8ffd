"""The table: all cases."""

from __future__ import annotations

from tests.operations.cases import (
    arrays,
    images,
    linear_algebra,
    modules,
    networks,
    primitives,
    sampling,
    special_functions,
    transforms,
)

CASES = (
    *primitives.CASES,
    *arrays.CASES,
    *networks.CASES,
    *special_functions.CASES,
    *linear_algebra.CASES,
    *transforms.CASES,
    *sampling.CASES,
    *images.CASES,
    *modules.CASES,
)
