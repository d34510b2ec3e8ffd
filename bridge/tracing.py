"""`export_model`: a function or a module, traced and lowered, with its parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import export, stages, tree_util

from bridge.argument_specs import to_specs
from bridge.lowering import export_for
from bridge.modules import to_parametric
from bridge.parametric import Parametric
from bridge.stages import exported_from_stage
from bridge.trees import check_prefix
from xla_call_module.checks import DisabledCheck
from xla_call_module.errors import StructureError
from xla_call_module.platforms import DEFAULT_PLATFORMS, parse_platforms

__all__ = ["TracedModel", "export_model", "trainable_of"]


@dataclass(frozen=True, slots=True)
class TracedModel:
    """What is saved of a function or a module.

    Attributes:
        exported: the function, of the parameters and its arguments; or several, by their keys.
        params: the parameters; None where there are none.
        trainable: a bool, or a pytree like `params` with bools.
        inputs: names for the inputs of the signature; None where nobody has given any.
    """

    exported: export.Exported | Mapping[str, export.Exported]
    params: Any
    trainable: Any
    inputs: Any


def export_model(
    model: Any,
    *,
    params: Any = None,
    trainable: Any = True,
    inputs: Any = None,
    args: Any = None,
    platforms: Sequence[str] | None = None,
    disabled_checks: Sequence[DisabledCheck] = (),
    constraints: Sequence[str] = (),
) -> TracedModel:
    """A function or a module, traced and lowered, with its parameters.

    Args:
        model: as for `bridge.save`; what is exported already stays as it is, and what is traced or
            lowered is not traced again.
        params: as for `bridge.save`.
        trainable: a bool, or a prefix of the parameters with bools. What the framework does not
            train stays untrained.
        inputs: names for the inputs of the signature; by default those that the module has.
        args: the arguments after the parameters, as `bridge.argument_specs.to_specs` takes them.
        platforms: what to lower for; by default cpu, cuda and tpu.
        disabled_checks: safety checks to leave out.
        constraints: between the symbols in `args`.

    Raises:
        StructureError, ArgumentError, DtypeError: `model` is none of these, or what was passed
            does not fit it.
        LoweringError: it cannot be lowered for one of the platforms.
        Exception: what tracing it raises.
    """
    if isinstance(model, (export.Exported, Mapping)):
        _refuse_arguments(args=args, platforms=platforms, constraints=constraints or None)
        return TracedModel(model, params, trainable, inputs)
    if isinstance(model, (stages.Traced, stages.Lowered)):
        _refuse_arguments(args=args, constraints=constraints or None)
        exported = exported_from_stage(model, platforms=platforms, disabled_checks=disabled_checks)
        return TracedModel(exported, params, trainable, inputs)
    chosen = parse_platforms(DEFAULT_PLATFORMS if platforms is None else platforms)
    function = to_parametric(model, params)
    if args is None and function.inputs is None:
        raise StructureError(
            f"Expected a jax.export.Exported, got {type(model).__name__} ({function.name}) without "
            "what its arguments are. To do: pass args= (--args), such as args='f32[b,28,28]', or "
            "args=() where there are none; or export it with jax.export.export first."
        )
    specs, by_name = to_specs(function.inputs if args is None else args, constraints=constraints)
    leading = () if function.params is None else (function.params,)
    call: Any = function.call
    exported = export_for(
        # Other things can be lowered, too, such as what `flax.nnx.jit` returns, but not exported.
        call if isinstance(call, type(jax.jit(to_specs))) else jax.jit(call),
        (*leading, *specs),
        by_name,
        name=function.name,
        platforms=chosen,
        disabled_checks=disabled_checks,
    )
    if inputs is None and args is None:
        inputs = function.input_names
    return TracedModel(exported, function.params, trainable_of(function, trainable), inputs)


def _refuse_arguments(**given: Any) -> None:
    if passed := [name for name, value in given.items() if value is not None]:
        raise StructureError(
            f"{passed[0]}= is for a function or a module, and what was passed is exported already. "
            "To do: leave it out, or pass the function."
        )


def trainable_of(function: Parametric, wanted: Any) -> Any:
    """What the user and the framework both train, as a pytree like the parameters.

    Args:
        function: with its parameters.
        wanted: a bool, or a prefix of these with bools.

    Raises:
        StructureError: it is no such prefix.
    """
    if function.params is None:
        return True
    flags = check_prefix(wanted, function.params, what="trainable")
    if wrong := [flag for flag in flags if not isinstance(flag, bool)]:
        raise StructureError(f"trainable has a leaf {wrong[0]!r}; expected True or False.")
    both = [flag and own for flag, own in zip(flags, function.trainable, strict=True)]
    return tree_util.tree_unflatten(tree_util.tree_structure(function.params), both)
