"""Random bits: the generators of XLA, and the kernel of threefry on GPUs.

`jax.random` computes threefry of integer operations, which are lifted as such; only its other
generators, and GPUs, have operations for it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from jax import lax
from jax.custom_batching import sequential_vmap
from jax.extend.random import threefry2x32_p

from bridge.lifting.known_values import Dimension
from bridge.lifting.lifted_operation import LiftedOperation, LiftingRule
from xla_call_module.stablehlo.elements import element_dtype
from xla_call_module.stablehlo.walking import CUSTOM_CALL_ATTRIBUTES

# The forms of a state that JAX's generator takes.
_STATES = (((2,), "uint64"), ((4,), "uint32"))


def _bits(op: LiftedOperation, *, is_mapped: bool = False) -> Any:
    shape = [dim for dim in op.types[1].shape if dim is not None]
    return _generate(op, shape, is_mapped=is_mapped)


def _bits_of_dynamic_shape(op: LiftedOperation, *, is_mapped: bool = False) -> Any:
    return _generate(op, op.dimensions(1), is_mapped=is_mapped)


def _generate(op: LiftedOperation, shape: Sequence[Dimension], *, is_mapped: bool) -> Any:
    """Return the next state and the bits, in the same words for signed integers."""
    state = op.array(0)
    form = (np.shape(state), str(state.dtype))
    if form not in _STATES:
        op.refuse(f"its state is {form[1]}{list(form[0])}, and JAX's generators have uint64[2]")
    wanted = np.dtype(element_dtype(op.types[1].element))
    if wanted.kind not in "iu":
        op.refuse(f"it generates {wanted}, and JAX's generators unsigned integers")
    name = re.findall(r"DEFAULT|THREE_FRY|PHILOX", op.text("rng_algorithm"))
    algorithm = lax.RandomAlgorithm[f"RNG_{name[0]}"]
    unsigned = np.dtype(f"uint{8 * wanted.itemsize}")

    def generate(state: Any) -> Any:
        return lax.rng_bit_generator(state, tuple(shape), unsigned, algorithm)

    state, bits = (sequential_vmap(generate) if is_mapped else generate)(state)
    return [state, bits if wanted == unsigned else lax.bitcast_convert_type(bits, wanted)]


def _uniform(op: LiftedOperation) -> Any:
    """Return XLA's own random numbers, which have a state that no program sees."""
    if "UNIFORM" not in op.text("rng_distribution"):
        op.refuse("JAX has no operation for these random numbers, which have no seed", _SEEDED)
    if op.dtype.kind == "c":
        op.refuse("JAX has no random numbers without a seed that are complex", _SEEDED)
    return lax.rng_uniform(op.array(0), op.array(1), op.dimensions(2))


def _threefry(op: LiftedOperation) -> Any:
    return list(threefry2x32_p.bind(*op.arrays[:4]))


_SEEDED = "draw them with jax.random"
RULES = {
    "stablehlo.rng": LiftingRule(_uniform, ("rng_distribution",)),
    "stablehlo.rng_bit_generator": LiftingRule(_bits, ("rng_algorithm",)),
}
_DYNAMIC = "stablehlo.dynamic_rng_bit_generator"
_OF_DYNAMIC = (*CUSTOM_CALL_ATTRIBUTES, "rng_algorithm")
# JAX's batching rule of the primitive makes all bits of the first state of a batch. The bits of
# each state are those that TensorFlow means.
MAPPED_RULES = {
    "stablehlo.rng_bit_generator": LiftingRule(partial(_bits, is_mapped=True), ("rng_algorithm",))
}
MAPPED_CUSTOM_CALLS = {
    _DYNAMIC: LiftingRule(partial(_bits_of_dynamic_shape, is_mapped=True), _OF_DYNAMIC)
}
CUSTOM_CALLS = {
    _DYNAMIC: LiftingRule(_bits_of_dynamic_shape, _OF_DYNAMIC),
    **{
        f"{gpu}_threefry2x32{suffix}": LiftingRule(
            _threefry, (*CUSTOM_CALL_ATTRIBUTES, "sdy.sharding_rule")
        )
        for gpu in ("cu", "hip", "cuda")
        for suffix in ("", "_ffi")
    },
}
