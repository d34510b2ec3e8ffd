"""`lift_call`: a call of a module as a function of JAX."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from bridge.lifting.known_values import LiftedValue, PlatformChoice
from bridge.lifting.lifting_table import JAX_TABLE, LiftingTable
from bridge.lifting.module_lifting import walk_module
from bridge.lifting.sharding_primitives import constrain_values, with_automatic_axes
from xla_call_module.analyses.custom_calls import refuse_other_programs
from xla_call_module.call import CallModule, bind_symbols
from xla_call_module.dtypes import WIDE
from xla_call_module.stablehlo.call_graph import check_calls
from xla_call_module.stablehlo.elements import element_dtype
from xla_call_module.stablehlo.modules import (
    find_main,
    functions_of,
    open_module,
    tensor_type,
    walk,
)
from xla_call_module.stablehlo.serialized_shardings import import_shardings_into

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh, Mesh


def lift_call(
    call: CallModule,
    mesh: Mesh | AbstractMesh | None = None,
    table: LiftingTable = JAX_TABLE,
) -> Callable[..., tuple[Any, ...]]:
    """Return the function of a call's operands that JAX traces operation by operation."""

    def lifted(*operands: Any) -> tuple[Any, ...]:
        arguments = [*_platform_index(call), *operands]
        _check_shapes(call, operands)
        with open_module(call.module) as module:
            refuse_other_programs(call.name, module)
            check_calls(functions_of(module))
            import_shardings_into(module)
            with dtypes_of(module):
                main = find_main(module)
                arguments = constrain_values(main, "arg_attrs", arguments, mesh)
                results = walk_module(module, arguments, mesh, table=table)
                return tuple(constrain_values(main, "res_attrs", results, mesh))

    def call_lifted(*operands: Any) -> tuple[Any, ...]:
        return with_automatic_axes(lifted, operands)

    call_lifted.__name__ = call_lifted.__qualname__ = call.name
    function: Callable[..., tuple[Any, ...]] = jax.jit(call_lifted, inline=True)
    return function


def _check_shapes(call: CallModule, operands: Sequence[Any]) -> None:
    """Refuse arrays of shapes that the function was not exported for."""
    shapes: list[Any] = [None] * len(call.own_args)
    for position, operand in zip(call.kept, operands, strict=True):
        shape = [size if isinstance(size, int) else None for size in np.shape(operand)]
        shapes[position] = shape
    bind_symbols(call.name, call.own_args, shapes)


def _platform_index(call: CallModule) -> list[LiftedValue]:
    if not call.has_platform_index:
        return []
    numbers = {name: np.array(n, np.int32) for n, name in enumerate(call.platforms)}
    return [PlatformChoice(numbers)]


def dtypes_of(module: Any) -> AbstractContextManager[Any]:
    """Return a context in which JAX has the dtypes of a module."""
    types = {str(result.type) for operation in walk(module) for result in operation.results}
    if any("64" in text and "tensor<" in text and _is_wide(text) for text in types):
        wide: AbstractContextManager[Any] = jax.enable_x64(True)
        return wide
    return contextlib.nullcontext()


def _is_wide(text: str) -> bool:
    return str(element_dtype(tensor_type(text).element)) in WIDE
