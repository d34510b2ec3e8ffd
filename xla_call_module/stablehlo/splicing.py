"""The functions of one module as functions of another one, under names of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xla_call_module._jax import ir
from xla_call_module.stablehlo.attributes import symbol_name
from xla_call_module.stablehlo.call_graph import REFERENCES, named_by
from xla_call_module.stablehlo.modules import functions_of, walk
from xla_call_module.stablehlo.unique_names import UniqueNames


def symbols_of(module: Any) -> UniqueNames:
    """Return the names that the operations at the top of a parsed module have."""
    names = UniqueNames()
    for operation in module.body.operations:
        if "sym_name" in operation.attributes:
            names.take(symbol_name(operation))
    return names


def splice_functions(source: Any, module: Any, *, prefix: str, taken: UniqueNames) -> Any:
    """Copy the functions of a module into another one as private functions."""
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
    key = REFERENCES.get(operation.name)
    if key is not None and key in operation.attributes:
        context = operation.context
        symbols = [ir.FlatSymbolRefAttr.get(names[name], context) for name in named_by(operation)]
        is_list = key == "called_computations"
        operation.attributes[key] = ir.ArrayAttr.get(symbols, context) if is_list else symbols[0]
