"""The results of operations of a module for some numbers, which tell what function they are.

The operations are computed by numpy, of numbers all over the domains of JAX's functions, and
compared with what scipy says of these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bridge.lifting.own_lowerings import without_sizes
from xla_call_module.dtypes import Array
from xla_call_module.stablehlo.attributes import comparison_direction
from xla_call_module.stablehlo.call_graph import COMPOSITE, named_by
from xla_call_module.stablehlo.elements import element_dtype, read_elements, read_splat
from xla_call_module.stablehlo.modules import tensor_type
from xla_call_module.stablehlo.walking import RETURNS

__all__ = ["block_agrees", "operations_agree"]

_SAMPLES = (0.1, 0.3, 0.47, 0.7, 0.9, 1.0, 1.3, 2.0, 2.6, 3.0, 4.2, 6.5, -0.2, -0.6, -0.8, -1.7)
_MIN_SAMPLES = 4
_TOLERANCE = 2e-2  # of bfloat16


def operations_agree(
    operations: Sequence[Any],
    inputs: Sequence[Any],
    expected: Callable[..., Any],
    functions: Mapping[str, Any],
) -> bool:
    """Return whether the last of some operations computes what a function of numpy or scipy does.

    Args:
        operations: the operations, in their order.
        inputs: the values of MLIR that they compute of, of one dtype.
        expected: the function.
        functions: the functions of the module.
    """
    arrays = _samples_of(inputs)
    with np.errstate(all="ignore"):
        values = dict(zip(inputs, arrays, strict=True))
        known = all(_step(operation, values, functions) for operation in operations)
    computed = values[operations[-1].results[0]] if known else None
    return _agrees(expected, arrays, computed)


def block_agrees(
    block: Any,
    inputs: Sequence[Any],
    expected: Callable[..., Any],
    functions: Mapping[str, Any],
) -> bool:
    """Return whether a block computes what a function of numpy or scipy does.

    Args:
        block: the block, which has one result.
        inputs: its arguments that are no sizes, of one dtype.
        expected: the function.
        functions: the functions of the module.
    """
    arrays = _samples_of(inputs)
    with np.errstate(all="ignore"):
        computed = _compute(block, dict(zip(inputs, arrays, strict=True)), functions)
    return computed is not None and _agrees(expected, arrays, computed[0])


def _samples_of(inputs: Sequence[Any]) -> list[Array]:
    """Return numbers for each of the arguments of a function, all pairs of them for two."""
    dtype = element_dtype(tensor_type(str(inputs[0].type)).element)
    grid = np.meshgrid(*[_SAMPLES] * len(inputs), indexing="ij")
    return [part.reshape(-1).astype(dtype) for part in grid]


def _agrees(function: Callable[..., Any], arrays: Sequence[Array], computed: Array | None) -> bool:
    """Return whether numbers are what a function of scipy or numpy computes."""
    if computed is None:
        return False
    with np.errstate(all="ignore"):
        expected = function(*(array.astype(np.float64) for array in arrays))
    known = np.isfinite(expected) & (np.abs(expected) < 1e3)
    close = np.isclose(computed.astype(np.float64), expected, _TOLERANCE, _TOLERANCE)
    return bool(known.sum() >= _MIN_SAMPLES and close[known].all())


def _compute(
    block: Any, arguments: Mapping[Any, Array], functions: Mapping[str, Any]
) -> list[Array] | None:
    """Return what a block computes of numpy's arrays; None if an operation is not known here.

    Operations on sizes are not known, and nothing that is computed depends on them.
    """
    values = dict(arguments)
    for view in block:
        operation = view.operation
        if operation.name in RETURNS:
            results = [_known(operand, values) for operand in operation.operands]
            known = [result for result in results if result is not None]
            return known if len(known) == len(results) else None
        if operation.name != "stablehlo.constant":
            _step(operation, values, functions)
    return None


def _step(operation: Any, values: dict[Any, Array], functions: Mapping[str, Any]) -> bool:
    """Compute one operation, into `values`, and return whether it is known here."""
    operands = without_sizes(operation, functions)
    known = [array for o in operands if (array := _known(o, values)) is not None]
    if len(known) != len(operands):
        return False
    results = None
    if operation.name in ("func.call", COMPOSITE):
        inner = functions.get(next(named_by(operation)))
        if inner is not None:
            block = inner.regions[0].blocks[0]
            pairs = zip(block.arguments, operation.operands, strict=True)
            taken = dict(zip(operands, known, strict=True))
            given = {argument: taken[o] for argument, o in pairs if o in taken}
            results = _compute(block, given, functions)
    elif (rule := _NUMPY.get(operation.name)) is not None:
        results = [rule(operation, *known)]
    if results is None or any(result is None for result in results):
        return False
    for value, result in zip(operation.results, results, strict=True):
        dtype = element_dtype(tensor_type(str(value.type)).element)
        values[value] = np.asarray(result).astype(dtype)
    return True


def _known(value: Any, values: Mapping[Any, Array]) -> Array | None:
    if value in values:
        return values[value]
    maker = value.owner
    if getattr(maker, "name", "") != "stablehlo.constant":
        return None
    repeated = read_splat(maker)
    return read_elements(maker) if repeated is None else repeated


_COMPARE = {
    "EQ": np.equal, "GE": np.greater_equal, "GT": np.greater,
    "LE": np.less_equal, "LT": np.less, "NE": np.not_equal,
}  # fmt: skip


def _compare(operation: Any, left: Array, right: Array) -> Array:
    return np.asarray(_COMPARE[comparison_direction(operation)](left, right))


def _bitcast(operation: Any, value: Array) -> Array:
    return value.view(element_dtype(tensor_type(str(operation.results[0].type)).element))


def _leading_zeros(value: Array) -> Array:
    bits = 8 * value.dtype.itemsize
    unsigned = value.view(f"uint{bits}").astype(np.uint64)
    return np.array([bits - int(number).bit_length() for number in unsigned])


def _look_up(operation: Any, table: Array, places: Array) -> Array | None:
    """Return elements of a table; None of any other gather."""
    if table.ndim != 1 or tuple(operation.attributes["slice_sizes"]) != (1,):
        return None
    return np.asarray(table[np.clip(places, 0, table.size - 1)])


def _slice(operation: Any, value: Array) -> Array | None:
    """Return a part of a table; None of any other array."""
    if value.ndim != 1:
        return None
    names = ("start_indices", "limit_indices", "strides")
    return value[slice(*(operation.attributes[name][0] for name in names))]


def _reshape(operation: Any, value: Array) -> Array:
    del operation  # arrays of samples have no shape of their own
    return value.reshape(()) if value.size == 1 else value


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _, *operands: function(*operands)


_ELEMENTWISE: Mapping[str, Callable[..., Any]] = {
    "abs": np.abs,
    "add": np.add,
    "and": np.bitwise_and,
    "broadcast_in_dim": np.asarray,
    "dynamic_broadcast_in_dim": np.asarray,
    "clamp": lambda least, value, most: np.clip(value, least, most),
    "convert": np.asarray,
    "count_leading_zeros": _leading_zeros,
    "shift_left": np.left_shift,
    "shift_right_arithmetic": np.right_shift,
    "cosine": np.cos,
    "divide": np.divide,
    "exponential": np.exp,
    "exponential_minus_one": np.expm1,
    "floor": np.floor,
    "is_finite": np.isfinite,
    "log": np.log,
    "log_plus_one": np.log1p,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "multiply": np.multiply,
    "negate": np.negative,
    "not": np.invert,
    "or": np.bitwise_or,
    "power": np.power,
    "round_nearest_even": np.rint,
    "rsqrt": lambda value: 1 / np.sqrt(value),
    "select": np.where,
    "sign": np.sign,
    "sine": np.sin,
    "sqrt": np.sqrt,
    "subtract": np.subtract,
    "tan": np.tan,
    "tanh": np.tanh,
    "xor": np.bitwise_xor,
    "atan2": np.arctan2,
    "remainder": np.fmod,
}
_NUMPY: Mapping[str, Callable[..., Any]] = {
    "stablehlo.bitcast_convert": _bitcast,
    "stablehlo.compare": _compare,
    "stablehlo.gather": _look_up,
    "stablehlo.dynamic_reshape": _reshape,
    "stablehlo.reshape": _reshape,
    "stablehlo.slice": _slice,
    **{f"stablehlo.{name}": _plain(function) for name, function in _ELEMENTWISE.items()},
}
