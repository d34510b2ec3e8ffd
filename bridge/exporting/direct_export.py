"""A small function is exported as `jax.export` does it, without its copy of the module.

JAX keeps what it has lowered, so `jax.export` parses it once more, in an MLIR context of its own,
before it writes an attribute into it and serializes it. For a small function that is a third of the
time that all of the export takes. The attribute does no harm where it is, and what is serialized is
a copy in any case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import export, tree_util
from jax.extend import core
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from bridge.core._jax import lower_for_export, make_exported, replace_vjp
from xla_call_module._jax import serialize_artifact

__all__ = ["export_directly"]

# https://docs.jax.dev/en/latest/export/export.html#calling-convention-versions, version 8
_POLYMORPHIC = "jax.uses_shape_polymorphism"
# What `jax.export` looks for in a module, where names are plain text: calls, of targets that it may
# not guarantee, and Shardy, of which there is a mesh.
_TO_BE_CHECKED = re.compile(rb"custom_call_v|(?<![\w.])sdy[.\x00]")


def export_directly(
    fun: jax.stages.Wrapped,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    platforms: Sequence[str],
    disabled_checks: Sequence[export.DisabledSafetyCheck],
) -> export.Exported | None:
    """What `jax.export` makes of a function; None where it has more to do, or may refuse.

    Args:
        fun: the function.
        args: specs of its positional arguments.
        kwargs: specs of its keyword arguments.
        platforms: what it is lowered for, in the order of the platform index.
        disabled_checks: safety checks to leave out.

    Raises:
        Exception: what tracing and lowering the function raise.
    """
    if not all(_is_static(leaf) for leaf in tree_util.tree_leaves((args, kwargs))):
        return None
    if not (
        export.minimum_supported_calling_convention_version
        <= _calling_convention()
        <= export.maximum_supported_calling_convention_version
    ):
        return None  # which JAX refuses
    return _Job(fun, args, kwargs, platforms, disabled_checks).run()


@dataclass(frozen=True, slots=True)
class _Job:
    """A function of static shapes, and what it is exported for."""

    fun: jax.stages.Wrapped
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    platforms: Sequence[str]
    disabled_checks: Sequence[export.DisabledSafetyCheck]

    def run(self) -> export.Exported | None:
        traced = self.fun.trace(*self.args, **self.kwargs)
        found = lower_for_export(traced, self.platforms)
        if found is None:
            return None
        lowered, said = found
        polymorphic = bool(said["shape_poly_state"].uses_dim_vars)
        artifact = _serialize(lowered.compiler_ir("stablehlo"), polymorphic=polymorphic)
        if _TO_BE_CHECKED.search(artifact):
            return None
        exported = make_exported(
            fun_name=traced.fun_name,
            in_tree=lowered.in_tree,
            out_tree=lowered.out_tree,
            in_avals=tuple(tree_util.tree_leaves(lowered.in_avals)),
            out_avals=tuple(said["global_out_avals"]),
            nr_devices=1,
            platforms=tuple(self.platforms),
            ordered_effects=(),
            unordered_effects=tuple(said["unordered_effects"]),
            disabled_safety_checks=tuple(self.disabled_checks),
            mlir_module_serialized=artifact,
            calling_convention_version=_calling_convention(),
            module_kept_var_idx=tuple(sorted(said["kept_var_idx"])),
            uses_global_constants=polymorphic,
        )
        if exported is None:
            return None
        jaxpr, avals = traced.jaxpr, (exported.in_avals, exported.out_avals)
        return replace_vjp(exported, lambda: self._export_vjp(jaxpr, *avals))

    def _export_vjp(
        self, jaxpr: Any, arguments: Sequence[Any], results: Sequence[Any]
    ) -> export.Exported:
        """The VJP as `Exported.vjp` has it: of flat arguments and the cotangents of all results."""
        primal, count = core.jaxpr_as_fun(jaxpr), len(arguments)

        # Modules, files and messages have the names that JAX gives to it and to its arguments.
        def fun_vjp_jax(*args_and_out_cts_flat_jax: Any) -> Any:
            pull_back = jax.vjp(primal, *args_and_out_cts_flat_jax[:count])[1]
            return pull_back(list(args_and_out_cts_flat_jax[count:]))

        avals = (*arguments, *(aval.to_tangent_aval() for aval in results))
        job = _Job(jax.jit(fun_vjp_jax), avals, {}, self.platforms, self.disabled_checks)
        if (exported := job.run()) is not None:
            return exported
        # What was traced and lowered is still known to JAX.
        whole = export.export(
            self.fun, platforms=self.platforms, disabled_checks=self.disabled_checks
        )
        return whole(*self.args, **self.kwargs).vjp()


def _calling_convention() -> int:
    config: Any = jax.config  # its values are attributes that JAX adds when it is imported
    return int(config.jax_export_calling_convention_version)


def _is_static(leaf: Any) -> bool:
    return (
        isinstance(leaf, jax.ShapeDtypeStruct)
        and leaf.sharding is None
        and all(isinstance(size, int) for size in leaf.shape)
    )


def _serialize(module: Any, *, polymorphic: bool) -> bytes:
    """The portable artifact of a module that JAX keeps, at the version that it exports."""
    attributes = module.operation.attributes
    with module.context:
        # Another thread may be reading it, so nothing is written twice.
        if _POLYMORPHIC not in attributes:
            attributes[_POLYMORPHIC] = ir.BoolAttr.get(polymorphic)
    four_weeks = stablehlo.StablehloCompatibilityRequirement.WEEK_4
    version = stablehlo.get_version_from_compatibility_requirement(four_weeks)
    return serialize_artifact(module, version)
