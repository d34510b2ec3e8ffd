"""Sizes whose arithmetic passes through their signs, and numbers that depend on sizes."""

from __future__ import annotations

import functools

import jax.numpy as jnp
from jax import lax

from tests.operations.case import Lines
from tests.operations.operands import rows

V = rows(8, extreme=False)


def _frames(x, hop=4, width=8):
    starts = hop * jnp.arange((x.shape[0] - width) // hop + 1)
    return x[starts[:, None] + jnp.arange(width)]


def _length(x):
    return jnp.asarray(x.shape[0])


def _quotients(x):
    """Quotients and remainders of sizes and of what is below them."""
    sizes = [factor * x.shape[0] + offset for factor in (-3, 1) for offset in (-8, 0, 5)]
    return jnp.asarray([
        each for size in sizes for divisor in (2, 7, 512)
        for each in (size // divisor, size % divisor, -(-size // divisor))
    ])  # fmt: skip


# Each of a vector of at least eight elements.
FUNCTIONS = {
    "frames": _frames,
    "far_frames": lambda x: _frames(x, hop=3, width=5) * 2,
    "scan_of_frames": lambda x: lax.scan(
        lambda total, frame: (total + frame.sum(), total * frame), 0.0, _frames(x)
    ),
    "half_rounded_up": lambda x: x[: -(-x.shape[0] // 2)],
    "padded": lambda x: jnp.pad(x, (0, 4))[: x.shape[0] + (-x.shape[0]) % 4],
    "chunks": lambda x: lax.scan(
        lambda total, chunk: (total + chunk.sum(), total), 0.0,
        x[: x.shape[0] // 4 * 4].reshape(-1, 4),
    ),
    "rolled": lambda x: jnp.roll(x, 3) + jnp.roll(x, -x.shape[0] // 2),
    "below_zero": lambda x: x * ((9 - x.shape[0]) // 4) + (9 - x.shape[0]) % 4,
    "quotients": _quotients,
    "is_a_number": lambda x: jnp.where(_length(x) == 9, x, -x),
    "is_no_number": lambda x: jnp.where(_length(x) != 11, x, -x),
    "is_even": lambda x: jnp.where(_length(x) % 2 == 0, x, -x),
    "left_over": lambda x: jnp.where((_length(x) - 8) % 4 != 0, x, -x),
}  # fmt: skip


def _of_a_vector(function, f, x):
    """Of 9 elements, and of other odd numbers of them that a run knows."""
    size = 2 * x.shape[0] + 7
    return function(f(jnp.concatenate([x.ravel(), x[:, 0]]))[:size])


CASES = tuple(
    case
    for note, function in FUNCTIONS.items()
    for case in Lines("jax.numpy", ("float32",), without=("empty",))(
        "asarray", V, note=f"of a size, {note}", by=functools.partial(_of_a_vector, function)
    )
)
