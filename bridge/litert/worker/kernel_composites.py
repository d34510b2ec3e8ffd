"""Composites that stand for one kernel of LiteRT.

The names are those of `bridge.litert.lowering.kernel_lowerings`. It is a part of the program
`bridge.litert.worker.worker_program`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from litert_converter.mlir import ir

from bridge.litert.worker.loop_outlining import nested_operations

_PREFIX = "jax_tf_bridge."
# The attributes of each, as text of MLIR.
_KERNELS: Mapping[str, Mapping[str, str]] = {
    "tfl.softmax": {"beta": "1.0 : f32"},
}


def put_kernels(module: Any) -> None:
    """Put the operation of LiteRT in the place of each such composite.

    The context of the module is to be the current one.
    """
    for operation in [*nested_operations(module.operation)]:
        if operation.name != "stablehlo.composite":
            continue
        name = ir.StringAttr(operation.attributes["name"]).value
        kernel = name.replace(_PREFIX, "tfl.", 1)
        if not name.startswith(_PREFIX) or kernel not in _KERNELS:
            continue
        attributes = {key: ir.Attribute.parse(text) for key, text in _KERNELS[kernel].items()}
        with operation.location, ir.InsertionPoint(operation):
            # The sizes come before the array.
            array = operation.operands[len(operation.operands) - 1]
            made = ir.Operation.create(kernel, [operation.results[0].type], [array], attributes)
        operation.results[0].replace_all_uses_with(made.results[0])
        operation.erase()
