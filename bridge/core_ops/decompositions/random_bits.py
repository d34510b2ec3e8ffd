"""Random bits of threefry and Philox, by operations on unsigned integers.

Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (2011); what is counted, and in which
order the words are put, is as in xla/hlo/builder/lib/prng.cc.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from bridge.core_ops.decompositions.decomposition import Decomposition, table_with
from bridge.lifting.lifted_operation import LiftedOperation, LiftingRule
from bridge.lifting.random_primitives import CUSTOM_CALLS as OF_JAX

# Five groups of four rounds of threefry, ten rounds of Philox.
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_GROUPS = 5
_PARITY = 0x1BD11BDA
_PHILOX_ROUNDS = 10
_PHILOX_FACTORS = (0xD2511F53, 0xCD9E8D57)
_PHILOX_STEPS = (0x9E3779B9, 0xBB67AE85)
_WORD = 32  # bits
_THREEFRY = "take keys of jax.random.key(seed, impl='threefry2x32')"


def _refuse(op: LiftedOperation) -> Any:
    """Refuse random numbers without a seed."""
    op.refuse("its random bits are the device's own, which nothing can repeat", _THREEFRY)


def _generate(op: LiftedOperation) -> Any:
    """Return the next state, and the bits."""
    state, wanted = op.array(0), op.dtype_of(1)
    shape = [dim for dim in op.types[1].shape if dim is not None]
    is_static = len(shape) == len(op.types[1].shape) and 0 not in shape
    if not is_static or state.dtype != np.uint64 or np.shape(state) != (2,):
        op.refuse("its state is not a pair of uint64, or its bits have no static shape", _THREEFRY)
    if wanted.kind not in "iu" or "4" in wanted.name.replace("64", ""):
        op.refuse(f"its bits are {wanted.name}", "take those of 32 bits, and convert them")
    key, count = state[0], state[1]
    is_threefry = "THREE_FRY" in op.text("rng_algorithm")  # XLA's default on CPUs is Philox
    draw = _threefry_bits if is_threefry else _philox_bits
    used, bits = draw(key, count, shape, 8 * wanted.itemsize)
    unsigned = lax.convert_element_type(bits, np.dtype(f"uint{8 * wanted.itemsize}"))
    return [
        jnp.stack([key, count + np.uint64(used)]), lax.bitcast_convert_type(unsigned, wanted)
    ]  # fmt: skip


def _words(value: Any) -> Any:
    """Return integers of 64 bits as pairs of words, the low one first, in a last dimension."""
    return lax.bitcast_convert_type(value, np.uint32)


def _threefry_bits(key: Any, count: Any, shape: Sequence[int], width: int) -> tuple[int, Any]:
    """Return how many counts are used, and two words of each or one integer of 64 bits."""
    if width != 2 * _WORD:
        return _words_of_threefry(key, count, shape)
    used = math.prod(shape)
    return used, jnp.reshape(lax.bitcast_convert_type(_blocks(key, count, used), np.uint64), shape)


def _words_of_threefry(key: Any, count: Any, shape: Sequence[int]) -> tuple[int, Any]:
    """Return two words of each count, neighbours along the first even dimension.

    Without an even one it is the longest, of which the last words are left out.
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
    counts, words = _words(count + jnp.arange(size, dtype=np.uint64)), _words(key)
    return jnp.stack(threefry((words[0], words[1]), counts[:, 0], counts[:, 1]), -1)


def threefry(key: tuple[Any, Any], first: Any, second: Any) -> tuple[Any, Any]:
    """Return the two words that threefry makes of two others, all of uint32."""
    parity = lax.bitwise_xor(lax.bitwise_xor(*key), jnp.full_like(key[0], _PARITY))
    keys = (*key, parity)
    first, second = first + keys[0], second + keys[1]
    for group in range(_GROUPS):
        for distance in _ROTATIONS[group % 2]:
            first = first + second
            # The two parts have no bit in common, so that their sum has the bits of both.
            left = lax.shift_left(second, jnp.full_like(second, distance))
            right = lax.shift_right_logical(second, jnp.full_like(second, _WORD - distance))
            second = lax.bitwise_xor(first, left + right)
        first = first + keys[(group + 1) % 3]
        second = second + keys[(group + 2) % 3] + np.uint32(group + 1)
    return first, second


def _philox_bits(key: Any, count: Any, shape: Sequence[int], width: int) -> tuple[int, Any]:
    """Return how many counts are used, and four words of each or two integers of 64 bits.

    The counter has 128 bits: the count, and above it the key.
    """
    size = math.prod(shape) * (2 if width == 2 * _WORD else 1)
    used = -(-size // 4)
    counts = count + jnp.arange(used, dtype=np.uint64)
    is_carried = counts < jnp.broadcast_to(count, counts.shape)
    low, high = _words(counts), _words(jnp.where(is_carried, key + np.uint64(1), key))
    keys = _words(key)
    counter = [low[:, 0], low[:, 1], high[:, 0], high[:, 1]]
    words = jnp.stack(_philox((keys[0], keys[1]), counter), -1)
    if width == 2 * _WORD:
        wide = lax.bitcast_convert_type(jnp.reshape(words, (2 * used, 2)), np.uint64)
        return used, jnp.reshape(wide[: math.prod(shape)], shape)
    return used, jnp.reshape(jnp.reshape(words, (4 * used,))[:size], shape)


def _philox(key: tuple[Any, Any], counter: Sequence[Any]) -> list[Any]:
    """Return the four words that Philox makes of others, all of uint32."""
    first, second, third, fourth = counter
    for number in range(_PHILOX_ROUNDS):
        low, high = _product(first, _PHILOX_FACTORS[0])
        other_low, other_high = _product(third, _PHILOX_FACTORS[1])
        keys = [
            jnp.broadcast_to(part + np.uint32(number * step % 2**_WORD), low.shape)
            for part, step in zip(key, _PHILOX_STEPS, strict=True)
        ]
        first = lax.bitwise_xor(lax.bitwise_xor(other_high, second), keys[0])
        third = lax.bitwise_xor(lax.bitwise_xor(high, fourth), keys[1])
        second, fourth = other_low, low
    return [first, second, third, fourth]


def _product(value: Any, factor: int) -> tuple[Any, Any]:
    """Return the low and the high word of products."""
    words = _words(lax.convert_element_type(value, np.uint64) * np.uint64(factor))
    return words[..., 0], words[..., 1]


def _of_gpu(op: LiftedOperation) -> Any:
    """Return the result of the kernel of threefry on GPUs."""
    first_key, second_key, *words = map(jnp.asarray, op.arrays[:4])
    return list(threefry((first_key, second_key), *words))


_CUSTOM_CALLS = {
    name: LiftingRule(_of_gpu, rule.attributes)
    for name, rule in OF_JAX.items()
    if "threefry" in name
}
RANDOM_BITS_AS_INTEGERS = Decomposition(
    name="random bits",
    table=table_with(
        {
            "stablehlo.rng": LiftingRule(_refuse, ("rng_distribution",)),
            "stablehlo.rng_bit_generator": LiftingRule(_generate, ("rng_algorithm",)),
        },
        _CUSTOM_CALLS,
        target="integers",
    ),
    operations=frozenset({"stablehlo.rng", "stablehlo.rng_bit_generator"}),
    custom_calls=frozenset(_CUSTOM_CALLS),
)
