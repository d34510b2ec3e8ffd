"""Functions of a module written out where they are called.

MLIR's own pass does it in contexts with an extension that those of JAX do not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xla_call_module._jax import PassManager, ir
from xla_call_module.stablehlo.call_graph import check_calls
from xla_call_module.stablehlo.modules import functions_of, walk

__all__ = ["inline_calls", "rewire"]

_CALL = "func.call"


def inline_calls(module: Any) -> None:
    """Write out every call of a parsed module, in place; private functions without use go.

    Raises:
        StructureError: functions call themselves, or one another too often.
    """
    functions = functions_of(module)
    check_calls(functions)
    done: set[str] = set()
    for name in functions:
        _inline_into(name, functions, done)
    PassManager.parse("builtin.module(symbol-dce)").run(module.operation)


def _inline_into(name: str, functions: Mapping[str, Any], done: set[str]) -> None:
    """Write out the calls in a function, those in what it calls first; `done` are not done again.

    It is no closure, since one that calls itself would keep the module until the garbage collector
    comes, and modules can be large.
    """
    if name in done:
        return
    done.add(name)
    for call in [op for op in walk(functions[name]) if op.name == _CALL]:
        callee = str(call.attributes["callee"]).strip('@"')
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
    for old, new in zip(call.results, last.operands, strict=True):
        old.replace_all_uses_with(values[new])
    call.erase()


def rewire(operation: Any, values: Mapping[Any, Any]) -> None:
    """Make an operation, and those in its regions, take new values for old ones."""
    for index, operand in enumerate(operation.operands):
        if operand in values:
            operation.operands[index] = values[operand]
    for region in operation.regions:
        for block in region:
            for inner in block:
                rewire(inner.operation, values)
