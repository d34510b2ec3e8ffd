"""The constants in a module, the pass that takes the large ones out, and the one that undoes it.

An eager call of the op costs more the larger its module is, and every order of a VJP chain has its
own copy of what the function closes over. Taken out, an array is one more argument.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from xla_call_module._jax import dense_elements, ir
from xla_call_module.call import TensorSpec
from xla_call_module.dtypes import DTYPES, Array
from xla_call_module.errors import StructureError
from xla_call_module.passes.module_pass import ModulePass, ParsedCall
from xla_call_module.stablehlo.elements import read_elements
from xla_call_module.stablehlo.inlining import inline_calls
from xla_call_module.stablehlo.modules import find_main, open_module, splat, tensor_type, walk
from xla_call_module.stablehlo.operation_locations import describe_location

HOISTED_FROM = 64 * 1024
_CONSTANT = "stablehlo.constant"
_DTYPES = {dtype.mlir: dtype for dtype in DTYPES}


@dataclass(frozen=True, slots=True)
class Constant:
    """One `stablehlo.constant`.

    Attributes:
        type: the tensor type as StableHLO writes it, such as `tensor<1000x1000xf32>`.
        location: the line of the Python source that it comes from.
    """

    type: str
    bytes: int
    location: str

    def __str__(self) -> str:
        """For messages."""
        return f"{self.type} ({self.bytes:,} bytes) at {self.location}"


def check_hoisting(size: object) -> None:
    """Refuse a `hoist_constants` that is no size."""
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 0):
        raise StructureError(
            f"hoist_constants is {size!r}; expected a number of bytes from 0 on, or None for no "
            "constants."
        )


def largest_constants(artifact: bytes, count: int) -> list[Constant]:
    """Return the largest constants that a module stores in full, the largest first."""
    with open_module(artifact) as module:
        return constants_of(module, count)[0]


def constants_of(module: Any, count: int) -> tuple[list[Constant], int]:
    """Return the largest constants that a parsed module stores in full, and the bytes of all."""
    stored = [(_bytes_of(op), op) for op in walk(module) if _is_stored_in_full(op)]
    largest = sorted(stored, key=lambda pair: -pair[0])[:count]
    constants = [Constant(str(op.results[0].type), n, describe_location(op)) for n, op in largest]
    return constants, sum(size for size, _ in stored)


def hoist_constants(from_bytes: int = HOISTED_FROM, *, known: Container[str] = ()) -> ModulePass:
    """Return the pass that makes the large constants of a call its last arguments.

    `CallModule.hoisted` has their keys, and `ParsedCall.constants` the values that are not known.
    Equal constants of any call have one key.
    """
    return ModulePass(
        name="constants",
        ensures=f"no constant of {from_bytes} bytes or more is stored in the module",
        violation=functools.partial(_violation, from_bytes=from_bytes),
        rewrite=functools.partial(_hoist, from_bytes=from_bytes, known=known),
        requires=("platforms", "linear_algebra"),
        may_apply=lambda call: len(call.module) >= from_bytes,
    )


def _violation(parsed: ParsedCall, *, from_bytes: int) -> str:
    first = next(_large_constants(walk(parsed.module), from_bytes), None)
    return "" if first is None else f"it stores a constant {first.results[0].type}"


def _hoist(parsed: ParsedCall, *, from_bytes: int, known: Container[str]) -> ParsedCall:
    inline_calls(parsed.module)
    main = find_main(parsed.module)
    values = dict(parsed.constants)
    arguments: dict[str, Any] = {}
    for operation in list(_large_constants(walk(main), from_bytes)):
        value = read_elements(operation)
        key = key_of(value)
        if key not in arguments:
            block = main.regions[0].blocks[0]
            kind = operation.results[0].type
            arguments[key] = block.add_argument(kind, operation.location)
            if key not in known:
                values[key] = value.copy()
        operation.results[0].replace_all_uses_with(arguments[key])
        operation.erase()
    _declare(main)
    call = parsed.call
    specs = tuple(_spec(argument, index) for index, argument in enumerate(arguments.values()))
    count = len(call.args)
    hoisted = parsed.rewritten(
        "large constants as arguments",
        args=(*call.args, *specs),
        kept=(*call.kept, *range(count, count + len(specs))),
        hoisted=tuple(arguments),
    )
    return dataclasses.replace(hoisted, constants=values)


def restore_constants(value_of: Callable[[str], Array]) -> ModulePass:
    """Return the pass that stores the hoisted constants of a call in its module again.

    Running it raises a `StructureError` where a value has another dtype or shape than the module
    takes.
    """
    return ModulePass(
        name="restored_constants",
        ensures="no constant is an argument",
        violation=lambda parsed: "its constants are arguments" if parsed.call.hoisted else "",
        rewrite=functools.partial(_restore, value_of=value_of),
        may_apply=lambda call: bool(call.hoisted),
    )


def _restore(parsed: ParsedCall, *, value_of: Callable[[str], Array]) -> ParsedCall:
    call, main = parsed.call, find_main(parsed.module)
    first = len(call.args) - len(call.hoisted)
    block = main.regions[0].blocks[0]
    offset = len(block.arguments) - len(call.kept)
    for position, index in reversed(list(enumerate(call.kept))):
        if index in call.constants:
            argument = block.arguments[offset + position]
            value = value_of(call.constants[index])
            argument.replace_all_uses_with(_write(value, argument, call.args[index]))
            block.erase_argument(offset + position)
    _declare(main)
    kept = tuple(index for index in call.kept if index < first)
    return parsed.rewritten(args=call.args[:first], kept=kept, hoisted=())


def _write(value: Array, argument: Any, spec: TensorSpec) -> Any:
    """Write a constant at the start of the argument's block, and return its result."""
    if value.dtype != spec.dtype.numpy or value.shape != spec.shape:
        raise StructureError(
            f"The constant for {spec.path} is {value.dtype}{list(value.shape)}; the module takes "
            f"{spec}. To do: hand it the constant that the pass took out."
        )
    with argument.location:
        element = ir.RankedTensorType(argument.type).element_type
        data: Any = np.ascontiguousarray(value)
        if value.dtype.kind == "V":  # a float of ml_dtypes, of which MLIR takes the bits
            data = data.view(f"u{value.dtype.itemsize}")
        elements = dense_elements(data, element)
        return ir.Operation.create(
            _CONSTANT,
            results=[argument.type],
            attributes={"value": elements},
            ip=ir.InsertionPoint.at_block_begin(argument.owner),
        ).results[0]


def _spec(argument: Any, index: int) -> TensorSpec:
    type_ = tensor_type(str(argument.type))
    shape = tuple(dim or 0 for dim in type_.shape)
    return TensorSpec(shape, _DTYPES[type_.element], f"constants[{index}]")


def _declare(main: Any) -> None:
    """Bring the type of a function, and its arguments' attributes, up to its arguments.

    Only the last of them were added or erased.
    """
    kinds = [argument.type for argument in main.regions[0].blocks[0].arguments]
    with main.operation.context:
        kind = ir.FunctionType.get(kinds, list(main.type.results))
        main.attributes["function_type"] = ir.TypeAttr.get(kind)
        if "arg_attrs" in main.attributes:
            attributes = list(main.attributes["arg_attrs"])[: len(kinds)]
            added = [ir.DictAttr.get({}) for _ in kinds[len(attributes) :]]
            main.attributes["arg_attrs"] = ir.ArrayAttr.get([*attributes, *added])


def _large_constants(operations: Iterable[Any], from_bytes: int) -> Iterator[Any]:
    return (
        operation
        for operation in operations
        if operation.name == _CONSTANT
        and _element(operation.results[0]) in _DTYPES
        and _bytes_of(operation) >= from_bytes
        and _is_stored_in_full(operation)
    )


def _is_stored_in_full(operation: Any) -> bool:
    """Return whether it is a constant and no splat, of which one element is stored."""
    return operation.name == _CONSTANT and splat(operation) is None


def _element(value: Any) -> str:
    return tensor_type(str(value.type)).element


def _bytes_of(operation: Any) -> int:
    type_ = tensor_type(str(operation.results[0].type))
    itemsize = _DTYPES[type_.element].itemsize if type_.element in _DTYPES else 1
    return math.prod(dim or 0 for dim in type_.shape) * itemsize


def key_of(value: Array) -> str:
    """Return the key of a constant: a hash of its elements, dtype and shape."""
    digest = hashlib.sha256(f"{value.dtype}{value.shape}".encode())
    digest.update(np.ascontiguousarray(value).view(np.uint8).data)
    return digest.hexdigest()
