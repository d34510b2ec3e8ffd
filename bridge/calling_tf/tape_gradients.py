"""The derivatives of a traced function as functions of tensors, which TensorFlow's tape writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
import tensorflow as tf

from bridge.calling_tf.concrete_functions import FlatFunction, TracedFunction, is_static
from bridge.calling_tf.differentiability import conjugate, is_differentiable
from bridge.calling_tf.graph_inlining import gradient_in_graph, inline
from bridge.calling_tf.graph_nodes import has_custom_gradients


def is_trainable_spec(spec: jax.ShapeDtypeStruct) -> bool:
    """Return whether TensorFlow has gradients for values of this dtype."""
    return is_differentiable(str(np.dtype(spec.dtype)))


@dataclass(frozen=True)
class TapeGradients:
    """The pullbacks and tangents of one function, by any of its inputs.

    Attributes:
        variables: the variables that are inputs after its arguments.
        inline_loops: whether the operations of the function are put into the graph of the gradient,
            which XLA needs for those of loops; else the function is called there.
    """

    traced: TracedFunction
    variables: tuple[tf.Variable, ...]
    results: tuple[jax.ShapeDtypeStruct, ...]
    inline_loops: bool

    @cached_property
    def targets(self) -> tuple[int, ...]:
        """The indices of the results that have tangents."""
        return tuple(i for i, spec in enumerate(self.results) if is_trainable_spec(spec))

    @property
    def target_specs(self) -> list[jax.ShapeDtypeStruct]:
        """The specs of the results that have tangents."""
        return [self.results[index] for index in self.targets]

    def input_specs(self, active: Sequence[int]) -> list[jax.ShapeDtypeStruct]:
        """Return the specs of some inputs, arguments or variables."""
        inputs = [*self.traced.arguments, *self.variables]
        return [
            jax.ShapeDtypeStruct(tuple(given.shape), given.dtype.as_numpy_dtype)
            if isinstance(given, tf.Variable)
            else given
            for given in (inputs[index] for index in active)
        ]

    def cotangents(self, active: tuple[int, ...]) -> FlatFunction:
        """Return TensorFlow's gradient, with complex cotangents conjugated, as JAX has them."""
        count = len(self.traced.arguments)

        def pull_back(*tensors: tf.Tensor) -> list[tf.Tensor]:
            given = list(map(conjugate, tensors[count:]))
            return list(map(conjugate, self._gradient(active, tensors[:count], given)))

        return pull_back

    def tangents(self, active: tuple[int, ...]) -> FlatFunction:
        """Return the tangents: the gradient, by the cotangents, of the gradient, which is linear.

        It is the same at all cotangents, but some gradients take the logarithm of them.
        """
        count = len(self.traced.arguments)

        def push_forward(*tensors: tf.Tensor) -> list[tf.Tensor]:
            results = self.traced.concrete(*tensors[:count])  # for the shapes only
            ones = [tf.ones_like(results[index]) for index in self.targets]
            pulled = self._differentiate(
                lambda: self._gradient(active, tensors[:count], ones), ones, tensors[count:]
            )
            return _to_tensors(pulled, self.target_specs)

        return push_forward

    def _gradient(
        self,
        active: tuple[int, ...],
        arguments: Sequence[tf.Tensor],
        cotangents: Sequence[tf.Tensor],
    ) -> list[tf.Tensor]:
        inputs = [*arguments, *self.variables]
        sources = [inputs[index] for index in active]
        if self.inline_loops:
            # Under new names, so that a tensor that is given twice has two gradients.
            sources = [s if isinstance(s, tf.Variable) else tf.identity(s) for s in sources]
        given = dict(zip(active, sources, strict=True))

        def function() -> list[tf.Tensor]:
            results = self._call([given.get(i, value) for i, value in enumerate(arguments)])
            return [results[index] for index in self.targets]

        gradients = self._differentiate(function, sources, cotangents)
        return _to_tensors(gradients, self.input_specs(active))

    def _call(self, arguments: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Return the results, by a call or by the operations of the function.

        A gradient that TensorFlow was told knows the graph in which it was told, so that the Python
        function must run again.
        """
        if not self.inline_loops:
            results: Sequence[tf.Tensor] = self.traced.concrete(*arguments)
        elif has_custom_gradients(self.traced.concrete):
            results = self.traced.function.python_function(*arguments)
        else:
            results = inline(self.traced.concrete, arguments)
        return results

    def _differentiate(
        self,
        function: Callable[[], list[tf.Tensor]],
        sources: Sequence[Any],
        cotangents: Sequence[tf.Tensor],
    ) -> list[Any]:
        """Return the gradients of the results of a function, zeros where nothing depends."""
        if self.inline_loops:
            return gradient_in_graph(function(), sources, cotangents)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(sources)
            targets = function()
        gradients: list[Any] = tape.gradient(
            targets,
            sources,
            output_gradients=list(cotangents),
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        return gradients


def _to_tensors(values: Sequence[Any], specs: Sequence[jax.ShapeDtypeStruct]) -> list[tf.Tensor]:
    """Return tensors of known shapes, where TensorFlow has lost one, or has slices of a tensor."""
    tensors = map(tf.convert_to_tensor, values)
    return [
        tf.reshape(tensor, spec.shape) if is_static(spec) else tensor
        for tensor, spec in zip(tensors, specs, strict=True)
    ]
