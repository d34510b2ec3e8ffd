"""One case of the matrix: a function, what it is called with, and how exact its results are."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The allowed distance of TensorFlow from JAX, relative to the largest magnitude, and why."""

    relative: float
    reason: str


EXACT = Tolerance(0.0, "the same bits: nothing is rounded")
ROUNDING = Tolerance(
    2e-6,
    "float32 with eps 1.2e-7: each XLA fuses and vectorizes sums and products in its own order, "
    "and its polynomials for elementary functions differ by a few units in the last place",
)
SERIES = Tolerance(
    2e-5,
    "float32 with eps 1.2e-7: series, continued fractions and recurrences of tens of steps, each "
    "of which rounds",
)
HALF = Tolerance(
    2e-2,
    "bfloat16 with eps 7.8e-3: XLA may keep intermediate results of a fusion in float32",
)
FLOAT16 = Tolerance(
    2e-3, "float16 with eps 9.8e-4: XLA may keep intermediate results of a fusion in float32"
)
DOUBLE = Tolerance(4e-15, "float64 with eps 2.2e-16: the order of sums, and polynomials, differ")


CANCELLATION = Tolerance(
    2e-5,
    "float32 with eps 1.2e-7: a variance is the difference of two sums that are each rounded, and "
    "the gradient divides by it",
)


@dataclass(frozen=True, slots=True)
class Case:
    """One function and what it is called with.

    Attributes:
        name: of the row in the grid and of the folder.
        function: of `params`, if there are any, and of flat arrays; returns a pytree.
        args: positional arrays.
        more: further argument tuples, of other sizes where the shapes are polymorphic.
        params: a pytree of arrays that becomes variables, or None.
        shapes: for each of `args` its specification in the language of `jax.export`, or None.
        platforms: what is lowered for.
        keys: which of `args` are data of typed PRNG keys.
        tolerance: what may differ, and why.
        gradient: whether the case has a reverse mode that is worth a comparison.
        x64: whether JAX's 64-bit dtypes are on.
        jit: makes of the function what is exported, such as one for several devices.
        shardy: whether JAX lowers for Shardy, and not for the older partitioner.
        operations: what the file runs.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    more: Sequence[tuple[Any, ...]] = ()
    params: Mapping[str, Any] | None = None
    shapes: Sequence[str] | None = None
    platforms: tuple[str, ...] = ("cpu",)
    keys: tuple[int, ...] = ()
    tolerance: Tolerance = ROUNDING
    gradient: bool = True
    x64: bool = False
    jit: Callable[[Callable[..., Any]], Any] = jax.jit
    shardy: bool = True
    operations: Literal["xla", "tensorflow"] = "xla"


def floats(*shape: int, low: float = -2.0, high: float = 2.0, dtype: Any = np.float32) -> Any:
    """Evenly spread values in an irregular order, none of them at a bound."""
    size = math.prod(shape)
    order = (np.arange(size) * 7919 + 3) % max(size, 1)
    return (low + (high - low) * (order + 0.5) / max(size, 1)).astype(dtype).reshape(shape)


def integers(*shape: int, dtype: Any = np.int32, modulus: int = 97) -> Any:
    return (np.arange(math.prod(shape)) * 37 % modulus).astype(dtype).reshape(shape)


def complexes(*shape: int) -> Any:
    return (floats(*shape) + 1j * floats(*shape, low=-1, high=3)).astype(np.complex64)


def family(
    functions: Mapping[str, Callable[..., Any]], *args: Any, **options: Any
) -> tuple[Case, ...]:
    """A case for each of some functions that take the same arguments."""
    return tuple(Case(name, function, args, **options) for name, function in functions.items())
