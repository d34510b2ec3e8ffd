"""The forward and the backward pass of an `Exported`, of a program of its results and gradients.

Of a function that this process has traced that program is `jax.vjp`, so that a loop runs once for
the results and the residuals. Of an artifact it is made of its module and that of its VJP, which
alone knows the rules that somebody wrote for its derivatives (`jax.custom_vjp`). In both of them
`jax.checkpoint` has decided what is computed again.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
from jax import export
from jax.extend import core

from bridge.chains.exported_order import vjp_of
from bridge.chains.orders import ChainOptions
from bridge.core._jax import replace_vjp, traced_program, without_results
from bridge.exporting.lowering import export_for
from bridge.loading.exported_on_mesh import mesh_at_export, shardings_on
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.checks import parse_checks
from xla_call_module.exported import argument_paths, from_exported, result_paths
from xla_call_module.passes.module_pass import UnparsedCall, open_call, open_pair
from xla_call_module.passes.residuals import join_results, split_residuals


def export_both(exported: export.Exported) -> export.Exported | None:
    """Return a function of arguments and cotangents to results and gradients.

    Its VJP is the one of the VJP. None for what this process has not traced.
    """
    if (program := traced_program(exported)) is None:
        return None
    both = vjp_of(exported, trace=partial(_export_both, exported, program))
    return replace_vjp(both, lambda: exported.vjp().vjp())


def _export_both(exported: export.Exported, program: core.ClosedJaxpr) -> export.Exported:
    function, count = core.jaxpr_as_fun(program), len(exported.in_avals)

    def fun_vjp_jax(*args_and_out_cts_flat_jax: Any) -> tuple[Any, ...]:
        """Have the names that JAX gives to a VJP."""
        results, pull_back = jax.vjp(function, *args_and_out_cts_flat_jax[:count])
        return (*results, *pull_back(list(args_and_out_cts_flat_jax[count:])))

    arguments, results = _shardings(exported)
    return export_for(
        jax.jit(
            fun_vjp_jax,
            in_shardings=(*arguments, *results),
            out_shardings=(*results, *arguments),
        ),
        [*exported.in_avals, *(aval.to_tangent_aval() for aval in exported.out_avals)],
        {},
        name=f"The gradient of {exported.fun_name}",
        platforms=exported.platforms,
        disabled_checks=parse_checks(exported.disabled_safety_checks),
        is_made_here=True,
    )


def _shardings(exported: export.Exported) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return the shardings of the arguments and of the results; None for those without one."""
    mesh = mesh_at_export(exported) if exported.nr_devices > 1 else None
    if mesh is None:
        return (None,) * len(exported.in_avals), (None,) * len(exported.out_avals)
    return shardings_on(exported, mesh)


def split_at_residuals(
    exported: export.Exported,
    vjp: export.Exported,
    options: ChainOptions,
    *,
    describe: Callable[[export.Exported], bytes],
) -> tuple[CallModule, CallModule]:
    """Return a forward pass that also returns residuals, and a backward pass that takes them.

    `vjp` may be what `export_both` returns; `describe` returns what each of them carries.
    """
    arguments, results = len(exported.in_avals), len(exported.out_avals)
    kept = exported.module_kept_var_idx
    split = partial(split_residuals, arguments=arguments, results=results, kept=kept)
    unparsed = partial(_to_unparsed, options=options)
    if len(vjp.out_avals) == arguments:
        with open_pair(unparsed(exported), unparsed(vjp)) as pair:
            passes = split(join_results(*pair))
            names = [spec.name for spec in pair[0].call.args]
    else:
        with open_call(unparsed(vjp)) as both:
            passes = split(both)
        program: Any = traced_program(exported)
        names = program.jaxpr.debug_info.arg_names
        vjp = without_results(vjp, results)
    forward, backward = passes
    own = _renamed(forward.results, result_paths(exported.out_tree))
    return (
        dataclasses.replace(
            forward,
            name=exported.fun_name,
            args=_renamed(forward.args, argument_paths(exported.in_tree), names),
            results=(*own, *forward.results[results:]),
            exported=describe(exported),
        ),
        dataclasses.replace(
            backward,
            results=_renamed(backward.results, result_paths(vjp.out_tree)),
            exported=describe(vjp),
        ),
    )


def _to_unparsed(exported: export.Exported, options: ChainOptions) -> UnparsedCall:
    def make(module: Any) -> CallModule:
        checks = options.disabled_checks
        return from_exported(exported, disabled_checks=checks, carried=False, module=module)

    return UnparsedCall(exported.mlir_module_serialized, make)


def _renamed(
    specs: Sequence[TensorSpec], paths: Sequence[str], names: Sequence[str] = ()
) -> tuple[TensorSpec, ...]:
    """Return the first specs with the paths of a function, and the names of its arguments."""
    known = itertools.zip_longest(paths, names, fillvalue="")
    pairs = zip(specs, known, strict=False)
    return tuple(dataclasses.replace(spec, path=path, name=name) for spec, (path, name) in pairs)
