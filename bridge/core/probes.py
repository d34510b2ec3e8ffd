"""Inputs to try a function with: random ones, and those at the edges of their dtypes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from xla_call_module.call import TensorSpec
from xla_call_module.dimensions import evaluate_shape
from xla_call_module.dtypes import Array, DType
from xla_call_module.errors import StructureError

RANDOM, HUGE, INF, NAN = "random", "huge", "inf", "nan"
GIVEN = "given"  # inputs of the user's, which are not drawn
EDGES = ("zeros", "ones", "negative", HUGE, NAN, INF)
# The sizes with which a dimension variable is tried.
SIZES = (1, 3, 17)

_MAX_SIZE = 128
_MAX_TRIES = 600
# An integer may be the length of a loop.
_HUGE_INTEGER = 10_000
# The square of it is infinite; a sum of some is not.
_HUGE_EXPONENT = 0.75


def choose_sizes(
    symbols: Sequence[str], wanted: int, accepts: Callable[[Mapping[str, int]], bool]
) -> dict[str, int]:
    """Return a size for each dimension variable that a function accepts, near to the wanted one."""
    tries = itertools.islice(_sizes(len(symbols), wanted), _MAX_TRIES)
    for sizes in tries:
        chosen = dict(zip(symbols, sizes, strict=True))
        if accepts(chosen):
            return chosen
    raise StructureError(
        f"No sizes were found that the constraints on {', '.join(symbols)} allow: up to "
        f"{_MAX_TRIES} were tried, of 1 to {_MAX_SIZE}. To do: record trials from a file "
        "whose function has other constraints."
    )


def _sizes(count: int, wanted: int) -> Iterator[tuple[int, ...]]:
    yield tuple(wanted + position for position in range(count))
    near = sorted(range(1, _MAX_SIZE + 1), key=lambda size: abs(size - wanted))
    yield from ((size,) * count for size in near)
    yield from itertools.product(near, repeat=count)


def draw(
    spec: TensorSpec,
    kind: str,
    sizes: Mapping[str, int],
    random: np.random.Generator,
    *,
    has_zeros: bool = True,
) -> Array:
    """Return an input of a function.

    Args:
        spec: what the function takes.
        kind: `random`, or one of `EDGES`.
        sizes: those of its dimension variables.
        random: the source of random numbers.
        has_zeros: whether integers may be 0, by which nothing can be divided.
    """
    shape = tuple(size or 0 for size in evaluate_shape(spec.shape or (), sizes))
    if spec.element.startswith("key<"):
        kind = RANDOM
    is_whole = jnp.issubdtype(spec.dtype.numpy, jnp.integer)
    if kind in ("zeros", "ones"):
        number = int(kind == "ones" or (is_whole and not has_zeros))
        return np.full(shape, number, spec.dtype.numpy)
    if spec.dtype.name == "bool":
        return random.random(shape) < 0.5
    if is_whole:
        drawn = _draw_integers(spec, kind, shape, random)
        return drawn if has_zeros else np.where(drawn == 0, 1, drawn).astype(drawn.dtype)
    numbers: Any = random.standard_normal(shape)
    if kind == "negative":
        numbers = -np.abs(numbers)
    if kind == HUGE:
        numbers = np.sign(numbers) * _huge(spec.dtype)
    elif jnp.issubdtype(spec.dtype.numpy, jnp.complexfloating):
        numbers = numbers + 1j * random.standard_normal(shape)
    array = np.asarray(numbers).astype(spec.dtype.numpy)
    if kind in (NAN, INF) and array.size and _has(spec.dtype, kind):
        array.reshape(-1)[array.size // 2] = np.array(float(kind)).astype(spec.dtype.numpy)
    return array


def _draw_integers(
    spec: TensorSpec, kind: str, shape: tuple[int, ...], random: np.random.Generator
) -> Array:
    limits: Any = np.iinfo(spec.dtype.numpy)
    if spec.element.startswith("key<"):
        return random.integers(0, limits.max, shape, spec.dtype.numpy, endpoint=True)
    if kind == HUGE:
        return np.full(shape, min(int(limits.max), _HUGE_INTEGER), spec.dtype.numpy)
    numbers = random.integers(0, min(int(limits.max), 9), shape, endpoint=True)
    if kind == "negative" and limits.min < 0:
        numbers = np.maximum(-1 - numbers, int(limits.min))
    return numbers.astype(spec.dtype.numpy)


def draw_cotangent(like: Array, random: np.random.Generator) -> Array:
    """Return a cotangent for an array of numbers."""
    numbers: Any = random.standard_normal(like.shape)
    if np.iscomplexobj(like):
        numbers = numbers + 1j * random.standard_normal(like.shape)
    return np.asarray(numbers).astype(like.dtype)


def _huge(dtype: DType) -> float:
    kind = np.zeros((), dtype.numpy).real.dtype
    largest: Any = jnp.finfo(kind).max  # type: ignore[no-untyped-call]
    return math.pow(largest, _HUGE_EXPONENT)


def _has(dtype: DType, kind: str) -> bool:
    """Return whether a dtype has the number; not all of 8 bits have an infinity."""
    number = np.array(float(kind)).astype(dtype.numpy).astype(np.complex128)
    return bool(np.isnan(number) if kind == NAN else np.isinf(number))
