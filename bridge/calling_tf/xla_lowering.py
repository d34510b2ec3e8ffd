"""A traced TensorFlow function -> an `Exported`, which JAX splices into its programs."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import tensorflow as tf
from jax import export
from jax.extend import mlir
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func, stablehlo
from jax.interpreters.mlir import make_ir_context

from bridge.calling_tf.concrete_functions import Traced
from bridge.calling_tf.effects import stateful_operations
from bridge.calling_tf.results import result_specs
from bridge.calling_tf.variables import to_spec
from bridge.core._jax import cut_vjp, outside_meshes, replace_shardings
from xla_call_module.analyses.custom_calls import classify
from xla_call_module.call import read_artifact_version
from xla_call_module.errors import InteropError, StructureError
from xla_call_module.platforms import PLATFORMS
from xla_call_module.stablehlo.mhlo import compose_custom_calls, to_custom_calls
from xla_call_module.stablehlo.modules import (
    custom_call_targets,
    find_main,
    first_line,
    functions_of,
    parse_module,
    read_main,
    serialize_module,
    walk,
)

__all__ = [
    "compile_function",
    "compiled_results",
    "finish",
    "lower",
    "platforms_for",
    "remove_copies",
]

_BODY = "tensorflow_function"


def compile_function(traced: Traced) -> bytes:
    """The function as a StableHLO module, not optimized.

    TensorFlow gives the same one for every platform that it was built for, and a wheel without
    kernels for a GPU knows the CPU only.

    Raises:
        StructureError: it has effects, or an operation that XLA cannot compile; the message names
            the operation.
    """
    if stateful := stateful_operations(traced.concrete):
        raise StructureError(
            f"{traced.name} has effects: {', '.join(stateful)} assign to variables or draw random "
            "numbers, and what JAX compiles has none. To do: take and return what changes, and use "
            "tf.random.stateless_uniform and the like; or pass compiled=False, which runs the "
            "function in TensorFlow, in order."
        )
    for captured in traced.captures:
        to_spec(captured, traced)  # refuses what is no value
    with tf.init_scope(), tf.device(None):
        try:
            tell = traced.function.experimental_get_compiler_ir(*traced.tensor_specs)
            hlo = tell(stage="hlo_serialized", platform_name="CPU")
        except (ValueError, TypeError, tf.errors.OpError) as error:
            raise _refusal(traced.name, error) from error
    return bytes(mlir.hlo_to_stablehlo(hlo))


def compiled_results(traced: Traced, module: bytes) -> tuple[jax.ShapeDtypeStruct, ...]:
    """The results of a compiled function, where TensorFlow alone does not know their shapes.

    Raises:
        StructureError: XLA does not know them either; the message names the operation.
    """
    with make_ir_context():
        types = read_main(ir.Module.parse(module)).results
    if any(None in type_.shape for type_ in types):
        return result_specs(traced)  # which names the operation
    return tuple(
        jax.ShapeDtypeStruct(type_.shape, result.dtype.as_numpy_dtype)
        for type_, result in zip(types, traced.results, strict=True)
    )


def lower(
    traced: Traced, compiled: bytes, results: Sequence[jax.ShapeDtypeStruct]
) -> export.Exported:
    """An `Exported` of the arguments and captures as a flat tuple; without a VJP.

    Variables and constants of 64 bits are taken as `to_spec` says while `jax_enable_x64` is off.

    Args:
        traced: the function.
        compiled: its module.
        results: shapes and dtypes of its results.

    Raises:
        StructureError: the module takes or returns something else.
        InteropError: XLA's compiler for TensorFlow calls what JAX does not have.
    """
    specs = [*traced.arguments, *(to_spec(captured, traced) for captured in traced.captures)]

    def like(*_: Any) -> tuple[Any, ...]:
        return tuple(jnp.zeros(spec.shape, spec.dtype) for spec in results)

    like.__name__ = re.sub(r"\W", "_", traced.name) or "tensorflow"
    # A mesh that is set would be that of the results.
    with make_ir_context(), outside_meshes():
        module = ir.Module.parse(compiled)
        remove_copies(module)
        to_custom_calls(module)
        compose_custom_calls(module)  # which JAX does not export
        platforms = platforms_for(traced, module)
        outside = export.export(jax.jit(like, keep_unused=True), platforms=platforms)(*specs)
        _enclose(module, parse_module(outside.mlir_module_serialized), traced)
        artifact = serialize_module(module, read_artifact_version(outside.mlir_module_serialized))
    return finish(outside, artifact)


def finish(outside: export.Exported, artifact: bytes) -> export.Exported:
    """What JAX exported with another module, without shardings and without a VJP."""
    own = dataclasses.replace(outside, mlir_module_serialized=artifact)
    nothing = (None,) * len(own.in_avals), (None,) * len(own.out_avals)
    return cut_vjp(replace_shardings(own, *nothing), 0)


def _refusal(name: str, error: Exception) -> StructureError:
    """The operation that cannot be compiled, in TensorFlow's message."""
    text = str(error)
    if "fixed tensor list size" in text:
        return StructureError(
            f"{name} cannot be compiled for JAX: the gradient of a loop keeps values of every "
            "step, and XLA must know how many steps there are at most. To do: pass "
            "maximum_iterations= to tf.while_loop; or pass compiled=False, which runs the function "
            "in TensorFlow, through a callback."
        )
    kernels = dict.fromkeys(re.findall(r"(\w+) \(No registered '", text))
    constant = re.search(r"Input (\d+) to node `([^`]*)` with op (\w+) must be", text)
    if constant and constant[3] == "TensorListReserve":
        return StructureError(
            f"{name} cannot be compiled for JAX: {constant[2]} keeps values of every step of a "
            "loop, the length of which XLA does not see across the call of a function. To do: if a "
            "gradient inside of the loop is that of a tf.custom_gradient (as that of tf.nn.silu "
            "is), have the loop outside of each tf.function; or pass compiled=False, which runs "
            "the function in TensorFlow, through a callback."
        )
    if kernels:
        what = f"XLA has no {', '.join(kernels)}"
    elif constant:
        what = (
            f"XLA needs input {constant[1]} of {constant[3]} ({constant[2]}), a shape or an axis, "
            "as a constant that is made inside of the function"
        )
    else:
        what = f"TensorFlow says: {first_line(error)[:400]}"
    return StructureError(
        f"{name} cannot be compiled for JAX. {what}. To do: leave the operation out, or pass "
        "compiled=False, which runs the function in TensorFlow, through a callback."
    )


def platforms_for(traced: Traced, module: Any) -> tuple[str, ...]:
    """Where JAX's XLA can run a module: everywhere, but for what it calls."""
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


def remove_copies(module: Any) -> None:
    """Put its operand in the place of each `mhlo.copy`, of which StableHLO has no form."""
    for operation in [found for found in walk(module) if _name_of(found) == "mhlo.copy"]:
        operation.operation.results[0].replace_all_uses_with(operation.operation.operands[0])
        operation.operation.erase()


def _name_of(operation: Any) -> str:
    return str(operation.operation.name)


def _enclose(module: Any, outside: Any, traced: Traced) -> None:
    """Put JAX's `main` around that of TensorFlow, which becomes a function that it calls.

    JAX's takes the platform index, and numbers of 64 bits as pairs of 32 while it has none.
    """
    inner = find_main(module)
    inner.attributes["sym_name"] = ir.StringAttr.get(_unused_name(module))
    inner.attributes["sym_visibility"] = ir.StringAttr.get("private")
    _replace_attributes(module.operation, outside.operation)
    outer = find_main(outside).operation.clone(ir.InsertionPoint(module.body))
    block = outer.regions[0].blocks[0]
    for operation in reversed(list(block.operations)):
        operation.operation.erase()
    _remove_shardings(outer)
    types = list(inner.type.inputs)
    given = list(block.arguments)[len(block.arguments) - len(types) :]
    if len(given) != len(types):
        raise StructureError(
            f"TensorFlow compiled {traced.name} for {len(types)} inputs; expected "
            f"{len(traced.arguments)} arguments and {len(traced.captures)} captured values."
        )
    returned, expected = list(inner.type.results), list(find_main(outside).type.results)
    if returned != expected:
        raise StructureError(
            f"TensorFlow compiled {traced.name} to the results {', '.join(map(str, returned))}; "
            f"expected {', '.join(map(str, expected))}. To do: pass the right shapes=."
        )
    with ir.InsertionPoint(block), outer.location:
        operands = [
            value if value.type == type_ else stablehlo.BitcastConvertOp(type_, value).result
            for value, type_ in zip(given, types, strict=True)
        ]
        symbol = ir.FlatSymbolRefAttr.get(ir.StringAttr(inner.attributes["sym_name"]).value)
        call = func.CallOp(list(inner.type.results), symbol, operands)
        func.ReturnOp(list(call.results))


def _remove_shardings(function: Any) -> None:
    """Take away what says how arguments and results lie, on a mesh that the module does not have.

    It is there where JAX has a mesh with explicit axes.
    """
    for key in ("arg_attrs", "res_attrs"):
        if key not in function.attributes:
            continue
        plain = [
            {named.name: named.attr for named in attributes if named.name != "sdy.sharding"}
            for attributes in function.attributes[key]
        ]
        function.attributes[key] = ir.ArrayAttr.get([ir.DictAttr.get(kept) for kept in plain])


def _replace_attributes(operation: Any, other: Any) -> None:
    """Give an operation the attributes of another one, and no others."""
    for name in list(operation.attributes):
        del operation.attributes[name if isinstance(name, str) else name.name]
    for name in list(other.attributes):
        key = name if isinstance(name, str) else name.name  # as in JAX 0.9 and older
        operation.attributes[key] = other.attributes[key]


def _unused_name(module: Any) -> str:
    names = functions_of(module)
    return next(
        name
        for name in itertools.chain([_BODY], map(f"{_BODY}_{{}}".format, itertools.count()))
        if name not in names
    )
