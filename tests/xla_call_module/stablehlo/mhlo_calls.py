"""Modules as JAX before 0.9.1 wrote them, with custom calls of MHLO, made by any JAX."""

from __future__ import annotations

import dataclasses

from jax.extend.mlir import ir

from xla_call_module import from_exported
from xla_call_module.stablehlo.call_graph import COMPOSITE
from xla_call_module.stablehlo.modules import open_module, serialize_module, walk


def as_old_jax_writes_it(exported):
    """The same, with each composite of today's JAX as a custom call."""
    version = from_exported(exported).stablehlo_version
    with open_module(exported.mlir_module_serialized) as module:
        for composite in [op for op in walk(module) if op.name == COMPOSITE]:
            _replace(composite)
        artifact = serialize_module(module, version)
    return dataclasses.replace(exported, mlir_module_serialized=artifact)


def _replace(composite):
    name = str(composite.attributes["name"]).strip('"').removeprefix("chlo.")
    with composite.context, composite.location, ir.InsertionPoint(composite):
        found = {"k": integer(2)} if name == "top_k" else {}
        call = ir.Operation.create(
            "stablehlo.custom_call",
            results=[result.type for result in composite.results],
            operands=list(composite.operands),
            attributes={
                "call_target_name": ir.StringAttr.get(f"mhlo.{name.replace('_', '')}"),
                "mhlo.attributes": ir.DictAttr.get(found),
                "mhlo.version": integer(1),
            },
        )
    for old, new in zip(composite.results, call.results, strict=True):
        old.replace_all_uses_with(new)
    composite.erase()


def integer(value):
    """An attribute, in the context that is current."""
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
