"""The VJP of an `Exported` that has none, made of its operations.

An `Exported` that was serialized without gradients, and what is made of StableHLO alone, is traced
again as a function of JAX (see `bridge.lifting`), differentiated, and exported for the same sizes,
platforms and disabled checks.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import export

from bridge.exporting.lowering import export_for
from bridge.loading.derivative_primitives import has_tangent, is_float0
from bridge.loading.lifted_exported import float0_zeros, lift_leaves, symbolic_specs
from xla_call_module.errors import UnsupportedError
from xla_call_module.exported import from_exported

__all__ = ["export_vjp_of_lifted"]


def export_vjp_of_lifted(exported: export.Exported) -> export.Exported:
    """Return the VJP as `Exported.vjp` has it: of the flat arguments, and cotangents of results.

    It is differentiable to every order itself.

    Raises:
        UnsupportedError: an operation cannot be lifted, or it is for several devices.
        Exception: what JAX raises where it cannot differentiate in reverse mode.
    """
    if exported.nr_devices > 1:
        raise UnsupportedError(
            f"{exported.fun_name} was exported for {exported.nr_devices} devices, and a gradient "
            "is made of the operations of one alone. To do: serialize it with its gradients."
        )
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
    return export_for(
        jax.jit(fun_vjp_jax),
        symbolic_specs(exported, avals),
        {},
        name=f"The gradient of {exported.fun_name}",
        platforms=exported.platforms,
        disabled_checks=from_exported(exported, allow_flat_trees=True).disabled_checks,
    )
