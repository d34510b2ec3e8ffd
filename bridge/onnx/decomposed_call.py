"""Bound calls of operations and elements that ONNX lacks, or of which its runtime is inexact."""

from __future__ import annotations

import dataclasses

from bridge.core_ops.decompositions.complex_pairs import COMPLEX_AS_PAIRS
from bridge.core_ops.decompositions.decomposition import COMPOSED_OPERATIONS, decompose
from bridge.core_ops.decompositions.fourier_products import FOURIER_AS_PRODUCTS
from bridge.core_ops.decompositions.narrow_types import NARROW_TYPES_IN_WIDER
from bridge.core_ops.decompositions.random_bits import RANDOM_BITS_AS_INTEGERS
from bridge.sources.bound_call import BoundCall

DECOMPOSITIONS = (
    COMPOSED_OPERATIONS, RANDOM_BITS_AS_INTEGERS, FOURIER_AS_PRODUCTS, COMPLEX_AS_PAIRS,
    NARROW_TYPES_IN_WIDER,
)  # fmt: skip


def decompose_bound(bound: BoundCall) -> BoundCall:
    """Return a bound call without what is decomposed."""
    arrays = {index: array for index, (_, array) in bound.parameters.items()}
    made = decompose(bound.call, DECOMPOSITIONS, arrays)
    parameters = {n: (name, made.parameters[n]) for n, (name, _) in bound.parameters.items()}
    return dataclasses.replace(bound, call=made.call, parameters=parameters)
