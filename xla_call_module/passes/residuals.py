"""The passes that split a call and its VJP into a forward and a backward pass, and join them again.

The VJP that JAX exports computes the forward pass again. What of it does not depend on cotangents
can be computed together with the results, and handed on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from xla_call_module._jax import func, ir
from xla_call_module.analyses.branches import keep_chosen
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.dtypes import DTYPES
from xla_call_module.errors import StructureError
from xla_call_module.passes.module_pass import ModulePass, ParsedCall
from xla_call_module.stablehlo.common_subexpressions import CONTROL_FLOW, merge_equal
from xla_call_module.stablehlo.inlining import call_definitions, inline_calls
from xla_call_module.stablehlo.modules import find_main, functions_of, tensor_type
from xla_call_module.stablehlo.rewriting import rewire

__all__ = ["drop_residuals", "join_residuals", "split_residuals"]

# What XLA computes inside the operation that uses it, for less than reading it from memory costs.
_CHEAP = frozenset({
    "stablehlo.add", "stablehlo.and", "stablehlo.broadcast_in_dim", "stablehlo.compare",
    "stablehlo.convert", "stablehlo.divide", "stablehlo.dynamic_broadcast_in_dim",
    "stablehlo.dynamic_reshape", "stablehlo.maximum", "stablehlo.minimum", "stablehlo.multiply",
    "stablehlo.negate", "stablehlo.not", "stablehlo.or", "stablehlo.reshape", "stablehlo.select",
    "stablehlo.subtract",
})  # fmt: skip
# An unknown size is taken to be this where memory is weighed.
_TYPICAL_SIZE = 64
_DTYPES = {dtype.mlir: dtype for dtype in DTYPES}
_PLATFORM_INDEX = -1
_SPLIT = "a forward and a backward pass"


def split_residuals(primal: ParsedCall, vjp: ParsedCall) -> tuple[ParsedCall, ParsedCall] | None:
    """Return a forward pass that also returns residuals, and a backward pass that takes them.

    Args:
        primal: a call.
        vjp: its VJP in the same context, which takes the arguments of `primal` and then the
            cotangents.

    Returns:
        `primal` with the residuals as its last results, and `vjp` with the same as its last
        arguments; what each of them computes is the same. None where one of the modules is not
        one function once its calls are inlined; the modules are other ones then nevertheless.

    Raises:
        StructureError: `vjp` is not the VJP of `primal`.
    """
    if len(vjp.call.args) != len(primal.call.args) + len(primal.call.results):
        raise StructureError(
            f"{vjp.call.name} takes {len(vjp.call.args)} arguments; the VJP of {primal.call.name} "
            f"takes its {len(primal.call.args)} arguments and {len(primal.call.results)} "
            "cotangents. To do: pass the VJP of that function."
        )
    if not (_inline(primal.module) and _inline(vjp.module)):
        return None
    body = _Body.of(vjp.module, vjp.call)
    division = _divide(body, count=len(primal.call.args))
    residuals = [body.values[number] for number in division.residuals]
    specs = tuple(_residual_spec(value, index) for index, value in enumerate(residuals))
    kept = _write_forward(primal.module, _Body.of(primal.module, primal.call), body, division)
    forward = primal.rewritten(
        _SPLIT,
        results=(*primal.call.results, *specs),
        kept=kept,
        residual_results=len(specs),
    )
    kept = _write_backward(vjp.module, body, division)
    count = len(vjp.call.args)
    backward = vjp.rewritten(
        _SPLIT,
        args=(*vjp.call.args, *specs),
        kept=(*kept, *range(count, count + len(specs))),
        residual_args=len(specs),
    )
    return forward, backward


def join_residuals(
    forward: ParsedCall, backward: ParsedCall, kept: Sequence[int]
) -> tuple[ParsedCall, ParsedCall]:
    """Return a call and its VJP that hand nothing on: the inverse of `split_residuals`.

    Args:
        forward: a forward pass, without hoisted constants.
        backward: the backward pass that takes its residuals, without hoisted constants, in the
            same context.
        kept: the arguments that the call's module takes; at least those that it needs.

    Raises:
        StructureError: the two do not belong together, or the call needs more arguments.
    """
    primal, vjp = forward.call, backward.call
    count = primal.residual_results
    if count != vjp.residual_args or len(vjp.own_args) != len(primal.args) + len(
        primal.own_results
    ):
        raise StructureError(
            f"{primal.name} takes {len(primal.args)} arguments and hands {count} residuals on; "
            f"{vjp.name} takes {len(vjp.own_args)} and {vjp.residual_args}. "
            "Expected a forward pass and its backward pass."
        )
    first, second = _Body.of(forward.module, primal), _Body.of(backward.module, vjp)
    taken = _write_joined(backward.module, first, second, count)
    without = _without_residuals(forward, first, kept)
    return without, backward.rewritten(args=vjp.own_args, kept=taken, residual_args=0)


def drop_residuals(kept: Sequence[int]) -> ModulePass:
    """Return the pass for a forward pass whose residuals nothing takes: it returns none then.

    Running it raises a `StructureError` where the call needs more arguments.
    """
    return ModulePass(
        name="dropped_residuals",
        ensures="no result is a residual",
        violation=lambda parsed: "it returns residuals" if parsed.call.residual_results else "",
        rewrite=lambda parsed: _without_residuals(
            parsed, _Body.of(parsed.module, parsed.call), kept
        ),
        requires=("restored_constants",),
        may_apply=lambda call: call.residual_results > 0,
    )


def _without_residuals(forward: ParsedCall, body: _Body, kept: Sequence[int]) -> ParsedCall:
    call = forward.call
    index = [_PLATFORM_INDEX] if call.has_platform_index else []
    _write_without(forward.module, body, call.residual_results, [*index, *kept])
    return forward.rewritten(results=call.own_results, kept=tuple(kept), residual_results=0)


def _write_joined(module: Any, first: _Body, second: _Body, count: int) -> tuple[int, ...]:
    """Let a backward pass compute its residuals, and return the indices of its arguments."""
    residuals = first.returned[len(first.returned) - count :]
    needed, taken = _ancestors(first, residuals)
    own = range(len(second.arguments) - count)
    sources = {second.arguments[number]: second.values[number] for number in own}
    for number in taken:
        sources.setdefault(first.arguments[number], first.values[number])
    indices = sorted(sources)
    places = {index: position for position, index in enumerate(indices)}
    parts = [
        _Part(first, needed, {n: places[first.arguments[n]] for n in taken}, residuals),
        _Part(
            second,
            range(len(second.operations)),
            {n: places[second.arguments[n]] for n in own},
            second.returned,
            residuals=range(len(own), len(second.arguments)),
        ),
    ]
    _write_main(module, second.main, [sources[index] for index in indices], parts)
    merge_equal(module)
    return tuple(index for index in indices if index != _PLATFORM_INDEX)


def _write_without(module: Any, body: _Body, count: int, kept: Sequence[int]) -> None:
    """Let a forward pass return its own results only, and take the kept arguments."""
    own = body.returned[: len(body.returned) - count]
    needed, taken = _ancestors(body, own)
    asserts = [position for position, results in enumerate(body.outputs) if not results]
    more, also = _ancestors(body, [n for position in asserts for n in body.inputs[position]])
    sources = {index: body.values[n] for n, index in enumerate(body.arguments)}
    missing = {body.arguments[n] for n in taken | also} - set(kept)
    if missing or not set(kept) <= set(sources):
        raise StructureError(
            f"The forward pass takes the arguments {sorted(sources)}; they cannot become "
            f"{sorted(kept)}, and {sorted(missing)} are needed. To do: keep these."
        )
    places = {index: position for position, index in enumerate(kept)}
    inputs = {n: places[body.arguments[n]] for n in taken | also}
    positions = sorted({*needed, *more, *asserts})
    part = _Part(body, positions, inputs, own)
    _write_main(module, body.main, [sources[index] for index in kept], [part])


def _inline(module: Any) -> bool:
    """Make a parsed module one function, in place, and return whether it could be."""
    call_definitions(module)
    inline_calls(module)
    keep_chosen(module)
    for function in functions_of(module).values():
        _lift_constants(function)
    merge_equal(module)
    return len(functions_of(module)) == 1


def _lift_constants(operation: Any) -> None:
    """Move the constants of loops and branches out of them, in place, so that equal ones merge.

    A loop of the primal and the same loop of the VJP are two otherwise, where the VJP has one of
    its constants outside as well. XLA puts them back.
    """
    for region in operation.regions:
        for block in region:
            for inner in [op.operation for op in block if op.operation.name in CONTROL_FLOW]:
                _lift_constants(inner)
                bodies = [op.operation for part in inner.regions for body in part for op in body]
                for constant in bodies:
                    if constant.name == "stablehlo.constant":
                        constant.move_before(inner)


def _residual_spec(value: Any, index: int) -> TensorSpec:
    """Return the spec of a residual; its unknown sizes are symbols that nothing else has."""
    type_ = tensor_type(str(value.type))
    shape = tuple(
        f"_r{index}_{axis}" if size is None else size for axis, size in enumerate(type_.shape)
    )
    return TensorSpec(shape, _DTYPES[type_.element], f"residual[{index}]")


class _Level(IntEnum):
    """The kind of values that a value depends on."""

    SHAPE = 0  # constants and sizes alone, which each pass computes for itself
    KNOWN = 1  # arguments, and no cotangent
    UNKNOWN = 2  # cotangents


@dataclass(frozen=True, slots=True)
class _Body:
    """The one function of a module, with numbers for its values.

    Attributes:
        main: the function.
        operations: its operations but for the return.
        values: the arguments and then the results of all operations.
        inputs: for each operation the numbers of the values it takes, in nested regions, too.
        outputs: for each operation the numbers of its results.
        arguments: for each argument its index among the call's arguments.
        returned: the numbers of the values that it returns.
    """

    main: Any
    operations: tuple[Any, ...]
    values: tuple[Any, ...]
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[range, ...]
    arguments: tuple[int, ...]
    returned: tuple[int, ...]

    @classmethod
    def of(cls, module: Any, call: CallModule) -> _Body:
        main = find_main(module)
        *operations, last = [op.operation for op in main.regions[0].blocks[0].operations]
        values = list(main.regions[0].blocks[0].arguments)
        outputs = []
        for operation in operations:
            outputs.append(range(len(values), len(values) + len(operation.results)))
            values.extend(operation.results)
        numbers = {value: number for number, value in enumerate(values)}
        return cls(
            main=main,
            operations=tuple(operations),
            values=tuple(values),
            inputs=tuple(
                tuple(numbers[value] for value in _operands(op) if value in numbers)
                for op in operations
            ),
            outputs=tuple(outputs),
            arguments=((_PLATFORM_INDEX,) if call.has_platform_index else ()) + call.kept,
            returned=tuple(numbers[value] for value in last.operands),
        )

    @property
    def producers(self) -> dict[int, int]:
        """For the number of each operation's result the position of the operation."""
        return {
            number: position for position, results in enumerate(self.outputs) for number in results
        }


def _operands(operation: Any) -> Iterator[Any]:
    """Return the operands of an operation and of those inside its regions."""
    yield from operation.operands
    for region in operation.regions:
        for block in region:
            for inner in block:
                yield from _operands(inner.operation)


@dataclass(frozen=True, slots=True)
class _Division:
    """The part of a VJP that belongs to the backward pass.

    Attributes:
        operations: the positions of its operations.
        arguments: the numbers of the arguments that it takes.
        residuals: the numbers of the values that the forward pass computes for it.
    """

    operations: frozenset[int]
    arguments: tuple[int, ...]
    residuals: tuple[int, ...]


def _divide(body: _Body, *, count: int) -> _Division:
    """Divide the body of a VJP; arguments from index `count` on are cotangents."""
    levels, producers = _levels(body, count), body.producers
    asserts = [
        position
        for position, results in enumerate(body.outputs)
        if not results and all(levels[n] is _Level.SHAPE for n in body.inputs[position])
    ]
    roots = [*body.returned, *(n for position in asserts for n in body.inputs[position])]
    again: set[int] = set()
    operations, leaves = _reach(body, roots, levels, again)
    for number in sorted(leaves, key=lambda n: _bytes_of(body, n), reverse=True):
        again |= _chain_to(body, [number], levels, leaves)
        operations, leaves = _reach(body, roots, levels, again)
    for numbers in _with_same_sources(body, levels, leaves):
        again |= _chain_to(body, numbers, levels, leaves)
    operations, leaves = _reach(body, roots, levels, again)
    taken = {n for n in roots if n not in producers}
    taken |= {n for position in operations for n in body.inputs[position] if n not in producers}
    # The caller fills the platform index in, whether anything takes it or not.
    taken |= {n for n, index in enumerate(body.arguments) if index == _PLATFORM_INDEX}
    return _Division(
        frozenset([*operations, *asserts]), tuple(sorted(taken)), tuple(sorted(leaves))
    )


def _levels(body: _Body, count: int) -> list[_Level]:
    levels = [
        _Level.SHAPE
        if index == _PLATFORM_INDEX
        else _Level.KNOWN
        if index < count
        else _Level.UNKNOWN
        for index in body.arguments
    ]
    for operation, inputs, outputs in zip(body.operations, body.inputs, body.outputs, strict=True):
        is_size = operation.name == "stablehlo.get_dimension_size"
        level = _Level.SHAPE if is_size else max((levels[n] for n in inputs), default=_Level.SHAPE)
        levels.extend([level] * len(outputs))
    return levels


def _reach(
    body: _Body, roots: Iterable[int], levels: Sequence[_Level], again: set[int]
) -> tuple[set[int], set[int]]:
    """Return the operations that a backward pass needs, and the known values that it takes."""
    producers = body.producers
    operations: set[int] = set()
    leaves: set[int] = set()
    pending = [number for number in roots if number in producers]
    while pending:
        number = pending.pop()
        position = producers[number]
        if levels[number] is _Level.KNOWN and number not in again:
            leaves.add(number)
        elif position not in operations:
            operations.add(position)
            pending.extend(n for n in body.inputs[position] if n in producers)
    return operations, leaves


def _with_same_sources(body: _Body, levels: Sequence[_Level], leaves: set[int]) -> list[list[int]]:
    """Return the leaves that cheap operations make of the same other values, in groups.

    For `(1 + y) * (1 - y)` and `3 * y * y` nothing is saved by handing on `y` for one of them.
    """
    groups: dict[frozenset[int], list[int]] = {}
    for number in sorted(leaves):
        _, sources = _cheap_chain(body, [number], levels, frozenset())
        groups.setdefault(frozenset(sources), []).append(number)
    return [numbers for numbers in groups.values() if len(numbers) > 1]


def _chain_to(
    body: _Body, numbers: Sequence[int], levels: Sequence[_Level], leaves: set[int]
) -> set[int]:
    """Return the operations that are better computed again in the backward pass; empty for none.

    It is where only cheap operations lie between the values and others that take less memory, or
    are handed on anyway.
    """
    chain, new = _cheap_chain(body, numbers, levels, leaves.difference(numbers))
    if not all(_can_cross(body, n) for n in numbers):  # TensorFlow has no such dtype
        return chain or set(numbers)
    fits = all(_can_cross(body, n) for n in new)
    saves = sum(_bytes_of(body, n) for n in new) < sum(_bytes_of(body, n) for n in numbers)
    return chain if fits and saves else set()


def _cheap_chain(
    body: _Body, numbers: Sequence[int], levels: Sequence[_Level], residuals: Set[int]
) -> tuple[set[int], set[int]]:
    """Return the values between some and the residuals, and what else they are computed of."""
    producers = body.producers
    chain: set[int] = set()
    new: set[int] = set()
    pending = list(numbers)
    while pending:
        current = pending.pop()
        operation = body.operations[producers[current]]
        if operation.name in _CHEAP:
            chain.add(current)
            inputs = {n for n in body.inputs[producers[current]] if levels[n] is _Level.KNOWN}
            pending.extend(n for n in inputs - chain - residuals if n in producers)
        else:
            new.add(current)
    return chain, new


def _can_cross(body: _Body, number: int) -> bool:
    return tensor_type(str(body.values[number].type)).element in _DTYPES


def _bytes_of(body: _Body, number: int) -> int:
    type_ = tensor_type(str(body.values[number].type))
    sizes = (_TYPICAL_SIZE if size is None else size for size in type_.shape)
    itemsize = _DTYPES[type_.element].itemsize if type_.element in _DTYPES else 1
    return math.prod(sizes) * itemsize


@dataclass(frozen=True, slots=True)
class _Part:
    """Operations of a body that become operations of a new function.

    Attributes:
        body: the body that has them.
        positions: their positions in the body, ascending.
        inputs: the position among the new arguments of each value from outside, by its number.
        outputs: the numbers of the values that the new function returns, or the next part takes.
        residuals: the numbers of the values that the part before computes for this one, which the
            function then does not return.
    """

    body: _Body
    positions: Sequence[int]
    inputs: Mapping[int, int]
    outputs: Sequence[int]
    residuals: Sequence[int] = ()


def _write_forward(module: Any, primal: _Body, vjp: _Body, division: _Division) -> tuple[int, ...]:
    """Replace the main function by the forward pass, and return the indices of its arguments."""
    needed, taken = _ancestors(vjp, division.residuals)
    sources = {index: primal.values[n] for n, index in enumerate(primal.arguments)}
    for number in taken:
        sources.setdefault(vjp.arguments[number], vjp.values[number])
    indices = sorted(sources)
    positions = {index: position for position, index in enumerate(indices)}
    parts = [
        _Part(
            primal,
            range(len(primal.operations)),
            {n: positions[index] for n, index in enumerate(primal.arguments)},
            primal.returned,
        ),
        _Part(vjp, needed, {n: positions[vjp.arguments[n]] for n in taken}, division.residuals),
    ]
    _write_main(module, primal.main, [sources[index] for index in indices], parts)
    # Most of the forward pass of the VJP is the primal over again.
    merge_equal(module)
    return tuple(index for index in indices if index != _PLATFORM_INDEX)


def _ancestors(body: _Body, numbers: Iterable[int]) -> tuple[list[int], set[int]]:
    """Return the operations, ascending, and the arguments from which values are computed."""
    producers = body.producers
    positions: set[int] = set()
    taken: set[int] = set()
    pending = list(numbers)
    while pending:
        number = pending.pop()
        position = producers.get(number)
        if position is None:
            taken.add(number)
        elif position not in positions:
            positions.add(position)
            pending.extend(body.inputs[position])
    return sorted(positions), taken


def _write_backward(module: Any, vjp: _Body, division: _Division) -> tuple[int, ...]:
    """Replace the main function by the backward pass, and return the indices of its arguments."""
    numbers = [*division.arguments, *division.residuals]
    inputs = {number: position for position, number in enumerate(numbers)}
    part = _Part(vjp, sorted(division.operations), inputs, vjp.returned)
    _write_main(module, vjp.main, [vjp.values[number] for number in numbers], [part])
    indices = (vjp.arguments[number] for number in division.arguments)
    return tuple(index for index in indices if index != _PLATFORM_INDEX)


def _write_main(module: Any, old: Any, arguments: Sequence[Any], parts: Sequence[_Part]) -> None:
    """Replace a module's function by one of other arguments, operations and results.

    Args:
        module: the parsed module.
        old: its function.
        arguments: values of the types, and with the attributes, of the new arguments.
        parts: what it computes; the first that returns anything returns what the old function did.
    """
    following = [*parts[1:], None]
    pairs = zip(parts, following, strict=True)
    returning = [part for part, after in pairs if after is None or not after.residuals]
    returned = [part.body.values[number] for part in returning for number in part.outputs]
    attributes = [_attributes_of(value) for value in arguments]
    results = list(old.attributes["res_attrs"]) if "res_attrs" in old.attributes else []
    with module.context, old.location:
        results += [ir.DictAttr.get({})] * (len(returned) - len(results))
        del results[len(returned) :]
        kind = ir.FunctionType.get([v.type for v in arguments], [v.type for v in returned])
        start = ir.InsertionPoint.at_block_begin(module.body)
        new: Any = func.FuncOp  # its stub is that of the class that it extends
        main = new("main", kind, visibility="public", ip=start)
        main.attributes["arg_attrs"] = ir.ArrayAttr.get(attributes)
        main.attributes["res_attrs"] = ir.ArrayAttr.get(results)
        block = main.add_entry_block([value.location for value in arguments])
        with ir.InsertionPoint(block):
            values: list[Any] = []
            for part in parts:
                residuals = [values.pop() for _ in part.residuals][::-1]
                values += _copy(part, block, residuals)
            func.ReturnOp(values)
    old.operation.erase()


def _attributes_of(value: Any) -> Any:
    """Return the attributes of a function's argument; none for any other value."""
    block = value.owner
    if isinstance(block, ir.Block) and "arg_attrs" in block.owner.attributes:
        attributes: Any = block.owner.attributes["arg_attrs"]
        return attributes[ir.BlockArgument(value).arg_number]
    return ir.DictAttr.get({})


def _copy(part: _Part, block: Any, residuals: Sequence[Any]) -> list[Any]:
    """Copy the operations of a part to the end of a block, and return its new outputs."""
    old = part.body.values
    values = {
        old[number]: _converted(block.arguments[position], old[number].type)
        for number, position in part.inputs.items()
    }
    values.update(zip((old[number] for number in part.residuals), residuals, strict=True))
    for position in part.positions:
        operation = part.body.operations[position]
        copied = operation.clone().operation
        rewire(copied, values)
        values.update(zip(operation.results, copied.results, strict=True))
    return [values[old[number]] for number in part.outputs]


def _converted(value: Any, wanted: Any) -> Any:
    """Return the value in the element type that is taken, at the current insertion point.

    It is another one for the platform index alone, which has 64 bits in what was exported while
    x64 was on.
    """
    if value.type == wanted:
        return value
    made = ir.Operation.create("stablehlo.convert", results=[wanted], operands=[value])
    return made.results[0]
