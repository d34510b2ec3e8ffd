"""`exported_from_stage`: make an `Exported` of a jitted, traced or lowered function."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import itertools
from collections.abc import Callable, Container, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import export, stages, tree_util
from jax.extend import core

from bridge.core._jax import cut_vjp, shardings_of_trace
from bridge.core.backend import platform_of
from bridge.core.narrowing import x64_if_needed
from bridge.exporting.lowering import export_for
from xla_call_module._jax import survive_forks
from xla_call_module.analyses.custom_calls import check_custom_calls
from xla_call_module.call import TensorSpec, read_artifact_version
from xla_call_module.checks import DisabledCheck, parse_checks
from xla_call_module.errors import PlatformError, ShardingError, StructureError, remedy_for
from xla_call_module.exported import Check, argument_specs, result_specs, to_jax_checks
from xla_call_module.platforms import DEFAULT_PLATFORMS, parse_platforms
from xla_call_module.stablehlo.modules import TensorType, read_main, serialize_module, traced_name
from xla_call_module.tracebacks import api_boundary


@api_boundary
def exported_from_stage(
    stage: stages.Wrapped | stages.Traced | stages.Lowered,
    *args: Any,
    platforms: Sequence[str] | None = None,
    disabled_checks: Sequence[Check] = (),
    **kwargs: Any,
) -> export.Exported:
    """Return the `Exported` of a function that is jitted, traced or lowered already.

    A `Lowered` has a module but no function: the result has no VJP.

    Args:
        stage: what `jax.jit(f)`, `jax.jit(f).trace(...)` or `.lower(...)` returned.
        args: specs or values of the positional arguments, for a jitted function alone.
        platforms: the platforms to lower for; by default cpu, cuda and tpu. Of a `Lowered`, those
            that it was lowered for, in that order; by default the one that JAX runs on here.
        disabled_checks: the safety checks to leave out.
        kwargs: the keyword arguments, for a jitted function alone.

    Raises:
        StructureError: it is something else, such as a `Compiled`; a traced function comes with
            arguments; a lowered one has left out arguments, and which cannot be told.
        PlatformError: it cannot be lowered for a platform, or was lowered for other ones.
        ShardingError: it was lowered for several devices.

    Example:
        >>> import bridge, jax, jax.numpy as jnp
        >>> traced = jax.jit(jnp.sin).trace(jax.ShapeDtypeStruct((3,), "float32"))
        >>> bridge.exported_from_stage(traced).platforms
        ('cpu', 'cuda', 'tpu')
    """
    if isinstance(stage, (stages.Traced, stages.Lowered)):
        _refuse_arguments(stage, args, kwargs)
        return export_stage(stage, platforms=platforms, disabled_checks=disabled_checks)
    if not isinstance(stage, stages.Wrapped):
        raise StructureError(_explain_other(stage))
    chosen = parse_platforms(DEFAULT_PLATFORMS if platforms is None else platforms)
    checks = parse_checks(disabled_checks)
    name = str(getattr(stage, "__name__", "function"))
    return export_for(stage, args, kwargs, name=name, platforms=chosen, disabled_checks=checks)


def export_stage(
    stage: stages.Traced | stages.Lowered,
    *,
    platforms: Sequence[str] | None,
    disabled_checks: Sequence[Check],
) -> export.Exported:
    """Return the `Exported` of what was traced or lowered, as `exported_from_stage`."""
    checks = parse_checks(disabled_checks)
    if isinstance(stage, stages.Lowered):
        with _as_wide_as(stage):
            return _from_lowered(stage, platforms, checks)
    chosen = parse_platforms(DEFAULT_PLATFORMS if platforms is None else platforms)
    given, made = shardings_of_trace(stage)
    args, kwargs = _specs_on(stage.args_info, given)
    function = _function_of(stage)
    of_results = tree_util.tree_unflatten(tree_util.tree_structure(stage.out_info), made)
    jitted = jax.jit(function, out_shardings=of_results) if any(made) else jax.jit(function)
    with _as_wide_as(stage):
        return export_for(
            jitted, args, kwargs, name=function.__name__, platforms=chosen, disabled_checks=checks
        )


def _as_wide_as(stage: stages.Traced | stages.Lowered) -> contextlib.AbstractContextManager[Any]:
    """Return a context with the dtypes of JAX at the trace: with 64 bits if anything has them."""
    dtypes = [leaf.dtype for leaf in tree_util.tree_leaves((stage.args_info, stage.out_info))]
    if isinstance(stage, stages.Traced):
        dtypes += [value.aval.dtype for eqn in stage.jaxpr.eqns for value in eqn.outvars]
        dtypes += [jnp.result_type(constant) for constant in stage.jaxpr.consts]
    return x64_if_needed(dtypes)


def _explain_other(stage: object) -> str:
    expected = "expected what jax.jit(f), its trace(...) or its lower(...) returns."
    if isinstance(stage, stages.Compiled):
        return (
            "A jax.stages.Compiled is machine code for the devices of this process: its StableHLO "
            f"is gone, and what is left cannot be carried elsewhere; {expected} To do: keep the "
            "lowered stage that it was compiled from."
        )
    cure = remedy_for(stage, otherwise="pass jax.jit(f)")
    return f"{type(stage).__name__} is not a stage of a jitted function; {expected} {cure}"


def _refuse_arguments(stage: object, args: Sequence[Any], kwargs: Any) -> None:
    if args or kwargs:
        raise StructureError(
            f"A {type(stage).__name__} has its arguments already, and {len(args) + len(kwargs)} "
            "more were passed. To do: leave them out."
        )


def _specs(info: Any) -> Any:
    """Return positional and keyword arguments as specs."""
    return tree_util.tree_map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), info)


def _specs_on(info: Any, shardings: Sequence[jax.sharding.Sharding | None]) -> Any:
    """Return the specs with the shardings of those that are on several devices."""
    leaves, structure = tree_util.tree_flatten(_specs(info))
    if any(shardings):
        pairs = zip(leaves, shardings, strict=True)
        leaves = [leaf.update(sharding=sharding) if sharding else leaf for leaf, sharding in pairs]
    return tree_util.tree_unflatten(structure, leaves)


def _function_of(traced: stages.Traced) -> Callable[..., Any]:
    """Return the function that was traced; its Python is not run again."""
    run = core.jaxpr_as_fun(traced.jaxpr)
    structure = tree_util.tree_structure(traced.out_info)

    def function(*args: Any, **kwargs: Any) -> Any:
        return tree_util.tree_unflatten(structure, run(*tree_util.tree_leaves((args, kwargs))))

    function.__name__ = str(traced.fun_name)
    named: Any = function
    known = traced.jaxpr.jaxpr.debug_info.arg_names or ()
    named.__signature__ = signature_of(traced.args_info, known)
    return function


def signature_of(args_info: Any, names: Sequence[str]) -> inspect.Signature:
    """Return the parameters of a function, as far as the names of its flat arguments tell them.

    JAX names what it exports by the signature.
    """
    args, kwargs = args_info
    found = _argument_names(args_info, names)
    kinds: dict[str, Any] = {}
    for index, argument in enumerate(args):
        name = found.get(index, "" if tree_util.tree_leaves(argument) else f"unnamed_{index}")
        if not name.isidentifier() or name in kinds:
            rest = name.removesuffix("[0]")  # such as that of `*rest`
            name = rest if rest.isidentifier() and rest not in kinds else _free("args", kinds)
            kinds[name] = inspect.Parameter.VAR_POSITIONAL
            break
        kinds[name] = inspect.Parameter.POSITIONAL_ONLY
    own = [key for key in kwargs if found.get(key) == key and key not in kinds]
    kinds |= dict.fromkeys(own, inspect.Parameter.KEYWORD_ONLY)
    if len(own) < len(kwargs):
        kinds[_free("kwargs", kinds)] = inspect.Parameter.VAR_KEYWORD
    return inspect.Signature([inspect.Parameter(name, kind) for name, kind in kinds.items()])


def _free(name: str, taken: Container[str]) -> str:
    return next(n for count in itertools.count() if (n := name + "_" * count) not in taken)


def _argument_names(args_info: Any, flat: Sequence[str]) -> dict[int | str, str]:
    """Return the names of arguments, by their positions and keywords."""
    leaves = tree_util.tree_leaves_with_path(args_info)
    names: dict[int | str, str] = {}
    if len(flat) != len(leaves):
        return names
    for (path, _), name in zip(leaves, flat, strict=True):
        inner = tree_util.keystr(path[2:])
        key: Any = path[1]
        if name and name.endswith(inner):
            argument = key.key if isinstance(key, tree_util.DictKey) else key.idx
            names.setdefault(argument, name.removesuffix(inner))
    return names


def _from_lowered(
    lowered: stages.Lowered,
    platforms: Sequence[str] | None,
    disabled_checks: tuple[DisabledCheck, ...],
) -> export.Exported:
    """Return an `Exported` of the right types, with the module in the place of its own."""
    args, kwargs = _specs(lowered.args_info)
    if symbolic := [a for a in tree_util.tree_leaves((args, kwargs)) if _is_symbolic(a)]:
        raise StructureError(
            f"The function was lowered with an argument of shape {symbolic[0].shape}, and lowering "
            "makes further arguments of dimension variables. To do: pass the traced function."
        )
    results = _specs(lowered.out_info)

    def like(*_: Any, **__: Any) -> Any:
        return tree_util.tree_map(lambda spec: jnp.zeros(spec.shape, spec.dtype), results)

    survive_forks()
    module: Any = lowered.compiler_ir("stablehlo")
    module.context.enable_multithreading(False)  # a stage may be of before a fork
    chosen = parse_platforms([platform_of(jax.devices()[0])] if platforms is None else platforms)
    like.__name__ = traced_name(module)
    made = export.export(
        jax.jit(like), platforms=chosen, disabled_checks=to_jax_checks(disabled_checks)
    )(*args, **kwargs)
    with module.context:
        _check_devices(module)
        check_custom_calls(like.__name__, module, chosen, disabled_checks)
        main = read_main(module)
        if main.has_platform_index != (len(chosen) > 1):
            raise PlatformError(
                f"{like.__name__} was lowered for {'several' if main.has_platform_index else 'one'}"
                f" of the platforms, not for {', '.join(chosen)}. To do: pass platforms= of what "
                "it was lowered for, in that order."
            )
        given = [_type_of(spec) for spec in argument_specs(made)]
        returned = [_type_of(spec) for spec in result_specs(made)]
        if list(main.results) != returned:
            raise StructureError(
                f"{like.__name__} was lowered to return {', '.join(map(str, main.results))}, and "
                f"is said to return {', '.join(map(str, returned))}. To do: trace it again, with "
                "jax.jit(f).trace(...)."
            )
        kept = _kept(like.__name__, given, main.args)
        version = read_artifact_version(made.mlir_module_serialized)
        artifact = serialize_module(module, version)
    changed = dataclasses.replace(made, mlir_module_serialized=artifact, module_kept_var_idx=kept)
    return cut_vjp(changed, 0)


def _is_symbolic(spec: Any) -> bool:
    return any(export.is_symbolic_dim(dim) for dim in spec.shape)


def _type_of(spec: TensorSpec) -> TensorType:
    return TensorType(spec.static_shape or (), spec.dtype.mlir)


def _check_devices(module: Any) -> None:
    attributes = module.operation.attributes
    count = 1
    for name in ("mhlo.num_partitions", "mhlo.num_replicas"):
        if name in attributes:
            count *= int(str(attributes[name]).split(" ", 1)[0])
    if count > 1:
        raise ShardingError(
            f"The function was lowered for {count} devices, and a lowered function does not tell "
            "where its arguments are. To do: use jax.export.export."
        )


def _kept(name: str, given: Sequence[TensorType], taken: Sequence[TensorType]) -> tuple[int, ...]:
    """Return the indices of the arguments that the module takes: JAX leaves out unused ones."""
    if len(given) == len(taken):
        return tuple(range(len(given)))
    # From the first fitting argument on, and from the last: where both agree, there is no other.
    forward = _fit(given, taken)
    backward = tuple(len(given) - 1 - i for i in reversed(_fit(given[::-1], taken[::-1])))
    if forward != backward or len(forward) != len(taken):
        raise StructureError(
            f"{name} was lowered with {len(taken)} of its {len(given)} arguments, since the others "
            "are unused, and the types do not tell which. To do: jax.jit(f, keep_unused=True), or "
            "pass the traced function."
        )
    return forward


def _fit(given: Sequence[TensorType], taken: Sequence[TensorType]) -> tuple[int, ...]:
    """Return the first places at which the types occur in their order."""
    places: list[int] = []
    for index, type_ in enumerate(given):
        if len(places) < len(taken) and type_ == taken[len(places)]:
            places.append(index)
    return tuple(places)
