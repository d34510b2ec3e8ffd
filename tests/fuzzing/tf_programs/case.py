"""A TensorFlow function with its arguments, and what TensorFlow computes of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np
import tensorflow as tf
from jax import export, tree_util

from bridge.checking_gradients.pullbacks import tf_pullbacks
from bridge.core.narrowing import narrow_dtype
from tests.fuzzing.programs import accuracy
from tests.fuzzing.programs.case import Orders, Sizes, differentiable
from tests.fuzzing.programs.program import Program, build, numpy_dtype
from tests.fuzzing.tf_programs.noise import noise, noisy
from tests.fuzzing.tf_programs.sizes import SIZES, shape_of
from tests.fuzzing.tf_programs.statements import accuracy_of

_OTHER_SIZE = 2


class TensorFlowCase:
    """The state that the checks of one function share.

    Attributes:
        program: the program.
        order: up to which order gradients are compared.
        jvp: whether the reference is the tangents of the results, of the cotangents' seed.
    """

    def __init__(self, program: Program, *, jvp: bool = False) -> None:
        self.program = program
        self.order = program.option("order", 0)
        self.jvp = jvp
        self.namespace = program.namespace()
        self._references: dict[tuple[Sizes, int], Orders] = {}

    @property
    def function(self) -> Any:
        """Return the function that is called from JAX."""
        function = self.namespace["f"]
        return tf.function(function, autograph=False) if self.program.option("traced") else function

    @cached_property
    def batches(self) -> tuple[Sizes, ...]:
        """The sizes of the dimension variables that are tried."""
        if not self.program.symbols:
            return ((),)
        return tuple(
            tuple((s, batch if s == "b" else _OTHER_SIZE) for s in self.program.symbols)
            for batch in self.program.option("batches", (3,))
        )

    def leaves(self, sizes: Sizes, *, other: bool = False) -> list[Any]:
        """The flat arguments, in the order of the tree; or others of the same shapes."""
        seed = self.program.seed + 1_000_003 * other
        values = {a.name: a.draw(dict(sizes), seed) for a in self.program.arguments}
        return tree_util.tree_leaves(self._arguments(values.__getitem__))

    def _arguments(self, leaf: Any, namespace: Any = None) -> Any:
        args, kwargs = [], {}
        for parameter in self.program.parameters:
            value = build(parameter.node, leaf, namespace or self.namespace)
            if parameter.keyword:
                kwargs[parameter.name] = value
            else:
                args.append(value)
        return tuple(args), kwargs

    def unflatten(self, leaves: Sequence[Any], namespace: Any = None) -> Any:
        """Positional and keyword arguments of flat ones."""
        names = tree_util.tree_leaves(self._arguments(lambda name: name))
        return self._arguments(dict(zip(names, leaves, strict=True)).__getitem__, namespace)

    @cached_property
    def specs(self) -> list[Any]:
        """The flat arguments as `jax.ShapeDtypeStruct`s with dimension variables."""
        scope, found = export.SymbolicScope(), {}
        for a in self.program.arguments:
            shape = export.symbolic_shape(f"({''.join(f'{d},' for d in a.shape)})", scope=scope)
            found[a.name] = jax.ShapeDtypeStruct(shape, numpy_dtype(a.dtype))
        return tree_util.tree_leaves(self._arguments(found.__getitem__))

    def specs_at(self, sizes: Sizes) -> list[Any]:
        """The flat arguments as `jax.ShapeDtypeStruct`s with numbers."""
        return [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in self.leaves(sizes)]

    @cached_property
    def shapes(self) -> Any:
        """The shapes of the results as texts; None where one is more than dimension variables."""
        results = []
        for sizes in SIZES:
            given = [tf.constant(leaf) for leaf in self.leaves(tuple(sizes.items()))]
            args, kwargs = self.unflatten(given)
            results.append(self.namespace["f"](*args, **kwargs))
        leaves = [tree_util.tree_leaves(result) for result in results]
        shapes = [shape_of(*(leaf.shape for leaf in pair)) for pair in zip(*leaves, strict=True)]
        if any("?" in shape for shape in shapes):
            return None
        texts = [", ".join(map(str, shape)) for shape in shapes]
        return tree_util.tree_unflatten(tree_util.tree_structure(results[0]), texts)

    def run(self, leaves: Sequence[Any], namespace: Any = None) -> list[Any]:
        """The flat results in TensorFlow, with the dtypes that JAX has."""
        namespace = namespace or self.namespace
        args, kwargs = self.unflatten(leaves, namespace)
        found = tree_util.tree_leaves(namespace["f"](*args, **kwargs))
        return [tf.cast(x, narrow_dtype(np.dtype(x.dtype.as_numpy_dtype))) for x in found]

    @cached_property
    def inputs(self) -> tuple[int, ...]:
        """Return which arguments are differentiated."""
        leaves = self.leaves(self.batches[0])
        return tuple(i for i, leaf in enumerate(leaves) if differentiable(leaf.dtype))

    @cached_property
    def results(self) -> tuple[int, ...]:
        """Return which results are differentiated."""
        found = self.run([tf.constant(leaf) for leaf in self.leaves(self.batches[0])])
        return tuple(
            i for i, x in enumerate(found) if differentiable(np.dtype(x.dtype.as_numpy_dtype))
        )

    def cotangents(self, sizes: Sizes, order: int) -> Orders:
        """Random ones for each order."""
        leaves = self.leaves(sizes)
        results = self.run([tf.constant(leaf) for leaf in leaves])
        rng = np.random.default_rng([self.program.seed, order, *(size for _, size in sizes)])
        sources = [leaves[i] for i in self.inputs]
        targets = [results[i].numpy() for i in self.results]
        found: Orders = []
        for _ in range(order):
            found.append([_draw(rng, target) for target in targets])
            sources, targets = [*sources, *targets], sources
        return found

    def tangents(self, sizes: Sizes) -> list[Any]:
        """Random ones of the inputs."""
        rng = np.random.default_rng([self.program.seed, 99])
        return [_draw(rng, self.leaves(sizes)[i]) for i in self.inputs]

    def reference(self, sizes: Sizes, order: int) -> Orders:
        """Results and gradients of each order, compiled by TensorFlow; computed once."""
        if (key := (sizes, order)) not in self._references:
            found = self._compiled(self.namespace, sizes, order)(tf.constant(0))
            self._references[key] = [[_to_numpy(x) for x in level] for level in found]
        return self._references[key]

    def spreads(self, sizes: Sizes, order: int) -> list[list[accuracy.Spread]]:
        """Return what the reference may differ by."""
        program = dataclasses.replace(
            self.program,
            statements=tuple(
                dataclasses.replace(s, text=f"noisy({s.text}, *{accuracy_of(s.template)})")
                for s in self.program.statements
            ),
            preamble=f"from {noise.__module__} import noisy\n{self.program.preamble}",
        )
        run = self._compiled(program.namespace(), sizes, order)
        runs = [run(tf.constant(seed)) for seed in range(1, accuracy.RUNS + 1)]
        expected = self.reference(sizes, order)
        return [
            [
                accuracy.to_spread([_to_numpy(run[level][i]) for run in runs], wanted)
                for i, wanted in enumerate(arrays)
            ]
            for level, arrays in enumerate(expected)
        ]

    def _compiled(self, namespace: Any, sizes: Sizes, order: int) -> Any:
        leaves = self.leaves(sizes)
        cotangents = self.cotangents(sizes, 1 if self.jvp else order)
        tangents = self.tangents(sizes) if self.jvp else []

        def run(seed: tf.Tensor) -> list[list[Any]]:
            with noise(seed):
                given = [noisy(tf.constant(leaf), 1.0, 0.0) for leaf in leaves]

                def function(inputs: list[Any]) -> tuple[list[Any], list[Any]]:
                    replaced = dict(zip(self.inputs, inputs, strict=True))
                    found = self.run(
                        [replaced.get(i, leaf) for i, leaf in enumerate(given)], namespace
                    )
                    return [found[i] for i in self.results], found

                inputs = [given[i] for i in self.inputs]
                if self.jvp:
                    return [_jvp(function, inputs, tangents, cotangents[0])]
                found = tf_pullbacks(
                    function, inputs, tf.nest.map_structure(tf.constant, cotangents)
                )
                sources = [*inputs, *(tf.constant(c) for level in cotangents for c in level)]
                return [
                    [tf.zeros_like(sources[i]) if x is None else x for i, x in enumerate(level)]
                    for level in found
                ]

        return tf.function(run, jit_compile=True, autograph=False)


def _jvp(function: Any, inputs: list[Any], tangents: list[Any], like: list[Any]) -> list[Any]:
    """The tangents of the results: the gradient of the gradient with respect to its cotangent."""
    cotangents = [tf.constant(c) for c in like]
    with tf.GradientTape() as outer:
        outer.watch(cotangents)
        (_, gradients) = tf_pullbacks(function, inputs, [cotangents])
        total = [
            tf.reduce_sum(g * np.conj(t))
            for g, t in zip(gradients, tangents, strict=True)
            if g is not None
        ]
    found = outer.gradient(total, cotangents, unconnected_gradients="zero") if total else None
    return found or [tf.zeros_like(c) for c in cotangents]


def _draw(rng: np.random.Generator, like: Any) -> Any:
    values = rng.normal(size=like.shape)
    if np.iscomplexobj(like):
        values = values + 1j * rng.normal(size=like.shape)
    return np.asarray(values).astype(like.dtype)


def _to_numpy(tensor: Any) -> Any:
    # TensorFlow's `__array__` gives no array of a scalar in bfloat16.
    return np.asarray(tensor.numpy(), tensor.dtype.as_numpy_dtype)
