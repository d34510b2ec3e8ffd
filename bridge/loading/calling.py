"""An `Exported` as a JAX function of flat arguments, with derivatives and under `vmap`.

`Exported.call` has the derivatives; JAX has no rule for mapping it, since its module is fixed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import custom_batching, export, lax, tree_util
from jax.extend.core import Primitive
from jax.interpreters import mlir

from bridge.core._jax import devices_of_lowering, vary_together
from bridge.core.explaining import flatten
from bridge.core.tree_matching import match_trees
from bridge.loading.exported_on_mesh import mesh_at_export
from xla_call_module.errors import ShardingError, StructureError

__all__ = ["Flat", "MappableExported", "call_flat", "is_float0"]

# The leaves of the arguments -> the leaves of the result; None for one that has no values.
Flat = Callable[..., tuple[Any, ...]]


def call_flat(exported: export.Exported, *, name: str = "", order: int = 0) -> Flat:
    """Return the function of an `Exported`: leaves in, leaves out.

    It is differentiable in reverse mode as often as there are VJPs, and `jax.vmap` of it calls it
    for one element after another. A cotangent of an integer (float0) is None in what it returns,
    and zeros of dtype bool in what it takes. Where all arguments or all results are integers there
    is no VJP, and the gradients are zeros.

    Args:
        exported: the function.
        name: the name of the function in messages; by default its own.
        order: how often the function was differentiated to get this one.
    """
    name = name or exported.fun_name
    run: Any = jax.custom_vjp(_mapped(exported, name))

    @cache
    def derivative() -> tuple[export.Exported, Flat]:
        """One for all calls, which JAX then lowers once."""
        vjp = exported.vjp()
        return vjp, call_flat(vjp, name=name, order=order + 1)

    def forward(*arguments: Any) -> tuple[Any, Any]:
        if not exported.has_vjp() and _is_differentiable(exported):
            raise StructureError(
                f"{name} has gradients up to order {order}, and order {order + 1} is "
                f"asked for. To do: save it with gradient_order={order + 1} or more; export it "
                "again if it was serialized with fewer."
            )
        return run(*arguments), arguments

    def backward(arguments: tuple[Any, ...], cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
        if not exported.has_vjp():
            return (None,) * len(arguments)
        vjp, pull_back = derivative()

        def given(position: int, aval: Any) -> Any:
            if not is_float0(aval):
                return cotangents[position]
            # A result of None is the cotangent of the argument at its place, and has its shape.
            like = cotangents[position]
            like = arguments[position] if like is None else like
            return jnp.zeros(jnp.shape(like), bool)

        passed = [given(i, aval) for i, aval in enumerate(vjp.in_avals[len(arguments) :])]
        return pull_back(*arguments, *passed)

    run.defvjp(forward, backward)

    def call(*arguments: Any) -> tuple[Any, ...]:
        results: tuple[Any, ...] = run(*vary_together(arguments))
        return results

    return call


class MappableExported(export.Exported):
    """An `Exported` whose `call` can be mapped by `jax.vmap`, one element after another.

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


def _mapped(exported: export.Exported, name: str) -> Flat:
    """Return the call of an `Exported`, with a rule for `vmap`: one element after another."""
    # As its module has it: with bool where the avals have float0.
    in_avals, out_avals = (
        tuple(map(_with_bool, avals)) for avals in (exported.in_avals, exported.out_avals)
    )
    plain = dataclasses.replace(exported, in_avals=in_avals, out_avals=out_avals)
    needed = _needed_devices(name, exported) if exported.nr_devices > 1 else None

    @custom_batching.custom_vmap
    def call(*arguments: Any) -> tuple[Any, ...]:
        if needed is not None:
            arguments = tuple(_require_devices(arguments, needed))
        # In their structure, by the paths of which JAX calls the arguments in its messages.
        args, kwargs = tree_util.tree_unflatten(plain.in_tree, arguments)
        return tuple(tree_util.tree_leaves(export.Exported.call(plain, *args, **kwargs)))

    def rule(
        axis_size: int, in_batched: Sequence[bool], *arguments: Any
    ) -> tuple[tuple[Any, ...], tuple[bool, ...]]:
        del axis_size

        def one(elements: list[Any]) -> tuple[Any, ...]:
            rest = iter(elements)
            results: tuple[Any, ...] = call(
                *(
                    next(rest) if batched else argument
                    for argument, batched in zip(arguments, in_batched, strict=True)
                )
            )
            return results

        mapped = [a for a, batched in zip(arguments, in_batched, strict=True) if batched]
        results: tuple[Any, ...] = lax.map(one, mapped)
        return results, (True,) * len(results)

    call.def_vmap(rule)

    def run(*arguments: Any) -> tuple[Any, ...]:
        results = vary_together(call(*arguments), arguments)
        return tuple(
            None if is_float0(aval) else result
            for result, aval in zip(results, exported.out_avals, strict=True)
        )

    return run


def _with_bool(aval: Any) -> Any:
    return aval.update(dtype=np.dtype(bool)) if is_float0(aval) else aval


def _is_differentiable(exported: export.Exported) -> bool:
    """Return whether some argument and some result have a tangent."""
    return all(
        any(not is_float0(aval.to_tangent_aval()) for aval in avals)
        for avals in (exported.in_avals, exported.out_avals)
    )


def is_float0(aval: Any) -> bool:
    """Return whether it is the aval of a tangent of what has none."""
    return bool(aval.dtype == jax.dtypes.float0)


# How many devices there are is known when a program is lowered, and not before: under `jax.jit` the
# arguments of a call do not tell. So something that does nothing goes along with an argument, and
# looks where it is.
@dataclass(frozen=True, slots=True)
class _NeededDevices:
    """The number of devices that a function needs.

    Attributes:
        name: the name of the function, for messages.
        count: the number of devices.
        mesh: the axes of the mesh that it was exported for, as text; empty where unknown.
    """

    name: str
    count: int
    mesh: str

    def refusal(self) -> ShardingError:
        """Return the error for another number of devices."""
        return ShardingError(
            f"{self.name} was exported for {self.count} devices{self.mesh}, and was loaded for "
            "one. To do: load it with mesh=, for example that of bridge.meshes.mesh_of; a mesh "
            "whose axes have the size 1 runs it on one device."
        )


def _needed_devices(name: str, exported: export.Exported) -> _NeededDevices:
    """Return how many devices an `Exported` needs.

    Raises:
        FormatError: its module is damaged.
    """
    mesh = mesh_at_export(exported)
    axes = "" if mesh is None else f", on a mesh with the axes {dict(mesh.shape)}"
    return _NeededDevices(name, exported.nr_devices, axes)


def _require_devices(arguments: Sequence[Any], needed: _NeededDevices) -> list[Any]:
    """Return the arguments such that a program cannot be lowered for other devices.

    Raises:
        ShardingError: when it is lowered.
    """
    if not arguments:
        return []
    return [_REQUIRED.bind(arguments[0], needed=needed), *arguments[1:]]


def _lower(context: Any, value: Any, *, needed: _NeededDevices) -> list[Any]:
    if devices_of_lowering(context) not in (None, needed.count):
        raise needed.refusal()
    return [value]


def _same(value: Any, *, needed: _NeededDevices) -> Any:
    del needed
    return value


def _define() -> Primitive:
    """Return the primitive, which is neither differentiated nor mapped where it is used."""
    primitive = Primitive("devices_of_exported")
    primitive.def_impl(_same)
    primitive.def_abstract_eval(_same)
    mlir.register_lowering(primitive, _lower)
    return primitive


_REQUIRED = _define()
