"""Gradients of gradients, computed in the same way by JAX and by TensorFlow.

Order 0 is the function. Order k+1 pulls one cotangent for each result of order k back to all that
order k depends on: the function's inputs, then the cotangents of the orders below, lowest first.
Both sides follow TensorFlow's convention, in which a complex gradient is the conjugate of JAX's
cotangent (see `bridge.converting.gradient`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import tensorflow as tf

# Of the inputs that can be differentiated: those results that can be, and all results.
Function = Callable[[list[Any]], tuple[list[Any], list[Any]]]
Orders = list[list[Any]]
_Order = Callable[[list[Any]], tuple[list[Any], Orders]]


def jax_pullbacks(
    function: Function, inputs: Sequence[Any], cotangents: Sequence[Sequence[Any]]
) -> Orders:
    """Return all results of a JAX function, then the gradients of order 1, 2, …."""
    highest = _jax_order(function, len(inputs), cotangents)
    return highest([*inputs, *_chain(cotangents)])[1]


def _jax_order(function: Function, inputs: int, cotangents: Sequence[Sequence[Any]]) -> _Order:
    """Return the highest order as a function of its sources, which returns all orders."""

    def values(sources: list[Any]) -> tuple[list[Any], Orders]:
        some, every = function(sources)
        return some, [every]

    if not cotangents:
        return values
    below = _jax_order(function, inputs, cotangents[:-1])
    count = inputs + sum(map(len, cotangents[:-1]))

    def pull_back(sources: list[Any]) -> tuple[list[Any], Orders]:
        _, vjp, orders = jax.vjp(below, sources[:count], has_aux=True)
        (gradients,) = vjp([_conjugate(cotangent) for cotangent in sources[count:]])
        gradients = [_conjugate(gradient) for gradient in gradients]
        return gradients, [*orders, gradients]

    return pull_back


def _conjugate(array: Any) -> Any:
    return array.conj() if jax.numpy.iscomplexobj(array) else array


def jax_jvp(function: Function, inputs: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
    """Return the tangents of the differentiable results in JAX."""
    _, pushed = jax.jvp(lambda inputs: function(inputs)[0], [[*inputs]], [[*tangents]])
    return list(pushed)


def tf_pullbacks(
    function: Function, inputs: Sequence[Any], cotangents: Sequence[Sequence[Any]]
) -> Orders:
    """Return the same by nested tapes of TensorFlow; None where nothing is connected."""
    return _tf_order(function, inputs, cotangents)[1]


def _tf_order(
    function: Function, inputs: Sequence[Any], cotangents: Sequence[Sequence[Any]]
) -> tuple[list[Any], Orders]:
    if not cotangents:
        some, every = function([*inputs])
        return some, [every]
    sources = [*inputs, *_chain(cotangents[:-1])]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(sources)
        targets, orders = _tf_order(function, inputs, cotangents[:-1])
    connected = [
        (target, cotangent)
        for target, cotangent in zip(targets, cotangents[-1], strict=True)
        if target is not None
    ]
    gradients: list[Any] = [None] * len(sources)
    if connected:
        reached, upstream = map(list, zip(*connected, strict=True))
        gradients = tape.gradient(reached, sources, output_gradients=upstream)
    return gradients, [*orders, gradients]


def tf_jvp(function: Function, inputs: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
    """Return the tangents of the differentiable results; None where nothing is connected."""
    with tf.autodiff.ForwardAccumulator([*inputs], [*tangents]) as accumulator:
        results, _ = function([*inputs])
    return [accumulator.jvp(result) for result in results]


def _chain(cotangents: Sequence[Sequence[Any]]) -> list[Any]:
    return [cotangent for order in cotangents for cotangent in order]
