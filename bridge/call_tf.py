"""`call_tf`: make a JAX function of a TensorFlow function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

from bridge.core.backend import require_tensorflow
from xla_call_module.errors import StructureError
from xla_call_module.tracebacks import api_boundary

if TYPE_CHECKING:
    from bridge.calling_tf.calls import CalledFunction


VariablesKind = Literal["live", "argument", "constant"]
_VARIABLES = get_args(VariablesKind)


@api_boundary
def call_tf(
    fun_tf: Any,
    *,
    shapes: Any = None,
    graph: bool = False,
    variables: VariablesKind = "live",
    compiled: bool = True,
    has_side_effects: bool | None = None,
) -> CalledFunction:
    """Convert a TensorFlow function to a JAX function, with its gradients.

    It works eagerly and under every transformation: `jit`, `grad` of any order and `jvp` (through
    TensorFlow's gradients), `vmap`, JAX's control flow, `checkpoint` and `jax.export`, also with
    symbolic shapes, for which it is compiled at several sizes. TensorFlow compiles the function
    once for each combination of shapes and dtypes, and its StableHLO becomes a part of JAX's
    program, which then calls no Python. What TensorFlow asserts, as by
    `tf.debugging.assert_positive` and `tf.debugging.check_numerics`, is not checked then, as with
    its `jit_compile=True`.

    Args:
        fun_tf: a Python function of tensors, a `tf.function`, a concrete function, a Keras layer
            or model, a SavedModel that `tf.saved_model.load` returned or one of its signatures, or
            the path of one. A parameter that it reads as a Python value is bound with
            `functools.partial`; whatever is passed arrives as a tensor.
        shapes: the shapes and dtypes of the results, as a pytree of `jax.ShapeDtypeStruct` in their
            structure, or of texts such as `"2*b, 3"`; needed where TensorFlow does not know them:
            with `compiled=False` those that depend on values, with `graph=True` those that depend
            on symbolic sizes.
        graph: whether it stays a TensorFlow function in exports: `bridge.convert`,
            `tf.saved_model.save` of that and `bridge.save` keep it in the graph or the file, and
            TensorFlow compiles it there. In a program that JAX runs itself it is compiled; JAX
            alone cannot run such an export. `variables` must be `argument` or `constant`.
        variables: how the function gets its variables. `live`: each run reads their current values,
            under `jit` through a callback. `argument`: as a dict of arrays, which comes before all
            other arguments and which the attribute `variables` returns; JAX differentiates with
            respect to it. `constant`: their values when JAX traces the call, for a function that is
            exported.
        compiled: False runs the function in TensorFlow, through a callback: for operations that XLA
            cannot compile (strings, `tf.py_function`, lookups, results of unknown sizes), for
            assertions and for side effects. The variables are then always live, and nothing can be
            exported.
        has_side_effects: with `compiled=False` or `graph=True`, whether each call runs even if its
            results are not used, and, with `compiled=False`, calls keep their order; by default, if
            the function assigns to variables, draws random numbers, prints or calls Python.

    Returns:
        A function of JAX arrays, numpy arrays, tensors and Python numbers in any registered pytree,
        positional and keyword, that returns the pytree of JAX arrays. Typed PRNG keys arrive as
        their key data. While `jax_enable_x64` is off, results of 64 bits become 32-bit ones, and a
        warning names them once.

    Raises:
        InteropError: the function or its arguments cannot cross; raised when it is called, except
            for wrong options.
        Exception: what the function itself raises when TensorFlow traces it, such as a `ValueError`
            of shapes that do not fit, comes out as it is.

    Example:
        >>> import bridge, jax, jax.numpy as jnp, tensorflow as tf
        >>> f = bridge.call_tf(lambda x: tf.math.log1p(x) * 2.0)
        >>> jax.jit(jax.grad(f))(jnp.float32(1.0))
        Array(1., dtype=float32)
    """
    if variables not in _VARIABLES:
        raise StructureError(
            f"variables is {variables!r}; expected one of {', '.join(map(repr, _VARIABLES))}."
        )
    if graph and not compiled:
        raise StructureError(
            "With graph=True the function is exported, and compiled=False, which calls TensorFlow "
            "back, has no meaning. To do: leave it out."
        )
    if compiled and has_side_effects and not graph:
        raise StructureError(
            "A function that JAX compiles has no side effects. To do: pass compiled=False with "
            "has_side_effects=True."
        )
    if not compiled and variables != "live":
        raise StructureError(
            "With compiled=False TensorFlow reads its variables itself, and "
            f"variables={variables!r} cannot be honored. To do: leave it out."
        )
    require_tensorflow("bridge.call_tf")
    from bridge.calling_tf.calls import CalledFunction, CallOptions

    options = CallOptions(
        variables=variables,
        compiled=compiled,
        graph=graph,
        shapes=shapes,
        has_side_effects=has_side_effects,
    )
    return CalledFunction(fun_tf, options)
