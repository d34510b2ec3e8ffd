"""The functions of one module as functions of another one, under names of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xla_call_module._jax import ir
from xla_call_module.stablehlo.modules import functions_of, walk
from xla_call_module.stablehlo.unique_names import UniqueNames

__all__ = ["splice_functions", "symbols_of"]

# The attributes of operations that name functions: one, or a list of them.
_FUNCTION = ("callee", "decomposition")
_FUNCTIONS = "called_computations"


def symbols_of(module: Any) -> UniqueNames:
    """Return the names that the operations at the top of a parsed module have."""
    names = UniqueNames()
    for operation in module.body.operations:
        if "sym_name" in operation.attributes:
            names.take(ir.StringAttr(operation.attributes["sym_name"]).value)
    return names


def splice_functions(source: Any, module: Any, *, prefix: str, taken: UniqueNames) -> Any:
    """Copy the functions of a module into another one as private functions.

    Args:
        source: the parsed module that is copied; it stays as it is.
        module: the parsed module, of the same context, that gets the copies.
        prefix: put before the name of each function.
        taken: the names in `module`, as `symbols_of` returns them.

    Returns:
        The copy of `main`.
    """
    functions = functions_of(source)
    names = {name: taken.take(f"{prefix}{name}") for name in functions}
    copies = {}
    for name, function in functions.items():
        copy = function.operation.clone(ir.InsertionPoint(module.body))
        copy.attributes["sym_name"] = ir.StringAttr.get(names[name], module.context)
        copy.attributes["sym_visibility"] = ir.StringAttr.get("private", module.context)
        for operation in walk(copy):
            _rename_symbols(operation, names)
        copies[name] = copy.opview
    return copies["main"]


def _rename_symbols(operation: Any, names: Mapping[str, str]) -> None:
    for key in _FUNCTION:
        if key in operation.attributes:
            operation.attributes[key] = _rename(operation.attributes[key], names)
    if _FUNCTIONS in operation.attributes:
        called = ir.ArrayAttr(operation.attributes[_FUNCTIONS])
        renamed = [_rename(symbol, names) for symbol in called]
        operation.attributes[_FUNCTIONS] = ir.ArrayAttr.get(renamed, operation.context)


def _rename(symbol: Any, names: Mapping[str, str]) -> Any:
    name = ir.FlatSymbolRefAttr(symbol).value
    return ir.FlatSymbolRefAttr.get(names[name], symbol.context)
