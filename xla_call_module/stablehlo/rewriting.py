"""Steps of rewriting a parsed module in place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from xla_call_module._jax import PassManager, func, ir


def run_passes(module: Any, passes: str) -> None:
    """Run passes of MLIR, such as `canonicalize,cse`, on a parsed module."""
    PassManager.parse(f"builtin.module({passes})").run(module.operation)


def new_function(
    module: Any, name: str, inputs: Sequence[Any], results: Sequence[Any], *, visibility: str
) -> Any:
    """Return a new function without a body, the first one of a parsed module.

    The context of the module, and a location, are to be the current ones.
    """
    new: Any = func.FuncOp  # its stub is that of the class that it extends
    start = ir.InsertionPoint.at_block_begin(module.body)
    return new(name, ir.FunctionType.get(inputs, results), visibility=visibility, ip=start)


def replace_operation(operation: Any, values: Iterable[Any]) -> None:
    """Put values in the place of an operation's results, and erase it."""
    for old, new in zip(operation.results, values, strict=True):
        old.replace_all_uses_with(new)
    operation.erase()


def rewire(operation: Any, values: Mapping[Any, Any]) -> None:
    """Make an operation, and those in its regions, take new values for old ones."""
    for index, operand in enumerate(operation.operands):
        if operand in values:
            operation.operands[index] = values[operand]
    for region in operation.regions:
        for block in region:
            for inner in block:
                rewire(inner.operation, values)
