"""`export_model`: a function or a module, traced and lowered, with its parameters."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import export, stages, tree_util

from bridge.core._jax import static_parameters
from bridge.core.explaining import arguments_of
from bridge.core.narrowing import warn_of_narrowing
from bridge.core.updates import UpdatePositions
from bridge.exporting.argument_specs import to_specs
from bridge.exporting.call_check import Passed
from bridge.exporting.exported_file import read_exported
from bridge.exporting.framework_modules import to_model_function
from bridge.exporting.lowering import export_for, refuse_static
from bridge.exporting.model_function import ModelFunction
from bridge.exporting.stages import export_stage
from xla_call_module.checks import DisabledCheck
from xla_call_module.errors import StructureError, naming
from xla_call_module.platforms import DEFAULT_PLATFORMS, parse_platforms


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """A function or a module, exported, with its parameters: a `ModelFunction` after the export.

    Attributes:
        exported: the function, of the parameters and its arguments; or several, by signature key.
        trainable: a bool, or a pytree like `params` with bools.
        inputs: the names for the inputs of the signature; None where nobody has given any.
        function: the function as JAX can trace it again, or some by signature key; None for one
            that came exported.
    """

    exported: export.Exported | Mapping[str, export.Exported]
    params: Any
    trainable: Any
    inputs: Any
    function: Any = None


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
    updates: Mapping[str, UpdatePositions] | None = None,
) -> ExportedModel:
    """Return a function or a module, traced and lowered, with its parameters."""
    warn_of_narrowing(params)
    if isinstance(model, Mapping) and not all(map(is_exported, model.values())):
        return _export_each(
            model, params=params, trainable=trainable, inputs=inputs, args=args,
            platforms=platforms, disabled_checks=disabled_checks, constraints=constraints,
            updates=updates or {},
        )  # fmt: skip
    if isinstance(model, Mapping) or is_exported(model):
        _refuse_arguments(args=args, platforms=platforms, constraints=constraints or None)
        return ExportedModel(_read_each(model), params, trainable, inputs)
    if isinstance(model, (stages.Traced, stages.Lowered)):
        _refuse_arguments(args=args, constraints=constraints or None)
        exported = export_stage(model, platforms=platforms, disabled_checks=disabled_checks)
        return ExportedModel(exported, params, trainable, inputs)
    chosen = parse_platforms(DEFAULT_PLATFORMS if platforms is None else platforms)
    function = to_model_function(model, params, next(iter((updates or {}).values()), None))
    if args is None and function.inputs is None:
        raise StructureError(
            f"{function.name}, a {type(model).__name__}, is exported for shapes and dtypes of its "
            "arguments, and args= is missing. To do: pass args= (--args), such as "
            "args='f32[b,28,28]', or args=() where there are none; or export it with "
            "jax.export.export first."
        )
    specs, by_name = to_specs(function.inputs if args is None else args, constraints=constraints)
    leading = () if function.params is None else (function.params,)
    if isinstance(model, stages.Wrapped):
        static = static_parameters(model)
        refuse_static(model, (*leading, *specs), by_name, static=static, name=function.name)
    call: Any = function.call
    exported = export_for(
        # Other things can be lowered, too, such as what `flax.nnx.jit` returns, but not exported.
        call if isinstance(call, type(jax.jit(to_specs))) else jax.jit(call),
        (*leading, *specs),
        by_name,
        name=function.name,
        platforms=chosen,
        disabled_checks=disabled_checks,
        passed=_passed(function, specs, by_name),
    )
    if inputs is None and args is None:
        inputs = function.input_names
    chosen_leaves = function.select_trainable(trainable)
    return ExportedModel(exported, function.params, chosen_leaves, inputs, call)


def _passed(function: ModelFunction, specs: Sequence[Any], by_name: Mapping[str, Any]) -> Passed:
    """Return how the arguments of a function were passed, for a call that does not fit."""
    lacks_params = function.params is None and function.wrapper is None
    lacking = " and params= was not passed" if lacks_params else ""
    after = " after params" if specs and function.params is not None else ""
    said = f"args= gives {arguments_of(specs, by_name)}{after}{lacking}"
    parameters = () if function.params is None else ("params",)
    return Passed(said, function.wrapper, lacks_params, parameters)


def _export_each(
    models: Mapping[str, Any],
    *,
    args: Any,
    inputs: Any,
    params: Any,
    updates: Mapping[str, UpdatePositions],
    **options: Any,
) -> ExportedModel:
    """Return all functions of a mapping, traced; they share their parameters."""
    by_key = isinstance(args, Mapping) and args.keys() <= models.keys() and bool(args)
    traced: dict[str, ExportedModel] = {}
    for key, model in models.items():
        if not is_exported(model):
            own = args.get(key) if by_key else args
            with naming(f"Signature {key!r}"):
                own_updates = {key: updates[key]} if key in updates else {}
                traced[key] = export_model(
                    model, params=params, args=own, updates=own_updates, **options
                )
            _check_shared(key, traced[key].params, next(iter(traced.values())).params)
    named = {key: model.inputs for key, model in traced.items() if model.inputs is not None}
    first = next(iter(traced.values()))
    exporteds: dict[str, Any] = {
        key: traced[key].exported if key in traced else _read_of(key, model)
        for key, model in models.items()
    }
    names = named or None if inputs is None else inputs
    functions = {key: model.function for key, model in traced.items()}
    return ExportedModel(exporteds, first.params, first.trainable, names, functions)


def _check_shared(key: str, params: Any, others: Any) -> None:
    """Refuse functions of which each has parameters of its own."""
    (leaves, tree), (known, first) = map(tree_util.tree_flatten, (params, others))
    own_tree: Any = tree  # the stub of its class lacks `==`
    if own_tree != first or any(a is not b for a, b in zip(leaves, known, strict=True)):
        raise StructureError(
            f"{key} has other parameters than the function before it, and all signatures of a file "
            "share one params=. To do: save it to a file of its own, or pass functions of one "
            "params=."
        )


def is_exported(model: Any) -> bool:
    """Return whether a model is exported already, here, in a file or in bytes."""
    return isinstance(model, (export.Exported, str, bytes, bytearray, os.PathLike))


def _read_each(model: Any) -> Any:
    """Return an `Exported`, or a mapping of some, with those in files read from them."""
    if isinstance(model, Mapping):
        return {key: _read_of(key, value) for key, value in model.items()}
    return model if isinstance(model, export.Exported) else read_exported(model)


def _read_of(key: str, model: Any) -> Any:
    with naming(f"Signature {key!r}"):
        return _read_each(model)


def _refuse_arguments(**given: Any) -> None:
    if passed := [name for name, value in given.items() if value is not None]:
        raise StructureError(
            f"{passed[0]}= is for a function or a module, and the model is exported already. To "
            "do: leave it out, or pass the function."
        )
