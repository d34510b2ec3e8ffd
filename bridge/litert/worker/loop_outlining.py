"""The regions of the loops of a converted module, moved into functions, as the exporter wants them.

A flatbuffer has a subgraph for the condition of a loop and one for its body, which see nothing but
the values that the loop carries. So what a region uses of the values around it is carried along,
and constants are copied into the regions: the file has one copy of what is in them.

It is a part of the program `bridge.litert.worker.worker_program`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from litert_converter.mlir import ir

from bridge.litert.worker.tensor_copies import copy_of

_LOOP, _YIELD = "tfl.while", "tfl.yield"
# What is copied into the regions that use it.
_CONSTANTS = frozenset({"arith.constant", "tfl.no_value", "tfl.pseudo_const", "tfl.pseudo_qconst"})


@dataclass(frozen=True, slots=True)
class _Carried:
    """The values of a loop, after those that it captures are carried and constants are not.

    Attributes:
        kept: the positions of the values that stay carried.
        captured: the values of the operations around the loop that are carried, too.
        constants: the constants for the other positions.
    """

    kept: Sequence[int]
    captured: Sequence[Any]
    constants: Mapping[int, Any]


def outline_loops(module: Any) -> None:
    """Let the regions of every loop of a module be a call of a function of its own.

    The context of the module, and a location, are to be the current ones.
    """
    loops = [
        operation for operation in nested_operations(module.operation) if operation.name == _LOOP
    ]
    names = {str(function.attributes["sym_name"]) for function in module.body}
    for loop in loops:
        _outline(loop, module.body, names)


def name_arguments(function: Any, number: int) -> None:
    """Give the arguments of a function names, by which the exporter finds the operands of tfl.if.

    Those without a name are the first tensor to it, whatever they are.
    """
    arguments = function.regions[0].blocks[0].arguments
    names = ",".join(f"function_{number}_{n}" for n in range(len(arguments)))
    entry = ir.DictAttr.get({"inputs": ir.StringAttr.get(names)})
    function.attributes["tf.entry_function"] = entry


def nested_operations(operation: Any) -> Iterator[Any]:
    """Return the operations in another one, the innermost first."""
    for region in operation.regions:
        for block in region:
            for inner in block:
                yield from nested_operations(inner.operation)
                yield inner.operation


def _outline(loop: Any, functions: Any, names: set[str]) -> None:
    carried = _carried(loop)
    starts = [*(loop.operands[n] for n in carried.kept), *carried.captured]
    types = [start.type for start in starts]
    with loop.location, ir.InsertionPoint(loop):
        new = ir.Operation.create(
            _LOOP,
            types,
            starts,
            {name: loop.attributes[name] for name in loop.attributes},
            regions=2,
        )
    for region, block, part in zip(new.regions, _blocks(loop), ("cond", "body"), strict=True):
        function = _function(block, part, carried, types)
        functions.append(function)
        name = function.attributes["sym_name"] = _unused(f"while_{part}", names)
        results = [value.type for value in _last(function.regions[0].blocks[0]).operands]
        entry = region.blocks.append(*types)
        with loop.location, ir.InsertionPoint(entry):
            call = ir.Operation.create(
                "func.call",
                results,
                [*entry.arguments],
                {"callee": ir.FlatSymbolRefAttr.get(name.value)},
            )
            ir.Operation.create(_YIELD, [], [*call.results])
    for place, number in enumerate(carried.kept):
        loop.results[number].replace_all_uses_with(new.results[place])
    for number, constant in carried.constants.items():
        loop.results[number].replace_all_uses_with(constant.results[0])
    loop.erase()


def _unused(base: str, names: set[str]) -> Any:
    number = 0
    while str(name := ir.StringAttr.get(f"{base}_{number}")) in names:
        number += 1
    names.add(str(name))
    return name


def _carried(loop: Any) -> _Carried:
    body = _blocks(loop)[1]
    ends = [*_last(body).operands]
    unchanged = [n for n, end in enumerate(ends) if end == body.arguments[n]]
    constants = {
        n: constant for n in unchanged if (constant := _constant(loop.operands[n])) is not None
    }
    return _Carried(
        kept=[n for n in range(len(ends)) if n not in constants],
        captured=[value for value in _captures(_blocks(loop)) if _constant(value) is None],
        constants=constants,
    )


def _function(block: Any, part: str, carried: _Carried, types: Sequence[Any]) -> Any:
    """Return a function of what a loop carries, with the operations of a block moved into it."""
    last = _last(block)
    is_body = part == "body"
    ends = [last.operands[n] for n in carried.kept] if is_body else [*last.operands]
    results = [*types] if is_body else [end.type for end in ends]
    with last.location:
        signature = ir.TypeAttr.get(ir.FunctionType.get(types, results))
        function = ir.Operation.create(
            "func.func",
            attributes={
                "sym_name": ir.StringAttr.get(part),
                "sym_visibility": ir.StringAttr.get("private"),
                "function_type": signature,
            },
            regions=1,
        )
        entry = function.regions[0].blocks.append(*types)
    given = [*(block.arguments[n] for n in carried.kept), *carried.captured]
    values = dict(zip(given, entry.arguments, strict=True))
    constants = {block.arguments[n]: constant for n, constant in carried.constants.items()}
    constants |= {v: fixed for v in _captures([block]) if (fixed := _constant(v)) is not None}
    with ir.InsertionPoint(entry):
        values |= {value: one.clone().results[0] for value, one in constants.items()}
    for operation in [*block]:
        entry.append(operation.operation)
    for operation in nested_operations(function):
        for number, operand in enumerate(operation.operands):
            if operand in values:
                operation.operands[number] = values[operand]
    kept = [values.get(end, end) for end in ends]
    carried_on = [values[value] for value in carried.captured] if is_body else []
    with last.location, ir.InsertionPoint(last):
        # The runtime overwrites what is carried one after another.
        ends = [
            copy_of(end) if end in [*entry.arguments] and end != entry.arguments[place] else end
            for place, end in enumerate([*kept, *carried_on])
        ]
        ir.Operation.create("func.return", [], ends)
    last.erase()
    return function


def _captures(blocks: Sequence[Any]) -> list[Any]:
    """Return the values that blocks use and that come from outside of them."""
    inside: set[Any] = set()
    used: dict[Any, None] = {}
    for block in blocks:
        inside.update(block.arguments)
        for top in block:
            for operation in (*nested_operations(top.operation), top.operation):
                inside.update(operation.results)
                inside.update(v for r in operation.regions for b in r for v in b.arguments)
                used.update(dict.fromkeys(operation.operands))
    return [value for value in used if value not in inside]


def _constant(value: Any) -> Any:
    """Return the operation that makes a constant; None for another value."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return None
    return owner.operation if owner.operation.name in _CONSTANTS else None


def _blocks(loop: Any) -> list[Any]:
    return [region.blocks[0] for region in loop.regions]


def _last(block: Any) -> Any:
    return block.operations[len(block.operations) - 1].operation
