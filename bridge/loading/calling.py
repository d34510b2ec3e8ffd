"""An `Exported` as a JAX function of flat arguments, with derivatives and under `vmap`.

It runs as it is. Its derivatives are the VJPs that were saved with it, as far as there are some;
all else that JAX makes of a function, it makes of the lifted one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export, tree_util

from bridge.core.explaining import flatten
from bridge.core.tree_matching import match_trees
from bridge.loading.derivative_primitives import (
    NO_RULE,
    DifferentiableCall,
    Flat,
    cause_of,
    has_tangent,
    is_float0,
    pull_back_lifted,
    replace_at,
)
from bridge.loading.exported_on_mesh import has_dynamic_shards
from bridge.loading.lifted_exported import lift_leaves, symbolic_specs
from bridge.loading.needed_devices import needed_devices, require_devices
from xla_call_module.errors import ArgumentError, StructureError


def call_flat(exported: export.Exported, *, name: str = "") -> Flat:
    """Return the function of an `Exported`: leaves in, leaves out.

    It runs as it was exported. Its VJPs are those that it has, and after them those of its lifted
    function, of which forward mode and the program of a batch are made, too. A cotangent of an
    integer (float0) is None in what it returns, and zeros of dtype bool in what it takes. Where all
    arguments or all results are integers the gradients are zeros.
    """
    function = _differentiable(exported, name or exported.fun_name, 0)
    is_none = [is_float0(aval) for aval in exported.out_avals]

    def call(*arguments: Any) -> tuple[Any, ...]:
        pairs = zip(function(*arguments), is_none, strict=True)
        return tuple(None if none else result for result, none in pairs)

    return call


def gradient_source(exported: export.Exported, order: Any, *, name: str = "") -> str:
    """Return "saved" or "lifted": where the derivative of an order comes from in reverse mode."""
    if not isinstance(order, int) or isinstance(order, bool) or order < 1:
        raise ArgumentError(f"order is {order!r}; expected a whole number from 1 on.")
    name = name or exported.fun_name
    saved = 0
    while saved < order and exported.has_vjp():
        exported, saved = exported.vjp(), saved + 1
    if saved == order:
        return "saved"
    if not _is_differentiable(exported):
        raise StructureError(
            f"{name} has no gradient of order {order}: all arguments or all results of order "
            f"{order - 1} are integers. To do: ask for a lower order."
        )
    flat: Flat = _differentiable(exported, name, saved)
    for _ in range(saved, order):
        flat = _gradient(flat)
    jax.eval_shape(flat, *symbolic_specs(exported, _arguments(exported)))
    return "lifted"


def _gradient(flat: Flat) -> Flat:
    """Return the gradients of half the sum of squares of the results."""

    def gradient(*arguments: Any) -> tuple[Any, ...]:
        places = [i for i, argument in enumerate(arguments) if has_tangent(argument)]

        def real(*chosen: Any) -> list[Any]:
            results = flat(*replace_at(arguments, places, chosen))
            return [result for result in results if has_tangent(result)]

        results, pull_back = jax.vjp(real, *(arguments[place] for place in places))
        return tuple(pull_back(results))

    return gradient


class MappableExported(export.Exported):
    """An `Exported` whose `call` can be mapped by `jax.vmap` and differentiated forwards.

    Its fields are those of the one that it is made of. JAX has no rule for mapping `call`. That of
    a function on several devices, or of a VJP, stays JAX's.
    """

    @classmethod
    def of(cls, exported: export.Exported) -> MappableExported:
        """Return the same `Exported` as one of this class."""
        return cls(**{f.name: getattr(exported, f.name) for f in dataclasses.fields(exported)})

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Return the results of the function; see `jax.export.Exported.call`."""
        where = f"An argument of {self.fun_name}"
        leaves, structure = flatten((args, kwargs), where=where)
        match = match_trees(structure, self.in_tree)
        plain: Any = super()
        if match is None:
            return plain.call(*args, **kwargs)
        out_tree = match.results(self.out_tree)
        if self._is_mappable:
            return tree_util.tree_unflatten(out_tree, self._flat(*match.leaves(leaves)))
        args, kwargs = tree_util.tree_unflatten(self.in_tree, match.leaves(leaves))
        return tree_util.tree_unflatten(
            out_tree, tree_util.tree_leaves(plain.call(*args, **kwargs))
        )

    @property
    def _is_mappable(self) -> bool:
        avals = (*self.in_avals, *self.out_avals)
        return self.nr_devices == 1 and not any(map(is_float0, avals))

    @cached_property
    def _flat(self) -> Flat:
        return call_flat(self)


def _differentiable(exported: export.Exported, name: str, order: int) -> DifferentiableCall:
    """Return the call of an `Exported` with its derivatives, with bool where it has float0."""
    in_avals, out_avals = (
        tuple(map(_with_bool, avals)) for avals in (exported.in_avals, exported.out_avals)
    )
    plain = dataclasses.replace(exported, in_avals=in_avals, out_avals=out_avals)

    @cache
    def lift() -> Flat:
        return _lift(plain, name)

    def lifted(*arguments: Any) -> tuple[Any, ...]:
        return lift()(*arguments)

    @cache
    def derivative() -> tuple[export.Exported, DifferentiableCall]:
        """One for all calls, which JAX then lowers once."""
        vjp = exported.vjp()
        return vjp, _differentiable(vjp, name, order + 1)

    def pull_back(
        arguments: Sequence[Any], cotangents: Sequence[Any], places: tuple[int, ...]
    ) -> tuple[Any, ...]:
        if exported.has_vjp():
            vjp, function = derivative()
            passed = _cotangents(call, vjp.in_avals[call.count :], arguments, cotangents)
            results = function(*arguments, *passed)
            return tuple(results[place] for place in places)
        try:
            return pull_back_lifted(lifted, arguments, cotangents, places)
        except NO_RULE as error:
            raise StructureError(
                f"{name} has gradients up to order {order}, and its operations do not yield order "
                f"{order + 1}: {cause_of(error)} To do: save it with gradient_order={order + 1} or "
                "more; export it again if it was serialized with fewer."
            ) from error

    call = DifferentiableCall(name, len(in_avals), _sealed(plain, name), lifted, pull_back)
    return call


def _sealed(exported: export.Exported, name: str) -> Flat:
    """Return the call of an `Exported` as it is."""
    if has_dynamic_shards(exported):  # JAX refines no sizes of what each device computes alone
        return _lift(exported, name)
    needed = needed_devices(name, exported) if exported.nr_devices > 1 else None

    def call(*arguments: Any) -> tuple[Any, ...]:
        if needed is not None:
            arguments = tuple(require_devices(arguments, needed))
        # In their structure, by the paths of which JAX calls the arguments in its messages.
        args, kwargs = tree_util.tree_unflatten(exported.in_tree, arguments)
        return tuple(tree_util.tree_leaves(export.Exported.call(exported, *args, **kwargs)))

    return call


def _lift(exported: export.Exported, name: str) -> Flat:
    """Return the lifted function, which is for the devices that it was exported for."""
    return lift_leaves(exported, name=name)


def _cotangents(
    call: DifferentiableCall,
    avals: Sequence[Any],
    arguments: Sequence[Any],
    cotangents: Sequence[Any],
) -> list[Any]:
    """Return the cotangents of all results, with zeros of bool for those that have no tangent."""
    given = iter(cotangents)
    if not any(map(is_float0, avals)):
        return list(given)
    results = jax.eval_shape(call, *arguments)
    return [
        jnp.zeros(result.shape, bool) if is_float0(aval) else next(given)
        for aval, result in zip(avals, results, strict=True)
    ]


def _arguments(exported: export.Exported) -> list[Any]:
    """Return the avals of the arguments as the module has them: with bool for float0."""
    return [_with_bool(aval) for aval in exported.in_avals]


def _with_bool(aval: Any) -> Any:
    return aval.update(dtype=np.dtype(bool)) if is_float0(aval) else aval


def _is_differentiable(exported: export.Exported) -> bool:
    """Return whether some argument and some result have a tangent."""
    return all(
        any(not is_float0(aval.to_tangent_aval()) for aval in avals)
        for avals in (_arguments(exported), map(_with_bool, exported.out_avals))
    )
