"""A call is traced under a table of rules, and exported again."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import export

from bridge.core._jax import has_symbolic_composites, tracing_error_kind
from bridge.core.narrowing import x64_if_needed
from bridge.lifting.known_values import Dimension, StructuredArray
from bridge.lifting.lifted_function import dtypes_of
from bridge.lifting.lifting_table import LiftingTable
from bridge.lifting.module_lifting import walk_module
from xla_call_module._jax import ir
from xla_call_module.analyses.constraints import constraints_of
from xla_call_module.call import CallModule
from xla_call_module.dtypes import Array
from xla_call_module.errors import UnsupportedError
from xla_call_module.stablehlo.mhlo import compose_custom_calls
from xla_call_module.stablehlo.modules import open_module, walk
from xla_call_module.stablehlo.walking import describe_operation
from xla_call_module.symbolic_shapes import limited_steps, parse_shape

_NUMBER = re.compile(r"@(\d+)")


@dataclass(frozen=True, slots=True)
class Boundary:
    """The form in which a retraced function takes and returns arrays.

    Attributes:
        dtype: the function from the dtype of an array to that of the form.
        shape: the function from the shape and the dtype of an array to the shape of the form.
        enter: the function from an argument, and its dtype in the module, to a value of the walk.
        leave: the function from a value of the walk, and its dtype in the module, to a result.
        store: the function from an array of numpy to its form.
    """

    dtype: Callable[[np.dtype[Any]], np.dtype[Any]]
    shape: Callable[[Sequence[Any], np.dtype[Any]], tuple[Any, ...]]
    enter: Callable[[Any, np.dtype[Any]], Any]
    leave: Callable[[Any, np.dtype[Any]], Any]
    store: Callable[[Array], Array]


@dataclass(frozen=True, slots=True, eq=False)
class ParameterArray(StructuredArray):
    """An argument whose elements are those of a parameter.

    Attributes:
        traced: the argument as JAX traces it.
    """

    traced: Any
    elements: Array

    @property
    def shape(self) -> tuple[Dimension, ...]:
        """The shape."""
        return tuple(self.elements.shape)

    def array(self) -> Any:
        """Return the argument."""
        return self.traced


def retrace(
    call: CallModule,
    table: LiftingTable,
    boundary: Boundary,
    *,
    parameters: Mapping[int, Array] | None = None,
    is_wide: bool = False,
) -> export.Exported:
    """Return a call, for one platform, of what a table of rules makes of its operations."""
    if not has_symbolic_composites() and any(map(_is_symbolic, _avals_of(call, boundary))):
        table = dataclasses.replace(table, may_compose=False)
    with _traced(call, table, boundary, {}, parameters or {}, is_wide=is_wide) as (function, avals):
        return export.export(jax.jit(function, keep_unused=True), platforms=[call.platforms[0]])(
            *avals
        )


def retrace_to_jaxpr(
    call: CallModule, table: LiftingTable, boundary: Boundary, constants: Mapping[int, Any]
) -> Any:
    """Return the closed jaxpr of what a table of rules makes of the operations of a call.

    Args:
        call: the call, for one platform.
        table: the rules.
        boundary: the form of arguments and results.
        constants: the arrays of some arguments.
    """
    with _traced(call, table, boundary, constants, {}, is_wide=False) as (function, avals):
        return jax.make_jaxpr(function)(*avals)


@contextmanager
def _traced(
    call: CallModule,
    table: LiftingTable,
    boundary: Boundary,
    fixed: Mapping[int, Any],
    known: Mapping[int, Array],
    *,
    is_wide: bool,
) -> Iterator[tuple[Callable[..., list[Any]], list[jax.ShapeDtypeStruct]]]:
    """Have the function that a call becomes, and its arguments, with the dtypes that it needs."""
    free = [index for index in range(len(call.args)) if index not in fixed]

    def retraced(*operands: Any) -> list[Any]:
        arguments = dict(fixed)
        for index, operand in zip(free, operands, strict=True):
            value = boundary.enter(operand, call.args[index].dtype.numpy)
            arguments[index] = ParameterArray(value, known[index]) if index in known else value
        with open_module(call.module) as module:
            compose_custom_calls(module)
            results = walk_module(module, [arguments[n] for n in call.kept], table=table)
        dtypes = [spec.dtype.numpy for spec in call.results]
        return [boundary.leave(one, dtype) for one, dtype in zip(results, dtypes, strict=True)]

    with open_module(call.module) as module:
        dtypes = jax.enable_x64(True) if is_wide else dtypes_of(module)
    with x64_if_needed(spec.dtype.name for spec in (*call.args, *call.results)), dtypes:
        yield retraced, _avals_of(call, boundary, free)


def _avals_of(
    call: CallModule, boundary: Boundary, free: Sequence[int] | None = None
) -> list[jax.ShapeDtypeStruct]:
    """Return the arguments, or some of them, whose sizes may be symbolic."""
    scope = export.SymbolicScope([str(one) for one in constraints_of(call)])
    specs = call.args if free is None else [call.args[index] for index in free]
    with limited_steps("to read the shapes of a call"):
        return [
            jax.ShapeDtypeStruct(
                boundary.shape(parse_shape(spec.shape or (), scope=scope), spec.dtype.numpy),
                boundary.dtype(spec.dtype.numpy),
            )
            for spec in specs
        ]


def _is_symbolic(aval: jax.ShapeDtypeStruct) -> bool:
    return not all(isinstance(size, int) for size in aval.shape)


@contextmanager
def numbered_scope(raw: Any, number: int, target: str) -> Iterator[None]:
    """Let the names of what is traced for an operation have a number in them."""
    with jax.named_scope(f"@{number}"):
        try:
            yield
        except Exception as error:
            if tracing_error_kind(error) != "size":
                raise
            raise UnsupportedError(
                f"{describe_operation(raw)}: {target} needs the sizes of this operation as numbers "
                f"({str(error).splitlines()[0]}) To do: export the function for fixed sizes, at "
                "least those that the operation works along."
            ) from error


class Locations:
    """The locations of the operations of a module, for those that are traced in place of them."""

    def __init__(self, target: str) -> None:
        """Have none."""
        self._numbers: dict[str, int] = {}
        self._target = target

    @contextmanager
    def scope(self, raw: Any) -> Iterator[None]:
        """Let what is traced inside be found by `restore`."""
        text = str(raw.location)
        with numbered_scope(raw, self._numbers.setdefault(text, len(self._numbers)), self._target):
            yield

    def restore(self, module: Any) -> None:
        """Give the operations of a retraced module the locations that they were traced for."""
        texts = [f"module {{\n}} {text}" for text in self._numbers]
        with module.context:
            locations = [ir.Module.parse(text).operation.location for text in texts]
            for operation in walk(module):
                if found := _NUMBER.findall(str(operation.location)[:_MAX_NAME]):
                    operation.location = locations[int(found[-1])]


# The name of a scope is the first part of a location.
_MAX_NAME = 4096
