"""The keys by which the comparator of a sort orders elements, found out by trying it on numbers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from xla_call_module.dtypes import Array
from xla_call_module.stablehlo.combiners import block_dtypes
from xla_call_module.stablehlo.constant_evaluation import evaluate_block

_MAX_OPERANDS = 5
# Whether the signs of zeros matter, and those of NaNs.
_SIGNED = ((False, False), (True, False), (True, True))
# What comparators are made of; older versions of JAX compare the bits of floats as integers.
_PLAIN = frozenset({
    "stablehlo.and", "stablehlo.bitcast_convert", "stablehlo.compare", "stablehlo.constant",
    "stablehlo.imag", "stablehlo.not", "stablehlo.or", "stablehlo.real", "stablehlo.return",
    "stablehlo.select", "stablehlo.subtract", "stablehlo.xor",
})  # fmt: skip
_TRIALS = 300
_TINY = float(np.finfo(np.float64).tiny)  # less than all numbers that are tried


@dataclass(frozen=True, slots=True)
class SortKey:
    """The key of a sort.

    Attributes:
        operand: the index of the operand that is sorted by.
        descending: whether the greatest comes first.
        signed_zeros: whether -0 is less than 0; otherwise they are equal.
        signed_nans: whether -NaN is the least; otherwise every NaN is the greatest.
    """

    operand: int
    descending: bool
    signed_zeros: bool
    signed_nans: bool = False


def sort_keys_of(block: Any) -> list[SortKey] | None:
    """Return the keys of a comparator, the first one first; None if it is no list of them."""
    dtypes = block_dtypes(block)[::2]
    names = {view.operation.name for view in block}
    if len(dtypes) > _MAX_OPERANDS or not names <= _PLAIN:
        return None
    arrays = _trials(dtypes)
    results = evaluate_block(block, arrays)
    if results is None:
        return None
    (outcome,) = results
    for keys in _candidates(dtypes):
        if np.array_equal(outcome, _expected(keys, arrays)):
            return keys
        # A plain comparison of floats is false for NaN, whose order is undefined then.
        unordered = _has_nan(keys[0], arrays)
        if len(keys) == 1 and np.array_equal(outcome, _expected(keys, arrays) & ~unordered):
            return keys
    return None


def _trials(dtypes: Sequence[np.dtype[Any]]) -> list[Array]:
    """Return pairs of numbers for each operand: in every order that there is, and at random."""
    pairs = [_pairs(dtype) for dtype in dtypes]
    chosen = zip(*itertools.product(*(range(len(each)) for each in pairs)), strict=True)
    random = np.random.default_rng(0)
    arrays: list[Array] = []
    for numbers, dtype, index in zip(pairs, dtypes, chosen, strict=True):
        some = random.choice(_some(dtype), (2, _TRIALS))
        for side in (0, 1):
            orders = np.array([numbers[i][side] for i in index]).astype(dtype)
            arrays.append(np.concatenate([orders, some[side]]))
    return arrays


def _is_integer(dtype: np.dtype[Any]) -> bool:
    return "int" in dtype.name


def _some(dtype: np.dtype[Any]) -> Array:
    """Return numbers of every sign and size."""
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype.kind == "c":
        parts = _some(np.dtype(f"f{dtype.itemsize // 2}"))
        return np.array([complex(*pair) for pair in itertools.product(parts, repeat=2)], dtype)
    if _is_integer(dtype):
        limits: Any = ml_dtypes.iinfo if dtype.kind == "V" else np.iinfo
        bounds = limits(dtype)
        numbers = [sign * size for sign in (1, -1) for size in (0, 1, 2, 3, 5, 100)]
        kept = [number for number in numbers if bounds.min <= number <= bounds.max]
        return np.array([dtype.type(n) for n in (*kept, bounds.min, bounds.max)], dtype)
    sizes = np.array([0, 1e-3, 0.5, 1, 1.5, 2, 3, 100, 1e4, np.nan])
    return np.concatenate([sizes, -sizes]).astype(dtype)


def _has_nan(key: SortKey, arrays: Sequence[Array]) -> Array:
    pair = arrays[2 * key.operand : 2 * key.operand + 2]
    missing = [np.isnan(part) for array in pair for part in _parts(array)]
    return np.asarray(np.any(missing, axis=0))


def _parts(array: Array) -> list[Array]:
    """Return numbers as float64, of complex ones the real parts and the imaginary ones."""
    if array.dtype.kind == "c":
        return [array.real.astype(np.float64), array.imag.astype(np.float64)]
    return [array.astype(np.float64)]


def _pairs(dtype: np.dtype[Any]) -> list[tuple[Any, Any]]:
    """Return pairs in every order that there is between two numbers of a dtype."""
    if dtype.kind == "b":
        return [(0, 1), (1, 0), (1, 1)]
    if dtype.kind == "c":
        parts = _pairs(np.dtype(np.float64))
        both = itertools.product(parts, repeat=2)
        return [(complex(a, b), complex(c, d)) for (a, c), (b, d) in both]
    pairs = [(1.0, 2.0), (2.0, 1.0), (1.0, 1.0)]
    if not _is_integer(dtype):
        nan = float("nan")
        pairs += [(-0.0, 0.0), (0.0, -0.0)]
        pairs += [*itertools.permutations((nan, 1.0, -nan), 2), (nan, nan), (-nan, -nan)]
    if not dtype.name.startswith("uint"):
        pairs += [(-1.0, 1.0), (1.0, -1.0)]
    return pairs


def _candidates(dtypes: Sequence[np.dtype[Any]]) -> list[list[SortKey]]:
    """Return the lists of keys to try: the first operands, or any one of them."""
    options = [
        [
            SortKey(operand, descending, zeros, nans)
            for descending in (False, True)
            for zeros, nans in _SIGNED
        ]
        for operand in range(len(dtypes))
    ]
    lists = [[key] for keys in options for key in keys]
    for count in range(2, len(dtypes) + 1):
        # The zeros and NaNs of all keys are treated alike.
        for flags in itertools.product((False, True), repeat=count):
            lists += [[SortKey(n, flags[n], *signed) for n in range(count)] for signed in _SIGNED]
    return lists


def _expected(keys: Sequence[SortKey], arrays: Sequence[Array]) -> Array:
    """Return whether the first of two comes before the second one by some keys."""
    before = np.zeros(arrays[0].shape, bool)
    undecided = np.ones(arrays[0].shape, bool)
    for key in keys:
        pair = arrays[2 * key.operand : 2 * key.operand + 2]
        for parts in zip(*map(_parts, pair), strict=True):
            ranks = [_ranks(key, numbers) for numbers in parts]
            before |= undecided & (ranks[0] < ranks[1])
            undecided &= ranks[0] == ranks[1]
    return before


def _ranks(key: SortKey, numbers: Array) -> Array:
    rank = np.where(np.isnan(numbers), np.inf, numbers)
    if key.signed_zeros:
        rank = np.where((numbers == 0) & np.signbit(numbers), -_TINY, rank)
    if key.signed_nans:
        rank = np.where(np.isnan(numbers) & np.signbit(numbers), -np.inf, rank)
    return -rank if key.descending else rank
