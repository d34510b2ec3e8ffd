"""A TensorFlow function that runs eagerly while JAX traces no program, and its gradient.

TensorFlow runs the Python function itself, which is never traced, so that its results may have
shapes that depend on values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax import tree_util

from bridge.calling_tf.concrete_functions import (
    call_with_tensors,
    flatten_results,
    name_of,
    symbolic_tensor,
)
from bridge.calling_tf.differentiability import conjugate, is_differentiable
from bridge.core.keys import to_physical
from bridge.core.narrowing import narrow_array
from xla_call_module.errors import ArgumentError
from xla_call_module.exported import argument_paths, result_paths


def call_eagerly(fun_tf: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Return the results for values as JAX arrays, each in memory of its own."""
    tensors, tree = _to_tensors(args, kwargs)
    results, out_tree = _run(fun_tf, tensors, tree)
    arrays = [
        jnp.array(narrow_array(np.asarray(result.numpy()), f"{path} of {name_of(fun_tf)}"))
        for path, result in zip(result_paths(out_tree), results, strict=True)
    ]
    return tree_util.tree_unflatten(out_tree, arrays)


def with_eager_gradient(fun_tf: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """Return the function of `(args, kwargs)`, whose gradient TensorFlow takes eagerly."""

    @jax.custom_vjp
    def call(args: Any, kwargs: Any) -> Any:
        return call_eagerly(fun_tf, args, kwargs)

    def forward(args: Any, kwargs: Any) -> tuple[Any, Any]:
        return call_eagerly(fun_tf, args, kwargs), (args, kwargs)

    def backward(given: Any, cotangents: Any) -> Any:
        return _pull_back(fun_tf, given, tree_util.tree_leaves(cotangents))

    call.defvjp(forward, backward)
    return call


def _pull_back(fun_tf: Callable[..., Any], given: Any, cotangents: Sequence[Any]) -> Any:
    tensors, tree = _to_tensors(*given)
    sources = [tensor for tensor in tensors if is_differentiable(tensor.dtype.name)]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(sources)
        results, _ = _run(fun_tf, tensors, tree)
    pairs = zip(results, cotangents, strict=True)
    moving = [
        (result, cotangent) for result, cotangent in pairs if is_differentiable(result.dtype.name)
    ]
    gradients = iter(
        tape.gradient(
            [result for result, _ in moving],
            sources,
            output_gradients=[conjugate(tf.constant(np.asarray(ct))) for _, ct in moving],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
    )
    pulled = [
        jnp.array(conjugate(tf.convert_to_tensor(next(gradients))).numpy())
        if is_differentiable(tensor.dtype.name)
        else np.zeros(tensor.shape, jax.dtypes.float0)
        for tensor in tensors
    ]
    return tree_util.tree_unflatten(tree, pulled)


def _to_tensors(args: Any, kwargs: Any) -> tuple[list[tf.Tensor], tree_util.PyTreeDef]:
    leaves, tree = tree_util.tree_flatten((args, kwargs))
    return [_to_tensor(leaf, tree, index) for index, leaf in enumerate(leaves)], tree


def _to_tensor(leaf: Any, tree: tree_util.PyTreeDef, index: int) -> tf.Tensor:
    """Return a tensor in memory of its own; of a typed PRNG key its data."""
    if isinstance(leaf, tf.Tensor) and not hasattr(leaf, "numpy"):
        raise symbolic_tensor(leaf, argument_paths(tree)[index])
    if isinstance(leaf, np.ndarray) and leaf.dtype == jax.dtypes.float0:
        return tf.zeros(leaf.shape, tf.bool)
    try:
        array = jnp.asarray(leaf)
    except TypeError as error:
        raise ArgumentError(
            f"{argument_paths(tree)[index]} is {leaf!r:.80} ({type(leaf).__name__}); expected a "
            f"JAX or numpy array, a dense tensor or a Python number. JAX says: {error}"
        ) from error
    return tf.constant(np.asarray(to_physical(array)))


def _run(
    fun_tf: Callable[..., Any], tensors: Sequence[tf.Tensor], tree: tree_util.PyTreeDef
) -> tuple[list[tf.Tensor], tree_util.PyTreeDef]:
    args, kwargs = tree_util.tree_unflatten(tree, tensors)
    name = name_of(fun_tf)
    return flatten_results(call_with_tensors(fun_tf, args, kwargs, name), name)
