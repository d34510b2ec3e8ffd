"""A traced TensorFlow function -> an `Exported`, which JAX inlines into its programs."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import tensorflow as tf
from jax import export
from jax.extend import mlir
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func, stablehlo
from jax.interpreters.mlir import make_ir_context

from bridge.calling_tf.concrete_functions import TracedFunction
from bridge.calling_tf.data_dependent_sizes import has_data_dependent_sizes, refuse_misread_sizes
from bridge.calling_tf.graph_nodes import stateful_operations
from bridge.calling_tf.results import result_specs
from bridge.calling_tf.variables import to_spec
from bridge.core._jax import cut_vjp, outside_meshes, replace_shardings
from bridge.core._tf import compiler_refusal
from xla_call_module.analyses.custom_calls import classify
from xla_call_module.analyses.tensorflow_functions import TARGET
from xla_call_module.call import read_artifact_version
from xla_call_module.errors import InteropError, StructureError
from xla_call_module.platforms import PLATFORMS
from xla_call_module.stablehlo.mhlo import compose_custom_calls, to_custom_calls
from xla_call_module.stablehlo.modules import (
    custom_call_target,
    custom_call_targets,
    first_line,
    parse_module,
    read_main,
    serialize_module,
    walk,
)
from xla_call_module.stablehlo.splicing import splice_functions, symbols_of
from xla_call_module.stablehlo.walking import LAYOUT_NOTES

_PREFIX = "tensorflow_"


def compile_function(traced: TracedFunction) -> bytes:
    """Return the function as a StableHLO module, not optimized.

    TensorFlow gives the same one for every platform that it was built for, and a wheel without
    kernels for a GPU knows the CPU only.
    """
    if stateful := stateful_operations(traced.concrete):
        raise StructureError(
            f"{traced.name} has effects: {', '.join(stateful)} assign to variables or draw random "
            "numbers, and a function that JAX compiles has none. To do: take and return what "
            "changes, and use tf.random.stateless_uniform and the like; or pass compiled=False, "
            "which runs the function in TensorFlow, in order."
        )
    for captured in traced.captures:
        to_spec(captured, traced)  # refuses what is no value
    with tf.init_scope(), tf.device(None), warnings.catch_warnings():
        # TensorFlow has no other name for one of several devices.
        warnings.filterwarnings("ignore", "device_name is being deprecated", UserWarning)
        try:
            tell = traced.function.experimental_get_compiler_ir(*traced.tensor_specs)
            hlo = tell(stage="hlo_serialized", **_where(traced))
        except (ValueError, TypeError, tf.errors.OpError) as error:
            raise _refusal(traced.name, error) from error
    return bytes(mlir.hlo_to_stablehlo(hlo))


def _where(traced: TracedFunction) -> dict[str, str]:
    """Return where it is compiled: on the device of its variables, since XLA reads no others."""
    devices = {str(variable.device) for variable in traced.variables}
    elsewhere = sorted(device for device in devices if device and not device.endswith("CPU:0"))
    return {"device_name": elsewhere[0]} if elsewhere else {"platform_name": "CPU"}


def compiled_results(traced: TracedFunction, module: bytes) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Return the results of a compiled function, where TensorFlow does not know their shapes."""
    with make_ir_context():
        types = read_main(ir.Module.parse(module)).results
    if any(None in type_.shape for type_ in types):
        return result_specs(traced)  # which names the operation
    return tuple(
        jax.ShapeDtypeStruct(type_.shape, result.dtype.as_numpy_dtype)
        for type_, result in zip(types, traced.results, strict=True)
    )


def lower(
    traced: TracedFunction, compiled: bytes, results: Sequence[jax.ShapeDtypeStruct]
) -> export.Exported:
    """Return an `Exported` of the arguments and captures as a flat tuple; without a VJP.

    Variables and constants of 64 bits are taken as `to_spec` says while `jax_enable_x64` is off.
    """
    # A mesh that is set would be that of the results.
    with make_ir_context(), outside_meshes():
        module = ir.Module.parse(compiled)
        if has_data_dependent_sizes(module):
            refuse_misread_sizes(traced, module)
        _remove_copies(module)
        to_custom_calls(module)
        _split_tuples(module)
        compose_custom_calls(module)  # which JAX does not export
        return _splice(module, traced, results)


def _splice(
    inner: Any, traced: TracedFunction, results: Sequence[jax.ShapeDtypeStruct]
) -> export.Exported:
    """Return JAX's program around a call of TensorFlow's `main`, without shardings and a VJP."""
    outside = _export(traced, results, _platforms_for(traced, inner))
    module = parse_module(outside.mlir_module_serialized)
    _replace_call(module, inner, traced)
    version = read_artifact_version(outside.mlir_module_serialized)
    own = dataclasses.replace(
        outside,
        mlir_module_serialized=serialize_module(module, version),
        uses_global_constants=False,  # else JAX refines what has sizes within bounds
    )
    nothing = (None,) * len(own.in_avals), (None,) * len(own.out_avals)
    return cut_vjp(replace_shardings(own, *nothing), 0)


def _export(
    traced: TracedFunction, results: Sequence[jax.ShapeDtypeStruct], platforms: Sequence[str]
) -> export.Exported:
    """Return JAX's program around a custom call that stands for the function."""

    def like(*arguments: Any) -> Any:
        call = jax.ffi.ffi_call(
            TARGET, list(results), custom_call_api_version=2, legacy_backend_config=""
        )
        return tuple(call(*arguments))

    like.__name__ = re.sub(r"\W", "_", traced.name) or "tensorflow"
    specs = [*traced.arguments, *(to_spec(captured, traced) for captured in traced.captures)]
    return export.export(jax.jit(like, keep_unused=True), platforms=platforms)(*specs)


def _replace_call(module: Any, inner: Any, traced: TracedFunction) -> None:
    """Put a call of TensorFlow's `main` in the place of the custom call, in place."""
    main = splice_functions(inner, module, prefix=_PREFIX, taken=symbols_of(module))
    calls = [operation for operation in walk(module) if custom_call_target(operation) == TARGET]
    if not calls:
        return  # JAX drops the call of a function without results
    call = calls[0].operation
    types = list(main.type.inputs)
    if len(types) != len(traced.arguments) + len(traced.captures):
        raise StructureError(
            f"TensorFlow compiled {traced.name} for {len(types)} inputs; expected "
            f"{len(traced.arguments)} arguments and {len(traced.captures)} captured values."
        )
    returned, expected = list(main.type.results), [result.type for result in call.results]
    if returned != expected:
        raise StructureError(
            f"TensorFlow compiled {traced.name} to the results {', '.join(map(str, returned))}; "
            f"expected {', '.join(map(str, expected))}. To do: pass the right shapes=."
        )
    with ir.InsertionPoint(call), call.location:
        # JAX has numbers of 64 bits as pairs of 32 while it has none itself.
        operands = [
            value if value.type == type_ else stablehlo.bitcast_convert(type_, value)
            for value, type_ in zip(call.operands, types, strict=True)
        ]
        new = func.CallOp(returned, ir.FlatSymbolRefAttr.get(main.name.value), operands)
    for old, result in zip(call.results, new.results, strict=True):
        old.replace_all_uses_with(result)
    call.erase()


def _refusal(name: str, error: Exception) -> StructureError:
    """Return the error that names the operation in TensorFlow's message."""
    refusal = compiler_refusal(error)
    if refusal.is_unbounded:
        return StructureError(
            f"{name} cannot be compiled for JAX: the gradient of a loop keeps values of every "
            "step, and XLA needs a bound on their number. To do: pass maximum_iterations= to "
            "tf.while_loop; or pass compiled=False, which runs the function in TensorFlow, through "
            "a callback."
        )
    number, node, operation = refusal.constant or ("", "", "")
    if operation == "TensorListReserve":
        return StructureError(
            f"{name} cannot be compiled for JAX: {node} keeps values of every step of a loop, and "
            "XLA does not see the loop's length across a function call. To do: if the loop has the "
            "gradient of a tf.custom_gradient in it, such as that of tf.nn.silu, move it out of "
            "every tf.function; or pass compiled=False, which runs the function in TensorFlow, "
            "through a callback."
        )
    if refusal.kernels:
        what = f"XLA has no {', '.join(refusal.kernels)}"
    elif refusal.constant:
        what = (
            f"XLA needs input {number} of {operation} ({node}), a shape or an axis, "
            "as a constant that is made inside of the function"
        )
    else:
        what = f"TensorFlow says: {first_line(error)[:400]}"
    return StructureError(
        f"{name} cannot be compiled for JAX. {what}. To do: leave the operation out, or pass "
        "compiled=False, which runs the function in TensorFlow, through a callback."
    )


def _platforms_for(traced: TracedFunction, module: Any) -> tuple[str, ...]:
    """Return the platforms for which JAX has all custom calls of a module."""
    allowed = tuple(PLATFORMS)
    for target in sorted(set(custom_call_targets(walk(module)))):
        known = classify(target)
        allowed = tuple(platform for platform in allowed if platform in known.platforms)
        if not allowed:
            raise InteropError(
                f"TensorFlow compiles {traced.name} to a call of {target}, which JAX does not "
                "have. To do: pass compiled=False, which runs the function in TensorFlow."
            )
    return allowed


def _remove_copies(module: Any) -> None:
    """Put its operand in the place of each `mhlo.copy`, of which StableHLO has no form."""
    for operation in [
        operation for operation in walk(module) if str(operation.operation.name) == "mhlo.copy"
    ]:
        operation.operation.results[0].replace_all_uses_with(operation.operation.operands[0])
        operation.operation.erase()


def _split_tuples(module: Any) -> None:
    """Give custom calls in place several results where they have one tuple."""
    calls = [view.operation for view in walk(module) if view.name == "stablehlo.custom_call"]
    for operation in calls:
        if len(operation.results) != 1:
            continue
        if not isinstance(operation.results[0].type, ir.TupleType):
            continue
        tuple_type = ir.TupleType(operation.results[0].type)
        users = [use.owner.operation for use in operation.results[0].uses]
        if any(user.name != "stablehlo.get_tuple_element" for user in users):
            continue
        with operation.location, ir.InsertionPoint(operation):
            call = ir.Operation.create(
                operation.name,
                results=[tuple_type.get_type(i) for i in range(tuple_type.num_types)],
                operands=list(operation.operands),
                attributes=_attributes_of(operation),
            )
        for user in users:
            index = ir.IntegerAttr(user.attributes["index"]).value
            user.results[0].replace_all_uses_with(call.results[index])
            user.erase()
        operation.erase()


def _attributes_of(operation: Any) -> dict[str, Any]:
    """Return the attributes by their names, but for what XLA notes beside the operation."""
    items = list(operation.attributes)
    names = [item if isinstance(item, str) else item.name for item in items]  # JAX 0.9 has objects
    return {name: operation.attributes[name] for name in names if name not in LAYOUT_NOTES}
