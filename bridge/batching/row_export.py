"""A function of a batch, exported as that of its rows.

What is exported is `jax.vmap` of the function of a batch of one, so that no row can depend on
another one, or on how many there are, whatever is added to the batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import export, lax, tree_util

from bridge.core._jax import replace_vjp, traced_program
from bridge.core.narrowing import x64_if_needed
from bridge.exporting.lowering import export_for
from bridge.exporting.stages import signature_of
from bridge.lifting.lifting_table import ROWS_TABLE
from bridge.loading.lifted_exported import lift_leaves, symbolic_specs
from xla_call_module.call import read_artifact_version
from xla_call_module.dimensions import symbols
from xla_call_module.errors import StructureError
from xla_call_module.exported import from_exported
from xla_call_module.stablehlo.bytecode import mentions
from xla_call_module.stablehlo.modules import open_module, serialize_module
from xla_call_module.stablehlo.rewriting import run_passes


def batch_symbol(exported: export.Exported) -> str:
    """Return the one dimension variable that leads arguments; empty if it is not one alone."""
    leading = {str(aval.shape[0]) for aval in exported.in_avals if aval.shape}
    symbolic = [dim for dim in leading if symbols(dim)]
    return symbolic[0] if len(symbolic) == 1 and symbols(symbolic[0]) == set(symbolic) else ""


def export_rows(
    exported: export.Exported, function: Callable[..., Any] | None, symbol: str
) -> export.Exported:
    """Return the function of rows of what was exported.

    Its gradients are made of it where the function is there, or has none yet; else they stay those
    that were exported with it, with the rules of the author.
    """
    if exported.nr_devices > 1:
        raise StructureError(
            f"{exported.fun_name} was exported for {exported.nr_devices} devices, and what "
            "batch_buckets writes, its function of one row, is for one. To do: export it for one "
            "device, or leave batch_buckets out."
        )
    try:
        with x64_if_needed(aval.dtype for aval in (*exported.in_avals, *exported.out_avals)):
            made = _export(exported, _flat(exported, function), symbol)
    except (ValueError, TypeError, NotImplementedError, IndexError) as error:
        if function is not None:  # whose operations may be mapped where JAX lacks a rule
            return export_rows(exported, None, symbol)
        raise StructureError(
            f"JAX cannot make jax.vmap of {exported.fun_name} for a batch of one, by which each "
            f"row is computed for itself: {error} To do: export a function that takes one, "
            "such as jax.vmap of a function of one row; or leave batch_buckets out."
        ) from error
    if function is not None:
        return made
    made = _merge_equal(made)
    return replace_vjp(made, exported.vjp) if exported.has_vjp() else made


def keeps_chain(rows: export.Exported) -> bool:
    """Return whether the gradients of a function of rows are those of what was exported."""
    return rows.has_vjp() and traced_program(rows) is None


def _merge_equal(exported: export.Exported) -> export.Exported:
    """Return the same with equal operations once: `jax.vmap` of a loop lifts many of them."""
    artifact = exported.mlir_module_serialized
    if mentions(artifact, [b"mesh"]):  # its shardings are not those of a parsed module
        return exported
    with open_module(artifact) as module:
        run_passes(module, "cse")
        merged = serialize_module(module, read_artifact_version(artifact))
    return dataclasses.replace(exported, mlir_module_serialized=merged)


def of_rows(
    function: Callable[..., Sequence[Any]], mapped: Sequence[bool], returned: Sequence[bool]
) -> Callable[..., list[Any]]:
    """Return the function that computes each row as `function` does a batch of one."""

    def of_one(*leaves: Any) -> list[Any]:
        batch = [x[None] if is_mapped else x for x, is_mapped in zip(leaves, mapped, strict=True)]
        pairs = zip(function(*batch), returned, strict=True)
        return [lax.squeeze(jnp.asarray(x), (0,)) if is_row else x for x, is_row in pairs]

    def rows(*leaves: Any) -> list[Any]:
        results = jax.vmap(of_one, [0 if is_mapped else None for is_mapped in mapped])(*leaves)
        pairs = zip(results, returned, strict=True)
        return [x if is_row else lax.index_in_dim(x, 0, keepdims=False) for x, is_row in pairs]

    return rows


def _flat(
    exported: export.Exported, function: Callable[..., Any] | None
) -> Callable[..., Sequence[Any]]:
    if function is None:
        return lift_leaves(exported, table=ROWS_TABLE)

    def flat(*leaves: Any) -> list[Any]:
        args, kwargs = tree_util.tree_unflatten(exported.in_tree, leaves)
        return tree_util.tree_leaves(function(*args, **kwargs))

    return flat


def _export(
    exported: export.Exported, flat: Callable[..., Sequence[Any]], symbol: str
) -> export.Exported:
    mapped, returned = (
        [bool(aval.shape) and str(aval.shape[0]) == symbol for aval in avals]
        for avals in (exported.in_avals, exported.out_avals)
    )
    of_leaves = of_rows(flat, mapped, returned)

    def rows(*args: Any, **kwargs: Any) -> Any:
        results = of_leaves(*tree_util.tree_leaves((args, kwargs)))
        return tree_util.tree_unflatten(exported.out_tree, results)

    call = from_exported(exported, allow_flat_trees=True)
    specs = symbolic_specs(exported, exported.in_avals)
    args, kwargs = tree_util.tree_unflatten(exported.in_tree, specs)
    named: Any = rows
    named.__signature__ = signature_of((args, kwargs), [spec.name for spec in call.args])
    rows.__name__ = rows.__qualname__ = exported.fun_name
    return export_for(
        jax.jit(rows), args, kwargs, name=exported.fun_name, platforms=exported.platforms,
        disabled_checks=call.disabled_checks, is_made_here=True,
    )  # fmt: skip
