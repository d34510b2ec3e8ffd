"""Random bits of threefry, by operations on 32-bit integers."""

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
from bridge.litert.lowering.lowered_operation import LoweredOperation
from bridge.litert.lowering.storage_dtypes import integer_bits

__all__ = ["CUSTOM_CALLS", "RULES"]

# Salmon et al., Parallel random numbers: as easy as 1, 2, 3; five groups of four rounds.
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_GROUPS = 5
_PARITY = np.int32(0x1BD11BDA)
_THREEFRY = "take keys of jax.random.key(seed, impl='threefry2x32')"


def _refuse(op: LoweredOperation) -> Any:
    """Refuse random numbers without a seed."""
    op.refuse("LiteRT has no random numbers that JAX can repeat", _THREEFRY)


def _generate(op: LoweredOperation) -> Any:
    """Return the next state and bits, counted as XLA does (xla/hlo/builder/lib/prng.cc)."""
    state = jnp.asarray(op.array(0))
    shape = [dim for dim in op.types[1].shape if dim is not None]
    wanted = op.logical_dtype(1)
    if "THREE_FRY" not in op.text("rng_algorithm"):
        op.refuse("its random bits are the device's own, which LiteRT cannot repeat", _THREEFRY)
    is_known = len(shape) == len(op.types[1].shape) and 0 not in shape
    if not is_known or op.operand_dtype().itemsize != 8 or np.shape(state) != (2,):
        op.refuse("its state is not a pair of uint64, or its bits have no known shape", _THREEFRY)
    key, count = state[0], state[1]
    if integer_bits(wanted) == 64:
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
