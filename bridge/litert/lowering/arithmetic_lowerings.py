"""Operations on each element: where LiteRT's kernel computes something else, in terms of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from bridge.core_ops.elementary import reciprocal_of
from bridge.lifting.elementwise_primitives import COMPARISONS, negative_power
from bridge.lifting.elementwise_primitives import RULES as OF_JAX
from bridge.lifting.lifted_operation import Lift, LiftingRule
from bridge.lifting.sorting_primitives import total_order
from bridge.litert.lowering import bit_operations as bits
from bridge.litert.lowering import elementary_lowerings
from bridge.litert.lowering.lowered_operation import LoweredOperation, rounded
from bridge.litert.lowering.storage_dtypes import integer_bits
from xla_call_module.dtypes import Array
from xla_call_module.stablehlo.attributes import comparison_direction

_STEPS = 4  # of 22 bits each, to divide 64


def is_unsigned(dtype: np.dtype[Any]) -> bool:
    """Return whether integers are unsigned, and have the bits of int32 or int64 in a model."""
    return dtype.name in ("uint32", "uint64")


def unsigned_order(value: Any) -> Any:
    """Return signed integers in the order of the unsigned ones that have the same bits."""
    bits_of = 8 * jnp.result_type(value).itemsize
    return value + np.array(-(1 << (bits_of - 1)), f"int{bits_of}")


def _extreme(function: Callable[..., Any], of_bools: Callable[..., Any]) -> Lift:
    """Return the rule of `max` or `min`, of which LiteRT's kernels lose a NaN."""
    is_beyond = lax.gt if function is lax.max else lax.lt
    identity = -np.inf if function is lax.max else np.inf

    def lower(op: LoweredOperation) -> Any:
        left, right = op.arrays
        logical = op.logical_dtype()
        if logical.kind == "b":
            return of_bools(left, right)
        if is_unsigned(logical):
            return unsigned_order(function(unsigned_order(left), unsigned_order(right)))
        if integer_bits(logical) or not op.exact or _is_activation(op):
            return function(left, right)
        for one, other, known in ((left, right, op.known(1)), (right, left, op.known(0))):
            if known is None:
                continue
            if _is_all(known, identity):
                return one
            if known.size and not (known != known).any():
                return jnp.where(is_beyond(other, one), other, one)
        return jnp.where(is_beyond(left, right) | (left != left), left, right)

    return lower


def _is_activation(op: LoweredOperation) -> bool:
    """Return whether an operation is an activation, whose kernels keep NaN.

    They are max(x, 0), and min(x, 6) of that.
    """
    known = [op.known(n) for n in (0, 1)]
    if op.raw.name == "stablehlo.maximum":
        return any(_is_all(operand, 0) for operand in known)
    if not any(_is_all(operand, 6) for operand in known):
        return False
    return any(
        _is_all(operand, 0) for n in (0, 1) for operand in op.known_of_maker(n, "stablehlo.maximum")
    )


def _divide(op: LoweredOperation) -> Any:
    left, right = op.arrays
    logical = op.logical_dtype()
    if not integer_bits(logical):
        divisor = op.known(1) if logical.name in ("bfloat16", "float32") else None
        if divisor is not None and (factor := reciprocal_of(divisor)) is not None:
            factor = factor.astype(np.float32)
            is_small = np.abs(factor) < np.finfo(np.float32).tiny
            return left * np.where(is_small, np.copysign(np.float32(0), factor), factor)
        with np.errstate(all="ignore"):  # of constants
            return left / right
    left, right = jnp.asarray(left), jnp.asarray(right)
    if is_unsigned(logical):
        return _unsigned_division(left, right)[0]
    if not op.exact:
        return _quotient(left, right)
    is_zero_divisor = right == 0
    safe = jnp.where(is_zero_divisor | (right == -1), 1, right)
    made = jnp.where(right == -1, -left, _quotient(left, safe))
    return jnp.where(is_zero_divisor, -1, made)


def _quotient(left: Any, right: Any) -> Any:
    """Return quotients of integers by others that are neither 0 nor -1."""
    if jnp.result_type(left) == np.int32:
        return lax.div(left, right)
    # LiteRT has no kernel. Each step adds the digits that float32 has of what is left.
    rest = left - _rest(left, right)
    made = jnp.zeros_like(rest)
    for _ in range(_STEPS):
        more = (rest.astype(np.float32) / right.astype(np.float32)).astype(np.int64)
        made, rest = made + more, rest - more * right
    return made


def _rest(left: Any, right: Any) -> Any:
    """Return the remainder, of which the kernel for int64 has the sign of the divisor."""
    if jnp.result_type(left) == np.int32:
        return left - lax.div(left, right) * right
    made = lax.rem(left, right)
    differs = (made != 0) & ((made < 0) != (left < 0))
    return jnp.where(differs, made - right, made)


def _remainder(op: LoweredOperation) -> Any:
    left, right = map(jnp.asarray, op.arrays)
    logical = op.logical_dtype()
    if is_unsigned(logical):
        return _unsigned_division(left, right)[1]
    if not integer_bits(logical):
        return elementary_lowerings.remainder(left, right)
    if not op.exact:
        return _rest(left, right)
    safe = jnp.where((right == 0) | (right == -1), 1, right)
    return jnp.where(right == 0, left, _rest(left, safe))


def _unsigned_division(left: Any, right: Any) -> tuple[Any, Any]:
    """Return quotient and remainder of unsigned integers that lie in signed ones."""
    by_zero = right == 0
    divisor = jnp.where(by_zero, 1, right)
    # Half of the dividend fits; the quotient is at most one less than it should be.
    half = _quotient(bits.shift_right_by(left, 1), jnp.where(divisor < 0, 1, divisor)) * 2
    rest = left - half * divisor
    more = unsigned_order(rest) >= unsigned_order(divisor)
    small = jnp.where(more, half + 1, half)
    large = (unsigned_order(left) >= unsigned_order(divisor)).astype(left.dtype)
    quotient = jnp.where(divisor < 0, large, small)
    remainder = left - quotient * divisor
    return jnp.where(by_zero, -1, quotient), jnp.where(by_zero, left, remainder)


# There are no kernels that order booleans.
_OF_BOOLS: Mapping[str, Callable[..., Any]] = {
    "EQ": lax.eq,
    "GE": lambda left, right: left | ~right,
    "GT": lambda left, right: left & ~right,
    "LE": lambda left, right: ~left | right,
    "LT": lambda left, right: ~left & right,
    "NE": lax.ne,
}


def _compare(op: LoweredOperation) -> Any:
    left, right = op.arrays
    direction = comparison_direction(op.raw)
    logical = op.operand_dtype()
    if op.text("compare_type").find("TOTALORDER") >= 0:
        left, right = total_order(left), total_order(right)
    elif is_unsigned(logical) and direction not in ("EQ", "NE"):
        left, right = unsigned_order(left), unsigned_order(right)
    elif logical.kind == "b":
        return _OF_BOOLS[direction](left, right)
    return COMPARISONS[direction](left, right)


def _convert(op: LoweredOperation) -> Any:
    (value,) = op.arrays
    given, wanted = op.operand_dtype(), op.logical_dtype()
    if given == wanted:
        return value
    value = jnp.asarray(value)
    if wanted.kind == "b":
        return value != 0
    if not integer_bits(given) and integer_bits(wanted):
        if given.kind != "b":
            return to_integers(op, value, wanted)
        return value.astype(op.dtype)
    return widened(value, given, wanted).astype(op.dtype)


def widened(value: Any, given: np.dtype[Any], wanted: np.dtype[Any]) -> Any:
    """Return numbers of which a dtype that has more of them computes what it does of its own.

    Unsigned integers become floats, and integers those of 64 bits, where that dtype is one.
    """
    if is_unsigned(given) and not integer_bits(wanted):
        return _from_unsigned(value)
    if integer_bits(wanted) != 64 or not 0 < integer_bits(given) < 64:
        return value
    wide = value.astype(np.int64)
    return jnp.where(wide < 0, wide + (1 << 32), wide) if given.name == "uint32" else wide


def _from_unsigned(value: Any) -> Any:
    """Return unsigned integers that lie in signed ones as float32, rounded once."""
    # The lowest bit says whether a half is rounded up, and stays so.
    lowest = bits.low_bits(value, 1)
    half = bits.shift_right_by(value, 1)
    odd = half + lowest - lowest * bits.low_bits(half, 1)
    return jnp.where(value < 0, odd.astype(np.float32) * 2, value.astype(np.float32))


def to_integers(op: LoweredOperation, value: Any, wanted: np.dtype[Any]) -> Any:
    """Return floats without their fractions, as near as the integers come, and 0 for NaN."""
    count, unsigned = integer_bits(wanted), wanted.name.startswith("u")
    width = 8 * op.dtype.itemsize
    bound = 0.0 if unsigned else -(2.0 ** (count - 1))
    greatest = 2.0 ** (count - (not unsigned))
    inside = jnp.where((value < greatest) & (value > bound), value, np.float32(0))
    if unsigned and count == width:
        over = inside >= 2.0 ** (width - 1)
        small = jnp.where(over, inside - np.float32(2.0 ** (width - 1)), inside).astype(op.dtype)
        made, top = jnp.where(over, unsigned_order(small), small), -1
    else:
        made, top = inside.astype(op.dtype), (1 << (count - (not unsigned))) - 1
    made = jnp.where(value >= greatest, np.array(top, op.dtype), made)
    return jnp.where(value <= bound, np.array(int(bound), op.dtype), made)


def _logical(of_bools: Callable[..., Any], of_bits: Callable[..., Any]) -> Lift:
    def lower(op: LoweredOperation) -> Any:
        of = of_bools if op.logical_dtype().kind == "b" else of_bits
        return of(*op.arrays)

    return lower


def _shift(op: LoweredOperation) -> Any:
    value, count = op.arrays
    size = integer_bits(op.logical_dtype())
    name = op.raw.name.removeprefix("stablehlo.")
    if name == "shift_right_arithmetic":
        value = rounded(value, np.dtype(f"int{size}"))
    constant = op.known(1)
    if constant is not None and constant.size and (constant == constant.flat[0]).all():
        return _shift_by(name, jnp.asarray(value), int(constant.flat[0]), size)
    value, count = jnp.broadcast_arrays(value, count)
    inside = (count >= 0) & (count < size)
    if name == "shift_left":
        return jnp.where(inside, bits.shift_left(value, count), 0)
    if name == "shift_right_logical":
        return jnp.where(inside, bits.shift_right(bits.low_bits(value, size), count), 0)
    return bits.shift_right_arithmetic(value, jnp.where(inside, count, size - 1))


def _shift_by(name: str, value: Any, number: int, size: int) -> Any:
    """Return a shift by a known number of bits."""
    inside = 0 <= number < size
    if name == "shift_left":
        return bits.shift_left(value, np.array(number)) if inside else jnp.zeros_like(value)
    if name == "shift_right_logical":
        return bits.shift_right_by(bits.low_bits(value, size), number if inside else -1)
    return bits.shift_right_arithmetic(value, np.int32(number if inside else size - 1))


def _count_zeros(op: LoweredOperation) -> Any:
    size = integer_bits(op.logical_dtype())
    zeros = bits.leading_zeros(bits.low_bits(op.array(0), size))
    return zeros - (8 * op.dtype.itemsize - size)


def _count_ones(op: LoweredOperation) -> Any:
    return bits.popcount(bits.low_bits(op.array(0), integer_bits(op.logical_dtype())))


def _bitcast(op: LoweredOperation) -> Any:
    given, wanted = op.operand_dtype(), op.logical_dtype()
    if given == wanted:
        return op.array(0)
    for dtype in (given, wanted):
        if dtype.kind in "cb" or "float8" in dtype.name or 0 < integer_bits(dtype) < 8:
            op.refuse(f"LiteRT has no bits of {given.name} as {wanted.name}", "use 32-bit elements")
    value = jnp.asarray(op.array(0))
    bits_of = [_as_bits_of(dtype) for dtype in (given, wanted)]
    if bits_of[0] != bits_of[1]:
        value = lax.bitcast_convert_type(value.astype(bits_of[0]), bits_of[1])
    return value.astype(op.dtype)


def _as_bits_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype with the bits of another one that LiteRT has bits of."""
    return np.dtype(f"int{integer_bits(dtype)}") if integer_bits(dtype) else dtype


def _power(op: LoweredOperation) -> Any:
    base, exponent = op.arrays
    logical = op.logical_dtype()
    if not integer_bits(logical):
        return lax.pow(base, exponent)
    base, exponent = jnp.broadcast_arrays(base, exponent)
    made = jnp.ones_like(base)
    for step in range(integer_bits(logical)):
        odd = bits.low_bits(bits.shift_right_by(exponent, step), 1)
        made = jnp.where(odd == 1, made * base, made)
        base = base * base
    if logical.name.startswith("u"):
        return made
    inverse = negative_power(op.array(0), bits.low_bits(exponent, 1) == 0)
    return jnp.where(exponent < 0, inverse, made)


def _sign(op: LoweredOperation) -> Any:
    value = jnp.asarray(op.array(0))
    if is_unsigned(op.logical_dtype()):
        return jnp.where(value != 0, jnp.ones_like(value), 0)
    one = jnp.ones_like(value)
    rest = jnp.zeros_like(value) if integer_bits(op.logical_dtype()) else value
    return jnp.where(value > 0, one, jnp.where(value < 0, -one, rest))


def _abs(op: LoweredOperation) -> Any:
    value = jnp.asarray(op.array(0))
    if op.logical_dtype().name.startswith("u"):
        return value
    return jnp.where(value < 0, -value, value) if op.dtype == np.int64 else lax.abs(value)


def _negate(op: LoweredOperation) -> Any:
    value = jnp.asarray(op.array(0))
    is_kernel = integer_bits(op.logical_dtype()) or not op.exact
    return -value if is_kernel else elementary_lowerings.negative(value)


def _add(op: LoweredOperation) -> Any:
    left, right = op.arrays
    return jnp.logical_or(left, right) if op.logical_dtype().kind == "b" else left + right


def _multiply(op: LoweredOperation) -> Any:
    left, right = op.arrays
    return jnp.logical_and(left, right) if op.logical_dtype().kind == "b" else left * right


def _is_all(known: Array | None, number: float) -> bool:
    """Return whether a constant repeats a number."""
    return known is not None and bool((known == number).all())


def _clamp(op: LoweredOperation) -> Any:
    low, value, high = op.arrays
    if is_unsigned(op.logical_dtype()):
        low, value, high = map(unsigned_order, (low, value, high))
        return unsigned_order(jnp.minimum(jnp.maximum(low, value), high))
    if integer_bits(op.logical_dtype()) or not op.exact:
        return jnp.minimum(jnp.maximum(low, value), high)
    bounds = op.known(0), op.known(2)
    if _is_all(bounds[0], 0) and _is_all(bounds[1], 6):
        return jnp.minimum(jnp.maximum(value, 0), 6)  # an activation that keeps NaN
    made = jnp.where(value < low, low, value)
    made = jnp.where(made > high, high, made)
    for bound, known in zip((low, high), bounds, strict=True):
        if known is None or (known != known).any():
            made = jnp.where(bound != bound, np.float32(np.nan), made)
    return made


RULES = {
    **{name: rule for name, rule in OF_JAX.items() if name != "stablehlo.map"},
    **elementary_lowerings.RULES,
    "stablehlo.abs": LiftingRule(_abs),
    "stablehlo.add": LiftingRule(_add),
    "stablehlo.and": LiftingRule(_logical(jnp.logical_and, bits.bit_and)),
    "stablehlo.bitcast_convert": LiftingRule(_bitcast),
    "stablehlo.clamp": LiftingRule(_clamp),
    "stablehlo.compare": LiftingRule(_compare, ("comparison_direction", "compare_type")),
    "stablehlo.convert": LiftingRule(_convert),
    "stablehlo.count_leading_zeros": LiftingRule(_count_zeros),
    "stablehlo.divide": LiftingRule(_divide),
    "stablehlo.is_finite": LiftingRule(lambda op: jnp.abs(op.array(0)) < np.inf),
    "stablehlo.map": OF_JAX["stablehlo.map"],
    "stablehlo.maximum": LiftingRule(_extreme(lax.max, jnp.logical_or)),
    "stablehlo.minimum": LiftingRule(_extreme(lax.min, jnp.logical_and)),
    "stablehlo.multiply": LiftingRule(_multiply),
    "stablehlo.negate": LiftingRule(_negate),
    "stablehlo.not": LiftingRule(_logical(jnp.logical_not, bits.bit_not)),
    "stablehlo.or": LiftingRule(_logical(jnp.logical_or, bits.bit_or)),
    "stablehlo.popcnt": LiftingRule(_count_ones),
    "stablehlo.power": LiftingRule(_power),
    "stablehlo.remainder": LiftingRule(_remainder),
    "stablehlo.shift_left": LiftingRule(_shift),
    "stablehlo.shift_right_arithmetic": LiftingRule(_shift),
    "stablehlo.shift_right_logical": LiftingRule(_shift),
    "stablehlo.sign": LiftingRule(_sign),
    "stablehlo.xor": LiftingRule(_logical(jnp.not_equal, bits.bit_xor)),
}
