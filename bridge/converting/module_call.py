"""A StableHLO module as one operation of a JAX program.

`jax.export.Exported.call` is that, too. It also has gradients and takes other shapes, for which it
traces more, and where a module was lowered for several platforms JAX looks for symbolic shapes in
all of the program: together more than a tenth of what it takes to compile a small function.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func, stablehlo
from jax.interpreters import mlir

from xla_call_module._jax import dense_elements
from xla_call_module.call import CallModule
from xla_call_module.stablehlo.bytecode import mentions
from xla_call_module.stablehlo.modules import find_main, parse_module


@dataclass(frozen=True, slots=True, weakref_slot=True)  # JAX refers to parameters weakly
class ModuleCall:
    """A module of fixed shapes for one device, as it is called on one platform.

    Attributes:
        module: the portable artifact.
        platform_index: the index of the platform among those of the module; None where the module
            takes no platform index.
        results: the shape and dtype of each result.
    """

    module: bytes
    platform_index: int | None
    results: tuple[jax.ShapeDtypeStruct, ...]

    def __call__(self, *operands: Any) -> list[Any]:
        """Return the results; the operands come in the order of the module."""
        results: list[Any] = _CALL.bind(*operands, call=self)
        return results


def to_module_call(call: CallModule, platform: str) -> ModuleCall | None:
    """Return the call on a platform; None where shapes are symbolic or there is a mesh."""
    shapes = [spec.shape for spec in (*call.args, *call.results)]
    if not all(shape is not None and all(isinstance(d, int) for d in shape) for shape in shapes):
        return None
    if mentions(call.module, [b"mesh"]):  # the symbol of a mesh
        return None
    results: Any = ((spec.shape, spec.dtype.numpy) for spec in call.results)
    return ModuleCall(
        call.module,
        call.platforms.index(platform) if call.has_platform_index else None,
        tuple(jax.ShapeDtypeStruct(*result) for result in results),
    )


def _results_of(*_: Any, call: ModuleCall) -> Sequence[Any]:
    return [jax.core.ShapedArray(result.shape, result.dtype) for result in call.results]


def _lower(ctx: mlir.LoweringRuleContext, *operands: Any, call: ModuleCall) -> Sequence[Any]:
    into: Any = ctx.module_context
    with into.module.context:
        module = parse_module(call.module)
    type_ = find_main(module).type
    name = mlir.merge_mlir_modules(into.module, "exported", module, dst_symtab=into.symbol_table)
    given = list(operands)
    if call.platform_index is not None:
        int32 = ir.IntegerType.get_signless(32)
        index = dense_elements(np.asarray(call.platform_index, np.int32), int32)
        given.insert(0, stablehlo.ConstantOp(index).result)
    return list(func.CallOp(type_.results, ir.FlatSymbolRefAttr.get(name), given).results)


def _define() -> Primitive:
    """Return the primitive, with the rules that JAX needs to compile it."""
    primitive = Primitive("stablehlo_module")
    primitive.multiple_results = True
    primitive.def_abstract_eval(_results_of)
    mlir.register_lowering(primitive, _lower)
    return primitive


_CALL = _define()
