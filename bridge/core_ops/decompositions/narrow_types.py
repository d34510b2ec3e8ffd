"""Integers of few bits and small floats in wider dtypes, with the values that the types have.

Each operation is computed in the storage dtype (`bridge.core.narrow_types`), and what it computes
is fitted: integers wrap around, and floats are rounded. Sums and products of matrices are fitted
once, at their end; XLA rounds some sums of floats on the way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from bridge.core.narrow_types import NARROW_TYPES, NarrowFloat, NarrowInteger, NarrowType
from bridge.core_ops.decompositions import one_device
from bridge.core_ops.decompositions.decomposition import Decomposition, table_with
from bridge.core_ops.decompositions.retracing import ParameterArray
from bridge.lifting.known_values import LiftedValue, as_array
from bridge.lifting.lifted_operation import Lift, LiftedOperation, LiftingRule
from xla_call_module.dtypes import Array
from xla_call_module.stablehlo.combiners import combiner_of
from xla_call_module.stablehlo.elements import element_dtype
from xla_call_module.stablehlo.modules import tensor_type

_BYTE = 8
_SUMS = ("add", "multiply")


def _storage_of(element: str) -> np.dtype[Any]:
    """Return the dtype that the elements of a type of MLIR are computed in."""
    narrow = NARROW_TYPES.get(element)
    return element_dtype(element) if narrow is None else narrow.storage_dtype


def _stored(value: LiftedValue) -> Any:
    """Return a value of a module, of which constants of narrow types are in storage dtypes."""
    if isinstance(value, np.ndarray) and (storage := _STORAGE.get(value.dtype)) is not None:
        return as_array(value.astype(storage))
    return as_array(value)


_STORAGE = {narrow.numpy_dtype: narrow.storage_dtype for narrow in NARROW_TYPES.values()}


@dataclass(frozen=True, slots=True)
class _StoredOperation(LiftedOperation):
    """An operation whose operands of narrow types have storage dtypes, as `dtype` says."""

    @property
    def arrays(self) -> list[Any]:
        """The operands."""
        return list(map(_stored, self.operands))

    def array(self, index: int) -> Any:
        """Return one operand."""
        return _stored(self.operands[index])

    @property
    def scalars_and_arrays(self) -> list[Any]:
        """The operands."""
        return self.arrays

    def dtype_of(self, index: int) -> np.dtype[Any]:
        """Return the storage dtype of one result."""
        return _storage_of(self.types[index].element)

    @property
    def region_dtypes(self) -> tuple[np.dtype[Any], ...]:
        """The storage dtypes of the arguments of the first region."""
        arguments = self.regions[0].block.arguments
        return tuple(_storage_of(tensor_type(str(one.type)).element) for one in arguments)

    @property
    def narrow_types(self) -> list[NarrowType | None]:
        """The narrow type of each result; None for one of another type."""
        texts = [str(result.type) for result in self.raw.results]
        return [
            NARROW_TYPES.get(tensor_type(text).element) if text.startswith("tensor<") else None
            for text in texts
        ]

    @property
    def narrow_operand(self) -> NarrowType | None:
        """The narrow type of the first operand."""
        return NARROW_TYPES.get(tensor_type(str(self.raw.operands[0].type)).element)

    @property
    def narrow_integer(self) -> NarrowInteger:
        """The narrow type of the only result, of an operation on bits."""
        (narrow,) = self.narrow_types
        assert isinstance(narrow, NarrowInteger)
        return narrow


def fit(value: Any, narrow: NarrowType) -> Any:
    """Return the value of a type for each number: integers wrap around, floats are rounded."""
    if isinstance(narrow, NarrowInteger):
        return _wrap(value, narrow)
    return lax.convert_element_type(round_to(value, narrow), narrow.storage_dtype)


def _wrap(value: Any, narrow: NarrowInteger) -> Any:
    """Return integers modulo the size of a narrow type, in two's complement.

    With a sign it is `((x & 15) ^ 8) - 8` of 4 bits, of which nothing overflows in any runtime.
    """
    unsigned = lax.bitwise_and(value, jnp.full_like(value, narrow.mask))
    if narrow.is_unsigned:
        return unsigned
    sign_bit = jnp.full_like(value, -narrow.least)
    return lax.sub(lax.bitwise_xor(unsigned, sign_bit), sign_bit)


def _fitting(lift: Lift, keeps: Callable[[_StoredOperation, NarrowType], bool]) -> Lift:
    """Return a rule whose results are fitted, but for those that are values of the type already."""

    def lower(op: _StoredOperation) -> Any:
        narrow = [one if one and not keeps(op, one) else None for one in op.narrow_types]
        for one in narrow:
            if isinstance(one, NarrowFloat) and not one.has_arithmetic:
                op.refuse(
                    f"XLA does not compute with {one.name}, so its result is not known",
                    "convert it to float32 before, and the result back",
                )
        results: Any = lift(op)
        if not any(narrow) or results is None:
            return results
        if not isinstance(results, (list, tuple)):
            return fit(_stored(results), narrow[0]) if narrow[0] else results
        return [
            result if one is None or result is None else fit(_stored(result), one)
            for result, one in zip(results, narrow, strict=True)
        ]

    return lower


def _always(op: _StoredOperation, narrow: NarrowType) -> bool:
    del op, narrow
    return True


def _never(op: _StoredOperation, narrow: NarrowType) -> bool:
    del op, narrow
    return False


def _if_integer(op: _StoredOperation, narrow: NarrowType) -> bool:
    del op
    return isinstance(narrow, NarrowInteger)


def _if_chosen(op: _StoredOperation, narrow: NarrowType) -> bool:
    """Return whether a region neither adds nor multiplies; other results are fitted in it."""
    del narrow
    return combiner_of(op.regions[0].block) not in _SUMS


def _convert(op: _StoredOperation) -> Any:
    """Return the nearest integer of a float, and of an integer the last bits."""
    (narrow,), value = op.narrow_types, op.array(0)
    is_float = jnp.issubdtype(jnp.result_type(value), jnp.floating)
    if narrow is None:
        return _PLAIN.rules[op.raw.name].lift(op)
    if isinstance(narrow, NarrowFloat):
        if not narrow.is_signed:
            _check_positive(op, narrow)
        number = value if is_float else lax.convert_element_type(value, narrow.storage_dtype)
        return fit(number, narrow)
    if not is_float:
        if isinstance(op.operands[0], ParameterArray) and _is_within(op.operands[0], narrow):
            return value
        return _wrap(lax.convert_element_type(value, narrow.storage_dtype), narrow)
    nearest = lax.convert_element_type(value, narrow.storage_dtype)
    least, greatest = (_like(nearest, number) for number in (narrow.least, narrow.greatest))
    return lax.clamp(least, nearest, greatest)


def _is_within(parameter: ParameterArray, narrow: NarrowInteger) -> bool:
    elements = parameter.elements
    return bool(((elements >= narrow.least) & (elements <= narrow.greatest)).all())


def _like(value: Any, number: float) -> Any:
    """Return a number in the dtype of an array."""
    return np.asarray(number, jnp.result_type(value))


def _check_positive(op: _StoredOperation, narrow: NarrowFloat) -> None:
    """Refuse what is left open where nothing else can have been meant: constants without inputs.

    Of a number that is not positive XLA makes NaN, and StableHLO's interpreter another number.
    """
    value = op.operands[0]
    if isinstance(value, np.ndarray) and (value.astype(np.float64) <= 0).any():
        function = op.raw.parent
        while function.name != "func.func":
            function = function.parent
        if not len(function.regions[0].blocks[0].arguments):
            op.refuse(
                f"it makes a {narrow.name} of a constant that is not positive, which StableHLO "
                "leaves open",
                "convert another number",
            )


def _of_bits(op: _StoredOperation) -> Any:
    """Return the result of an operation on bits, of which those in front are no part."""
    narrow = op.narrow_integer
    unsigned = lax.convert_element_type(_to_unsigned(op.array(0), narrow), narrow.storage_dtype)
    return fit(_on(op, unsigned), narrow)


def _on(op: _StoredOperation, value: Any) -> Any:
    """Return the result of the rule for dtypes that are not narrow, of another first operand."""
    lift = _PLAIN.rules[op.raw.name].lift
    return lift(dataclasses.replace(op, operands=(value, *op.operands[1:])))


def _count_leading_zeros(op: _StoredOperation) -> Any:
    narrow = op.narrow_integer
    unsigned = lax.convert_element_type(_to_unsigned(op.array(0), narrow), narrow.storage_dtype)
    zeros = _on(op, unsigned)
    return fit(zeros - _like(zeros, _BYTE - narrow.bits), narrow)


def _shift_right_arithmetic(op: _StoredOperation) -> Any:
    """Return bits after as many of the first one, of unsigned integers too."""
    narrow = op.narrow_integer
    if not narrow.is_unsigned:
        return _PLAIN.rules[op.raw.name].lift(op)
    signed = NarrowInteger(narrow.name[1:], narrow.mlir[1:], narrow.bits)
    value = _wrap(lax.convert_element_type(op.array(0), np.int8), signed)
    amounts = lax.convert_element_type(op.array(1), np.int8)
    shifted = lax.shift_right_arithmetic(value, amounts)
    return _wrap(lax.convert_element_type(shifted, narrow.storage_dtype), narrow)


def _bitcast(op: _StoredOperation) -> Any:
    """Return the bits as another type, by way of bytes where one of the two is not narrow."""
    value, source, (target,) = op.array(0), op.narrow_operand, op.narrow_types
    if np.dtype(bool) in (jnp.result_type(value), op.dtype):
        op.refuse("a type of fewer bits than a byte is read as truth values, or made of them")
    if source is None:
        assert target is not None
        bytes_ = lax.bitcast_convert_type(value, np.uint8)
        return _from_bytes(bytes_, target, jnp.result_type(value).itemsize)
    if isinstance(source, NarrowFloat) and source.bits_of_nan is None:
        op.refuse(f"the bits of a NaN of {source.name} cannot be read")
    bits = _to_bits(value, source)
    if target is None:
        return lax.bitcast_convert_type(_to_bytes(bits, source, op.dtype.itemsize), op.dtype)
    if source.bits < target.bits:
        bits = _join(bits, source.bits, target.bits // source.bits)
    elif source.bits > target.bits:
        bits = _split(bits, target.bits, source.bits // target.bits)
    return _from_bits(bits, target)


def _to_bytes(bits: Any, narrow: NarrowType, count: int) -> Any:
    """Return the bits as bytes, `count` of them in the last dimension if they are several."""
    each = _BYTE // narrow.bits
    if each == 1:
        return bits
    if count > 1:
        bits = jnp.reshape(bits, (*bits.shape[:-1], count, each))
    return _join(bits, narrow.bits, each)


def _from_bytes(bytes_: Any, narrow: NarrowType, count: int) -> Any:
    """Return the elements of bytes, `count` of them in the last dimension if several."""
    each, bits = _BYTE // narrow.bits, bytes_
    if each > 1:
        bits = _split(bits, narrow.bits, each)
        if count > 1:
            bits = jnp.reshape(bits, (*bits.shape[:-2], count * each))
    return _from_bits(bits, narrow)


def _join(bits: Any, width: int, count: int) -> Any:
    """Return several integers of few bits as one uint8, the lowest first in the last dimension."""
    parts = [
        lax.shift_left(bits[..., n], jnp.full_like(bits[..., n], n * width)) for n in range(count)
    ]
    joined = parts[0]
    for part in parts[1:]:
        joined = lax.bitwise_or(joined, part)
    return joined


def _split(bits: Any, width: int, count: int) -> Any:
    """Return each uint8 as several of fewer bits, the lowest first, in a new dimension."""
    mask = jnp.full_like(bits, (1 << width) - 1)
    parts = [
        lax.bitwise_and(lax.shift_right_logical(bits, jnp.full_like(bits, n * width)), mask)
        for n in range(count)
    ]
    return jnp.stack(parts, -1)


def _to_bits(value: Any, narrow: NarrowType) -> Any:
    """Return the bits of a value as an uint8, with zeros in front; not of one of several NaNs."""
    if isinstance(narrow, NarrowInteger):
        return _to_unsigned(value, narrow)
    place = _count_up_to(narrow.magnitudes, jnp.abs(value)) - 1
    bits = lax.convert_element_type(place, np.uint8)
    if narrow.is_signed:
        is_negative = (value < 0) | (_like(value, 1) / value < 0)
        bits = jnp.where(is_negative, bits | np.uint8(1 << (narrow.bits - 1)), bits)
    return jnp.where(value != value, np.uint8(narrow.bits_of_nan or 0), bits)


def _count_up_to(ascending: Array, value: Any) -> Any:
    """Return how many of some ascending numbers are no larger than each element."""
    count = jnp.zeros(np.shape(value), np.int32)
    for bit in reversed(range(len(ascending).bit_length())):
        place = jnp.minimum(count + np.int32(1 << bit), np.int32(len(ascending)))
        count = jnp.where(_look_up(ascending, place - 1) <= value, place, count)
    return count


def _look_up(numbers: Array, places: Any) -> Any:
    """Return numbers at places, which are in bounds."""
    return jnp.take(numbers, places, mode="clip")


def _from_bits(bits: Any, narrow: NarrowType) -> Any:
    """Return the value of some bits in an uint8, of which those in front do not matter."""
    if isinstance(narrow, NarrowInteger):
        return _wrap(lax.convert_element_type(bits, narrow.storage_dtype), narrow)
    own = lax.bitwise_and(bits, jnp.full_like(bits, narrow.mask))
    return _look_up(narrow.values, lax.convert_element_type(own, np.int32))


def _to_unsigned(value: Any, narrow: NarrowInteger) -> Any:
    """Return the bits of an integer as an uint8, with zeros in front."""
    byte = lax.convert_element_type(value, np.uint8)
    return byte if narrow.is_unsigned else byte & np.uint8(narrow.mask)


# What moves elements, or chooses among them.
_KEEPING = (
    "after_all", "broadcast", "broadcast_in_dim", "case", "clamp", "concatenate", "constant",
    "copy", "create_token", "dynamic_broadcast_in_dim", "dynamic_gather", "dynamic_pad",
    "dynamic_reshape", "dynamic_slice", "dynamic_update_slice", "gather", "get_dimension_size",
    "if", "map", "maximum", "minimum", "optimization_barrier", "pad", "real_dynamic_slice",
    "reshape", "reverse", "select", "slice", "sort", "torch_index_select", "transpose", "while",
)  # fmt: skip
_KEEPING_INTEGERS = ("and", "or", "remainder", "sign", "xor")
_KEEPING_CHOICES = ("reduce", "reduce_window", "scatter", "select_and_scatter")
_OWN: Mapping[str, Lift] = {
    "bitcast_convert": _bitcast,
    "convert": _convert,
    "count_leading_zeros": _count_leading_zeros,
    "popcnt": _of_bits,
    "shift_right_arithmetic": _shift_right_arithmetic,
    "shift_right_logical": _of_bits,
}


def _narrow_rule(name: str, rule: LiftingRule) -> LiftingRule:
    """Return the rule of an operation, also for narrow types."""
    short = name.partition(".")[2]
    if short in _OWN:
        own = _OWN[short]
        return LiftingRule(lambda op: own(op) if _is_narrow(op) else rule.lift(op), rule.attributes)
    keeps = _always if name in one_device.RULES else _never
    for names, when in (
        (_KEEPING, _always), (_KEEPING_INTEGERS, _if_integer), (_KEEPING_CHOICES, _if_chosen),
    ):  # fmt: skip
        keeps = when if short in names else keeps
    return LiftingRule(_fitting(rule.lift, keeps), rule.attributes)


def _is_narrow(op: _StoredOperation) -> bool:
    return op.narrow_operand is not None or any(op.narrow_types)


_PLAIN = table_with({}, target="wider dtypes")


NARROW_TYPES_IN_WIDER = Decomposition(
    name="narrow types",
    table=dataclasses.replace(
        _PLAIN,
        rules={name: _narrow_rule(name, rule) for name, rule in _PLAIN.rules.items()},
        custom_calls={
            name: LiftingRule(_fitting(rule.lift, _always), rule.attributes)
            for name, rule in _PLAIN.custom_calls.items()
        },
        operation=_StoredOperation,
        to_array=_stored,
    ),
    elements=frozenset(NARROW_TYPES),
    is_wide=True,
)


_PRECISION = 53  # bits of a float64, with the one that is not stored


def round_to(value: Any, narrow: NarrowFloat) -> Any:
    """Return the nearest number of a float type, and of two the even one, in float64.

    The difference `c * x - (c * x - x)` with `c = 2**k + 1` is x without the last k bits of a
    float64 (T. J. Dekker, A floating-point technique for extending the available precision, 1971),
    rounded as `c * x` is. The numbers below the least that has all bits are multiples of one.
    """
    exact = lax.convert_element_type(value, np.float64)
    size = jnp.minimum(jnp.abs(exact), 4 * narrow.greatest)  # more is as that is
    product = size * (2.0 ** (_PRECISION - 1 - narrow.fraction_bits) + 1)
    rounded = product - (product - size)
    steps = lax.round(size * (1 / narrow.least), lax.RoundingMethod.TO_NEAREST_EVEN)
    is_small = size < narrow.least * 2.0**narrow.fraction_bits
    rounded = jnp.where(is_small, steps * narrow.least, rounded)
    rounded = jnp.where(rounded > narrow.greatest, narrow.overflow, rounded)
    if not narrow.is_signed:
        return _positive(exact, rounded, narrow)
    # Where there are several NaNs they keep their signs.
    nan = narrow.converted_nan if narrow.bits_of_nan is not None else exact
    return _with_sign(exact, jnp.where(exact != exact, nan, rounded), narrow)


def _with_sign(exact: Any, size: Any, narrow: NarrowFloat) -> Any:
    """Return sizes with the signs of numbers, by a product, in which a -0 has a sign."""
    is_negative = exact < 0
    if narrow.has_negative_zero:
        is_negative = is_negative | (1 / exact < 0)
    signed = size * jnp.where(is_negative, -1.0, 1.0)
    return signed if narrow.has_negative_zero else jnp.where(size == 0, 0.0, signed)


def _positive(exact: Any, rounded: Any, narrow: NarrowFloat) -> Any:
    """Return the value in a type of powers of two, without zero; above the least comes the next.

    XLA and ml_dtypes alike give that where float32 has numbers of fewer bits.
    """
    bound = jnp.where(exact > narrow.least, 2 * narrow.least, narrow.least)
    return jnp.where(exact > 0, jnp.maximum(rounded, bound), narrow.converted_nan)
