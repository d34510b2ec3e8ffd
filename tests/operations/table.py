"""The table: all cases."""

from __future__ import annotations

from tests.operations.cases import (
    arrays,
    compositions,
    convolutions,
    counters,
    edges,
    images,
    linear_algebra,
    loops,
    many_dimensions,
    models,
    modules,
    networks,
    numbers,
    primitives,
    sampling,
    special_functions,
    transforms,
    uncertain_sizes,
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
    *compositions.CASES,
    *edges.CASES,
    *modules.CASES,
    *numbers.CASES,
    *loops.CASES,
    *counters.CASES,
    *uncertain_sizes.CASES,
    *models.CASES,
    *convolutions.CASES,
    *many_dimensions.CASES,
)
