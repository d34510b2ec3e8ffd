"""The call of a model, bound to its parameters, with all names."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax import export

from bridge.chains.exported_order import vjp_of
from bridge.chains.orders import NOT_DIFFERENTIABLE
from bridge.core.explaining import flatten
from bridge.core.keys import to_physical
from bridge.core.names import Names, choose_names, input_names, output_names
from bridge.core.narrow_types import storage_dtype_of
from bridge.core.narrowing import narrow_array, narrow_dtype
from bridge.core.trees import to_identifier, unique_names
from bridge.exporting.source import (
    Exportable,
    ModelFormat,
    Source,
    call_of,
    leaf_names,
    no_platform,
    read_source,
)
from bridge.loading.exported_from_call import exported_from_call
from xla_call_module._jax import func, ir
from xla_call_module.analyses.custom_calls import Provider, classify
from xla_call_module.call import CallModule, TensorSpec, read_artifact_version
from xla_call_module.dtypes import Array, dtype_from_name
from xla_call_module.errors import InteropError, ShardingError, StructureError, UnsupportedError
from xla_call_module.passes.linear_algebra import lower_linalg
from xla_call_module.passes.module_pass import run_passes
from xla_call_module.passes.platform_selection import select_platforms
from xla_call_module.stablehlo.modules import (
    custom_call_target,
    find_main,
    open_module,
    serialize_module,
    walk,
)
from xla_call_module.stablehlo.operation_locations import describe_location, describe_primitive

# What JAX calls the argument of a VJP (jax/_src/export/_export.py); without it names are plainer.
_OF_VJP = "args_and_out_cts_flat_jax["
# The output of a signature that only assigns, as in a SavedModel.
_UPDATED = "updated"


@dataclass(frozen=True, slots=True)
class BoundCall:
    """A call for one platform, bound to the arrays that are its parameters, with all names.

    It is to ONNX and LiteRT what `bridge.loading.binding.BoundExported` is to JAX, and
    `savedmodel.Function` to TensorFlow.

    Attributes:
        inputs: the names of the other arguments, in their order.
        outputs: the names of the results that are not in `assigned`, in their order.
        original: the call as it was before it was made ready for the format, with the same
            arguments and results.
        state: the name and the first value of each argument that the model keeps between calls.
        assigned: for each result that is a new value of the state its name there.
    """

    call: CallModule
    parameters: Mapping[int, tuple[str, Array]]
    inputs: Mapping[int, str]
    outputs: tuple[str, ...]
    original: CallModule
    state: Mapping[int, tuple[str, Array]] = field(default_factory=dict)
    assigned: Mapping[int, str] = field(default_factory=dict)

    @property
    def returned(self) -> list[int]:
        """The indices of the results that are not in `assigned`."""
        return [index for index in range(len(self.call.results)) if index not in self.assigned]


def bind_source(
    source: Exportable | Any,
    format_: ModelFormat,
    *,
    params: Any,
    args: Any,
    platform: str,
    inputs: Names | None,
    outputs: Names | None,
    order: int = 0,
) -> BoundCall:
    """The call to convert, bound to its parameters."""
    read = read_source(source, format_, params=params, args=args, platform=platform)
    return bind(read, format_, platform=platform, inputs=inputs, outputs=outputs, order=order)


def bind(
    source: Source,
    format_: ModelFormat,
    *,
    platform: str,
    inputs: Names | None,
    outputs: Names | None,
    order: int = 0,
    state: Container[str] | None = None,
) -> BoundCall:
    """Return the call to convert, bound to its parameters."""
    call, exported = source.call, source.exported
    values = {} if source.params is None else _parameters(source)
    names = _names(source, values, has_new=state is None)
    kept = {i: (v, values[i][1]) for i, v in source.variables.items() if v in (state or ())}
    assigned = {n: source.variables[i] for n, i in source.assigned.items() if i in kept}
    taken = {*kept, *source.assigned.values()}
    parameters = {index: value for index, value in values.items() if index not in taken}
    if assigned and not names.results:
        call, names = _with_true(call), _Names(names.arguments, [_UPDATED])
    for _ in range(order):
        exported = _vjp(exported_from_call(call) if exported is None else exported, call.name)
        call = call_of(exported, format_)
        names = names.of_gradient()
    free = [i for i in range(len(call.args)) if i not in parameters and i not in kept]
    defaults = [names.arguments[index] for index in free]
    what = f"inputs of {call.name}"
    chosen = choose_names(defaults, inputs, what, ignore_case=False)
    results = choose_names(names.results, outputs, f"outputs of {call.name}", ignore_case=False)
    shared = set() if format_.shares_names else set(chosen) & set(results)
    if shared:
        taken_twice = sorted(shared)[0]
        if outputs is not None or inputs is not None:
            raise StructureError(
                f"{taken_twice!r} is both an input and an output of {call.name}, and "
                f"{format_.name} has each name once. To do: take another name."
            )
        results = [f"{name}_output" if name in shared else name for name in results]
    return BoundCall(
        call=_prepare(call, platform, format_),
        parameters=parameters,
        inputs=dict(zip(free, chosen, strict=True)),
        outputs=tuple(results),
        original=call,
        state=kept,
        assigned=assigned,
    )


@dataclass(frozen=True, slots=True)
class _Names:
    """The names of the arguments and results of a function."""

    arguments: Sequence[str]
    results: Sequence[str]

    def of_gradient(self) -> _Names:
        """The names of its VJP, of the same arguments and of a cotangent for each result."""
        cotangents = [f"{name}_cotangent" for name in self.results]
        gradients = [f"{to_identifier(name, fallback='input')}_gradient" for name in self.arguments]
        return _Names(unique_names([*self.arguments, *cotangents]), unique_names(gradients))


def _names(source: Source, parameters: Mapping[int, tuple[str, Array]], *, has_new: bool) -> _Names:
    """Return the names of all arguments, and of the results."""
    call = source.call
    free = [index for index in range(len(call.args)) if index not in parameters]
    named = dict(zip(free, input_names(call.name, call, free, None), strict=True))
    named |= {index: name for index, name in source.inputs.items() if index in named}
    returned = [index for index in range(len(call.results)) if index not in source.assigned]
    defaults = output_names(call.name, call, None, returned) if returned else []
    results = {**dict(zip(returned, defaults, strict=True)), **source.outputs}
    if has_new:
        results |= {n: f"new_{source.variables[i]}" for n, i in source.assigned.items()}
    if _is_vjp(call):
        primals = len(results)  # a VJP has one result for each argument of its function
        named = {i: f"primal_{i}" if i < primals else f"cotangent_{i - primals}" for i in named}
        results = {index: f"gradient_{index}" for index in results}
    named |= {index: name for index, (name, _) in parameters.items()}
    named |= {index: source.variables[index] for index in source.assigned.values()}
    return _Names([named[i] for i in sorted(named)], [results[i] for i in sorted(results)])


def _is_vjp(call: CallModule) -> bool:
    """Return whether JAX made a call as a VJP, whose arguments are leaves in their order."""
    return bool(call.operands) and all(spec.name.startswith(_OF_VJP) for spec in call.operands)


def _prepare(call: CallModule, platform: Any, format_: ModelFormat) -> CallModule:
    """The call for one platform of one device, without calls of libraries."""
    if not isinstance(platform, str):
        raise no_platform(platform, f"{call.name} was lowered for {', '.join(call.platforms)}.")
    if not call.results:
        raise StructureError(
            f"{call.name} returns no array, and {format_.name} has at least one output. To do: "
            "return something."
        )
    if call.nr_devices != 1:
        raise ShardingError(
            f"{call.name} was exported for {call.nr_devices} devices, and {format_.name} runs on "
            "one. To do: export it without shardings."
        )
    prepared = run_passes(call, [select_platforms([platform]), lower_linalg(operations=True)])
    _check_custom_calls(prepared, format_)
    return prepared


def _check_custom_calls(call: CallModule, format_: ModelFormat) -> None:
    """Refuse calls of libraries that the format has no rule for."""
    with open_module(call.module) as module:
        for operation in walk(module):
            target = custom_call_target(operation)
            is_absent = bool(target) and classify(target).provider is Provider.ABSENT
            if is_absent and target not in format_.custom_calls:
                primitive = describe_primitive(operation)
                who = f", for the primitive {primitive}" if primitive else ""
                raise UnsupportedError(
                    f"{call.name} calls {target} at {describe_location(operation)}{who}, and "
                    f"{format_.name} has no operation for it. To do: compute this part outside the "
                    "exported function."
                )


def _vjp(exported: export.Exported, name: str) -> export.Exported:
    try:
        return vjp_of(exported)
    except NOT_DIFFERENTIABLE as error:
        if isinstance(error, InteropError):
            raise
        raise StructureError(
            f"{name} has no gradient of that order: {error}. To do: serialize it with vjp_order=, "
            "or save it with gradient_order= of at least as much."
        ) from error


def _parameters(source: Source) -> dict[int, tuple[str, Array]]:
    """Return the name and array of each leaf of the parameters, by the index of its argument."""
    call = source.call
    leaves, tree = flatten(source.params, where="params")
    _check_structure(call, tree)
    parameters = {}
    for index, (name, leaf) in enumerate(zip(leaf_names(tree), leaves, strict=True)):
        spec = call.args[index]
        array = _to_array(leaf, name)
        # What JAX makes of a number, or of 64 bits while it has none.
        if str(narrow_dtype(array.dtype)) == spec.dtype.name:
            array = narrow_array(array, f"The parameter {name}")
        # The dtype before casts at the boundary; that of the array behind typed PRNG keys.
        dtype = spec.dtype.numpy
        if source.exported and storage_dtype_of(source.exported.in_avals[index].dtype) is not None:
            dtype = source.exported.in_avals[index].dtype
        if array.shape != spec.shape or array.dtype != dtype:
            expected = f"{dtype.name}{str(spec).removeprefix(spec.dtype.name)}"
            raise StructureError(
                f"The parameter {name} is {array.dtype}{list(array.shape)}; {call.name} was "
                f"exported for {expected} at {spec.path}. To do: pass the parameters that it was "
                "exported with."
            )
        parameters[index] = (name, array.astype(spec.dtype.numpy, copy=False))
    return parameters


def _to_array(leaf: Any, name: str) -> Array:
    """The array of a leaf; typed PRNG keys as their key data."""
    leaf = to_physical(leaf)
    if not isinstance(leaf, (jax.Array, np.ndarray, np.generic, bool, int, float)):
        raise StructureError(
            f"The parameter {name} is a {type(leaf).__name__}; expected a JAX or numpy array, or "
            "a number."
        )
    try:
        return np.asarray(leaf)
    except RuntimeError as error:  # it was donated
        raise StructureError(
            f"The parameter {name} has been deleted: {error} To do: pass what the function "
            "returned, or leave out donate_argnums."
        ) from error


def _check_structure(call: CallModule, tree: Any) -> None:
    leaves = tree.num_leaves
    if _is_vjp(call) and leaves <= len(call.results):  # the parameters are its first primals
        return
    first = sum(spec.path.startswith("args[0]") for spec in call.args)
    if first != leaves:
        raise StructureError(
            f"params has the structure {tree} of {leaves} arrays; the first positional argument of "
            f"{call.name} has {first}. To do: export a function whose first argument is the "
            "parameters, or leave params out."
        )


def _with_true(call: CallModule) -> CallModule:
    """Return a call that returns true after its own results, for formats without empty ones."""
    with open_module(call.module) as module:
        main = find_main(module)
        block = main.regions[0].blocks[0]
        *_, last = block
        types = [value.type for value in last.operands]
        with last.location, ir.InsertionPoint(last):
            true = ir.Attribute.parse("dense<true> : tensor<i1>")
            made = ir.Operation.create(
                "stablehlo.constant", [true.type], attributes={"value": true}
            )
            func.ReturnOp([*last.operands, made.result])
        last.operation.erase()
        with module.context:
            takes = [argument.type for argument in block.arguments]
            kind = ir.FunctionType.get(takes, [*types, true.type])
            main.attributes["function_type"] = ir.TypeAttr.get(kind)
        if "res_attrs" in main.attributes:
            del main.attributes["res_attrs"]
        artifact = serialize_module(module, read_artifact_version(call.module), mixed=True)
    spec = TensorSpec((), dtype_from_name("bool", where=call.name), _UPDATED)
    return dataclasses.replace(
        call, module=artifact, results=(*call.results, spec), exported=b"", trees=None
    )
