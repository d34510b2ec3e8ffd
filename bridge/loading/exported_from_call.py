"""Calls that do not describe themselves, and what is around them, as an `Exported`.

That is how the files of other programs are: a node has a module, and the rest is TensorFlow's.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import export
from jax.sharding import AbstractMesh

from bridge.core._jax import cut_vjp, replace_vjp
from bridge.core.keys import to_logical, to_physical
from bridge.core.narrowing import x64_if_needed
from bridge.loading.calling import call_flat
from bridge.loading.derivative_primitives import is_float0
from bridge.loading.exported_on_mesh import with_shardings_of_calls, without_shardings
from bridge.loading.restore import find_constants, restore
from bridge.loading.signature_calls import result_shapes
from savedmodel.model import (
    Cast,
    Constant,
    Function,
    Gradient,
    Input,
    Output,
    Parameter,
    Reshape,
    SavedModel,
    Signature,
    Value,
    Variable,
)
from xla_call_module.analyses.constraints import constraint_texts
from xla_call_module.analyses.custom_calls import classify, refuse_other_programs
from xla_call_module.analyses.infer_signature import infer_signature
from xla_call_module.analyses.several_devices import check_one_device
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.checks import DisabledCheck, unite
from xla_call_module.dimensions import Dim, Shape, symbols
from xla_call_module.dtypes import Array
from xla_call_module.errors import (
    THROUGH_TENSORFLOW,
    InteropError,
    PlatformError,
    StructureError,
    quote,
)
from xla_call_module.exported import to_jax_checks
from xla_call_module.stablehlo.call_graph import check_calls
from xla_call_module.stablehlo.modules import custom_call_targets, functions_of, open_module, walk
from xla_call_module.symbolic_shapes import constraints_of, limited_steps, parse_shape


def exported_from_call(call: CallModule) -> export.Exported:
    """Return an `Exported` with the module of a call, of its operands as a flat tuple.

    It has no VJP.
    """
    call = infer_signature(call)
    with open_module(call.module) as module:
        refuse_other_programs(call.name, module)
        check_calls(functions_of(module))
    with limited_steps("to read the shapes of a call"):
        scope = export.SymbolicScope(constraint_texts(call))
        args = [_to_spec(spec, scope) for spec in call.operands]
        results = [_to_spec(spec, scope) for spec in call.results]

    def like(*_: Any) -> tuple[Any, ...]:
        return tuple(jnp.zeros(spec.shape, spec.dtype) for spec in results)

    with x64_if_needed(spec.dtype.name for spec in (*call.args, *call.results)):
        made = export.export(jax.jit(like), platforms=call.platforms)(*args)
    exported = dataclasses.replace(
        made,
        fun_name=call.name,
        mlir_module_serialized=call.module,
        calling_convention_version=call.version,
        module_kept_var_idx=tuple(range(len(args))),
        disabled_safety_checks=to_jax_checks(call.disabled_checks),
        uses_global_constants=call.has_platform_index or bool(call.symbols),
        nr_devices=call.nr_devices,
    )
    return cut_vjp(exported, 0)  # its VJP is that of the zeros


def _to_spec(spec: TensorSpec, scope: export.SymbolicScope) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(parse_shape(spec.shape or (), scope=scope), spec.dtype.numpy)


@dataclass(frozen=True, slots=True)
class _Function:
    """A call as a JAX function of its operands.

    Attributes:
        specs: the shapes and dtypes of the operands.
        order: the number of times that it can be differentiated.
    """

    exported: export.Exported
    run: Callable[..., tuple[Any, ...]]
    specs: tuple[TensorSpec, ...]
    order: int


def export_signature(
    signature: Signature,
    names: Mapping[int, str],
    model: SavedModel,
    disabled_checks: Sequence[DisabledCheck],
    mesh: AbstractMesh | None = None,
) -> export.Exported:
    """Return a signature as an `Exported` of a dict of parameters, if any, and of its inputs.

    It returns what `to_results` makes of the signature's values.
    """
    variables = model.variables

    def constant(variable: int) -> Array:
        return variables[variable].shared()

    assigned = {names[v]: value for v, value in _assigned_values(signature).items()}
    results = to_results(signature.output_values, assigned)
    functions = _with_own_symbols(_to_functions(signature, model, disabled_checks))
    specs = _input_specs(signature, functions)

    def function(*arguments: Any) -> Any:
        params, *inputs = arguments if names else ({}, *arguments)
        evaluation = _Evaluation(
            inputs=dict(zip(specs, inputs, strict=True)),
            parameters={v: params[name] for v, name in names.items()},
            constant=constant,
        )
        for called, run in zip(signature.functions, functions, strict=True):
            evaluation.call(called, run)
        return jax.tree.map(evaluation.value, results)

    exporteds = [*{id(function.exported): function.exported for function in functions}.values()]
    first = exporteds[0]
    function.__name__ = first.fun_name

    def exported_under(constraints: Sequence[str]) -> export.Exported:
        scope = export.SymbolicScope(constraints)
        with limited_steps("to read the shapes of a signature"):
            given: list[Any] = [_to_spec(spec, scope) for spec in specs.values()]
        if names:
            given = [{name: _spec_of(variables[v]) for v, name in names.items()}, *given]
        with x64_if_needed(_dtypes_of(signature, functions, [variables[v] for v in names])):
            return _export(
                function,
                given,
                platforms=_common_platforms(exporteds),
                disabled_checks=_checks_for(exporteds),
            )

    try:
        made = exported_under(())
    except StructureError:
        # What is called may take some sizes alone, which have the names of those around it.
        constraints = [text for called in exporteds for text in constraints_of(called.in_avals)]
        if not constraints:
            raise
        made = exported_under([*dict.fromkeys(constraints)])
    if mesh is not None:
        arguments: list[Value] = [
            *map(Parameter, names),
            *map(Input, specs),
        ]
        flat = jax.tree.leaves(results)
        made = with_shardings_of_calls(made, arguments, flat, signature, mesh)
    return cut_vjp(made, min(function.order for function in functions))


def to_results(outputs: Mapping[str, Any], assigned: Mapping[str, Any]) -> Any:
    """Return the results of a signature: one value, a tuple, or a dict by chosen names.

    Of a signature that assigns variables they come after the new values, a dict by the names that
    the parameters have.
    """
    results: Any = dict(outputs)
    if list(outputs) == [f"output_{index}" for index in range(len(outputs))]:
        results = next(iter(outputs.values())) if len(outputs) == 1 else tuple(outputs.values())
    return (dict(assigned), results) if assigned else results


def _assigned_values(signature: Signature) -> dict[int, Value]:
    """Return the new value of each variable that a signature assigns, by its index."""
    return {
        variable: Output(number, index)
        for number, function in enumerate(signature.functions)
        for index, variable in function.assigned.items()
    }


def _export(
    function: Callable[..., Any],
    specs: Sequence[Any],
    *,
    platforms: Sequence[str],
    disabled_checks: Sequence[export.DisabledSafetyCheck],
) -> export.Exported:
    """Return the `Exported` of a function around calls."""
    wrapped = jax.jit(function)
    try:
        return export.export(wrapped, platforms=platforms, disabled_checks=disabled_checks)(*specs)
    except (ValueError, TypeError) as error:
        if isinstance(error, InteropError):
            raise
        raise StructureError(
            f"{function.__name__} with the operations around it in the file is not a JAX function "
            f"of symbolic shapes: {quote(error)}. To do: {THROUGH_TENSORFLOW}."
        ) from error


def _with_own_symbols(functions: Sequence[_Function]) -> list[_Function]:
    """Return the functions, the dimension variables of each under names that no other has.

    Where two of them take the same input, JAX finds out that the sizes are the same.
    """
    taken: set[str] = set()
    numbers = defaultdict[str, Iterator[int]](lambda: itertools.count(1))
    renamed = []
    for function in functions:
        own = {s for spec in function.specs for dim in spec.shape or () for s in symbols(dim)}
        names = {name: name for name in own}
        for name in sorted(own & taken):
            names[name] = next(
                new
                for count in numbers[name]
                if (new := f"{name}_{count}") not in taken and new not in own
            )
        taken.update(names.values())
        specs = tuple(
            dataclasses.replace(
                spec, shape=spec.shape and tuple(_rename(dim, names) for dim in spec.shape)
            )
            for spec in function.specs
        )
        renamed.append(dataclasses.replace(function, specs=specs))
    return renamed


def _rename(dim: Dim, names: Mapping[str, str]) -> Dim:
    if isinstance(dim, int):
        return dim
    return re.sub(r"[^\W\d]\w*", lambda match: names.get(match[0], match[0]), dim)


def _dtypes_of(
    signature: Signature, functions: Sequence[_Function], variables: Sequence[Variable]
) -> Iterator[str]:
    """Yield the names of all dtypes in a signature."""
    yield from (spec.dtype.name for function in functions for spec in function.specs)
    yield from (
        spec.dtype.name for function in signature.functions for spec in function.call.own_results
    )
    yield from (spec.dtype.name for spec in signature.input_specs.values())
    yield from (variable.dtype.name for variable in variables)
    for value in signature.values():
        if isinstance(value, Cast):
            yield value.dtype.name
        elif isinstance(value, Constant):
            yield str(value.value.dtype)


def _checks_for(exporteds: Sequence[export.Exported]) -> list[export.DisabledSafetyCheck]:
    """Return the checks to disable in a second export: its custom calls were checked before."""
    checks = [check for exported in exporteds for check in exported.disabled_safety_checks]
    for exported in exporteds:
        with open_module(exported.mlir_module_serialized) as module:
            targets = set(custom_call_targets(walk(module)))
        checks += [
            export.DisabledSafetyCheck.custom_call(target)
            for target in sorted(targets)
            if not classify(target).stable
        ]
    return list(dict.fromkeys(checks))


def _spec_of(variable: Variable) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(variable.shape, variable.dtype.numpy)


def _common_platforms(exporteds: Sequence[export.Exported]) -> tuple[str, ...]:
    common = [p for p in exporteds[0].platforms if all(p in e.platforms for e in exporteds)]
    if not common:
        raise PlatformError(
            f"The functions of a signature were exported for {[e.platforms for e in exporteds]}, "
            "which have no platform in common. To do: export them for the same platforms=."
        )
    return tuple(common)


def input_order(signature: Signature) -> tuple[str, ...]:
    """Return the names of the inputs in the order of their first use, then the others."""
    used = (value.name for value in signature.values() if isinstance(value, Input))
    return tuple(dict.fromkeys([*used, *signature.input_specs]))


def _input_specs(signature: Signature, functions: Sequence[_Function]) -> dict[str, TensorSpec]:
    """Return the spec of each input: the shape that a module takes, or the declared one."""
    declared = signature.input_specs
    shapes: dict[str, Shape | None] = {name: spec.shape for name, spec in declared.items()}
    for called, run in reversed([*zip(signature.functions, functions, strict=True)]):
        pairs = zip(called.operands, run.specs, strict=True)
        for value, spec in reversed(list(pairs)):
            while isinstance(value, Cast):
                value = value.source
            if isinstance(value, Input):
                shapes[value.name] = spec.shape
    for name, shape in shapes.items():
        if shape is None:
            raise StructureError(
                f"The input {name} has an unknown rank, and the file changes it before a module "
                f"takes it. To do: {THROUGH_TENSORFLOW}."
            )
    return {
        name: dataclasses.replace(declared[name], shape=shapes[name])
        for name in input_order(signature)
    }


def _to_functions(
    signature: Signature,
    model: SavedModel,
    disabled_checks: Sequence[DisabledCheck],
) -> list[_Function]:
    """Return the function of each call, the same one for equal calls, which is lowered once."""
    made: dict[Hashable, _Function] = {}
    functions = []
    for function in signature.functions:
        constants = tuple(function.passed.get(index) for index in function.call.constants)
        key = function.chain, function.gradient, constants
        if key not in made:
            made[key] = _to_function(function, model, disabled_checks)
        functions.append(made[key])
    return functions


def _to_function(
    function: Function,
    model: SavedModel,
    disabled_checks: Sequence[DisabledCheck],
) -> _Function:
    call = function.call
    if call.exported:
        return _restored(function, model, disabled_checks)
    gradient = function.gradient
    call = _on_one_device(infer_signature(call, result_shapes(gradient)))
    checks = unite(call.disabled_checks, disabled_checks)
    primal = exported_from_call(dataclasses.replace(call, disabled_checks=checks))
    if gradient is not None:
        primal = replace_vjp(primal, functools.cache(lambda: _export_gradient(primal, gradient)))
    return _Function(primal, call_flat(primal), call.operands, int(gradient is not None))


def _on_one_device(call: CallModule) -> CallModule:
    """Return a call of another program for one device, without the shardings of its values."""
    check_one_device(call, is_alone=False)
    return dataclasses.replace(call, nr_devices=1)


def _restored(
    function: Function,
    model: SavedModel,
    disabled_checks: Sequence[DisabledCheck],
) -> _Function:
    """Return a call that describes itself as a function of the node's operands."""
    call = function.call
    places = {index: position for position, index in enumerate(call.kept)}

    def passed(index: int) -> Array:
        value = function.passed[index]
        if isinstance(value, Parameter):
            return model.variables[value.variable].shared()
        if isinstance(value, Constant):
            return value.value
        raise StructureError(
            f"A constant of {call.name} is computed in the file, by {type(value).__name__}. To do: "
            "use the file through TensorFlow."
        )

    known = {key: functools.partial(passed, index) for index, key in call.constants.items()}
    constant = find_constants(function.chain, known, model)
    check_one_device(call, is_alone=False)
    exported = without_shardings(restore(function.chain, constant, disabled_checks))
    flat = call_flat(exported)

    def run(*operands: Any) -> tuple[Any, ...]:
        # What the module does not take has a static shape.
        arguments = [
            to_logical(operands[places[index]], aval)
            if index in places
            else jnp.zeros(aval.shape, aval.dtype)
            for index, aval in enumerate(exported.in_avals)
        ]
        return tuple(map(to_physical, flat(*arguments)))

    return _Function(exported, run, call.operands, len(function.chain) - 1)


def _export_gradient(primal: export.Exported, gradient: Gradient) -> export.Exported:
    """Return the VJP of a call, whose module takes and returns some of its values only."""
    exported = exported_from_call(_on_one_device(infer_signature(gradient.call)))
    pull_back = call_flat(exported)
    count = len(primal.in_avals)

    def vjp(*arguments: Any) -> tuple[Any, ...]:
        operands, cotangents = arguments[:count], arguments[count:]
        # The cotangents of integers: other programs give them the integer's dtype, or bool.
        shapes = [c.shape for c in cotangents if is_float0(c)]
        given = {"operand": operands, "result": cotangents}
        taken = []
        for (kind, index), spec in zip(gradient.operands, gradient.call.operands, strict=True):
            if kind == "zero":
                taken.append(jnp.zeros(shapes[index], spec.dtype.numpy))
            elif is_float0(given[kind][index]):
                taken.append(jnp.zeros(given[kind][index].shape, spec.dtype.numpy))
            else:
                taken.append(given[kind][index])
        results = pull_back(*taken)
        return tuple(
            _zero_cotangent(operand) if index is None or not is_real(operand) else results[index]
            for operand, index in zip(operands, gradient.results, strict=True)
        )

    specs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in primal.in_avals]
    for aval in primal.out_avals:
        dtype = aval.dtype if is_real(aval) else jax.dtypes.float0
        specs.append(jax.ShapeDtypeStruct(aval.shape, dtype))
    checks = _checks_for([primal, exported])
    with x64_if_needed(spec.dtype.name for spec in (*gradient.call.args, *gradient.call.results)):
        made = _export(vjp, specs, platforms=primal.platforms, disabled_checks=checks)
    return cut_vjp(made, 0)


def is_real(value: Any) -> bool:
    """Return whether JAX differentiates with respect to values of this dtype."""
    return bool(jnp.issubdtype(value.dtype, jnp.inexact))


def _zero_cotangent(operand: Any) -> Any:
    """Return zeros, of float0 for what has no tangents; JAX makes these for symbolic sizes, too."""
    return jax.vjp(lambda _: 0.0, operand)[1](0.0)[0]


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """The values of a signature for some inputs and parameters."""

    inputs: Mapping[str, Any]
    parameters: Mapping[int, Any]
    constant: Callable[[int], Array]
    _results: list[tuple[Any, ...]] = field(default_factory=list)

    def value(self, value: Value) -> Any:
        match value:
            case Input(name):
                return self.inputs[name]
            case Parameter(variable):
                if variable in self.parameters:
                    return self.parameters[variable]
                return jnp.asarray(self.constant(variable))
            case Constant(array):
                return jnp.asarray(array)
            case Cast(source, dtype):
                return jax.lax.convert_element_type(self.value(source), dtype.numpy)
            case Reshape(source, shape):
                return self.value(source).reshape(shape)
        return self._results[value.function][value.index]

    def call(self, function: Function, called: _Function) -> None:
        """Run the next function of the signature."""
        constants = function.call.constants
        operands = [
            None if index in constants else self.value(function.passed[index])
            for index in function.call.kept
        ]
        self._results.append(called.run(*operands))
