"""One operation of a StableHLO module, as the rules for LiteRT see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import lax

from bridge.lifting.known_values import LiftedValue
from bridge.lifting.lifted_operation import Lift, LiftedOperation
from bridge.litert.lowering.bit_operations import low_bits
from bridge.litert.lowering.float_rounding import round_to_byte
from bridge.litert.lowering.storage_dtypes import integer_bits, storage_dtype, to_storage
from xla_call_module.dtypes import Array
from xla_call_module.stablehlo.elements import element_dtype
from xla_call_module.stablehlo.modules import tensor_type


@dataclass(frozen=True, slots=True)
class LoweredOperation(LiftedOperation):
    """An operation whose operands have their storage dtypes.

    `dtype` and `dtype_of` are storage dtypes; `logical_dtype` is that of the module.

    Attributes:
        exact: whether NaN, signs of zeros and traps are JAX's where that takes more operations.
    """

    exact: ClassVar[bool] = True

    @property
    def arrays(self) -> list[Any]:
        """The operands as arrays of their storage dtypes."""
        return [to_storage(operand) for operand in self.operands]

    def array(self, index: int) -> Any:
        """Return one operand as an array of its storage dtype."""
        return to_storage(self.operands[index])

    @property
    def scalars_and_arrays(self) -> list[Any]:
        """The operands as arrays."""
        return self.arrays

    def dtype_of(self, index: int) -> np.dtype[Any]:
        """Return the storage dtype of one result."""
        logical = self.logical_dtype(index)
        storage = storage_dtype(logical)
        if storage is None:
            self.refuse(
                f"LiteRT computes nothing of {logical.name}",
                "compute this in float32, which jax.config.jax_enable_x64 does not widen",
            )
        return storage

    def logical_dtype(self, index: int = 0) -> np.dtype[Any]:
        """Return the dtype of one result in the module."""
        return element_dtype(self.types[index].element)

    def operand_dtype(self, index: int = 0) -> np.dtype[Any]:
        """Return the dtype of one operand in the module."""
        return element_dtype(tensor_type(str(self.raw.operands[index].type)).element)

    def known(self, index: int) -> Array | None:
        """Return the constant that an operand is, or repeats; None for what is computed.

        The number that is repeated to a symbolic shape is a scalar.
        """
        return known_of(self.raw.operands[index], self.operands[index], self.around)

    def known_of_maker(self, index: int, name: str) -> list[Array | None]:
        """Return the constants among the operands of what makes an operand, if it has a name."""
        maker = maker_of(self.raw.operands[index])
        if maker is None or maker.name != name:
            return []
        around = self.around
        return [known_of(operand, around.get(operand), around) for operand in maker.operands]


class InexactOperation(LoweredOperation):
    """An operation whose rule leaves NaN, signs of zeros and traps to the kernels."""

    __slots__ = ()
    exact = False


def maker_of(value: Any) -> Any:
    """Return the operation that makes a value of a module; None for an argument."""
    return getattr(value.owner, "operation", None)


def known_of(raw: Any, value: LiftedValue, around: Mapping[Any, LiftedValue]) -> Array | None:
    """Return the constant that a value of a module is, or repeats."""
    if isinstance(value, np.ndarray):
        return value
    maker = maker_of(raw)
    if maker is None or maker.name != "stablehlo.dynamic_broadcast_in_dim":
        return None
    repeated = around.get(maker.operands[0])
    return repeated if isinstance(repeated, np.ndarray) and repeated.ndim == 0 else None


def rounded(value: Any, logical: np.dtype[Any]) -> Any:
    """Return what was computed in a storage dtype as what the dtype of the module has of it."""
    if logical.kind == "b":
        return value
    if bits := integer_bits(logical):
        return (
            value if bits >= 32 else _wrapped(value, bits, is_unsigned=logical.name.startswith("u"))
        )
    if logical.itemsize >= 4:
        return value
    if logical.itemsize == 1 and "e8m0" not in logical.name:
        return round_to_byte(value, logical)
    return lax.convert_element_type(lax.convert_element_type(value, logical), np.float32)


def _wrapped(value: Any, bits: int, *, is_unsigned: bool) -> Any:
    """Return the lowest bits of integers, as numbers."""
    if is_unsigned:
        return low_bits(value, bits)
    half = np.int32(1 << (bits - 1))
    return low_bits(value + half, bits) - half


def _stored(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return an array in its storage dtype, which JAX may have promoted among 64-bit ones."""
    if jnp.result_type(value) == dtype:
        return value
    return lax.convert_element_type(value, dtype)


def moved(lift: Lift) -> Lift:
    """Return the rule of an operation that computes, whose results are rounded."""

    def lower(op: LoweredOperation) -> Any:
        results: Any = lift(op)
        several = isinstance(results, (list, tuple))
        made = [
            None if one is None else rounded(_stored(one, op.dtype_of(n)), op.logical_dtype(n))
            for n, one in enumerate(results if several else [results])
        ]
        return made if several else made[0]

    return lower
