"""The interface of JAX's own converter: `from bridge import jax2tf` instead of that of JAX.

Each function takes what that one takes, with its defaults and its rules for dtypes and shapes, and
raises errors of the same classes for the same mistakes. The differences are things that work here:
linear algebra, gradients of complex values and of higher order, forward mode, and
integer results in files.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import jax
import numpy as np

from xla_call_module.errors import MissingDependencyError

try:
    import tensorflow as tf
except ImportError as error:
    raise MissingDependencyError.of("bridge.jax2tf", "TensorFlow", extra="tensorflow") from error

from jax import export, tree_util
from jax.export import DisabledSafetyCheck

from bridge.calling_tf.calls import CalledFunction, CallOptions
from bridge.calling_tf.eager_calls import call_eagerly, with_eager_gradient
from bridge.calling_tf.results import DynamicShapeError, returning
from bridge.chains.orders import ChainOptions
from bridge.converting.converted_function import ConvertedFunction, FunctionSource
from bridge.converting.gradient import GradientOptions
from bridge.core._jax import is_staging, polymorphic_shape_class, transformation_query
from bridge.core._tf import annotate_sharding
from bridge.core.containers import register_containers
from bridge.core.keys import key_data_aval
from bridge.core.narrowing import narrow_dtype
from bridge.exporting.specifications import specify_as_jax2tf
from xla_call_module.checks import parse_checks
from xla_call_module.dtypes import dtype_from_name
from xla_call_module.errors import ArgumentError, PlatformError, StructureError, UnsupportedError
from xla_call_module.platforms import PLATFORMS
from xla_call_module.symbolic_shapes import limited_parsing
from xla_call_module.tracebacks import api_boundary, warn

__all__ = [
    "DEFAULT_NATIVE_SERIALIZATION",
    "DisabledSafetyCheck",
    "PolyShape",
    "call_tf",
    "convert",
    "dtype_of_val",
    "eval_polymorphic_shape",
    "split_to_logical_devices",
]


def __dir__() -> list[str]:
    return __all__


PolyShape = polymorphic_shape_class()

# Files hold the first gradient with JAX's converter, and the second one here.
_ORDER_IN_FILE = 2


class _Default:
    """The value of an argument that was not passed."""

    def __repr__(self) -> str:
        return "DEFAULT_NATIVE_SERIALIZATION"


DEFAULT_NATIVE_SERIALIZATION: Final = _Default()

_is_free = transformation_query()

register_containers()


@api_boundary
def convert(
    fun_jax: Callable[..., Any],
    *,
    polymorphic_shapes: Any = None,
    polymorphic_constraints: Sequence[str] = (),
    with_gradient: bool = True,
    enable_xla: bool | _Default = DEFAULT_NATIVE_SERIALIZATION,
    native_serialization: bool | _Default = DEFAULT_NATIVE_SERIALIZATION,
    native_serialization_platforms: Sequence[str] | None = None,
    native_serialization_disabled_checks: Sequence[DisabledSafetyCheck] = (),
) -> Callable[..., Any]:
    """Convert a JAX function to a TensorFlow callable, with its gradients.

    Args:
        fun_jax: a Python function of JAX arrays and pytrees of them.
        polymorphic_shapes: a text such as `"b, ..."` for every positional argument, or a pytree of
            texts and None that is a prefix of them. Keyword arguments have static shapes.
        polymorphic_constraints: constraints between the symbols, such as `"b >= 2"`.
        with_gradient: whether TensorFlow can differentiate the result.
        enable_xla: deprecated; only True can be honored.
        native_serialization: deprecated; only True can be honored.
        native_serialization_platforms: what to lower for: a list or tuple of `cpu`, `cuda`, `rocm`
            and `tpu`; None for what JAX runs on.
        native_serialization_disabled_checks: safety checks to leave out.

    Raises:
        ArgumentError: `fun_jax` is no function; when it is called, an argument is no array.
        UnsupportedError: the graph of TensorFlow's own operations is asked for, which JAX 0.8 took
            away and this package does not have.
        PlatformError: a platform is unknown.
        StructureError: when it is called, inside a JAX transformation, or with shapes that
            `polymorphic_shapes` does not describe.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from bridge import jax2tf
        >>> jax2tf.convert(jnp.sin, polymorphic_shapes="b")(np.zeros(2)).dtype
        tf.float32
    """
    deprecated = {"native_serialization": native_serialization, "enable_xla": enable_xla}
    for name, value in deprecated.items():
        if not isinstance(value, _Default):
            _check_deprecated(name, value)
    _check_callable(fun_jax)
    converted = ConvertedFunction(
        FunctionSource(
            fun_jax,
            specify=partial(
                specify_as_jax2tf,
                polymorphic_shapes=polymorphic_shapes,
                constraints=polymorphic_constraints,
            ),
            platforms=_parse_platforms(native_serialization_platforms),
            options=GradientOptions(
                ChainOptions(parse_checks(native_serialization_disabled_checks)),
                with_gradient=with_gradient,
                order_in_file=_ORDER_IN_FILE,
                unconnected_zeros=True,
                keeps_convention=True,
            ),
        ),
        label="jax2tf",
        warns=False,
    )

    # TensorFlow names the inputs of a signature after these parameters.
    @api_boundary
    def converted_fun_tf(*args_tf: Any, **kwargs_tf: Any) -> Any:
        if not _is_free() and not tf.inside_function():
            raise StructureError(
                "The result of jax2tf.convert was called inside a JAX transformation, such as "
                "jax.jit or jax.grad, which TensorFlow cannot trace. To do: call the JAX function "
                "itself there, and convert the outermost one."
            )
        return converted(args_tf, kwargs_tf)

    del vars(converted_fun_tf)["__wrapped__"]  # which tf.function would call
    return converted_fun_tf


def _check_deprecated(name: str, value: object) -> None:
    if not value:
        raise UnsupportedError(
            f"{name}={value}: this function does not write TensorFlow's own operations, and newer "
            "versions of JAX ignore the argument. To do: leave it out, for one XlaCallModule "
            'operation; or use bridge.convert(fun, operations="tensorflow"), or bridge.save(…, '
            'operations="tensorflow"), which run without XLA.'
        )
    warn(
        f"{name} is deprecated, and always True. To do: leave it out.",
        DeprecationWarning,
    )


def _check_callable(fun: Any) -> None:
    if isinstance(fun, staticmethod) or not callable(fun):
        raise ArgumentError(
            f"jax2tf.convert takes a function, got {type(fun).__name__}. To do: pass a Python "
            "function of JAX arrays."
        )
    if inspect.isgeneratorfunction(fun):
        raise ArgumentError(
            f"jax2tf.convert takes a function, and {fun.__name__} is a generator. To do: return "
            "the values instead."
        )


def _parse_platforms(names: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the platforms to lower for; None for those that JAX runs on."""
    if not names:
        return None
    if not isinstance(names, (list, tuple)) or not set(names) <= set(PLATFORMS):
        raise PlatformError(
            f"native_serialization_platforms={names!r}; expected a list or tuple of some of "
            f"{', '.join(PLATFORMS)}."
        )
    return tuple(dict.fromkeys(names))


@api_boundary
def call_tf(
    callable_tf: Callable[..., Any],
    has_side_effects: bool = True,  # noqa: FBT001, FBT002 - as JAX's own converter has it
    ordered: bool = False,  # noqa: FBT001, FBT002
    output_shape_dtype: Any = DEFAULT_NATIVE_SERIALIZATION,
    call_tf_graph: bool = False,  # noqa: FBT001, FBT002
) -> Callable[..., Any]:
    """Convert a TensorFlow function to a JAX function, with its gradients.

    While JAX traces no program, TensorFlow runs it, and its gradient, so that they may do what
    cannot be compiled. Inside of a program it is compiled, and its variables are what they are when
    it is traced; `bridge.call_tf` has live ones. While `jax_enable_x64` is off, results of 64 bits
    become 32-bit ones: without a word inside of a program, and outside of one if these hold the
    values.

    Args:
        callable_tf: a function of tensors, a `tf.function` or a concrete function.
        has_side_effects: whether JAX must keep calls whose results are not used.
        ordered: whether the calls run in the order in which they are written; inside a
            transformation they then go through a callback, and cannot be exported.
        output_shape_dtype: the pytree of results, each with shape and dtype, where TensorFlow does
            not know them.
        call_tf_graph: whether an exported function has a TensorFlow function instead of its
            StableHLO.

    Raises:
        InteropError: as `bridge.call_tf`.
        DtypeError: outside of a program, 32 bits do not hold a result of 64.

    Example:
        >>> import jax, jax.numpy as jnp, tensorflow as tf
        >>> from bridge import jax2tf
        >>> jax.jit(lambda x: jax2tf.call_tf(tf.math.square)(x) + 1)(jnp.float32(2))
        Array(5., dtype=float32)
    """
    del has_side_effects  # what is compiled has none
    shapes = None
    if not isinstance(output_shape_dtype, _Default):
        shapes = tree_util.tree_map(
            lambda like: jax.ShapeDtypeStruct(like.shape, like.dtype), output_shape_dtype
        )
        callable_tf = returning(callable_tf, shapes)
    compiled = CallOptions(
        variables="constant",
        compiled=True,
        graph=call_tf_graph,
        shapes=shapes,
        has_side_effects=None,
        only_exported=call_tf_graph,
        warns=False,
    )
    callback = replace(compiled, variables="live", compiled=False, graph=False, only_exported=False)
    called_back = CalledFunction(callable_tf, callback)
    if ordered and not call_tf_graph:
        inside = CalledFunction(callable_tf, replace(callback, has_side_effects=True))
    else:
        inside = CalledFunction(callable_tf, compiled)

    @api_boundary
    def call(*args: Any, **kwargs: Any) -> Any:
        if _is_free():
            return call_eagerly(callable_tf, args, kwargs)
        if is_staging():
            return inside(*args, **kwargs)
        try:
            return called_back(*args, **kwargs)
        except DynamicShapeError:
            return with_eager_gradient(callable_tf)(args, kwargs)

    return call


@api_boundary
def dtype_of_val(val: Any) -> tf.DType:
    """Return the dtype of a value in a converted function: JAX's, 64 bits only with x64.

    Args:
        val: a tensor, a variable, an array, or a Python number.

    Raises:
        DtypeError: a tensor has a dtype that JAX does not have.
        TypeError: JAX makes no array of it.

    Example:
        >>> from bridge import jax2tf
        >>> jax2tf.dtype_of_val(3.14)
        tf.float32
    """
    if isinstance(val, (tf.Tensor, tf.Variable)):
        dtype = dtype_from_name(val.dtype.name, where="the value").numpy
        return tf.as_dtype(narrow_dtype(dtype))
    dtype = key_data_aval(jax.typeof(val)).dtype
    return tf.as_dtype(np.dtype(bool) if dtype == jax.dtypes.float0 else dtype)


@api_boundary
def eval_polymorphic_shape(
    fun_jax: Callable[..., Any], *, polymorphic_shapes: Any = None
) -> Callable[..., tuple[Any, Any]]:
    """Return a function from specs to the specs and polymorphic shapes of the results.

    Args:
        fun_jax: a Python function of JAX arrays and pytrees of them.
        polymorphic_shapes: as for `convert`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from bridge import jax2tf
        >>> spec = jax.ShapeDtypeStruct((2, 3), jnp.float32)
        >>> jax2tf.eval_polymorphic_shape(lambda x: x.T, polymorphic_shapes=["a, b"])(spec)[1]
        '(b, a)'
    """

    def evaluate(*args_specs: Any) -> tuple[Any, Any]:
        with limited_parsing(polymorphic_shapes):
            specs = export.symbolic_args_specs(args_specs, polymorphic_shapes)
        results = jax.eval_shape(fun_jax, *specs)
        return results, tree_util.tree_map(lambda result: str(result.shape), results)

    return evaluate


@api_boundary
def split_to_logical_devices(tensor: Any, partition_dimensions: Sequence[int] | None) -> tf.Tensor:
    """Return the tensor with a sharding, by which XLA splits it between the devices of a replica.

    Args:
        tensor: what is split.
        partition_dimensions: for each dimension the number of parts; None to have it whole on every
            device.
    """
    if partition_dimensions is None:
        return annotate_sharding(tensor, None)
    count = math.prod(partition_dimensions)
    return annotate_sharding(tensor, np.arange(count).reshape(partition_dimensions))
