"""Casts at the boundary of a function whose arguments or results are of narrow types.

The `main` of the module takes and returns the storage dtypes of the narrow types, and converts its
arguments and results. So an integer beyond the narrow type wraps around when it is passed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jax import export

from bridge.core.narrow_types import NARROW_TYPES, storage_dtype_of
from xla_call_module._jax import func, ir, make_ir_context, survive_forks
from xla_call_module.call import CallModule, read_artifact_version
from xla_call_module.dtypes import dtype_from_name
from xla_call_module.mlir_files import call_of_file
from xla_call_module.stablehlo.modules import (
    find_main,
    parse_module,
    read_main,
    serialize_module,
    tensor_type,
)


def call_of_storage_file(path: Path, content: bytes) -> CallModule:
    """Return the call of a file of MLIR, with casts at its boundary; see `call_of_file`."""
    return call_of_file(path, content, prepare=_cast_at_boundary, prepared=NARROW_TYPES)


def with_boundary_casts(exported: export.Exported) -> export.Exported:
    """Return the function with arguments and results of dtypes that ONNX Runtime has.

    Its VJP stays that of the function without casts, so it is to be differentiated before.
    """
    avals = [*exported.in_avals, *exported.out_avals]
    if all(storage_dtype_of(aval.dtype) is None for aval in avals):
        return exported
    artifact = bytes(exported.mlir_module_serialized)
    survive_forks()
    with make_ir_context():
        module = parse_module(artifact)
        _cast_at_boundary(module)
        made = serialize_module(module, read_artifact_version(artifact), mixed=True)
    return dataclasses.replace(
        exported,
        mlir_module_serialized=made,
        in_avals=tuple(map(_storage_aval, exported.in_avals)),
        out_avals=tuple(map(_storage_aval, exported.out_avals)),
    )


def _storage_aval(aval: Any) -> Any:
    dtype = storage_dtype_of(aval.dtype)
    return aval if dtype is None else aval.update(dtype=dtype)


def _cast_at_boundary(module: Any) -> None:
    """Let the `main` of a parsed module take and return storage dtypes, in place."""
    main = find_main(module)
    block = main.regions[0].blocks[0]
    *_, last = block
    takes, gives = (
        [_storage_type(value.type) for value in values]
        for values in (block.arguments, last.operands)
    )
    if [value.type for value in (*block.arguments, *last.operands)] == [*takes, *gives]:
        return
    _change_arguments(block, takes, _names(module, len(takes)))
    with last.location, ir.InsertionPoint(last):
        func.ReturnOp(_converted(last.operands, gives))
    last.operation.erase()
    with module.context:
        kind = ir.FunctionType.get(takes, gives)
        main.attributes["function_type"] = ir.TypeAttr.get(kind)


def _storage_type(type_: Any) -> Any:
    """The type of what holds a tensor."""
    tensor = tensor_type(str(type_))
    narrow = NARROW_TYPES.get(tensor.element)
    if narrow is None:
        return type_
    element = dtype_from_name(narrow.storage_dtype.name, where=str(type_)).mlir
    return ir.Type.parse(str(dataclasses.replace(tensor, element=element)), type_.context)


def _change_arguments(block: Any, takes: Sequence[Any], names: Sequence[str]) -> None:
    """Give a block arguments of other types, and compute the old ones from them."""
    old = list(block.arguments)
    first = next(iter(block.operations))
    with block.owner.context:
        new = [
            block.add_argument(kind, ir.Location.name(name) if name else ir.Location.unknown())
            for kind, name in zip(takes, names, strict=True)
        ]
    with first.location, ir.InsertionPoint(first):
        converted = _converted(new, [argument.type for argument in old])
    for before, after in zip(old, converted, strict=True):
        before.replace_all_uses_with(after)
    for _ in old:
        block.erase_argument(0)


def _names(module: Any, count: int) -> Sequence[str]:
    """Return the names of the arguments; the platform index, if there is any, has none."""
    names = read_main(module).names
    return ("",) * (count - len(names)) + names


def _converted(values: Sequence[Any], types: Sequence[Any]) -> list[Any]:
    made = []
    for value, type_ in zip(values, types, strict=True):
        if value.type != type_:
            value = ir.Operation.create(
                "stablehlo.convert", results=[type_], operands=[value]
            ).result
        made.append(value)
    return made
