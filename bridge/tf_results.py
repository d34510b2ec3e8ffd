"""The shapes of a TensorFlow function's results: declared, or found out at several sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import jax
import numpy as np
import tensorflow as tf
from jax import export, tree_util

from bridge.tf_tracing import FlatFunction, Traced, trace
from xla_call_module.dimensions import evaluate_shape, symbols
from xla_call_module.errors import StructureError, quote
from xla_call_module.exported import result_paths

__all__ = ["DynamicShapeError", "declared_results", "infer_results", "is_static", "result_specs"]


class DynamicShapeError(StructureError):
    """The shape of a result depends on values."""


# Sizes at which functions are traced: whole numbers of what shapes are usually divided by.
_BASE, _STEP = 24, 48


def result_specs(traced: Traced) -> tuple[jax.ShapeDtypeStruct, ...]:
    """The shapes and dtypes of the results.

    Raises:
        DynamicShapeError: a shape depends on values; the message names the operation.
    """
    specs = []
    for index, result in enumerate(traced.results):
        if not result.shape.is_fully_defined():
            operation = _first_dynamic(traced.concrete.outputs[index])
            raise DynamicShapeError(
                f"Result {index} of {traced.name} has the shape {result.shape}: that of what "
                f"{operation} returns depends on values, and JAX compiles fixed shapes only. To "
                "do: call it with compiled=False and shapes= of the results, or give the "
                "operation a fixed size."
            )
        specs.append(jax.ShapeDtypeStruct(tuple(result.shape), result.dtype.as_numpy_dtype))
    return tuple(specs)


def _first_dynamic(tensor: tf.Tensor) -> str:
    """The operation that has made the shape of a tensor unknown."""
    operation = tensor.op
    while True:
        unknown = [x for x in operation.inputs if x.dtype != tf.resource and not _is_known(x)]
        if not unknown:
            return f"{operation.type} ({operation.name})"
        operation = unknown[0].op


def _is_known(tensor: tf.Tensor) -> bool:
    return bool(tensor.shape.is_fully_defined())


def declared_results(
    traced: Traced, out_tree: tree_util.PyTreeDef, shapes: Any
) -> tuple[jax.ShapeDtypeStruct, ...] | None:
    """The declared shapes and dtypes, one for each result; None where nothing is declared.

    Raises:
        StructureError: the declaration has another structure, or contradicts what TensorFlow knows.
    """
    if shapes is None:
        return None
    scope = _scope_of(traced.arguments)
    leaves, tree = tree_util.tree_flatten(shapes)
    if tree != out_tree:
        raise StructureError(
            f"shapes= has the structure {tree}; {traced.name} returns {out_tree}. To do: pass a "
            "jax.ShapeDtypeStruct, or a text such as 'b, 3', for each result, in their structure."
        )
    return tuple(
        _declared(path, _parse(leaf, known, scope), known, traced.name)
        for path, leaf, known in zip(result_paths(out_tree), leaves, traced.results, strict=True)
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
            f"TensorFlow traces it as {dtype}, of shape {known.shape}."
        )
    return jax.ShapeDtypeStruct(tuple(leaf.shape), dtype)


def _parse(leaf: Any, known: tf.TensorSpec, scope: Any) -> Any:
    """A shape in the language of `jax.export.symbolic_shape`, with the dtype that is known."""
    if not isinstance(leaf, str):
        return leaf
    try:
        shape = export.symbolic_shape(leaf, scope=scope)
    except ValueError as error:
        raise StructureError(
            f"shapes= has {leaf!r}, which is no shape: {quote(error)}. To do: write it as "
            "in 'b, 3'."
        ) from error
    return jax.ShapeDtypeStruct(shape, known.dtype.as_numpy_dtype)


def is_static(spec: jax.ShapeDtypeStruct) -> bool:
    """Whether no dimension is symbolic."""
    return all(isinstance(dim, int) for dim in spec.shape)


def _scope_of(specs: Sequence[jax.ShapeDtypeStruct]) -> Any:
    dims = (dim for spec in specs for dim in spec.shape if not isinstance(dim, int))
    return next((dim.scope for dim in dims), None)


def infer_results(
    flat: FlatFunction, specs: Sequence[jax.ShapeDtypeStruct], *, name: str
) -> tuple[jax.ShapeDtypeStruct, ...]:
    """The symbolic shapes of the results, linear in the symbols of the arguments.

    The function is traced with numbers for the symbols: one set of numbers, each of them changed by
    itself, and one more set, at which what was found is checked.

    Raises:
        StructureError: the shapes are not linear; or they depend on values.
    """
    texts = [tuple(d if isinstance(d, int) else str(d) for d in spec.shape) for spec in specs]
    names = sorted({symbol for shape in texts for dim in shape for symbol in symbols(dim)})
    base = {symbol: _BASE + index for index, symbol in enumerate(names)}

    def at(sizes: Mapping[str, int]) -> tuple[jax.ShapeDtypeStruct, ...]:
        given = [
            jax.ShapeDtypeStruct(evaluate_shape(shape, sizes), spec.dtype)
            for shape, spec in zip(texts, specs, strict=True)
        ]
        return result_specs(trace(flat, given, name=name, compiled=False))

    first = at(base)
    moved = {symbol: at({**base, symbol: base[symbol] + _STEP}) for symbol in names}
    check = {symbol: 3 * size + index for index, (symbol, size) in enumerate(base.items())}
    values = dict(
        zip(names, export.symbolic_shape(",".join(names), scope=_scope_of(specs)), strict=True)
    )
    found = []
    for index, (spec, checked) in enumerate(zip(first, at(check), strict=True)):
        shape = []
        for axis, size in enumerate(spec.shape):
            slopes = {
                symbol: Fraction(moved[symbol][index].shape[axis] - size, _STEP) for symbol in names
            }
            offset = size - sum(slope * base[symbol] for symbol, slope in slopes.items())
            expected = offset + sum(slope * check[symbol] for symbol, slope in slopes.items())
            if expected != checked.shape[axis] or any(s.denominator > 1 for s in slopes.values()):
                raise StructureError(
                    f"Dimension {axis} of result {index} of {name} is {size} with {base} and "
                    f"{checked.shape[axis]} with {check}, which is not linear in "
                    f"{', '.join(names)}. To do: pass shapes= of the results."
                )
            terms = [int(slope) * values[symbol] for symbol, slope in slopes.items() if slope]
            shape.append(sum(terms, int(offset)))
        found.append(jax.ShapeDtypeStruct(tuple(shape), spec.dtype))
    return tuple(found)
