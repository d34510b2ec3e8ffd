"""Random bits of threefry and Philox, by operations on integers that LiteRT has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from bridge.lifting.lifted_operation import LiftingRule
from bridge.lifting.random_primitives import CUSTOM_CALLS as OF_JAX
from bridge.litert.lowering import bit_operations as bits
from bridge.litert.lowering.arithmetic_lowerings import unsigned_order
from bridge.litert.lowering.lowered_operation import LoweredOperation
from bridge.litert.lowering.storage_dtypes import integer_bits

__all__ = ["CUSTOM_CALLS", "RULES"]

# Salmon et al., Parallel random numbers: as easy as 1, 2, 3; five groups of four rounds of
# threefry, ten rounds of Philox.
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_GROUPS = 5
_PARITY = np.int32(0x1BD11BDA)
_PHILOX_ROUNDS = 10
_PHILOX_FACTORS = (0xD2511F53, 0xCD9E8D57)
_PHILOX_STEPS = (np.uint32(0x9E3779B9).view(np.int32), np.uint32(0xBB67AE85).view(np.int32))
_THREEFRY = "take keys of jax.random.key(seed, impl='threefry2x32')"


def _refuse(op: LoweredOperation) -> Any:
    """Refuse random numbers without a seed."""
    op.refuse("LiteRT has no random numbers that JAX can repeat", _THREEFRY)


def _generate(op: LoweredOperation) -> Any:
    """Return the next state and bits, counted as XLA does (xla/hlo/builder/lib/prng.cc)."""
    state = jnp.asarray(op.array(0))
    shape = [dim for dim in op.types[1].shape if dim is not None]
    wanted = op.logical_dtype(1)
    is_known = len(shape) == len(op.types[1].shape) and 0 not in shape
    if not is_known or op.operand_dtype().itemsize != 8 or np.shape(state) != (2,):
        op.refuse("its state is not a pair of uint64, or its bits have no known shape", _THREEFRY)
    key, count = state[0], state[1]
    if "THREE_FRY" not in op.text("rng_algorithm"):  # XLA's default on CPUs and GPUs is Philox
        used, made = _philox_bits(key, count, shape, integer_bits(wanted))
    elif integer_bits(wanted) == 64:
        used = math.prod(shape)
        made = jnp.reshape(lax.bitcast_convert_type(_blocks(key, count, used), np.int64), shape)
    else:
        used, made = _words_of(key, count, shape)
    return [jnp.stack([key, count + used]), made.astype(op.dtype_of(1))]


def _words_of(key: Any, count: Any, shape: Sequence[int]) -> tuple[int, Any]:
    """Return two words from each count, neighbours along the first even dimension.

    Without an even one it is the longest, of which the last bits are left out.
    """
    dims = list(shape) or [1]
    axis = next((n for n, dim in enumerate(dims) if dim % 2 == 0), dims.index(max(dims)))
    half = [*dims[:axis], (dims[axis] + 1) // 2, *dims[axis + 1 :]]
    size = math.prod(half)
    words = jnp.reshape(_blocks(key, count, size), (*half, 2))
    joined = jnp.moveaxis(words, -1, axis + 1)
    whole = jnp.reshape(joined, (*half[:axis], 2 * half[axis], *half[axis + 1 :]))
    return size, jnp.reshape(lax.slice_in_dim(whole, 0, dims[axis], axis=axis), shape)


def _blocks(key: Any, count: Any, size: int) -> Any:
    """Return the two words of each count from the state on, in a last dimension."""
    counts = lax.bitcast_convert_type(count + jnp.arange(size, dtype=np.int64), np.int32)
    words = lax.bitcast_convert_type(key, np.int32)
    return jnp.stack(threefry((words[0], words[1]), counts[:, 0], counts[:, 1]), -1)


def threefry(key: tuple[Any, Any], first: Any, second: Any) -> tuple[Any, Any]:
    """Return the two words that threefry makes of two others, all of int32."""
    parity = lax.bitwise_xor(lax.bitwise_xor(*key), jnp.full_like(key[0], _PARITY))
    keys = (*key, parity)
    first, second = first + keys[0], second + keys[1]
    for group in range(_GROUPS):
        for distance in _ROTATIONS[group % 2]:
            first = first + second
            # The two parts have no bit in common.
            right = bits.shift_right_by(second, 32 - distance)
            rotated = bits.shift_left(second, np.array(distance)) + right
            second = lax.bitwise_xor(first, rotated)
        first = first + keys[(group + 1) % 3]
        second = second + keys[(group + 2) % 3] + np.int32(group + 1)
    return first, second


def _philox_bits(key: Any, count: Any, shape: Sequence[int], width: int) -> tuple[int, Any]:
    """Return how many counts are used, and words of four from each, or two of 64 bits.

    The counter has 128 bits: the count, and above it the key.
    """
    size = math.prod(shape) * (2 if width == 64 else 1)
    used = -(-size // 4)
    counts = count + jnp.arange(used, dtype=np.int64)
    is_carried = unsigned_order(counts) < unsigned_order(jnp.broadcast_to(count, counts.shape))
    low = lax.bitcast_convert_type(counts, np.int32)
    high = lax.bitcast_convert_type(jnp.where(is_carried, key + 1, key), np.int32)
    keys = lax.bitcast_convert_type(key, np.int32)
    words = jnp.stack(
        _philox((keys[0], keys[1]), [low[:, 0], low[:, 1], high[:, 0], high[:, 1]]), -1
    )
    if width == 64:
        wide = lax.bitcast_convert_type(jnp.reshape(words, (2 * used, 2)), np.int64)
        return used, jnp.reshape(wide[: math.prod(shape)], shape)
    return used, jnp.reshape(jnp.reshape(words, (4 * used,))[:size], shape)


def _philox(key: tuple[Any, Any], counter: Sequence[Any]) -> list[Any]:
    """Return the four words that Philox makes of others, all of int32."""
    first, second, third, fourth = counter
    for number in range(_PHILOX_ROUNDS):
        steps = [np.array(number * int(step)).astype(np.int32) for step in _PHILOX_STEPS]
        low, high = _product(first, _PHILOX_FACTORS[0])
        other_low, other_high = _product(third, _PHILOX_FACTORS[1])
        keys = [
            jnp.broadcast_to(part + step, low.shape) for part, step in zip(key, steps, strict=True)
        ]
        first = lax.bitwise_xor(lax.bitwise_xor(other_high, second), keys[0])
        third = lax.bitwise_xor(lax.bitwise_xor(high, fourth), keys[1])
        second, fourth = other_low, low
    return [first, second, third, fourth]


def _product(value: Any, factor: int) -> tuple[Any, Any]:
    """Return the low and the high word of the product of unsigned words, which lie in int32."""
    wide = value.astype(np.int64)
    unsigned = jnp.where(wide < 0, wide + (1 << 32), wide)
    words = lax.bitcast_convert_type(unsigned * np.int64(factor), np.int32)
    return words[..., 0], words[..., 1]


def _of_gpu(op: LoweredOperation) -> Any:
    """Return what the kernel of threefry on GPUs does."""
    first_key, second_key, *words = map(jnp.asarray, op.arrays[:4])
    return list(threefry((first_key, second_key), *words))


RULES = {
    "stablehlo.rng": LiftingRule(_refuse, ("rng_distribution",)),
    "stablehlo.rng_bit_generator": LiftingRule(_generate, ("rng_algorithm",)),
}
CUSTOM_CALLS = {
    name: LiftingRule(_of_gpu, rule.attributes)
    for name, rule in OF_JAX.items()
    if "threefry" in name
}
