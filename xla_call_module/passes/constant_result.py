"""`with_true`: a further result of a call that is always true."""

from __future__ import annotations

import dataclasses

from xla_call_module._jax import func, ir
from xla_call_module.call import CallModule, TensorSpec, read_artifact_version
from xla_call_module.dtypes import dtype_from_name
from xla_call_module.stablehlo.modules import find_main, open_module, serialize_module


def with_true(call: CallModule, name: str) -> CallModule:
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
    spec = TensorSpec((), dtype_from_name("bool", where=call.name), name)
    return dataclasses.replace(
        call, module=artifact, results=(*call.results, spec), exported=b"", trees=None
    )
