"""A call becomes one of operations that LiteRT executes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export, lax

from bridge.core._jax import tracing_error_kind
from bridge.core.narrowing import x64_if_needed
from bridge.lifting.lifted_function import dtypes_of
from bridge.lifting.lifting_table import LiftingTable
from bridge.lifting.module_lifting import walk_module
from bridge.litert.lowering.lowering_table import LITERT_TABLE
from bridge.litert.lowering.storage_dtypes import (
    ComplexParts,
    boundary_dtype,
    boundary_shape,
    storage_dtype,
    to_storage,
)
from xla_call_module.analyses.constraints import constraints_of
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.errors import DtypeError, UnsupportedError
from xla_call_module.stablehlo.mhlo import compose_custom_calls
from xla_call_module.stablehlo.modules import open_module
from xla_call_module.stablehlo.operation_locations import describe_location
from xla_call_module.symbolic_shapes import limited_steps, parse_shape

__all__ = ["Places", "lower_call"]


class Places:
    """The operations of modules, by the numbers under which the names of lowered ones have them."""

    def __init__(self) -> None:
        """Have none."""
        self._numbers: dict[str, int] = {}

    @property
    def texts(self) -> tuple[str, ...]:
        """The name and the place of each operation, by its number."""
        return tuple(self._numbers)

    @contextmanager
    def scope(self, raw: Any) -> Iterator[None]:
        """Let what is traced inside have the number of an operation in its name.

        Raises:
            UnsupportedError: it needs the value of a symbolic size.
        """
        text = f"{raw.name} at {describe_location(raw)}"
        with jax.named_scope(f"@{self._numbers.setdefault(text, len(self._numbers))}"):
            try:
                yield
            except Exception as error:
                if tracing_error_kind(error) != "size":
                    raise
                raise UnsupportedError(
                    f"{text}: in a LiteRT model its symbolic sizes would have to be known "
                    f"({str(error).splitlines()[0]}) To do: export the function for sizes that are "
                    "numbers, at least those that the operation works along."
                ) from error


def lower_call(
    call: CallModule,
    parameters: Mapping[int, Any] | None = None,
    places: Places | None = None,
    *,
    table: LiftingTable = LITERT_TABLE,
) -> export.Exported:
    """Return what a call computes, of operations that LiteRT executes.

    Args:
        call: the call, for one platform.
        parameters: the arrays of arguments that are constants, by their index.
        places: gets the operations, under the numbers that are in the names of the lowered ones.
        table: the rules. With `KERNEL_TABLE` composites stand for kernels, which the process that
            converts knows.
    """
    table = dataclasses.replace(table, around=(places or Places()).scope)
    known = {} if parameters is None else parameters
    free = [spec for index, spec in enumerate(call.args) if index not in known]

    def lowered(*operands: Any) -> list[Any]:
        given = iter(operands)
        arguments = [
            known[index] if index in known else _from_boundary(next(given), spec.dtype.numpy)
            for index, spec in enumerate(call.args)
        ]
        with open_module(call.module) as module:
            compose_custom_calls(module)
            taken = [arguments[index] for index in call.kept]
            with dtypes_of(module):
                results = walk_module(module, taken, table=table)
        dtypes = [spec.dtype.numpy for spec in call.results]
        return [_to_boundary(one, dtype) for one, dtype in zip(results, dtypes, strict=True)]

    _check_dtypes(call, free)
    with x64_if_needed(spec.dtype.name for spec in (*call.args, *call.results)):
        return export.export(jax.jit(lowered, keep_unused=True), platforms=["cpu"])(
            *_avals_of(free, [str(one) for one in constraints_of(call)])
        )


def _check_dtypes(call: CallModule, free: Sequence[TensorSpec]) -> None:
    """Refuse inputs and results of dtypes that nothing in LiteRT stands for."""
    for spec in (*free, *call.results):
        if storage_dtype(spec.dtype.numpy) is None:
            raise DtypeError(
                f"{spec.path} of {call.name} is {spec.dtype.name}, of which LiteRT computes "
                "nothing. To do: export the function for float32 or complex64."
            )


def _avals_of(
    specs: Sequence[TensorSpec], constraints: Sequence[str]
) -> list[jax.ShapeDtypeStruct]:
    """Return the arguments of the model, whose sizes may be symbolic."""
    scope = export.SymbolicScope(constraints)
    with limited_steps("to read the shapes of a call"):
        return [
            jax.ShapeDtypeStruct(
                boundary_shape(parse_shape(spec.shape or (), scope=scope), spec.dtype.numpy),
                boundary_dtype(spec.dtype.numpy),
            )
            for spec in specs
        ]


def _from_boundary(value: Any, dtype: np.dtype[Any]) -> Any:
    target = storage_dtype(dtype)
    if dtype.kind == "c":
        return ComplexParts(value[..., 0], value[..., 1])
    if dtype == np.uint32:
        return lax.bitcast_convert_type(value, np.int32)
    return value.astype(target)


def _to_boundary(value: Any, dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "c":
        parts = to_storage(value)
        return jnp.stack([parts.real, parts.imag], axis=-1)
    value = jnp.asarray(value)
    if dtype == np.uint32:
        return lax.bitcast_convert_type(value, np.uint32)
    return value.astype(boundary_dtype(dtype))
