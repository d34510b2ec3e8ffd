"""A TensorFlow function of flat tensors -> its concrete function for some shapes and dtypes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import tensorflow as tf

from bridge.core._tf import gradients_for_xla
from bridge.core.narrowing import is_narrowed, narrow_dtype
from xla_call_module.dtypes import dtype_from_name

__all__ = ["FlatFunction", "Traced", "trace"]

# Flat tensors in, flat tensors out.
FlatFunction = Callable[..., Sequence[tf.Tensor]]


@dataclass(frozen=True, slots=True, eq=False)
class Traced:
    """A function that TensorFlow has traced.

    Attributes:
        name: for messages and for the compiled program.
        function: the `tf.function`, which can tell its compiled form.
        concrete: its concrete function.
        arguments: what it takes.
        results: for each result its shape, with None for a dimension or a rank that is not known,
            and its dtype.
        captures: what it takes besides the arguments, in TensorFlow's order: variables, constant
            tensors, and handles of other resources.
    """

    name: str
    function: Any
    concrete: Any
    arguments: tuple[jax.ShapeDtypeStruct, ...]
    results: tuple[tf.TensorSpec, ...]
    captures: tuple[Any, ...]

    @property
    def variables(self) -> tuple[tf.Variable, ...]:
        """Those that the function reads, each once."""
        return tuple(found for found in self.captures if isinstance(found, tf.Variable))

    @property
    def tensor_specs(self) -> list[tf.TensorSpec]:
        """The arguments as TensorFlow specs."""
        return to_tensor_specs(self.arguments)


def to_tensor_specs(specs: Sequence[jax.ShapeDtypeStruct]) -> list[tf.TensorSpec]:
    """The same shapes and dtypes for TensorFlow, with None for a symbolic dimension."""
    return [
        tf.TensorSpec(
            [dim if isinstance(dim, int) else None for dim in spec.shape],
            to_tensorflow_dtype(spec.dtype, where=f"args[{index}]"),
        )
        for index, spec in enumerate(specs)
    ]


def to_tensorflow_dtype(dtype: Any, *, where: str) -> tf.DType:
    """TensorFlow's name of a dtype.

    Raises:
        DtypeError: it has none.
    """
    return tf.as_dtype(dtype_from_name(str(dtype), where=where).enum)


def trace(
    flat: FlatFunction, specs: Sequence[jax.ShapeDtypeStruct], *, name: str, compiled: bool = True
) -> Traced:
    """The concrete function, traced outside of every graph.

    Results with 64 bits are cast to what JAX has while `jax_enable_x64` is off.

    Args:
        flat: what is traced.
        specs: its arguments.
        name: for messages.
        compiled: whether XLA will compile it.

    Raises:
        DtypeError: an argument or a result has a dtype that the other side does not have.
    """

    def run(*tensors: tf.Tensor) -> list[tf.Tensor]:
        return [_narrow(result, f"result {i}") for i, result in enumerate(flat(*tensors))]

    run.__name__ = "call_tf"
    # `tf.init_scope` would stop the tapes inside of the function, too.
    with tf.__internal__.eager_context.eager_mode(), gradients_for_xla():
        function = tf.function(run, autograph=False, jit_compile=compiled or None)
        concrete = function.get_concrete_function(*to_tensor_specs(specs))
    return Traced(
        name=name,
        function=function,
        concrete=concrete,
        arguments=tuple(specs),
        results=tuple(tf.TensorSpec(out.shape, out.dtype) for out in concrete.outputs),
        captures=_captures(concrete),
    )


def _narrow(result: tf.Tensor, where: str) -> tf.Tensor:
    dtype = dtype_from_name(result.dtype.name, where=where).numpy
    return tf.cast(result, tf.as_dtype(narrow_dtype(dtype))) if is_narrowed(dtype) else result


def _captures(concrete: Any) -> tuple[Any, ...]:
    """Variables in the place of their handles; everything else as it is."""
    variables = {id(variable.handle): variable for variable in concrete.graph.variables}
    return tuple(variables.get(id(captured), captured) for captured in concrete.captured_inputs)
