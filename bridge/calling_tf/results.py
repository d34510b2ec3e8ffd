"""The shapes of a TensorFlow function's results: declared, or known to TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import tensorflow as tf
from jax import export, tree_util

from bridge.calling_tf.concrete_functions import TracedFunction, flatten_results, is_static, name_of
from bridge.core.narrowing import narrow_dtype
from xla_call_module.errors import StructureError, quote, shown_as_base
from xla_call_module.exported import result_paths
from xla_call_module.symbolic_shapes import limited_parsing


@shown_as_base
class DynamicShapeError(StructureError):
    """The shape of a result depends on values or on symbolic sizes, and is not declared."""


def result_specs(traced: TracedFunction) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Return the shapes and dtypes of the results."""
    specs = []
    for index, result in enumerate(traced.results):
        if not result.shape.is_fully_defined():
            if not all(map(is_static, traced.arguments)):
                raise _undeclared(traced, index)
            operation = _first_dynamic(traced.concrete.outputs[index])
            raise DynamicShapeError(
                f"Result {index} of {traced.name} has the shape {result.shape}: the shape that "
                f"{operation} returns depends on values, and JAX compiles fixed shapes only. To "
                "do: call it with compiled=False and shapes= of the results, or give the operation "
                "a fixed size."
            )
        specs.append(jax.ShapeDtypeStruct(tuple(result.shape), result.dtype.as_numpy_dtype))
    return tuple(specs)


def _undeclared(traced: TracedFunction, index: int) -> DynamicShapeError:
    """Return the error for a result of symbolic sizes that is not declared."""
    shapes = ", ".join(str(spec.shape) for spec in traced.arguments if not is_static(spec))
    return DynamicShapeError(
        f"Result {index} of {traced.name} has the shape {traced.results[index].shape} for "
        f"arguments of the symbolic shapes {shapes}, and TensorFlow does not say how it follows "
        "from the symbols. To do: declare the results, as in shapes='2*b, 3' (output_shape_dtype= "
        "of bridge.jax2tf.call_tf)."
    )


def _first_dynamic(tensor: tf.Tensor) -> str:
    """Return the operation that has made the shape of a tensor unknown."""
    operation = tensor.op
    while True:
        unknown = [x for x in operation.inputs if x.dtype != tf.resource and not _is_known(x)]
        if not unknown:
            return f"{operation.type} ({operation.name})"
        operation = unknown[0].op


def _is_known(tensor: tf.Tensor) -> bool:
    return bool(tensor.shape.is_fully_defined())


def declared_results(
    traced: TracedFunction, out_tree: tree_util.PyTreeDef, shapes: Any
) -> tuple[jax.ShapeDtypeStruct, ...] | None:
    """Return the declared shape and dtype of each result; None where nothing is declared."""
    if shapes is None:
        return None
    symbolic = (dim for spec in traced.arguments for dim in spec.shape if not isinstance(dim, int))
    scope = next((dim.scope for dim in symbolic), None)
    leaves, tree = tree_util.tree_flatten(shapes)
    if tree != out_tree:
        raise _wrong_structure(tree, out_tree, traced.name)
    return tuple(
        _declared(path, _parse(leaf, known, scope), known, traced.name)
        for path, leaf, known in zip(result_paths(out_tree), leaves, traced.results, strict=True)
    )


def returning(function: Callable[..., Any], shapes: Any) -> Callable[..., Any]:
    """Return the function, which raises where it returns anything but what is declared."""
    name = name_of(function)
    leaves, tree = tree_util.tree_flatten(shapes)

    def call(*args: Any, **kwargs: Any) -> Any:
        results = function(*args, **kwargs)
        tensors, returned = flatten_results(results, name)
        if returned != tree:
            raise _wrong_structure(tree, returned, name)
        for path, leaf, tensor in zip(result_paths(returned), leaves, tensors, strict=True):
            dtype = narrow_dtype(np.dtype(tensor.dtype.as_numpy_dtype))
            _declared(path, leaf, tf.TensorSpec(tensor.shape, dtype), name)
        return results

    call.__name__ = name
    return call


def _wrong_structure(
    declared: tree_util.PyTreeDef, returned: tree_util.PyTreeDef, name: str
) -> StructureError:
    return StructureError(
        f"shapes= has the structure {declared}; {name} returns {returned}. To do: pass a "
        "jax.ShapeDtypeStruct, or a text such as 'b, 3', for each result, in their structure."
    )


def _declared(path: str, leaf: Any, known: tf.TensorSpec, name: str) -> jax.ShapeDtypeStruct:
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        raise StructureError(
            f"shapes= has {leaf!r:.80} for {path} of {name}; expected a jax.ShapeDtypeStruct, or a "
            "text such as 'b, 3'."
        )
    dtype = np.dtype(known.dtype.as_numpy_dtype)
    static = [dim if isinstance(dim, int) else None for dim in leaf.shape]
    if not known.shape.is_compatible_with(static) or np.dtype(leaf.dtype) != dtype:
        raise StructureError(
            f"{path} of {name} was declared as {np.dtype(leaf.dtype)}{list(leaf.shape)}; "
            f"TensorFlow traces it as {dtype}, of shape {known.shape}. To do: declare it so, or "
            "leave shapes= out."
        )
    return jax.ShapeDtypeStruct(tuple(leaf.shape), dtype)


def _parse(leaf: Any, known: tf.TensorSpec, scope: Any) -> Any:
    """Return a shape in the language of `jax.export.symbolic_shape`, with the known dtype."""
    if not isinstance(leaf, str):
        return leaf
    try:
        with limited_parsing(leaf):
            shape = export.symbolic_shape(leaf, scope=scope)
    except ValueError as error:
        raise StructureError(
            f"shapes= has {leaf!r}, which is not a shape: {quote(error)}. To do: write it as in "
            "'b, 3'."
        ) from error
    return jax.ShapeDtypeStruct(shape, known.dtype.as_numpy_dtype)
