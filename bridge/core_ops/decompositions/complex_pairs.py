"""Complex numbers as pairs of arrays, of which the last dimension is 2 where they are passed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import jax.numpy as jnp
import numpy as np
from jax import lax

from bridge.core_ops.decompositions import fourier_products, one_device
from bridge.core_ops.decompositions.complex_functions import (
    FUNCTIONS,
    ComplexParts,
    multiply,
    product,
)
from bridge.core_ops.decompositions.decomposition import Decomposition, table_with
from bridge.core_ops.decompositions.retracing import Boundary
from bridge.lifting.known_values import LiftedValue, as_array
from bridge.lifting.lifted_operation import Lift, LiftedOperation, LiftingRule
from bridge.lifting.lifting_table import JAX_TABLE
from bridge.lifting.sorting_primitives import ranks_of
from xla_call_module.dtypes import Array
from xla_call_module.stablehlo.attributes import comparison_direction
from xla_call_module.stablehlo.combiners import block_dtypes, combiner_of
from xla_call_module.stablehlo.elements import element_dtype
from xla_call_module.stablehlo.sort_keys import sort_keys_of


def _as_parts(value: LiftedValue) -> Any:
    """Return a value of a module with pairs for complex constants."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "c":
        return ComplexParts(as_array(value.real), as_array(value.imag))
    return as_array(value)


def _part_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the parts of complex numbers, and any other as it is."""
    return np.zeros(0, dtype).real.dtype if dtype.kind == "c" else dtype


@dataclass(frozen=True, slots=True)
class _PairedOperation(LiftedOperation):
    """An operation whose complex operands are pairs; `dtype` is that of parts."""

    @property
    def arrays(self) -> list[Any]:
        """The operands."""
        return list(map(_as_parts, self.operands))

    def array(self, index: int) -> Any:
        """Return one operand."""
        return _as_parts(self.operands[index])

    @property
    def scalars_and_arrays(self) -> list[Any]:
        """The operands."""
        return self.arrays

    def dtype_of(self, index: int) -> np.dtype[Any]:
        """Return the dtype of one result, or of its parts."""
        return _part_dtype(element_dtype(self.types[index].element))

    @property
    def region_dtypes(self) -> tuple[np.dtype[Any], ...]:
        """The dtypes of the arguments of the first region, or of their parts."""
        return tuple(map(_part_dtype, block_dtypes(self.regions[0].block)))

    def has_complex_result(self, index: int) -> bool:
        """Return whether a result is complex."""
        return self.types[index].element.startswith("complex")

    @property
    def is_complex(self) -> bool:
        """Return whether an operand or a result is complex."""
        values = [*self.raw.operands, *self.raw.results]
        return any("complex" in str(value.type) for value in values)


def _of_complex(rule: LiftingRule, of_parts: Lift) -> LiftingRule:
    """Return a rule that computes complex numbers otherwise than all other ones."""
    return LiftingRule(lambda op: of_parts(op) if op.is_complex else rule.lift(op), rule.attributes)


def _each_part(lift: Lift) -> Lift:
    """Return the rule of an operation that does the same to either part."""

    def lower(op: _PairedOperation) -> Any:
        real: Any = lift(_with_operands(op, lambda parts: parts.real))
        if not any(isinstance(one, ComplexParts) for one in op.arrays):
            return _paired(op, real, None)
        return _paired(op, real, lift(_with_operands(op, lambda parts: parts.imag)))

    return lower


def _with_operands(op: _PairedOperation, part: Callable[[ComplexParts], Any]) -> _PairedOperation:
    """Return the operation on one part of its complex operands."""
    parts = (_as_parts(operand) for operand in op.operands)
    return dataclasses.replace(op, operands=tuple(
        part(one) if isinstance(one, ComplexParts) else operand
        for one, operand in zip(parts, op.operands, strict=True)
    ))  # fmt: skip


def _paired(op: _PairedOperation, real: Any, imag: Any) -> Any:
    """Return results, of which the complex ones are pairs of those of either part."""
    if isinstance(real, (list, tuple)):
        others = [None] * len(real) if imag is None else imag
        return [
            _pair(*both) if op.has_complex_result(n) else both[0]
            for n, both in enumerate(zip(real, others, strict=True))
        ]
    return _pair(real, imag) if op.has_complex_result(0) else real


def _pair(real: Any, imag: Any) -> ComplexParts:
    return ComplexParts(real, jnp.zeros_like(real) if imag is None else imag)


def _bilinear(lift: Lift) -> Lift:
    """Return the rule of an operation that is linear in each of its first two operands."""

    def lower(op: _PairedOperation) -> ComplexParts:
        left, right = map(_as_complex, op.arrays[:2])

        def multiplied(one: Any, other: Any) -> Any:
            return lift(dataclasses.replace(op, operands=(one, other, *op.operands[2:])))

        return ComplexParts(
            multiplied(left.real, right.real) - multiplied(left.imag, right.imag),
            multiplied(left.real, right.imag) + multiplied(left.imag, right.real),
        )

    return lower


def _as_complex(value: Any) -> ComplexParts:
    return value if isinstance(value, ComplexParts) else _pair(value, None)


def _refuse(op: _PairedOperation) -> NoReturn:
    op.refuse(
        "it has no form in real and imaginary parts",
        "compute it of the real and the imaginary part in the function itself",
    )


def _combining(lift: Lift, names: Sequence[str]) -> Lift:
    """Return the rule of an operation whose region does the same to either part."""
    of_parts = _each_part(lift)

    def lower(op: _PairedOperation) -> Any:
        if combiner_of(op.regions[0].block) not in names:
            _refuse(op)
        return of_parts(op)

    return lower


def _reduce(op: _PairedOperation) -> Any:
    is_product = len(op.operands) == 2 and combiner_of(op.regions[0].block) == "multiply"
    if not is_product:
        return _combining(JAX_TABLE.rules[op.raw.name].lift, ("add",))(op)
    value, start = op.arrays
    return multiply(product(value, tuple(op.integers("dimensions"))), start)


def _sort(op: _PairedOperation) -> Any:
    values, axis = op.arrays, op.integer("dimension", -1) % max(1, len(op.types[0].shape))
    (region,) = op.regions
    keys = sort_keys_of(region.block)
    if keys is None:
        _refuse(op)
    ranks = [
        rank
        for key in keys
        for part in _parts_of(values[key.operand])
        for rank in ranks_of(key, part)
    ]
    flat = [part for value in values for part in _parts_of(value)]
    made: Any = lax.sort(
        [*ranks, *flat], dimension=axis, is_stable=op.flag("is_stable"), num_keys=len(ranks)
    )
    rest = iter(made[len(ranks) :])
    return [
        ComplexParts(next(rest), next(rest)) if isinstance(value, ComplexParts) else next(rest)
        for value in values
    ]


def _parts_of(value: Any) -> list[Any]:
    return [value.real, value.imag] if isinstance(value, ComplexParts) else [value]


def _compare(op: _PairedOperation) -> Any:
    left, right = map(_as_complex, op.arrays)
    equal = (left.real == right.real) & (left.imag == right.imag)
    return equal if comparison_direction(op.raw) == "EQ" else ~equal


def _convert(op: _PairedOperation) -> Any:
    value = _as_complex(op.array(0))
    if not op.has_complex_result(0):
        return JAX_TABLE.rules[op.raw.name].lift(dataclasses.replace(op, operands=(value.real,)))
    return ComplexParts(
        *(lax.convert_element_type(jnp.asarray(part), op.dtype) for part in _parts_of(value))
    )


def _complex(op: _PairedOperation) -> ComplexParts:
    return ComplexParts(*op.arrays)


def _real(op: _PairedOperation) -> Any:
    return _as_complex(op.array(0)).real


def _function(name: str) -> Lift:
    function = FUNCTIONS[name]
    return lambda op: function(*map(_as_complex, op.arrays))


# What moves elements, or does the same to either part.
_MOVING = (
    "bitcast_convert", "broadcast", "broadcast_in_dim", "concatenate", "copy",
    "dynamic_broadcast_in_dim", "dynamic_gather", "dynamic_iota", "dynamic_pad", "dynamic_reshape",
    "dynamic_slice", "dynamic_update_slice", "gather", "iota", "pad", "real_dynamic_slice",
    "reshape", "reverse", "select", "slice", "torch_index_select", "transpose",
)  # fmt: skip
_BILINEAR = ("convolution", "dot", "dot_general", "dynamic_conv")
# What has no arrays of its own, or takes pairs as it takes arrays.
_STRUCTURE = (
    "after_all", "case", "constant", "create_token", "get_dimension_size", "if",
    "optimization_barrier", "while",
)  # fmt: skip
_OWN: Mapping[str, Lift] = {
    "compare": _compare,
    "complex": _complex,
    "convert": _convert,
    "imag": lambda op: _as_complex(op.array(0)).imag,
    "real": _real,
    "reduce": _reduce,
    "sort": _sort,
    **{name: _function(name) for name in FUNCTIONS},
}


def _lift_of_parts(name: str, lift: Lift) -> Lift:
    """Return the function that computes complex numbers of an operation of StableHLO."""
    short = name.partition(".")[2]
    if short in _OWN:
        return _OWN[short]
    if short in _MOVING:
        return _each_part(lift)
    if short in _BILINEAR:
        return _bilinear(lift)
    if short == "scatter":
        return _combining(lift, ("add", "replace", "subtract"))
    if short == "reduce_window":
        return _combining(lift, ("add",))
    if short in _STRUCTURE or name in one_device.RULES or not name.startswith("stablehlo."):
        return lift
    return _refuse


_PLAIN = table_with({}, target="pairs of real and imaginary parts")
# The windows of arrays whose sizes are symbolic.
_COMPUTED_WINDOWS = "stablehlo.dynamic_reduce_window"
_WINDOWS_RULE = _PLAIN.custom_calls[_COMPUTED_WINDOWS]


def _of_real_only(rule: LiftingRule) -> LiftingRule:
    """Return the rule of a composite, which complex numbers have by its decomposition."""
    return LiftingRule(lambda op: None if op.is_complex else rule.lift(op), rule.attributes)


def _store(array: Array) -> Array:
    return np.stack([array.real, array.imag], axis=-1) if array.dtype.kind == "c" else array


def _enter(value: Any, dtype: np.dtype[Any]) -> Any:
    return ComplexParts(value[..., 0], value[..., 1]) if dtype.kind == "c" else value


def _leave(value: Any, dtype: np.dtype[Any]) -> Any:
    if dtype.kind != "c":
        return value
    parts = _as_complex(value)
    return jnp.stack([parts.real, parts.imag], axis=-1)


COMPLEX_AS_PAIRS = Decomposition(
    name="complex numbers",
    table=dataclasses.replace(
        _PLAIN,
        rules={
            name: _of_complex(rule, _lift_of_parts(name, rule.lift))
            for name, rule in _PLAIN.rules.items()
        },
        custom_calls={
            **_PLAIN.custom_calls,
            _COMPUTED_WINDOWS: _of_complex(_WINDOWS_RULE, _combining(_WINDOWS_RULE.lift, ("add",))),
        },
        composites={
            **{name: _of_real_only(rule) for name, rule in _PLAIN.composites.items()},
            **fourier_products.COMPOSITES,
        },
        operation=_PairedOperation,
        to_array=_as_parts,
    ),
    elements=frozenset({"complex<f32>", "complex<f64>"}),
    boundary=Boundary(
        dtype=_part_dtype,
        shape=lambda shape, dtype: (*shape, 2) if dtype.kind == "c" else tuple(shape),
        enter=_enter,
        leave=_leave,
        store=_store,
    ),
)
