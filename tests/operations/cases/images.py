"""`jax.image` and `jax.ops`."""

from __future__ import annotations

import jax.numpy as jnp

from tests.operations.case import FLOATS, NUMBERS, Lines
from tests.operations.operands import Operand, fixed

IMAGE = Operand((4, 5, 2))
_resized = Lines("jax.image", FLOATS, loose=4)
_segments = Lines("jax.ops", NUMBERS)

CASES = (
    *[
        case
        for method in ("nearest", "linear", "cubic", "lanczos3", "lanczos5")
        for case in _resized("resize", IMAGE, shape=(6, 3, 2), method=method)
    ],
    *_resized("resize", IMAGE, shape=(2, 3, 2), method="linear", antialias=False),
    *_resized(
        "scale_and_translate",
        IMAGE,
        by=lambda f, x: f(
            x, (6, 3, 2), (0, 1), jnp.array([1.5, 0.5]), jnp.array([0.25, -0.5]), "linear"
        ),
    ),
    *_segments(
        "segment_sum segment_prod segment_max segment_min",
        Operand((5, 2)),
        fixed([2, 0, 2, 5, -1], "int32"),
        num_segments=4,
    ),
)
