"""Composites: operations that carry their own definition as a function of the module.

A consumer that knows a composite may take its own way to compute it, any other calls the
definition (https://openxla.org/stablehlo/spec#composite). TensorFlow does not refine the shapes in
the definitions, so with symbolic dimensions a composite fails when it runs.
"""

from __future__ import annotations

from typing import Any

from xla_call_module._jax import func, ir
from xla_call_module.stablehlo.modules import walk

__all__ = ["call_definitions"]

COMPOSITE = "stablehlo.composite"


def call_definitions(module: Any) -> None:
    """Replace each composite of a parsed module, in place, by a call of its definition."""
    for composite in [op for op in walk(module) if op.name == COMPOSITE]:
        with composite.context, composite.location, ir.InsertionPoint(composite):
            types = [result.type for result in composite.results]
            definition = composite.attributes["decomposition"]
            call = func.CallOp(types, definition, list(composite.operands))
        for old, new in zip(composite.results, call.results, strict=True):
            old.replace_all_uses_with(new)
        composite.erase()
