"""Operations of constants, evaluated by numpy: the one table for what is known of a module.

`evaluate` is one operation; `ConstantValues` follows a value to the constants that it is made of,
within limits, and remembers what it found. Rules also take arrays of objects, whose elements are
Python's integers and JAX's dimension expressions (`compute`).
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Container, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from xla_call_module.dtypes import Array
from xla_call_module.stablehlo.attributes import Attributes, comparison_direction
from xla_call_module.stablehlo.elements import element_dtype, read_elements
from xla_call_module.stablehlo.modules import tensor_type

# Elements of an operand beyond which an operation is left to the compiler.
MAX_EVALUATED = 1024
_MAX_DEPTH = 100  # of operations that follow one another, each of which takes frames of Python
_BROADCAST, _CONSTANT = "stablehlo.broadcast_in_dim", "stablehlo.constant"


def repeated_element(value: Any) -> Array | None:
    """Return the scalar that an array of at least one dimension repeats; None for another value.

    Such an array takes no memory.
    """
    if isinstance(value, np.ndarray) and value.ndim and value.size and not any(value.strides):
        return np.asarray(value[(0,) * value.ndim]).reshape(())
    return None


def compute(raw: Any, operands: Sequence[Array]) -> Array | None:
    """Return what numpy computes, in whatever dtype; None where XLA may have another result."""
    with np.errstate(all="ignore"):
        return RULES[raw.name](Attributes(raw), *operands)


def evaluate(raw: Any, operands: Sequence[Array], *, most: int = MAX_EVALUATED) -> Array | None:
    """Return the result of an operation of constants, where numpy computes what XLA does."""
    if raw.name not in RULES:
        return None
    type_ = tensor_type(str(raw.results[0].type))
    dtype = element_dtype(type_.element)
    if not _is_exact(raw.name, operands, dtype):
        return None
    scalars = [repeated_element(operand) for operand in operands]
    is_repeated = bool(operands) and raw.name not in _OF_PLACES and None not in type_.shape
    if is_repeated and not any(scalar is None for scalar in scalars):
        result = scalars[0] if raw.name in _RESHAPES else compute(raw, scalars)  # type: ignore[arg-type]  # none is None
        shape = [dim or 0 for dim in type_.shape]
        return None if result is None else np.broadcast_to(_cast(result, dtype), shape)
    if any(operand.size > most for operand in operands):
        return None
    result = compute(raw, operands)
    if result is None or (result.size > most and raw.name == _BROADCAST and operands[0].ndim):
        return None
    return _cast(result, dtype)


def _cast(result: Any, dtype: np.dtype[Any]) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(result).astype(dtype, copy=False)


def _evaluate_owner(value: Any, operands: Sequence[Array]) -> Array | None:
    return evaluate(value.owner, operands)


def _any_shape(shape: Sequence[int | None]) -> bool:
    del shape
    return True


class ConstantValues:
    """The values of a module that are known before it runs, by those of MLIR."""

    def __init__(
        self,
        values: MutableMapping[Any, Any],
        *,
        names: Container[str] | None = None,
        evaluate: Callable[[Any, Sequence[Any]], Any] = _evaluate_owner,
        fits: Callable[[Sequence[int | None]], bool] = _any_shape,
        depth: int = _MAX_DEPTH,
    ) -> None:
        """Begin with values that are known."""
        self._values = values
        self._names = RULES if names is None else names
        self._evaluate = evaluate
        self._fits = fits
        self._depth = depth

    def of(self, value: Any) -> Any:
        """Return what a value is; None for what is computed when the program runs."""
        if value not in self._values:
            self._values[value] = None
            self._values[value] = self._made(value)
        return self._values[value]

    def _made(self, value: Any) -> Any:
        maker = value.owner
        name = getattr(maker, "name", "")  # a block, of which it is an argument, has none
        is_constant = name == _CONSTANT
        if not is_constant and (name not in self._names or not self._depth):
            return None
        if not self._fits(tensor_type(str(value.type)).shape):
            return None
        if is_constant:
            return read_elements(maker)
        self._depth -= 1
        operands = [self.of(operand) for operand in maker.operands]
        self._depth += 1
        is_known = all(operand is not None for operand in operands)
        return self._evaluate(value, operands) if is_known else None


def evaluate_block(block: Any, arrays: Sequence[Array]) -> list[Array] | None:
    """Return what a block of scalars makes of each element of arrays of one shape."""
    values = ConstantValues(
        dict(zip(block.arguments, arrays, strict=True)),
        evaluate=lambda value, operands: evaluate(value.owner, operands, most=sys.maxsize),
    )
    *_, terminator = block
    results = [values.of(operand) for operand in terminator.operation.operands]
    if any(result is None for result in results):
        return None
    return [np.broadcast_to(result, arrays[0].shape) for result in results]


def _is_exact(name: str, operands: Sequence[Array], dtype: np.dtype[Any]) -> bool:
    """Return whether numpy computes what XLA does, which it may round otherwise of floats."""
    if name in _MOVES:
        return True
    return all(array.dtype.kind in "biu" for array in operands) and (
        dtype.kind in "biu" or name == "stablehlo.convert"
    )


def truncated_quotient(left: Array, right: Array) -> Array | None:
    """Return quotients of integers, rounded towards zero; None where a divisor is 0."""
    if (right == 0).any():
        return None
    quotient = np.floor_divide(left, right)
    is_below = (np.remainder(left, right) != 0) & ((left < 0) != (right < 0))
    return np.asarray(quotient + is_below.astype(quotient.dtype))


def _divide(_: Attributes, left: Array, right: Array) -> Array | None:
    """Return the quotient rounded towards zero; of sizes only where none is negative."""
    if object not in (left.dtype, right.dtype):
        return truncated_quotient(left, right)
    return left // right if _are_natural(left, right) else None


def _remainder(_: Attributes, left: Array, right: Array) -> Array | None:
    """Return what is left by a division, with the sign of the dividend."""
    if object in (left.dtype, right.dtype):
        return np.asarray(left % right) if _are_natural(left, right) else None
    quotient = truncated_quotient(left, right)
    return None if quotient is None else np.asarray(left - quotient * right)


def _are_natural(left: Array, right: Array) -> bool:
    return bool(np.all((left >= 0) & (right > 0)))


# The operator of each direction, for numbers, arrays of numpy, and dimensions.
COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "EQ": operator.eq, "GE": operator.ge, "GT": operator.gt,
    "LE": operator.le, "LT": operator.lt, "NE": operator.ne,
}  # fmt: skip


def _compare(op: Attributes, left: Array, right: Array) -> Array | None:
    if op.text("compare_type").find("TOTALORDER") >= 0:
        left, right = _total_order(left), _total_order(right)
    return np.asarray(COMPARISONS[comparison_direction(op.raw)](left, right))


def _total_order(value: Array) -> Array:
    """Return integers in the order of floats with -NaN < -infinity < -0 < 0 < infinity < NaN."""
    if value.dtype.kind in "biuO":
        return value
    signed = value.view(f"i{value.dtype.itemsize}")
    return np.where(signed < 0, signed ^ np.iinfo(signed.dtype).max, signed)


def _bitcast(op: Attributes, value: Array) -> Array | None:
    dtype = _result_dtype(op)
    kinds = value.dtype.kind + dtype.kind
    is_packed = any(bits in f"{value.dtype} {dtype}" for bits in ("int2", "int4", "float4"))
    if value.dtype.itemsize != dtype.itemsize or set("bcO") & set(kinds) or is_packed:
        return None
    return np.ascontiguousarray(value).view(dtype).reshape(value.shape)  # it has no scalars


def _sign(_: Attributes, value: Array) -> Array:
    positive, negative = np.asarray(value > 0, bool), np.asarray(value < 0, bool)
    return np.asarray(positive.astype(int) - negative.astype(int))


def _extreme(name: str) -> Callable[[Attributes, Array, Array], Array]:
    def fold_extreme(_: Attributes, left: Array, right: Array) -> Array:
        if object not in (left.dtype, right.dtype):
            return np.asarray(getattr(np, f"{name}imum")(left, right))
        pairs = zip(left.reshape(-1), right.reshape(-1), strict=True)
        chosen = [_symbolic_extreme(name, *pair) for pair in pairs]
        return np.array(chosen, object).reshape(left.shape)

    return fold_extreme


def _symbolic_extreme(name: str, left: Any, right: Any) -> Any:
    """Return the greater or the lesser of two dimensions, one of which is an expression."""
    from jax import export  # numbers alone are evaluated without JAX

    scope = next((dim.scope for dim in (left, right) if export.is_symbolic_dim(dim)), None)
    return export.symbolic_shape(f"{name}({left}, {right})", scope=scope)[0]


def _select(_: Attributes, which: Array, chosen: Array, other: Array) -> Array:
    return np.where(np.asarray(which, bool), chosen, other)


def _broadcast(op: Attributes, value: Array) -> Array | None:
    shape = tensor_type(str(op.raw.results[0].type)).shape
    if None in shape:
        return None
    placed = [1] * len(shape)
    for axis, size in zip(op.integers("broadcast_dimensions"), value.shape, strict=True):
        placed[axis] = size
    return np.broadcast_to(value.reshape(placed), [dim or 0 for dim in shape])


def _iota(op: Attributes) -> Array | None:
    shape = tensor_type(str(op.raw.results[0].type)).shape
    if None in shape:
        return None
    axis = op.integer("iota_dimension")
    sizes = [dim or 0 for dim in shape]
    numbers = np.arange(sizes[axis]).astype(_result_dtype(op))
    return np.broadcast_to(np.expand_dims(numbers, [*range(1, len(sizes) - axis)]), sizes)


def _result_dtype(op: Attributes) -> np.dtype[Any]:
    return element_dtype(tensor_type(str(op.raw.results[0].type)).element)


def _reshape(op: Attributes, value: Array) -> Array | None:
    shape = tensor_type(str(op.raw.results[0].type)).shape
    return None if None in shape else value.reshape([dim or 0 for dim in shape])


def _concatenate(op: Attributes, *values: Array) -> Array:
    return np.concatenate(values, op.integer("dimension"))


def _slice(op: Attributes, value: Array) -> Array:
    bounds = zip(
        op.integers("start_indices"), op.integers("limit_indices"), op.integers("strides"),
        strict=True,
    )  # fmt: skip
    return value[tuple(slice(*bound) for bound in bounds)]


def _not(_: Attributes, value: Array) -> Array | None:
    if value.dtype == object:
        return ~value.astype(bool) if all(type(v) is bool for v in value.reshape(-1)) else None
    return np.asarray(~value)


def _count_bits(test: Callable[[Array], Array]) -> Callable[..., Array | None]:
    """Return the fold of how many of an integer's shifts by 0, 1, 2, … pass a test."""

    def fold_count(_: Attributes, value: Array) -> Array | None:
        if value.dtype == object:
            return None
        unsigned = value.view(f"u{value.dtype.itemsize}")
        shifted = [unsigned >> unsigned.dtype.type(n) for n in range(8 * value.dtype.itemsize)]
        return np.asarray(sum(test(bits).astype(np.int64) for bits in shifted))

    return fold_count


def _shift(function: Callable[..., Any]) -> Callable[..., Array | None]:
    """Return the fold of a shift, which leaves 0 where it is by all bits or more."""

    def fold_shift(_: Attributes, value: Array, amount: Array) -> Array | None:
        if object in (value.dtype, amount.dtype):
            return None
        bits = 8 * value.dtype.itemsize
        unsigned, by = value.view(f"u{value.dtype.itemsize}"), amount.view(f"u{bits // 8}")
        shifted = function(unsigned, np.minimum(by, bits - 1).astype(unsigned.dtype))
        return np.where(by < bits, shifted, 0).astype(unsigned.dtype).view(value.dtype)

    return fold_shift


def _plain(function: Callable[..., Any]) -> Callable[..., Array | None]:
    return lambda _, *operands: function(*operands)


# The function of numpy that is an operation of each element, by the name of that; those of floats
# are rounded in another way by some runtimes, and of these `evaluate` evaluates none.
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": np.abs, "add": np.add, "and": np.bitwise_and, "ceil": np.ceil, "cosine": np.cos,
    "exponential": np.exp, "floor": np.floor, "log": np.log, "multiply": np.multiply,
    "negate": np.negative, "not": np.bitwise_not, "or": np.bitwise_or, "power": np.power,
    "sign": np.sign, "sine": np.sin, "sqrt": np.sqrt, "subtract": np.subtract, "tanh": np.tanh,
    "xor": np.bitwise_xor,
}  # fmt: skip
_EXACT = ("abs", "add", "and", "multiply", "negate", "or", "subtract", "xor")
# The result of each operation, of its attributes and operands; None where XLA may have another.
RULES: Mapping[str, Callable[..., Array | None]] = {
    **{f"stablehlo.{name}": _plain(FUNCTIONS[name]) for name in _EXACT},
    "stablehlo.bitcast_convert": _bitcast,
    _BROADCAST: _broadcast,
    "stablehlo.compare": _compare,
    "stablehlo.concatenate": _concatenate,
    "stablehlo.convert": _plain(lambda value: None if value.dtype.kind == "c" else value),
    "stablehlo.count_leading_zeros": _count_bits(lambda bits: np.asarray(bits == 0)),
    "stablehlo.divide": _divide,
    "stablehlo.imag": _plain(np.imag),
    "stablehlo.iota": _iota,
    "stablehlo.maximum": _extreme("max"),
    "stablehlo.minimum": _extreme("min"),
    "stablehlo.not": _not,
    "stablehlo.popcnt": _count_bits(lambda bits: np.asarray(bits & 1)),
    "stablehlo.real": _plain(np.real),
    "stablehlo.remainder": _remainder,
    "stablehlo.reshape": _reshape,
    "stablehlo.select": _select,
    "stablehlo.shift_left": _shift(np.left_shift),
    "stablehlo.shift_right_logical": _shift(np.right_shift),
    "stablehlo.sign": _sign,
    "stablehlo.slice": _slice,
}
# Operations of which the result of repeated elements does not repeat one.
_OF_PLACES = ("stablehlo.concatenate",)
_RESHAPES = (_BROADCAST, "stablehlo.reshape", "stablehlo.slice")
# Operations that only move or compare values, which is exact for floats, too.
_MOVES = frozenset(
    f"stablehlo.{name}"
    for name in (
        "bitcast_convert",
        "broadcast_in_dim",
        "compare",
        "concatenate",
        "imag",
        "real",
        "reshape",
        "select",
        "slice",
    )
)
