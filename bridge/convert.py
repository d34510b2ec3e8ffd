"""`convert`: make a TensorFlow callable of a JAX function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from jax import export

from bridge.chains.orders import ChainOptions
from bridge.converting.signature import Defaults, adopt_metadata, read_defaults, signature_of
from bridge.core.backend import require_tensorflow
from bridge.core.operations_option import XLA, OperationsOption
from bridge.core.updates import Updates, parse_updates
from bridge.exporting.specifications import parse_constraints, specify
from xla_call_module.errors import ArgumentError, StructureError, remedy_for
from xla_call_module.exported import Check
from xla_call_module.linalg.linalg_option import LinalgOption
from xla_call_module.passes.constants import HOISTED_FROM
from xla_call_module.platforms import DEFAULT_PLATFORMS, parse_platforms
from xla_call_module.tracebacks import api_boundary

if TYPE_CHECKING:
    from bridge.converting.converted_function import CallSource, ConvertedFunction


@api_boundary
def convert(
    fun: Callable[..., Any] | export.Exported,
    *,
    polymorphic_shapes: Any = None,
    polymorphic_constraints: Sequence[str] = (),
    platforms: Sequence[str] | None = None,
    disabled_checks: Sequence[Check] = (),
    with_gradient: bool = True,
    gradient_order: int = 1,
    residuals: bool = False,
    hoist_constants: int | None = HOISTED_FROM,
    linalg: LinalgOption = "portable",
    variables: Any = None,
    updates: Updates | None = None,
    operations: OperationsOption = XLA,
) -> Callable[..., Any]:
    """Convert a JAX function to a TensorFlow callable, with its gradients.

    It takes tensors, variables, numpy arrays, JAX arrays and Python scalars in any registered
    pytree, positional and keyword, and returns the pytree of tensors that `fun` returns. It works
    eagerly, in `tf.function`, compiled, in TensorFlow's control flow, and in a `tf.Module` that
    `tf.saved_model.save` writes. `fun` is exported once for each combination of argument shapes and
    dtypes.

    Args:
        fun: a Python function of JAX arrays, a `jax.jit`-ed one, or a `jax.export.Exported`. A
            parameter that it reads as a Python value, such as `training=False`, must have its
            default or be bound with `functools.partial`; whatever is passed arrives as an array.
        polymorphic_shapes: the names of unknown dimensions. A string such as `"b, _"` or
            `"b, ..."` for every argument, or a pytree of strings and None that is a prefix of the
            positional arguments, in the language of `jax.export.symbolic_args_specs`; or
            `"auto"`: an unknown dimension 0 is the same symbol in all arguments, and any other
            unknown dimension a symbol of its own.
        polymorphic_constraints: constraints between the symbols, such as `"b >= 2"`.
        platforms: the platforms to lower for, some of `cpu`, `cuda`, `rocm`, `tpu`, `gpu`; by
            default cpu, cuda and tpu together.
        disabled_checks: safety checks to leave out, on every order of the gradient: `platform`,
            `shape_assertions`, `custom_call:TARGET`, or JAX's `DisabledSafetyCheck` values. With an
            `Exported`, besides those that it leaves out itself.
        with_gradient: whether TensorFlow can differentiate the result; live, any number of times.
        gradient_order: how many times a file of `tf.saved_model.save` can be differentiated. From 2
            on, each order is exported when a `tf.function` is traced.
        residuals: whether the function keeps the intermediate values that its gradient needs,
            instead of computing the forward pass again: less time, more memory, the same results.
            They are what `jax.vjp` keeps, so `jax.checkpoint` says what is not kept.
        hoist_constants: the number of bytes from which on an array that `fun` closes over is kept
            once, outside of the modules of the function and its gradients, where it would cost time
            at each eager call; None for never.
        linalg: `portable` replaces calls of LAPACK, cuSOLVER and the like by operations that run
            everywhere, in gradients too; `lapack` leaves them for a TensorFlow that has them.
        variables: a pytree of `tf.Variable`s that is the first argument of `fun`; what is returned
            takes the others.
        updates: where the new values of the variables stand in what `fun` returns, as for
            `bridge.save`: each call assigns them, and returns the rest.
        operations: `"xla"`, one operation that XLA compiles; or `"tensorflow"`, a function of
            TensorFlow's own operations, which runs without XLA and for every size at once, with
            JAX's gradients all the same. `tf.saved_model.save` writes what the function is.

    Returns:
        A callable. Typed PRNG keys cross as their key data (uint32); 64-bit tensors as the 32-bit
        ones that JAX would make of them while `jax_enable_x64` is off, with one warning.

    Raises:
        InteropError: `fun` or its arguments cannot cross; raised when it is called, except for
            wrong options and for an `Exported`, which are refused at once.

    Example:
        >>> import bridge, jax.numpy as jnp, tensorflow as tf
        >>> f = bridge.convert(lambda x, *, scale: jnp.sin(x) * scale)
        >>> f(tf.constant([0.0, 1.0]), scale=2.0).numpy()
        array([0.       , 1.6829419], dtype=float32)
    """
    require_tensorflow("bridge.convert", instead="write a file with bridge.save")
    from bridge.converting.converted_function import (
        ConvertedFunction,
        ExportedSource,
        FunctionSource,
    )
    from bridge.converting.gradient import GradientOptions

    if updates is not None and variables is None:
        raise ArgumentError(
            "updates= is for a function of variables, and there are none. To do: pass variables=, "
            "a pytree of tf.Variables that is its first argument."
        )
    passes = ChainOptions.parse(
        disabled_checks=disabled_checks,
        linalg=linalg,
        residuals=residuals,
        hoist_constants=hoist_constants,
        operations=operations,
    )
    options = GradientOptions(passes, with_gradient=with_gradient, order_in_file=gradient_order)
    source: CallSource
    if isinstance(fun, export.Exported):
        if polymorphic_shapes or polymorphic_constraints or platforms:
            raise StructureError(
                f"{fun.fun_name} is already exported: polymorphic_shapes, polymorphic_constraints "
                "and platforms are fixed in it. To do: leave them out, or export it again with "
                "them."
            )
        source = ExportedSource(fun, options)
    elif not callable(fun):
        raise ArgumentError(
            f"Expected a Python function or a jax.export.Exported, got {type(fun).__name__}. "
            f"{remedy_for(fun, otherwise='pass one of these')}"
        )
    else:
        source = FunctionSource(
            fun,
            specify=partial(
                specify,
                polymorphic_shapes=polymorphic_shapes,
                constraints=parse_constraints(polymorphic_constraints),
            ),
            platforms=DEFAULT_PLATFORMS if platforms is None else parse_platforms(platforms),
            options=options,
        )
    signature = signature_of(fun)
    call = _to_function(ConvertedFunction(source), read_defaults(signature))
    adopt_metadata(call, fun, signature)
    return call if variables is None else _on_variables(call, variables, updates)


def _on_variables(call: Any, variables: Any, updates: Any) -> Callable[..., Any]:
    """Return a function with variables in the place of its first argument."""
    from bridge.converting.variable_state import VariableState

    positions = next(iter(parse_updates(updates, call).values()), {})
    name = str(getattr(call, "__name__", "The function"))
    state = VariableState(call, name, variables, positions)

    @api_boundary
    def on_variables(*args: Any, **kwargs: Any) -> Any:
        return state(args, kwargs)

    on_variables.__name__, on_variables.__doc__ = name, call.__doc__
    return on_variables


def _to_function(converted: ConvertedFunction, defaults: Defaults | None) -> Callable[..., Any]:
    """Return a plain function, whose attributes can be set."""

    @api_boundary
    def call(*args: Any, **kwargs: Any) -> Any:
        if defaults is None:
            return converted(args, kwargs)
        return converted(*defaults.leave_out(args, kwargs))

    return call
