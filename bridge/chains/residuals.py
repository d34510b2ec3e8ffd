"""A function and its VJP as a forward pass that returns residuals, and a backward pass.

The residuals of a function that this process has traced are what `jax.vjp` keeps, so
`jax.checkpoint` decides. An artifact has lost the rules that somebody wrote for its derivatives
(`jax.custom_vjp`), but its VJP was made by them: what of the VJP needs no cotangent belongs to the
forward pass. It is not linearized, since such a rule may do more with a cotangent than multiply.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import export
from jax.extend import core

from bridge.chains.orders import ChainOptions
from bridge.core._jax import (
    bind_equation,
    part_of_program,
    trace_with_symbolic_solves,
    traced_program,
)
from bridge.core.narrowing import x64_if_needed
from bridge.exporting.lowering import export_for
from bridge.loading.derivative_primitives import cause_of
from bridge.loading.exported_on_mesh import mesh_at_export, shardings_on
from bridge.loading.lifted_exported import lift_leaves, symbolic_specs
from xla_call_module.call import CallModule, TensorSpec, read_artifact_version
from xla_call_module.checks import parse_checks
from xla_call_module.dtypes import DTYPES
from xla_call_module.errors import UnsupportedError
from xla_call_module.exported import from_exported
from xla_call_module.passes.module_pass import UnparsedCall
from xla_call_module.stablehlo.common_subexpressions import merge_equal
from xla_call_module.stablehlo.inlining import call_definitions, inline_calls
from xla_call_module.stablehlo.modules import open_module, serialize_module

_SPLIT = "a forward and a backward pass"
# What XLA computes inside the operation that uses it, for less than reading it from memory costs.
_CHEAP = frozenset({
    "abs", "add", "add_any", "and", "broadcast_in_dim", "convert_element_type", "div", "eq", "ge",
    "gt", "integer_pow", "le", "lt", "max", "min", "mul", "ne", "neg", "not", "one_minus_square",
    "or", "reshape", "select_n", "sign", "square", "squeeze", "sub",
})  # fmt: skip
# An unknown size is taken to be this where memory is weighed.
_TYPICAL_SIZE = 64
_DTYPES = frozenset(dtype.name for dtype in DTYPES)


def split_at_residuals(
    orders: tuple[export.Exported, export.Exported],
    calls: tuple[CallModule, CallModule],
    options: ChainOptions,
) -> tuple[UnparsedCall, UnparsedCall]:
    """Return a forward pass that also returns residuals, and a backward pass that takes them."""
    (exported, exported_vjp), (primal, vjp) = orders, calls
    program, count = traced_program(exported), len(exported.in_avals)
    with x64_if_needed(aval.dtype for aval in (*exported.in_avals, *exported.out_avals)):
        both, specs = (
            _lift(exported, exported_vjp)
            if program is None
            else trace_with_symbolic_solves(lambda: _differentiate(exported, program))
        )
        passes = _divide(both, count, len(exported.out_avals))
        residuals = passes.residuals
        if program is None:  # JAX places what it lifts where it is best
            residuals = tuple(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in residuals)
        arguments, results = _shardings(exported)
        unknown = (None,) * len(residuals)
        forward = _export(exported, passes.forward, specs[:count], arguments, (*results, *unknown))
        backward = _export(
            exported,
            passes.backward,
            (*specs, *residuals),
            (*arguments, *results, *unknown),
            arguments,
        )
    if program is None:
        forward = _merged(forward)

    def to_forward(module: Any) -> CallModule:
        made = _to_call(forward, options, module)
        results = (*primal.results, *_as_residuals(made.results[len(primal.results) :]))
        fields = {"results": results, "residual_results": len(residuals)}
        return _with_module(primal, made, **fields)

    def to_backward(module: Any) -> CallModule:
        made = _to_call(backward, options, module)
        args = (*vjp.args, *_as_residuals(made.args[len(vjp.args) :]))
        return _with_module(vjp, made, args=args, residual_args=len(residuals))

    return (
        UnparsedCall(forward.mlir_module_serialized, to_forward),
        UnparsedCall(backward.mlir_module_serialized, to_backward),
    )


def _differentiate(
    exported: export.Exported, program: core.ClosedJaxpr
) -> tuple[core.ClosedJaxpr, Sequence[Any]]:
    """Return a program of arguments and cotangents, to results and gradients; and its specs."""
    function, count = core.jaxpr_as_fun(program), len(exported.in_avals)

    def both(*values: Any) -> tuple[Any, ...]:
        results, pull_back = jax.vjp(function, *values[:count])
        return (*results, *pull_back(list(values[count:])))

    specs = [*exported.in_avals, *(aval.to_tangent_aval() for aval in exported.out_avals)]
    return jax.make_jaxpr(both)(*specs), specs


def _lift(
    exported: export.Exported, vjp: export.Exported
) -> tuple[core.ClosedJaxpr, Sequence[Any]]:
    """Return the same of an artifact, of its module and that of its VJP."""
    mesh = mesh_at_export(exported) if exported.nr_devices > 1 else None
    function, pull_back = lift_leaves(exported, mesh), lift_leaves(vjp, mesh)
    specs, count = symbolic_specs(exported, vjp.in_avals), len(exported.in_avals)
    both = jax.make_jaxpr(lambda *values: (*function(*values[:count]), *pull_back(*values)))
    try:
        lifted = both(*specs)
    except UnsupportedError as error:
        raise UnsupportedError(
            f"What the gradient of {exported.fun_name} needs cannot be found in its module: "
            f"{cause_of(error)} To do: leave out residuals=True; or pass the function, or what "
            "jax.export.export returned in this process."
        ) from error
    return jax.make_jaxpr(_written_out(lifted))(*specs), specs


def _written_out(program: core.ClosedJaxpr) -> Callable[..., list[Any]]:
    """Return a program as a function that JAX traces with all calls of functions written out."""
    jaxpr: Any = program.jaxpr

    def run(*arguments: Any) -> list[Any]:
        values = dict(zip(jaxpr.invars, arguments, strict=True))
        values.update(zip(jaxpr.constvars, program.consts, strict=True))

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, core.Literal) else values[atom]

        for equation in jaxpr.eqns:
            operands = list(map(read, equation.invars))
            inner = equation.params.get("jaxpr") if equation.params.get("inline") else None
            found = (
                bind_equation(equation, operands)
                if inner is None
                else _written_out(inner)(*operands)
            )
            values.update(zip(equation.outvars, found, strict=True))
        return list(map(read, jaxpr.outvars))

    return run


@dataclass(frozen=True, slots=True)
class _Passes:
    """A program of arguments and cotangents in two parts.

    Attributes:
        forward: the arguments -> the results and the residuals.
        backward: the arguments, the cotangents and the residuals -> the gradients.
        residuals: the avals of the residuals.
    """

    forward: Callable[..., Sequence[Any]]
    backward: Callable[..., Sequence[Any]]
    residuals: tuple[Any, ...]


def _divide(program: core.ClosedJaxpr, arguments: int, results: int) -> _Passes:
    """Divide a program after its first arguments and its first results.

    What depends on cotangents is computed in the backward pass, and so is once more what depends on
    sizes alone, what is of a dtype that TensorFlow does not have, and what saves memory cheaply.
    """
    jaxpr: Any = program.jaxpr
    every, outputs = _merge_equal(jaxpr.eqns, jaxpr.outvars)
    known, unknown = set(jaxpr.invars[:arguments]), set(jaxpr.invars[arguments:])
    for equation in every:
        for kind in (known, unknown):
            if not kind.isdisjoint(_variables(equation.invars)):
                kind.update(equation.outvars)
    known = {v for v in known - unknown if v.aval.dtype.name in _DTYPES}
    makers = {v: e for e in every for v in e.outvars if v in known}
    pulled = outputs[results:]

    def pass_back(again: Collection[Any] = ()) -> tuple[list[Any], list[Any]]:
        but = {v for v in makers if v not in again}
        equations, taken = _needed(every, pulled, but=but)
        return equations, [v for v in makers if v in but and v in taken]

    _, residuals = pass_back()
    backward, residuals = pass_back(_computed_again(residuals, makers))
    returned = [*outputs[:results], *residuals]
    forward, _ = _needed(every, returned)
    return _Passes(
        part_of_program(program, jaxpr.invars[:arguments], forward, returned),
        part_of_program(program, [*jaxpr.invars, *residuals], backward, pulled),
        tuple(v.aval.strip_weak_type() for v in residuals),
    )


def _merge_equal(equations: Iterable[Any], outputs: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """Return equations of which no two compute the same, and the outputs as these compute them."""
    first, same, kept = dict[Hashable, Any](), dict[Any, Any](), list[Any]()

    def read(atom: Any) -> Any:
        return atom if isinstance(atom, core.Literal) else same.get(atom, atom)

    for equation in equations:
        one = equation.replace(invars=list(map(read, equation.invars)))
        parameters = tuple(sorted(one.params.items(), key=lambda pair: pair[0]))
        key = (one.primitive, tuple(map(_identity, one.invars)), parameters, one.ctx)
        try:
            found = one if one.effects else first.setdefault(key, one)
        except TypeError:  # a parameter has no hash
            found = one
        if found is one:
            kept.append(one)
        else:
            same.update(zip(one.outvars, found.outvars, strict=True))
    return kept, list(map(read, outputs))


def _identity(atom: Any) -> Hashable:
    """Return what is equal for the same values; that of Python's zeros is so for -0.0, too."""
    if isinstance(atom, core.Literal):
        return str(atom.aval), np.asarray(atom.val).tobytes()
    found: Hashable = atom
    return found


def _computed_again(residuals: Sequence[Any], makers: Mapping[Any, Any]) -> set[Any]:
    """Return what is better computed again in the backward pass than handed on.

    It is what cheap operations alone make of other residuals, of arguments, or of what takes no
    more memory. XLA would not write it to memory either, were both passes one program.
    """
    handed, again = set(residuals), set[Any]()
    for residual in sorted(residuals, key=_bytes_of, reverse=True):
        chain, sources = _cheap_chain(residual, makers, handed - {residual})
        if sum(map(_bytes_of, sources)) <= _bytes_of(residual):
            again |= chain
            handed = (handed - {residual}) | sources
    return again - handed


def _cheap_chain(
    value: Any, makers: Mapping[Any, Any], handed: Collection[Any]
) -> tuple[set[Any], set[Any]]:
    """Return the values between some and a new one, and what else that is computed of."""
    chain, sources, pending = set[Any](), set[Any](), [value]
    while pending:
        current = pending.pop()
        equation = makers[current]
        if equation.primitive.name in _CHEAP:
            chain.add(current)
            inputs = _variables(equation.invars) & makers.keys()
            pending.extend(v for v in inputs if v not in handed and v not in chain)
        else:
            sources.add(current)
    return chain, sources


def _bytes_of(value: Any) -> int:
    sizes = (dim if isinstance(dim, int) else _TYPICAL_SIZE for dim in value.aval.shape)
    return math.prod(sizes) * int(value.aval.dtype.itemsize)


def _needed(
    equations: Sequence[Any], outputs: Iterable[Any], *, but: Collection[Any] = frozenset()
) -> tuple[list[Any], set[Any]]:
    """Return the equations that lead to outputs, and all that is read; some values are there."""
    found, taken = list[Any](), _variables(outputs)
    for equation in reversed(equations):
        if any(v in taken and v not in but for v in equation.outvars):
            found.append(equation)
            taken |= _variables(equation.invars)
    return found[::-1], taken


def _variables(atoms: Iterable[Any]) -> set[Any]:
    return {atom for atom in atoms if isinstance(atom, core.Var)}


def _export(
    exported: export.Exported,
    function: Callable[..., Any],
    specs: Sequence[Any],
    in_shardings: Sequence[Any],
    out_shardings: Sequence[Any],
) -> export.Exported:
    def run(*values: Any) -> tuple[Any, ...]:
        return tuple(function(*values))

    run.__name__ = run.__qualname__ = exported.fun_name
    return export_for(
        jax.jit(run, in_shardings=in_shardings, out_shardings=out_shardings),
        specs,
        {},
        name=exported.fun_name,
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


def _merged(exported: export.Exported) -> export.Exported:
    """Return it with equal operations as one: the VJP has those of the function over again."""
    artifact = exported.mlir_module_serialized
    with open_module(artifact) as module:
        call_definitions(module)
        inline_calls(module)
        merge_equal(module)
        merged = serialize_module(module, read_artifact_version(artifact))
    return dataclasses.replace(exported, mlir_module_serialized=merged)


def _to_call(exported: export.Exported, options: ChainOptions, module: Any) -> CallModule:
    return from_exported(
        exported, disabled_checks=options.disabled_checks, carried=False, module=module
    )


def _with_module(own: CallModule, made: CallModule, **fields: Any) -> CallModule:
    """Return a call with the module of another one."""
    return dataclasses.replace(
        own,
        module=made.module,
        version=made.version,
        kept=made.kept,
        uses_shardy=made.uses_shardy,
        disabled_checks=made.disabled_checks,
        function_list=made.function_list,
        functions=made.functions,
        changes=(*own.changes, _SPLIT),
        **fields,
    )


def _as_residuals(specs: Sequence[TensorSpec]) -> Iterable[TensorSpec]:
    return (
        dataclasses.replace(spec, path=f"residual[{index}]", is_zero=False)
        for index, spec in enumerate(specs)
    )
