"""A TensorFlow function of any kind -> its concrete function for some shapes and dtypes."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import tensorflow as tf
from jax import tree_util

from bridge.core._tf import (
    composite_tensor_classes,
    eager_mode,
    gradients_for_xla,
    has_lost_variables,
    is_binding_error,
)
from bridge.core.containers import without_containers
from bridge.core.explaining import refusing_unsortable_keys
from bridge.core.narrowing import is_narrowed, narrow_dtype
from xla_call_module.dtypes import dtype_from_name
from xla_call_module.errors import (
    ArgumentError,
    DtypeError,
    FormatError,
    StructureError,
    shown_as_base,
)
from xla_call_module.exported import result_paths

_DEFAULT_SIGNATURE = "serving_default"
# Flat tensors in, flat tensors out.
FlatFunction = Callable[..., Sequence[tf.Tensor]]


@shown_as_base
class ResultDtypeError(DtypeError, ValueError):
    """A result is of a dtype of which JAX has no arrays; JAX's own converter has a ValueError."""


def open_function(fun_tf: Any) -> Any:
    """Return what TensorFlow loads from a path; anything else as it is."""
    return _load(os.fspath(fun_tf)) if isinstance(fun_tf, (str, os.PathLike)) else fun_tf


def to_callable(fun_tf: Any) -> Callable[..., Any]:
    """Return a callable of tensors."""
    if callable(fun_tf):
        return fun_tf  # type: ignore[no-any-return]
    signatures = getattr(fun_tf, "signatures", None)
    if not isinstance(signatures, Mapping) or not signatures:
        raise ArgumentError(
            f"Expected a TensorFlow function, got {type(fun_tf).__name__}, which cannot be called "
            "and has no signatures. To do: pass a Python function, a tf.function, a Keras layer or "
            "model, a signature, or the path of a SavedModel."
        )
    if len(signatures) > 1 and _DEFAULT_SIGNATURE not in signatures:
        raise StructureError(
            f"The SavedModel has the signatures {', '.join(sorted(signatures))}, none of which is "
            f"{_DEFAULT_SIGNATURE}. To do: pass one of them, as in "
            "loaded = tf.saved_model.load(path); call_tf(loaded.signatures[name])."
        )
    name = _DEFAULT_SIGNATURE if _DEFAULT_SIGNATURE in signatures else next(iter(signatures))
    return _keeping_alive(signatures[name], fun_tf)


def _load(folder: str) -> Any:
    try:
        return tf.saved_model.load(folder)
    except OSError as error:
        raise FormatError(
            f"{folder} is not a SavedModel: {error}. To do: pass the folder that holds "
            "saved_model.pb."
        ) from error


def _keeping_alive(signature: Callable[..., Any], loaded: Any) -> Callable[..., Any]:
    """Return a signature that keeps the variables of its SavedModel alive, as it alone does not."""

    def call(*args: Any, **kwargs: Any) -> Any:
        assert loaded is not None
        return signature(*args, **kwargs)

    call.__name__ = name_of(signature)
    return call


def name_of(fun_tf: Any) -> str:
    """Return the name of a function for messages and for the compiled program."""
    if isinstance(fun_tf, (str, os.PathLike)):
        return os.path.basename(os.fspath(fun_tf).rstrip(os.sep)) or "saved_model"
    if isinstance(fun_tf, functools.partial):
        return name_of(fun_tf.func)
    for attribute in ("__name__", "name"):
        if isinstance(name := getattr(fun_tf, attribute, None), str) and name:
            return name
    return type(fun_tf).__name__


def flatten_results(results: Any, name: str) -> tuple[list[tf.Tensor], tree_util.PyTreeDef]:
    """Return the tensors that a function returned, and the structure around them."""
    if isinstance(results, tf.Operation):  # what a tf.function without results returns in a graph
        results = ()
    with refusing_unsortable_keys("A result"):
        leaves, tree = tree_util.tree_flatten(without_containers(results))
    tensors = []
    for path, leaf in zip(result_paths(tree), leaves, strict=True):
        if isinstance(leaf, composite_tensor_classes()) and not isinstance(leaf, tf.Variable):
            raise StructureError(
                f"{path} of {name} is a {type(leaf).__name__}; expected dense tensors. To do: "
                "return its parts, or make it dense."
            )
        try:
            tensors.append(tf.convert_to_tensor(leaf))
        except (TypeError, ValueError) as error:
            raise StructureError(
                f"{path} of {name} is {leaf!r:.80}; expected a tensor. TensorFlow says: {error}"
            ) from error
        if tensors[-1].dtype in (tf.string, tf.resource, tf.variant):
            raise ResultDtypeError(
                f"{path} of {name} has dtype {tensors[-1].dtype.name}, and JAX has numbers only. "
                "To do: leave it out of what the function returns, or turn it into numbers."
            )
        dtype_from_name(tensors[-1].dtype.name, where=f"{path} of {name}")
    return tensors, tree


def symbolic_tensor(tensor: tf.Tensor, path: str) -> ArgumentError:
    """Return the error for an argument without a value, as those of a `tf.function` are."""
    return ArgumentError(
        f"{path} is {tensor!r:.80}, a tensor of a graph that TensorFlow is tracing; JAX needs its "
        "value. To do: convert the JAX program, and call that in the graph, as in "
        "bridge.convert(bridge.call_tf(fun)); or call fun itself there."
    )


def call_with_tensors(
    function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any], name: str
) -> Any:
    """Call a function with tensors."""
    try:
        return function(*args, **kwargs)
    except tf.errors.OperatorNotAllowedInGraphError as error:
        raise ArgumentError(
            f"{name} takes a tensor for a Python value, such as training=True, and all arguments "
            "arrive as tensors. To do: bind Python values first, as in "
            "call_tf(functools.partial(fun, training=True)); or, if it decides by the value of a "
            f"tensor, make it a tf.function. TensorFlow says: {str(error)[:400]}"
        ) from error
    except AssertionError as error:
        if not has_lost_variables(error):
            raise
        raise StructureError(
            f"{name} reads variables that are gone: the signature of a SavedModel does not hold "
            "them. To do: pass what tf.saved_model.load returned, or the path, to call_tf; or keep "
            "what was loaded."
        ) from error
    except TypeError as error:
        if not is_binding_error(error):
            raise
        raise ArgumentError(
            f"The arguments of {name} do not fit its signature. TensorFlow says: "
            f"{str(error)[:400]} To do: pass arrays of the shapes and dtypes of its "
            "input_signature."
        ) from error


@dataclass(frozen=True, slots=True, eq=False)
class TracedFunction:
    """A function that TensorFlow has traced.

    Attributes:
        function: the `tf.function`, which can tell its compiled form.
        results: the shape, with None for a dimension or a rank that is not known, and the dtype of
            each result.
        captures: the inputs besides the arguments, in TensorFlow's order: variables, constant
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
        """The variables that the function reads, each once."""
        return tuple(captured for captured in self.captures if isinstance(captured, tf.Variable))

    @property
    def tensor_specs(self) -> list[tf.TensorSpec]:
        """The arguments as TensorFlow specs."""
        return to_tensor_specs(self.arguments)


def to_tensor_specs(specs: Sequence[jax.ShapeDtypeStruct]) -> list[tf.TensorSpec]:
    """Return shapes and dtypes for TensorFlow, with None for a symbolic dimension."""
    return [
        tf.TensorSpec(
            [dim if isinstance(dim, int) else None for dim in spec.shape],
            tf.as_dtype(dtype_from_name(str(spec.dtype), where=f"args[{index}]").enum),
        )
        for index, spec in enumerate(specs)
    ]


def is_static(spec: jax.ShapeDtypeStruct) -> bool:
    """Return whether no dimension is symbolic."""
    return all(isinstance(dim, int) for dim in spec.shape)


def trace(
    flat: FlatFunction, specs: Sequence[jax.ShapeDtypeStruct], *, name: str, compiled: bool = True
) -> TracedFunction:
    """Return the concrete function, traced outside of every graph.

    Results with 64 bits are cast to what JAX has while `jax_enable_x64` is off.
    """

    def run(*tensors: tf.Tensor) -> list[tf.Tensor]:
        return [_narrow(result, f"result {i}") for i, result in enumerate(flat(*tensors))]

    run.__name__ = "call_tf"
    # `tf.init_scope` would stop the tapes inside of the function, too.
    with eager_mode(), gradients_for_xla():
        function = tf.function(run, autograph=False, jit_compile=compiled or None)
        concrete = function.get_concrete_function(*to_tensor_specs(specs))
    return TracedFunction(
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
    """Return the captured inputs, with variables in the place of their handles."""
    variables = {id(variable.handle): variable for variable in concrete.graph.variables}
    return tuple(variables.get(id(captured), captured) for captured in concrete.captured_inputs)
