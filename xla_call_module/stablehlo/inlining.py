"""Functions of a module written out where they are called, and composites as calls of these.

MLIR's own pass writes calls out in contexts with an extension that those of JAX do not have.

A composite is an operation that carries its own definition as a function of the module. A consumer
that knows it may take its own way to compute it, any other calls the definition
(https://openxla.org/stablehlo/spec#composite). TensorFlow does not refine the shapes in the
definitions, so with symbolic dimensions a composite fails when it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xla_call_module._jax import func, ir
from xla_call_module.stablehlo.attributes import callee_of
from xla_call_module.stablehlo.call_graph import COMPOSITE, check_calls
from xla_call_module.stablehlo.modules import functions_of, walk
from xla_call_module.stablehlo.rewriting import replace_operation, rewire, run_passes


def call_definitions(module: Any) -> None:
    """Replace each composite of a parsed module, in place, by a call of its definition."""
    for composite in [op for op in walk(module) if op.name == COMPOSITE]:
        with composite.context, composite.location, ir.InsertionPoint(composite):
            types = [result.type for result in composite.results]
            definition = composite.attributes["decomposition"]
            call = func.CallOp(types, definition, list(composite.operands))
        replace_operation(composite, call.results)


def inline_calls(module: Any) -> None:
    """Write out every call of a parsed module, in place; private functions without use go."""
    functions = functions_of(module)
    check_calls(functions)
    done: set[str] = set()
    for name in functions:
        _inline_into(name, functions, done)
    run_passes(module, "symbol-dce")


def _inline_into(name: str, functions: Mapping[str, Any], done: set[str]) -> None:
    """Write out the calls in a function, those in what it calls first; `done` are not done again.

    It is no closure, since one that calls itself would keep the module until the garbage collector
    comes, and modules can be large.
    """
    if name in done:
        return
    done.add(name)
    for call in [op for op in walk(functions[name]) if op.name == "func.call"]:
        callee = callee_of(call)
        _inline_into(callee, functions, done)
        _write_out(call, functions[callee])


def _write_out(call: Any, callee: Any) -> None:
    block = callee.regions[0].blocks[0]
    *operations, last = [op.operation for op in block.operations]
    values = dict(zip(block.arguments, call.operands, strict=True))
    for operation in operations:
        copied = operation.clone(ip=ir.InsertionPoint(call)).operation
        rewire(copied, values)
        values.update(zip(operation.results, copied.results, strict=True))
    replace_operation(call, [values[operand] for operand in last.operands])
