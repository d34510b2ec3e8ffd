"""A call becomes one of operations that LiteRT executes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from bridge.blocks.block import Block
from bridge.blocks.block_builder import BlockTarget, build_block
from bridge.blocks.checking import check_block
from bridge.core_ops.decompositions.complex_pairs import COMPLEX_AS_PAIRS
from bridge.core_ops.decompositions.decomposition import COMPOSED_OPERATIONS, decompose
from bridge.core_ops.decompositions.fourier_products import FOURIER_AS_PRODUCTS
from bridge.core_ops.decompositions.random_bits import RANDOM_BITS_AS_INTEGERS
from bridge.core_ops.decompositions.retracing import Boundary, numbered_scope, retrace_to_jaxpr
from bridge.litert.emitting.element_operators import broadcasts
from bridge.litert.emitting.fusions import fuse
from bridge.litert.lowering.kernel_lowerings import COMPOSITES
from bridge.litert.lowering.lowered_operation import InexactOperation, LoweredOperation
from bridge.litert.lowering.lowering_table import LITERT_TABLE
from bridge.litert.lowering.storage_dtypes import at_boundary, boundary_dtype, storage_dtype
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.errors import DtypeError
from xla_call_module.stablehlo.operation_locations import places_of_callers
from xla_call_module.stablehlo.walking import describe_operation

# For operations and elements that LiteRT lacks.
DECOMPOSITIONS = (
    COMPOSED_OPERATIONS, RANDOM_BITS_AS_INTEGERS, FOURIER_AS_PRODUCTS, COMPLEX_AS_PAIRS,
)  # fmt: skip


class Places:
    """The operations of modules, by the numbers under which the names of lowered ones have them."""

    def __init__(self) -> None:
        """Have none."""
        self._numbers: dict[str, int] = {}

    @property
    def texts(self) -> tuple[str, ...]:
        """The name and the place of each operation, by its number."""
        return tuple(self._numbers)

    def scopes(self) -> Callable[[Any], AbstractContextManager[None]]:
        """Return what lets that which is traced inside have the number of an operation.

        It is for the operations of one module.
        """
        callers: dict[str, str] | None = None

        @contextmanager
        def scope(raw: Any) -> Iterator[None]:
            nonlocal callers
            if callers is None:
                callers = places_of_callers(_module_of(raw))
            text = describe_operation(raw, callers)
            number = self._numbers.setdefault(text, len(self._numbers))
            with numbered_scope(raw, number, "a LiteRT model"):
                yield

        return scope


def _module_of(operation: Any) -> Any:
    while (parent := operation.parent) is not None:
        operation = parent
    return operation


def lower_call(
    call: CallModule,
    parameters: Mapping[int, Any] | None = None,
    places: Places | None = None,
    *,
    exact: bool = True,
) -> Block:
    """Return what a call computes, of operations that LiteRT executes."""
    constants = {} if parameters is None else parameters
    _check_dtypes(call, [spec for n, spec in enumerate(call.args) if n not in constants])
    made = decompose(call, DECOMPOSITIONS, constants)
    table = dataclasses.replace(
        LITERT_TABLE,
        operation=LoweredOperation if exact else InexactOperation,
        around=(places or Places()).scopes(),
    )
    closed = retrace_to_jaxpr(made.call, table, _BOUNDARY, made.parameters)
    block = build_block(closed, _TARGET)
    check_block(block)
    return block


_TARGET = BlockTarget(broadcasts=broadcasts, composites=COMPOSITES, fuse=fuse)


def _check_dtypes(call: CallModule, free: Sequence[TensorSpec]) -> None:
    """Refuse inputs and results of dtypes that nothing in LiteRT stands for."""
    for spec in (*free, *call.results):
        if storage_dtype(spec.dtype.numpy) is None:
            raise DtypeError(
                f"{spec.path} of {call.name} is {spec.dtype.name}, which LiteRT cannot compute. To "
                "do: export the function for float32 or complex64."
            )


def _enter(value: Any, dtype: np.dtype[Any]) -> Any:
    if dtype == np.uint32:
        return lax.bitcast_convert_type(value, np.int32)
    return value.astype(storage_dtype(dtype))


def _leave(value: Any, dtype: np.dtype[Any]) -> Any:
    value = jnp.asarray(value)
    if dtype == np.uint32:
        return lax.bitcast_convert_type(value, np.uint32)
    return value.astype(boundary_dtype(dtype))


_BOUNDARY = Boundary(
    dtype=boundary_dtype,
    shape=lambda shape, _: tuple(shape),
    enter=_enter,
    leave=_leave,
    store=at_boundary,
)
