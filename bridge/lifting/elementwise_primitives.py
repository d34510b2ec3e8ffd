"""Operations on each element, of one or several arrays of one shape."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bridge.lifting.derivatives.custom_derivatives import with_derivative
from bridge.lifting.lifted_operation import Lift, LiftedOperation, LiftingRule
from xla_call_module.stablehlo.attributes import comparison_direction, symbol_name
from xla_call_module.stablehlo.combiners import complex_extreme
from xla_call_module.stablehlo.elements import BROADCASTS, element_dtype, repeated_number
from xla_call_module.stablehlo.modules import tensor_type

# The functions of `jax.lax` that JAX lowers to one operation of StableHLO each.
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "and": lax.bitwise_and,
    "atan2": lax.atan2,
    "ceil": lax.ceil,
    "clamp": lax.clamp,
    "complex": lax.complex,
    "divide": lax.div,
    "floor": lax.floor,
    "is_finite": lax.is_finite,
    "negate": lax.neg,
    "not": lax.bitwise_not,
    "or": lax.bitwise_or,
    "remainder": lax.rem,
    "shift_left": lax.shift_left,
    "shift_right_arithmetic": lax.shift_right_arithmetic,
    "shift_right_logical": lax.shift_right_logical,
    "subtract": lax.sub,
    "xor": lax.bitwise_xor,
}
# Those that have a meaning for booleans, too, and what that is.
_OF_BOOLS: Mapping[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "add": (lax.add, lax.bitwise_or),
    "maximum": (lax.max, lax.bitwise_or),
    "minimum": (lax.min, lax.bitwise_and),
    "multiply": (lax.mul, lax.bitwise_and),
}
# Those that say how accurate their result has to be.
_ACCURATE: Mapping[str, Callable[..., Any]] = {
    "cosine": lax.cos,
    "exponential": lax.exp,
    "exponential_minus_one": lax.expm1,
    "log": lax.log,
    "log_plus_one": lax.log1p,
    "logistic": lax.logistic,
    "rsqrt": lax.rsqrt,
    "sine": lax.sin,
    "sqrt": lax.sqrt,
    "tan": lax.tan,
    "tanh": lax.tanh,
}
COMPARISONS: Mapping[str, Callable[..., Any]] = {
    "EQ": lax.eq, "GE": lax.ge, "GT": lax.gt, "LE": lax.le, "LT": lax.lt, "NE": lax.ne,
}  # fmt: skip
_OF_TOTAL_ORDER: Mapping[str, Any] = {
    "EQ": lax.eq_to_p, "GE": lax.le_to_p, "GT": lax.lt_to_p, "LE": lax.le_to_p, "LT": lax.lt_to_p,
}  # fmt: skip
_TOLERANCE = re.compile(r"(atol|rtol) = ([-+.\w]+)|(ulps) = (\d+)|mode<(\w+)>")


# Functions of integers, of which those of fewer than 8 bits are bytes in between, and by how much
# the result is greater for each bit that these have more.
_OF_BITS: Mapping[str, tuple[Callable[..., Any], int]] = {
    "count_leading_zeros": (lax.clz, 1),
    "popcnt": (lax.population_count, 0),
}


def _plain(function: Callable[..., Any]) -> Lift:
    return lambda op: function(*op.scalars_and_arrays)


def _of_bits(function: Callable[..., Any], excess: int) -> Lift:
    """Return the rule of a function of the bits of an integer, which XLA has for whole bytes."""
    plain = _plain(function)

    def lift(op: LiftedOperation) -> Any:
        if not (bits := narrow_bits(op.dtype)):
            return plain(op)
        byte = lax.convert_element_type(op.array(0), np.uint8)
        counted = function(lax.bitwise_and(byte, jnp.full_like(byte, (1 << bits) - 1)))
        extra = jnp.full_like(counted, excess * (8 - bits))
        return lax.convert_element_type(lax.sub(counted, extra), op.dtype)

    return lift


def narrow_bits(dtype: np.dtype[Any]) -> int:
    """Return how many bits an integer has of which JAX has few operations; 0 if it has all."""
    is_narrow = "int" in dtype.name and dtype.kind == "V"
    return int(dtype.name.lstrip("uint")) if is_narrow else 0


def in_bytes(lift: Lift) -> Lift:
    """Return a rule that has integers of 2 bits as bytes.

    XLA on the CPU ends the process where it concatenates these, and does not sort them rightly.
    """

    def lift_in_bytes(op: LiftedOperation) -> Any:
        dtypes = [jnp.result_type(array) for array in op.arrays]
        if not any(narrow_bits(dtype) == 2 for dtype in dtypes):
            return lift(op)
        wider = [
            lax.convert_element_type(array, np.int8) if narrow_bits(dtype) == 2 else array
            for array, dtype in zip(op.arrays, dtypes, strict=True)
        ]
        results: Any = lift(dataclasses.replace(op, operands=tuple(wider)))
        results = results if isinstance(results, (list, tuple)) else [results]
        return [lax.convert_element_type(one, op.dtype_of(n)) for n, one in enumerate(results)]

    return lift_in_bytes


def _abs(op: LiftedOperation) -> Any:
    if not narrow_bits(op.dtype):
        return _plain(lax.abs)(op)
    return lax.convert_element_type(
        lax.abs(lax.convert_element_type(op.array(0), np.int8)), op.dtype
    )


def _accurate(function: Callable[..., Any]) -> Lift:
    def lift(op: LiftedOperation) -> Any:
        accuracy = _accuracy(op)
        options = {} if accuracy is None else {"accuracy": accuracy}
        return function(*op.scalars_and_arrays, **options)

    return lift


def _accuracy(op: LiftedOperation) -> Any:
    """Return the accuracy that an operation asks for; None for XLA's default.

    The attribute is such as `#stablehlo.result_accuracy<atol = 1.0e-05, mode =
    #stablehlo.result_accuracy_mode<TOLERANCE>>`; fields that are 0 are left out.
    """
    fields: dict[str, str] = {}
    for match in _TOLERANCE.finditer(op.text("result_accuracy")):
        name, number, ulps, count, mode = match.groups()
        fields[name or ulps or "mode"] = number or count or mode
    mode = fields.get("mode", "DEFAULT")
    if mode == "DEFAULT":
        return None
    if not hasattr(lax, "Tolerance"):
        op.refuse("it asks for an accuracy, which this JAX does not know", "take a newer JAX")
    if mode == "HIGHEST":
        return lax.AccuracyMode.HIGHEST
    tolerance: Any = lax.Tolerance
    return tolerance(
        float(fields.get("atol", 0)), float(fields.get("rtol", 0)), int(fields.get("ulps", 0))
    )


def _of_bools(of_numbers: Callable[..., Any], of_bools: Callable[..., Any]) -> Lift:
    numbers, bools = _plain(of_numbers), _plain(of_bools)
    return lambda op: (bools if op.dtype.kind == "b" else numbers)(op)


def _compare(op: LiftedOperation) -> Any:
    direction = comparison_direction(op.raw)
    if op.text("compare_type").find("TOTALORDER") >= 0:
        return _compare_in_total_order(direction, *op.arrays)
    return COMPARISONS[direction](*op.scalars_and_arrays)


def _compare_in_total_order(direction: str, left: Any, right: Any) -> Any:
    """Compare floats with -NaN < -infinity < -0 < 0 < infinity < NaN."""
    if direction == "NE":
        return lax.bitwise_not(lax.eq_to_p.bind(left, right))
    if direction in ("GE", "GT"):
        left, right = right, left
    primitive = _OF_TOTAL_ORDER[direction]
    return primitive.bind(left, right)


def _select(op: LiftedOperation) -> Any:
    which, chosen, other = op.arrays
    if np.shape(which) == () and np.shape(chosen) != ():
        which = lax.broadcast_in_dim(which, np.shape(chosen), ())
    if op.dtype.kind == "c" and (extreme := complex_extreme(op.raw)):
        return _COMPLEX_EXTREMES[extreme](chosen, other)
    if op.raw.operands[1] == op.raw.operands[2] and _is_of_a_branch(op.raw.operands[0]):
        other = lax.stop_gradient(other)
    return lax.select(which, chosen, other)


def _is_of_a_branch(which: Any) -> bool:
    """Return whether elements are those for which one branch of a batched `switch` is taken.

    Each branch computes of all elements, and has derivatives for its own only: JAX selects between
    an array and the same with no derivative, which are one value in StableHLO. The index of the
    branch is compared with the numbers of all of them.
    """
    while str(getattr(which.owner, "name", "")) in BROADCASTS:
        which = which.owner.operands[0]
    maker = which.owner
    if not _is_equality(maker) or not _is_integer(maker.operands[0]):
        return False
    index, number = maker.operands
    makers = (use.owner.operation for use in index.uses)
    others = {repeated_number(one.operands[1]) for one in makers if _is_equality(one)}
    return repeated_number(number) is not None and len(others - {None}) > 1


def _is_integer(value: Any) -> bool:
    return element_dtype(tensor_type(str(value.type)).element).kind in "iu"


def _is_equality(maker: Any) -> bool:
    is_comparison = getattr(maker, "name", "") == "stablehlo.compare"
    return is_comparison and comparison_direction(maker) == "EQ"


def _round(method: Any) -> Lift:
    return lambda op: lax.round(op.array(0), method)


def _power(op: LiftedOperation) -> Any:
    if not jnp.issubdtype(op.dtype, jnp.integer):
        return lax.pow(*op.arrays)
    base, exponent = op.arrays
    if narrow_bits(op.dtype):
        byte = np.uint8 if op.dtype.name.startswith("u") else np.int8
        base, exponent = (lax.convert_element_type(array, byte) for array in (base, exponent))
    power = jnp.power(base, jnp.maximum(exponent, 0))
    inverse = negative_power(base, exponent % 2 == 0)
    return lax.convert_element_type(jnp.where(exponent < 0, inverse, power), op.dtype)


def negative_power(base: Any, is_even: Any) -> Any:
    """Return integers to the power of negative ones, rounded towards zero."""
    sign = jnp.where(is_even, 1, base)
    return jnp.where(base == 1, 1, jnp.where(base == -1, sign, 0))


def _map(op: LiftedOperation) -> Any:
    return op.regions[0].of_elements(*op.arrays)


def _convert(op: LiftedOperation) -> Any:
    (value,) = op.arrays
    if jnp.issubdtype(jnp.result_type(value), jnp.complexfloating) and op.dtype.kind != "c":
        value = lax.real(value)
    # Newer versions of JAX convert an array of numpy by numpy, which warns, and knows no int4.
    return lax.convert_element_type(jnp.asarray(value), op.dtype)


def _bitcast(op: LiftedOperation) -> Any:
    """Return the bits of an array as elements of another type; complex ones of complex ones."""
    value, dtype = op.array(0), op.dtype
    given = jnp.result_type(value)
    if given == dtype:  # of which JAX has no derivative, either
        return lax.stop_gradient(value)
    if "b" in given.kind + dtype.kind:
        op.refuse("XLA has no bits of booleans")
    if given.kind != "c":
        return lax.bitcast_convert_type(value, dtype)
    # StableHLO has the bits of complex numbers as complex numbers only.
    parts = jnp.stack([value.real, value.imag], axis=-1)
    made = lax.bitcast_convert_type(parts, np.dtype(f"f{dtype.itemsize // 2}"))
    return lax.complex(made[..., 0], made[..., 1])


def _part(function: Callable[..., Any]) -> Lift:
    """Return the rule of a part of a complex number, which a real number has as well."""

    def lift(op: LiftedOperation) -> Any:
        (value,) = op.arrays
        if jnp.issubdtype(jnp.result_type(value), jnp.complexfloating):
            return function(value)
        return value if function is lax.real else jnp.zeros_like(value)

    return lift


def _cbrt(op: LiftedOperation) -> Any:
    """Return the cubic root; of a complex number that of the third of its angle, as XLA does."""
    if op.dtype.kind != "c":
        return _accurate(lax.cbrt)(op)
    (value,) = op.arrays
    return lax.pow(value, jnp.full_like(value, 1 / 3))


def _reduce_precision(op: LiftedOperation) -> Any:
    return lax.reduce_precision(
        op.array(0), op.integer("exponent_bits"), op.integer("mantissa_bits")
    )


def _sign(op: LiftedOperation) -> Any:
    """Return the sign; in `slogdet`, whose own derivative is gone, with one of complex numbers."""
    function = op.raw.parent
    while function.name != "func.func":
        function = function.parent
    is_of_determinant = symbol_name(function).lstrip("_").startswith("slogdet")
    return (_unit if is_of_determinant and op.dtype.kind == "c" else lax.sign)(op.array(0))


def _move_unit(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    (value,), (tangent,) = primals, tangents
    unit = _unit(value)
    along = unit * jnp.real(jnp.conj(unit) * tangent)
    return unit, (tangent - along) / jnp.abs(value)


# A complex number divided by its absolute value, of which JAX's `sign` has no derivative.
_unit: Any = jax.custom_jvp(lax.sign)
_unit.defjvp(_move_unit)


def _choose_in_order(is_chosen: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the choice of one of two complex numbers; of equal ones it moves with both."""
    return lambda x, y: jnp.where(x == y, (x + y) / 2, jnp.where(is_chosen(x, y), x, y))


# From version 0.12 on, JAX has no derivatives of these.
_COMPLEX_EXTREMES = {
    "maximum": with_derivative(_choose_in_order(jnp.greater), lax.max),
    "minimum": with_derivative(_choose_in_order(jnp.less), lax.min),
}

RULES = {
    **{f"stablehlo.{name}": LiftingRule(_plain(f)) for name, f in _FUNCTIONS.items()},
    **{f"stablehlo.{name}": LiftingRule(_of_bools(*pair)) for name, pair in _OF_BOOLS.items()},
    **{
        f"stablehlo.{name}": LiftingRule(_accurate(function), ("result_accuracy",))
        for name, function in _ACCURATE.items()
    },
    **{f"stablehlo.{name}": LiftingRule(_of_bits(*pair)) for name, pair in _OF_BITS.items()},
    "stablehlo.abs": LiftingRule(_abs),
    "stablehlo.bitcast_convert": LiftingRule(_bitcast),
    "stablehlo.cbrt": LiftingRule(_cbrt, ("result_accuracy",)),
    "stablehlo.imag": LiftingRule(_part(lax.imag)),
    "stablehlo.real": LiftingRule(_part(lax.real)),
    "stablehlo.compare": LiftingRule(_compare, ("comparison_direction", "compare_type")),
    "stablehlo.convert": LiftingRule(_convert),
    "stablehlo.power": LiftingRule(_power),
    "stablehlo.map": LiftingRule(_map, ("dimensions",)),
    "stablehlo.reduce_precision": LiftingRule(
        _reduce_precision, ("exponent_bits", "mantissa_bits")
    ),
    "stablehlo.round_nearest_afz": LiftingRule(_round(lax.RoundingMethod.AWAY_FROM_ZERO)),
    "stablehlo.round_nearest_even": LiftingRule(_round(lax.RoundingMethod.TO_NEAREST_EVEN)),
    "stablehlo.select": LiftingRule(_select),
    "stablehlo.sign": LiftingRule(_sign),
}
