"""A TensorFlow function with symbolic sizes -> an `Exported` that JAX splices in."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func, stablehlo
from jax.interpreters.mlir import make_ir_context

from bridge.calling_tf.concrete_functions import Traced
from bridge.calling_tf.dynamic_calls import split_tuples
from bridge.calling_tf.generalizing import NumberError, generalize
from bridge.calling_tf.results import trace_at, trace_at_sizes
from bridge.calling_tf.sampled_sizes import SizeSamples
from bridge.calling_tf.variables import to_spec
from bridge.calling_tf.xla_lowering import compile_function, finish, platforms_for, remove_copies
from bridge.core._jax import outside_meshes
from xla_call_module.analyses.tensorflow_functions import TARGET
from xla_call_module.call import read_artifact_version
from xla_call_module.dimensions import evaluate_shape
from xla_call_module.errors import StructureError
from xla_call_module.stablehlo.mhlo import NO_RELEASE, expand_custom_calls, to_custom_calls
from xla_call_module.stablehlo.modules import (
    functions_of,
    parse_module,
    read_main,
    serialize_module,
    walk,
)

__all__ = ["lower_symbolic"]

_BODY = "tensorflow_function"


def lower_symbolic(traced: Traced, results: Sequence[jax.ShapeDtypeStruct]) -> export.Exported:
    """An `Exported` of the arguments and captures as a flat tuple; without a VJP.

    TensorFlow compiles the function for several sizes, and what is the same in all of them but for
    numbers that follow from the sizes is the function for all sizes.

    Args:
        traced: the function, some arguments of which have symbolic shapes.
        results: shapes and dtypes of its results.

    Raises:
        StructureError: XLA cannot compile it, or not in the same way for all sizes.
    """
    samples, traces = trace_at_sizes(
        traced.function.python_function,
        SizeSamples(traced.arguments, _expressions([*traced.arguments, *results])),
        name=traced.name,
    )
    _check_captures(traced, traces)
    compiled = list(map(compile_function, traces))
    ones = _compile_at_ones(traced, samples)
    with make_ir_context(), outside_meshes():
        modules = [_parse(module) for module in compiled]
        for module, sizes in zip(modules, samples.sizes, strict=True):
            _check_results(module, results, sizes, traced.name)
        inner, terms = generalize(modules, samples, name=traced.name)
        if ones is not None:
            _check_ones([*modules, _parse(ones)], samples, traced.name)
        dimensions = [samples.dimension(term) for term in terms]
        outside = _export(traced, results, dimensions, platforms_for(traced, inner))
        module = parse_module(outside.mlir_module_serialized)
        _replace_call(module, inner)
        version = read_artifact_version(outside.mlir_module_serialized)
        return finish(outside, serialize_module(module, version))


def _parse(compiled: bytes) -> Any:
    module = ir.Module.parse(compiled)
    remove_copies(module)
    to_custom_calls(module)
    expand_custom_calls(module, NO_RELEASE)
    split_tuples(module)
    return module


def _compile_at_ones(traced: Traced, samples: SizeSamples) -> bytes | None:
    """The function with 1 for each symbol; None where TensorFlow refuses that."""
    if samples.ones is None:
        return None
    function = traced.function.python_function
    try:
        return compile_function(trace_at(function, samples, samples.ones, name=traced.name))
    except StructureError:
        return None


def _check_ones(modules: Sequence[Any], samples: SizeSamples, name: str) -> None:
    """Refuse a function in which a number is another one where each symbol is 1.

    There TensorFlow compiles otherwise what it broadcasts elsewhere, which is no other function.
    """
    assert samples.ones is not None
    checks = (*samples.checks, samples.ones)
    try:
        generalize(modules, dataclasses.replace(samples, checks=checks), name=name)
    except NumberError:
        raise
    except StructureError:
        return


def _expressions(specs: Sequence[jax.ShapeDtypeStruct]) -> tuple[str, ...]:
    """The dimensions that are more than a symbol."""
    texts = {str(dim) for spec in specs for dim in spec.shape if not isinstance(dim, int)}
    return tuple(sorted(text for text in texts if not text.isidentifier()))


def _check_captures(traced: Traced, traces: Sequence[Traced]) -> None:
    expected = [*map(id, traced.captures)]
    if any([*map(id, found.captures)] != expected for found in traces):
        raise StructureError(
            f"{traced.name} captures other variables or constants with other sizes. To do: have it "
            "capture the same ones always; or export it once for each size."
        )


def _check_results(
    module: Any, results: Sequence[jax.ShapeDtypeStruct], sizes: Any, name: str
) -> None:
    """Refuse what was declared, where it is not what TensorFlow compiles."""
    for index, (found, spec) in enumerate(zip(read_main(module).results, results, strict=True)):
        texts = tuple(dim if isinstance(dim, int) else str(dim) for dim in spec.shape)
        if found.shape != (expected := evaluate_shape(texts, sizes)):
            raise StructureError(
                f"Result {index} of {name} has the shape {found.shape}; declared was {spec.shape}, "
                f"which is {expected} with {dict(sizes)}. To do: pass the right one as shapes=."
            )


def _export(
    traced: Traced,
    results: Sequence[jax.ShapeDtypeStruct],
    dimensions: Sequence[Any],
    platforms: Sequence[str],
) -> export.Exported:
    """JAX's program around a call that stands for the function.

    JAX computes the symbols from the shapes that arrive, and checks them.
    """

    def like(*arguments: Any) -> Any:
        sizes = [jnp.asarray(dimension, np.int32) for dimension in dimensions]
        call = jax.ffi.ffi_call(
            TARGET, list(results), custom_call_api_version=2, legacy_backend_config=""
        )
        return tuple(call(*sizes, *arguments))

    like.__name__ = "tensorflow"
    specs = [*traced.arguments, *(to_spec(captured, traced) for captured in traced.captures)]
    return export.export(jax.jit(like, keep_unused=True), platforms=platforms)(*specs)


def _replace_call(module: Any, inner: Any) -> None:
    """Put the functions of `inner` into a module, and a call of its `main` for the custom call.

    Args:
        module: JAX's.
        inner: TensorFlow's, for all sizes.
    """
    main = _move_functions(inner, module)
    call = next(
        operation
        for operation in walk(module)
        if operation.name == "stablehlo.custom_call"
        and ir.StringAttr(operation.attributes["call_target_name"]).value == TARGET
    )
    call = call.operation
    types = list(main.type.inputs)
    given = list(call.operands)[: len(types)]
    with ir.InsertionPoint(call), call.location:
        operands = [
            value if value.type == type_ else stablehlo.bitcast_convert(type_, value)
            for value, type_ in zip(given, types, strict=True)
        ]
        new = func.CallOp(
            list(main.type.results), ir.FlatSymbolRefAttr.get(main.name.value), operands
        )
    for old, result in zip(call.results, new.results, strict=True):
        old.replace_all_uses_with(result)
    call.erase()


def _move_functions(inner: Any, module: Any) -> Any:
    """Copy the functions into a module under names of their own, and return the main one."""
    own = functions_of(inner)
    taken = set(functions_of(module))
    names = {}
    for name in own:
        new = _BODY if name == "main" else f"{_BODY}_{name}"
        while new in taken:
            new += "_"
        taken.add(new)
        names[name] = new
    for operation in walk(inner):
        if operation.name == "func.call":
            operation.attributes["callee"] = _renamed(operation.attributes["callee"], names)
        elif "called_computations" in operation.attributes:
            called = operation.attributes["called_computations"]
            operation.attributes["called_computations"] = ir.ArrayAttr.get(
                [_renamed(name, names) for name in ir.ArrayAttr(called)]
            )
    for name, function in own.items():
        function.attributes["sym_name"] = ir.StringAttr.get(names[name])
        function.attributes["sym_visibility"] = ir.StringAttr.get("private")
        function.operation.clone(ir.InsertionPoint(module.body))
    return functions_of(module)[names["main"]]


def _renamed(symbol: Any, names: Mapping[str, str]) -> Any:
    return ir.FlatSymbolRefAttr.get(names[ir.FlatSymbolRefAttr(symbol).value])
