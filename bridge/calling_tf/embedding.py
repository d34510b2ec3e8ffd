"""A traced TensorFlow function as a custom call that holds it, for a program that is exported.

What `bridge.convert` and `bridge.save` make of the program has it as a function of TensorFlow's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import tensorflow as tf

from bridge.calling_tf.concrete_functions import Traced
from bridge.calling_tf.unbinding import take_values
from bridge.calling_tf.variables import is_split, read
from xla_call_module.analyses.tensorflow_functions import TARGET, pack_functions
from xla_call_module.errors import StructureError

__all__ = ["Embedding"]


@dataclass(frozen=True, slots=True)
class Embedding:
    """How a TensorFlow function is held in a program.

    Attributes:
        has_side_effect: whether it is called even if no result is used.
        only_exported: whether a program that JAX runs itself may not have it.
    """

    has_side_effect: bool
    only_exported: bool

    def like(self, results: Sequence[jax.ShapeDtypeStruct], arguments: Sequence[Any]) -> list[Any]:
        """A call with the same results and effects that holds nothing."""
        return list(self._call(results, "")(*arguments))

    def run(
        self,
        traced: Traced,
        results: Sequence[jax.ShapeDtypeStruct],
        arguments: Sequence[Any],
        values: Mapping[int, Any],
    ) -> list[Any]:
        """The custom call in the program that is being traced.

        Args:
            traced: the function.
            results: shapes and dtypes of the results.
            arguments: what it is called with.
            values: those of variables, by the ids of the variables.

        Raises:
            StructureError: the function has captured what cannot be an operand of the call.
        """
        operands = [_operand(captured, traced, values) for captured in traced.captures]
        call = self._call(results, pack_functions(*_definitions(traced)))
        return list(call(*arguments, *operands))

    def _call(
        self, results: Sequence[jax.ShapeDtypeStruct], functions: str
    ) -> Callable[..., Sequence[Any]]:
        return jax.ffi.ffi_call(
            TARGET,
            list(results),
            has_side_effect=self.has_side_effect,
            custom_call_api_version=2,
            legacy_backend_config=functions,
        )


def _operand(captured: Any, traced: Traced, values: Mapping[int, Any]) -> Any:
    """What the call takes for a captured variable or constant."""
    if captured.dtype != tf.resource and is_split(captured):
        raise StructureError(
            f"{traced.name} has captured {captured.dtype.name}, which JAX does not have while "
            "jax_enable_x64 is off. To do: make a constant inside of the function, and have "
            "variables of 32 bits."
        )
    if id(captured) in values:
        return values[id(captured)]
    if captured.dtype == tf.resource or isinstance(captured, tf.Variable):
        is_variable = isinstance(captured, tf.Variable)
        what = f"the variable {captured.name}" if is_variable else "a resource"
        raise StructureError(
            f"{traced.name} has captured {what}, which a function that stays TensorFlow's "
            "(graph=True) cannot read while JAX's program runs. To do: pass variables='argument', "
            "which makes parameters of them, or variables='constant'."
        )
    return read([captured])[0]


def _definitions(traced: Traced) -> tuple[str, list[bytes]]:
    """The name of the function, and the definitions of it and of those that it calls."""
    definition = traced.concrete.function_def
    library = traced.concrete.graph.as_graph_def().library.function
    count = len(traced.arguments)
    dtypes = {
        count + index: captured.dtype.base_dtype.as_datatype_enum
        for index, captured in enumerate(traced.captures)
        if isinstance(captured, tf.Variable)
    }
    name, known = take_values([*library, definition], definition.signature.name, dtypes)
    found = {f.signature.name: f for f in known}
    return name, [f.SerializeToString(deterministic=True) for _, f in sorted(found.items())]
