"""Exports of lifted functions: a VJP that an `Exported` lacks, and other platforms.

An `Exported` is traced again as a function of JAX (see `bridge.lifting`), and exported for the same
sizes and disabled checks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax import export, tree_util

from bridge.core._jax import cut_vjp, replace_vjp
from bridge.core.narrowing import x64_if_needed
from bridge.exporting.lowering import export_for
from bridge.loading.derivative_primitives import cause_of, has_tangent, is_float0
from bridge.loading.lifted_exported import float0_zeros, lift_exported, lift_leaves, symbolic_specs
from xla_call_module.errors import LoweringError, UnsupportedError, VersionError
from xla_call_module.exported import from_exported


def export_vjp_of_lifted(exported: export.Exported) -> export.Exported:
    """Return the VJP as `Exported.vjp` has it: of the flat arguments, and cotangents of results.

    It is differentiable to every order itself.
    """
    _check_one_device(exported, "serialize it with its gradients")
    flat, count = lift_leaves(exported), len(exported.in_avals)

    def zeros(argument: Any) -> Any:
        return argument if is_float0(argument) else float0_zeros(argument)

    def fun_vjp_jax(*values: Any) -> tuple[Any, ...]:
        arguments, cotangents = values[:count], values[count:]
        places = [i for i, argument in enumerate(arguments) if has_tangent(argument)]

        def real(*chosen: Any) -> list[Any]:
            given = dict(zip(places, chosen, strict=True))
            results = flat(*(given.get(i, argument) for i, argument in enumerate(arguments)))
            return [result for result in results if has_tangent(result)]

        _, pull_back = jax.vjp(real, *(arguments[place] for place in places))
        pulled = iter(pull_back([c for c in cotangents if not is_float0(c)]))
        return tuple(
            next(pulled) if index in places else zeros(argument)
            for index, argument in enumerate(arguments)
        )

    avals = [*exported.in_avals, *(aval.to_tangent_aval() for aval in exported.out_avals)]
    return _export(exported, jax.jit(fun_vjp_jax), symbolic_specs(exported, avals), {})


def export_for_platforms(exported: export.Exported, platforms: Sequence[str]) -> export.Exported:
    """Return the same function for other platforms, and the VJPs that it has."""
    _check_one_device(exported, "export it for these platforms")
    specs = symbolic_specs(exported, exported.in_avals)
    args, kwargs = tree_util.tree_unflatten(exported.in_tree, specs)
    try:
        with x64_if_needed(aval.dtype for aval in (*exported.in_avals, *exported.out_avals)):
            made = _export(exported, lift_exported(exported), args, kwargs, platforms)
    except NotImplementedError as error:
        if isinstance(error, (UnsupportedError, VersionError)):
            raise
        raise LoweringError(
            f"{exported.fun_name} was exported for {', '.join(exported.platforms)}, and has no "
            f"form for all of {', '.join(platforms)}: {cause_of(error)} To do: export the function "
            "itself for these platforms."
        ) from error
    if not exported.has_vjp():
        return cut_vjp(made, 0)
    return replace_vjp(made, lambda: export_for_platforms(exported.vjp(), platforms))


def _check_one_device(exported: export.Exported, remedy: str) -> None:
    if exported.nr_devices > 1:
        raise UnsupportedError(
            f"{exported.fun_name} was exported for {exported.nr_devices} devices, and its "
            f"operations can be exported again for one alone. To do: {remedy}."
        )


def _export(
    exported: export.Exported,
    function: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    platforms: Sequence[str] = (),
) -> export.Exported:
    return export_for(
        function,
        args,
        kwargs,
        name=exported.fun_name,
        platforms=platforms or exported.platforms,
        disabled_checks=from_exported(exported, allow_flat_trees=True).disabled_checks,
        is_made_here=True,
    )
