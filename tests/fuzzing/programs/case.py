"""A program with its arguments, its `Exported` and what JAX computes of it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from bridge.checking_gradients.pullbacks import jax_pullbacks
from tests.fuzzing.programs import accuracy
from tests.fuzzing.programs.program import Program, build, numpy_dtype

Sizes = tuple[tuple[str, int], ...]
Orders = list[list[Any]]
_OTHER_SIZE = 2


def differentiable(dtype: Any) -> bool:
    """Return whether TensorFlow differentiates a dtype."""
    return bool(jnp.issubdtype(dtype, jnp.inexact)) and np.dtype(dtype).itemsize > 1


class Case:
    """The state that the checks of one program share.

    Attributes:
        program: the program.
        folder: where files are written.
        order: up to which order gradients are compared.
    """

    def __init__(self, program: Program, folder: Path) -> None:
        self.program = program
        self.folder = folder
        self.order = program.option("order", 0)
        self.namespace = program.namespace()
        self.function = self.namespace["f"]
        _register_classes(self.namespace)
        self._avals: dict[Sizes, list[Any]] = {}
        self._references: dict[Sizes, Orders] = {}

    @cached_property
    def batches(self) -> tuple[Sizes, ...]:
        """The sizes of the dimension variables that are tried."""
        if not self.program.symbols:
            return ((),)
        return tuple(
            tuple((s, batch if s == "b" else _OTHER_SIZE) for s in self.program.symbols)
            for batch in self.program.option("batches", (3,))
        )

    def arguments(self, sizes: Sizes) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments: JAX arrays, weak ones where the program has them."""
        weak = {a.name for a in self.program.arguments if a.weak}
        values = self.program.values(dict(sizes))
        return self._build(
            lambda name: jnp.asarray(values[name].item() if name in weak else values[name])
        )

    @cached_property
    def specs(self) -> tuple[list[Any], dict[str, Any]]:
        """The same as `jax.ShapeDtypeStruct`s with dimension variables."""
        scope = jax.export.SymbolicScope()
        found = {}
        for a in self.program.arguments:
            text = "".join(f"{dim}," for dim in a.shape)
            shape = jax.export.symbolic_shape(f"({text})", scope=scope)
            found[a.name] = jax.ShapeDtypeStruct(shape, numpy_dtype(a.dtype), weak_type=a.weak)
        return self._build(found.__getitem__)

    def _build(self, leaf: Any) -> tuple[list[Any], dict[str, Any]]:
        args, kwargs = [], {}
        for parameter in self.program.parameters:
            value = build(parameter.node, leaf, self.namespace)
            if parameter.keyword:
                kwargs[parameter.name] = value
            else:
                args.append(value)
        return args, kwargs

    @cached_property
    def exported(self) -> jax.export.Exported:
        """The export."""
        donated = self.program.option("donate") and len(self.specs[0])
        jitted = jax.jit(self.function, donate_argnums=(0,) if donated else ())
        checks = [
            jax.export.DisabledSafetyCheck.platform()
            for name in self.program.option("unchecked", ())
            if name == "platform"
        ]
        exported = jax.export.export(
            jitted, platforms=self.program.option("platforms"), disabled_checks=checks
        )(*self.specs[0], **self.specs[1])
        if self.program.option("serialized"):
            order = self.program.option("order", 0)
            exported = jax.export.deserialize(exported.serialize(vjp_order=order))
        return exported

    def leaves(self, sizes: Sizes) -> list[Any]:
        """The flat arguments."""
        return tree_util.tree_leaves(self.arguments(sizes))

    @cached_property
    def in_tree(self) -> Any:
        """Of the arguments."""
        args, kwargs = self.arguments(self.batches[0])
        return tree_util.tree_structure((tuple(args), kwargs))

    def flat(self, leaves: Sequence[Any]) -> list[Any]:
        """The function of flat arguments, in JAX."""
        args, kwargs = tree_util.tree_unflatten(self.in_tree, leaves)
        return tree_util.tree_leaves(self.function(*args, **kwargs))

    @cached_property
    def inputs(self) -> tuple[int, ...]:
        """Return which arguments are differentiated."""
        leaves = self.leaves(self.batches[0])
        return tuple(i for i, leaf in enumerate(leaves) if differentiable(leaf.dtype))

    @cached_property
    def results(self) -> tuple[int, ...]:
        """Return which results are differentiated."""
        avals = self.result_avals(self.batches[0])
        return tuple(i for i, aval in enumerate(avals) if differentiable(aval.dtype))

    def result_avals(self, sizes: Sizes) -> list[Any]:
        """Of the flat results."""
        if sizes not in self._avals:
            self._avals[sizes] = jax.eval_shape(self.flat, self.leaves(sizes))
        return self._avals[sizes]

    def cotangents(self, sizes: Sizes, order: int) -> Orders:
        """Random ones for each order."""
        leaves = self.leaves(sizes)
        avals = self.result_avals(sizes)
        rng = np.random.default_rng([self.program.seed, *(size for _, size in sizes)])
        sources = [leaves[i] for i in self.inputs]
        targets = [avals[i] for i in self.results]
        found: Orders = []
        for _ in range(order):
            found.append([_draw(rng, aval) for aval in targets])
            sources, targets = [*sources, *targets], sources
        return found

    def pullbacks(self, leaves: list[Any], cotangents: Orders) -> Orders:
        """JAX's results and gradients of each order, in TensorFlow's convention."""
        return pullbacks(self.flat, self.inputs, self.results, leaves, cotangents)

    def reference(self, sizes: Sizes, order: int) -> Orders:
        """The same as numpy arrays, computed once for the highest order that is asked for."""
        found = self._references.get(sizes, [])
        if len(found) <= order:
            run = jax.jit(self.pullbacks, compiler_options=accuracy.QUICKLY)
            found = run(self.leaves(sizes), self.cotangents(sizes, order))
            found = self._references[sizes] = tree_util.tree_map(np.asarray, found)
        return found[: order + 1]

    def spreads(self, sizes: Sizes, order: int) -> list[list[accuracy.Spread]]:
        """Return what the reference may differ by."""
        expected = self.reference(sizes, order)
        flat = accuracy.spread(
            lambda leaves, cotangents: tree_util.tree_leaves(self.pullbacks(leaves, cotangents)),
            [self.leaves(sizes), self.cotangents(sizes, order)],
            tree_util.tree_leaves(expected),
        )
        found, start = [], 0
        for level in expected:
            found.append(flat[start : start + len(level)])
            start += len(level)
        return found


def _register_classes(namespace: Mapping[str, Any]) -> None:
    """For the serialization of pytrees, under names that nothing else has."""
    prefix = uuid.uuid4().hex
    if "Pair" in namespace:
        jax.export.register_namedtuple_serialization(
            namespace["Pair"], serialized_name=f"{prefix}.Pair"
        )
    if "Point" in namespace:
        jax.export.register_pytree_node_serialization(
            namespace["Point"],
            serialized_name=f"{prefix}.Point",
            serialize_auxdata=lambda _: b"",
            deserialize_auxdata=lambda _: (),
        )


def pullbacks(
    flat: Any,
    inputs: Sequence[int],
    results: Sequence[int],
    leaves: Sequence[Any],
    cotangents: Orders,
) -> Orders:
    """Results and gradients of each order of a flat function in JAX."""

    def function(primals: list[Any]) -> tuple[list[Any], list[Any]]:
        replaced = dict(zip(inputs, primals, strict=True))
        found = flat([replaced.get(i, leaf) for i, leaf in enumerate(leaves)])
        return [found[i] for i in results], found

    return jax_pullbacks(function, [leaves[i] for i in inputs], cotangents)


def _draw(rng: np.random.Generator, aval: Any) -> Any:
    values = rng.normal(size=aval.shape)
    if jnp.issubdtype(aval.dtype, np.complexfloating):
        values = values + 1j * rng.normal(size=aval.shape)
    return np.asarray(values).astype(aval.dtype)
