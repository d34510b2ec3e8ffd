"""A call and its VJP as a forward pass that returns residuals and a backward pass, and back again.

The program of both takes arguments and cotangents, and returns results and gradients. What of it
needs no cotangent belongs to the forward pass. It is not linearized, since a rule that somebody
wrote (`jax.custom_vjp`) may do more with a cotangent than multiply.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from xla_call_module._jax import func, ir
from xla_call_module.analyses.branches import keep_chosen
from xla_call_module.analyses.tensorflow_functions import take_functions
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.dtypes import DTYPES
from xla_call_module.errors import StructureError
from xla_call_module.passes.exported_form import RETURN_FUNCTIONS
from xla_call_module.passes.module_pass import ModulePass, ParsedCall, run_on_module
from xla_call_module.stablehlo.attributes import dictionary
from xla_call_module.stablehlo.common_subexpressions import merge_equal
from xla_call_module.stablehlo.inlining import call_definitions, inline_calls
from xla_call_module.stablehlo.modules import copy_module, find_main, functions_of, tensor_type
from xla_call_module.stablehlo.rewriting import new_function, run_passes

# What XLA computes inside the operation that uses it, for less than reading it from memory costs.
_CHEAP = frozenset({
    "stablehlo.abs", "stablehlo.add", "stablehlo.and", "stablehlo.broadcast_in_dim",
    "stablehlo.compare", "stablehlo.convert", "stablehlo.divide",
    "stablehlo.dynamic_broadcast_in_dim", "stablehlo.dynamic_reshape", "stablehlo.maximum",
    "stablehlo.minimum", "stablehlo.multiply", "stablehlo.negate", "stablehlo.not", "stablehlo.or",
    "stablehlo.reshape", "stablehlo.select", "stablehlo.sign", "stablehlo.subtract",
})  # fmt: skip
# An unknown size is taken to be this where memory is weighed.
_TYPICAL_SIZE = 64
_DTYPES = {dtype.mlir: dtype for dtype in DTYPES}
_PLATFORM_INDEX = -1
_SPLIT = "a forward and a backward pass"
# A donated argument would be gone where the backward pass takes it, too.
_DONATED = ("tf.aliasing_output", "jax.buffer_donor")


def split_residuals(
    both: ParsedCall, *, arguments: int, results: int, kept: Sequence[int]
) -> tuple[CallModule, CallModule]:
    """Return the forward and the backward pass of the program of both, whose module is used up.

    Its first arguments and results are those of the call, which takes the kept ones in any case.
    """
    both = run_on_module(both, [RETURN_FUNCTIONS])
    module, call = both.module, both.rewritten(_SPLIT).call
    call_definitions(module)  # JAX writes some with regions, which no version of StableHLO has
    inline_calls(module)
    keep_chosen(module)
    merge_equal(module)
    body = _Body.of(module, call, arguments)
    own, gradients = body.returned[:results], body.returned[results:]
    residuals = _choose_residuals(body, gradients)
    specs = tuple(_residual_spec(body.values[n], index) for index, n in enumerate(residuals))
    copied = copy_module(module)
    taken = _Body.of(copied, call, arguments).keep([*own, *residuals], arguments=kept)
    forward = dataclasses.replace(
        call,
        args=call.args[:arguments],
        results=(*call.results[:results], *specs),
        kept=taken,
        residual_results=len(specs),
    )
    taken, count = body.keep(gradients, residuals=residuals), len(call.args)
    backward = dataclasses.replace(
        call,
        args=(*call.args, *specs),
        results=call.results[results:],
        kept=(*taken, *range(count, count + len(specs))),
        residual_args=len(specs),
    )
    return _serialized(forward, copied), _serialized(backward, module)


def _serialized(call: CallModule, module: Any) -> CallModule:
    """Return a call with a module that was rewritten."""
    return take_functions(ParsedCall(call, module, is_rewritten=True).serialized(), module)


def _residual_spec(value: Any, index: int) -> TensorSpec:
    """Return the spec of a residual; its unknown sizes are symbols that nothing else has."""
    type_ = tensor_type(str(value.type))
    shape = tuple(
        f"_r{index}_{axis}" if size is None else size for axis, size in enumerate(type_.shape)
    )
    return TensorSpec(shape, _DTYPES[type_.element], f"residual[{index}]")


class _Level(IntEnum):
    """The kind of values that something depends on."""

    SHAPE = 0  # constants and sizes alone, without a loop: each pass computes them for itself
    KNOWN = 1  # arguments, and no cotangent
    UNKNOWN = 2  # cotangents


@dataclass(frozen=True, slots=True)
class _Body:
    """The body of a module's `main`, with numbers for its values.

    Attributes:
        main: the function.
        operations: its operations but for the return.
        values: the arguments and then the results of all operations.
        inputs: for each operation the numbers of the values it takes, in nested regions, too.
        outputs: for each operation the numbers of its results.
        levels: for each operation its level.
        arguments: for each argument its index among the call's arguments.
        returned: the numbers of the values that it returns.
    """

    main: Any
    operations: list[Any]
    values: list[Any]
    inputs: list[set[int]]
    outputs: list[range]
    levels: list[_Level]
    arguments: tuple[int, ...]
    returned: list[int]

    @classmethod
    def of(cls, module: Any, call: CallModule, known: int) -> _Body:
        """Return the body for a call whose first arguments are known."""
        main = find_main(module)
        *operations, last = [op.operation for op in main.regions[0].blocks[0].operations]
        values = list(main.regions[0].blocks[0].arguments)
        indices = ((_PLATFORM_INDEX,) if call.has_platform_index else ()) + call.kept
        depths = [_Level((i >= 0) + (i >= known)) for i in indices]
        numbers = {value: number for number, value in enumerate(values)}
        inputs, outputs, levels = [], [], []
        for operation in operations:
            taken = {numbers[v] for v in _operands(operation) if v in numbers}
            least = _Level.KNOWN if operation.name == "stablehlo.while" else _Level.SHAPE
            level = max([least, *(depths[n] for n in taken)])
            if level is _Level.KNOWN and operation.name == "stablehlo.get_dimension_size":
                level = _Level.SHAPE
            results = list(operation.results)
            numbers |= {value: len(values) + i for i, value in enumerate(results)}
            inputs.append(taken)
            outputs.append(range(len(values), len(values) + len(results)))
            levels.append(level)
            values += results
            depths += [level] * len(results)
        returned = [numbers[value] for value in last.operands]
        return cls(main, operations, values, inputs, outputs, levels, indices, returned)

    def makers(self) -> dict[int, int]:
        """Return by its number each value that may be handed on, with the operation's position."""
        return {
            number: position
            for position, level in enumerate(self.levels)
            for number in self.outputs[position]
            if level is _Level.KNOWN and _crosses(self.values[number])
        }

    def needed(
        self, outputs: Iterable[int], *, but: Container[int] = (), also: Container[int] = ()
    ) -> tuple[list[int], set[int]]:
        """Return the operations that lead to outputs, and all that is read.

        Some values are there without their operations, and some operations are needed anyway.
        """
        found, read = list[int](), set(outputs)
        for position in reversed(range(len(self.operations))):
            if position in also or any(n in read and n not in but for n in self.outputs[position]):
                found.append(position)
                read |= self.inputs[position]
        return found[::-1], read

    def keep(
        self,
        outputs: Sequence[int],
        *,
        arguments: Iterable[int] = (),
        residuals: Sequence[int] | None = None,
    ) -> tuple[int, ...]:
        """Leave of the function, in place, what computes outputs; return the arguments it takes.

        Some it takes though nothing reads them. Residuals are further arguments of a backward pass,
        and None of a forward pass. An assertion stays where it can be made.
        """
        handed, absent = residuals or (), _Level.UNKNOWN if residuals is None else _Level.KNOWN
        asserts = {n for n, made in enumerate(self.outputs) if not made}
        also = {n for n in asserts if self.levels[n] is not absent}
        positions, read = self.needed(outputs, but=handed, also=also)
        always = {_PLATFORM_INDEX, *arguments}
        taken = [n for n, index in enumerate(self.arguments) if n in read or index in always]
        self._rewrite(positions, [*taken, *handed], outputs)
        return tuple(self.arguments[n] for n in taken if self.arguments[n] != _PLATFORM_INDEX)

    def _rewrite(
        self, positions: Iterable[int], inputs: Sequence[int], outputs: Sequence[int]
    ) -> None:
        """Put a function of some of its operations in the place of the main function."""
        main, values = self.main, [self.values[n] for n in inputs]
        attributes = [_attributes_of(value) for value in values]
        module = main.operation.parent.opview
        with main.context, main.location:
            returned = [self.values[n] for n in outputs]
            types = [v.type for v in values], [v.type for v in returned]
            new = new_function(module, "main", *types, visibility="public")
            new.attributes["arg_attrs"] = ir.ArrayAttr.get(attributes)
            block = new.add_entry_block([value.location for value in values])
            stand_ins = dict(zip(inputs, block.arguments, strict=True))
            for value, argument in zip(values, block.arguments, strict=True):
                value.replace_all_uses_with(argument)
            for position in positions:
                block.append(self.operations[position])
            returned = [stand_ins.get(n, self.values[n]) for n in outputs]
            func.ReturnOp(returned, ip=ir.InsertionPoint(block))
            if "res_attrs" in main.attributes:
                known = dict(zip(self.returned, main.attributes["res_attrs"], strict=True))
                none = ir.DictAttr.get({})
                found = ir.ArrayAttr.get([known.get(n, none) for n in outputs])
                new.attributes["res_attrs"] = found
        main.operation.erase()
        run_passes(module, "symbol-dce")


def _operands(operation: Any) -> Iterator[Any]:
    """Yield the operands of an operation and of those inside its regions."""
    yield from operation.operands
    for region in operation.regions:
        for block in region:
            for inner in block:
                yield from _operands(inner.operation)


def _crosses(value: Any) -> bool:
    """Return whether TensorFlow has the dtype of a value."""
    element = str(value.type).rpartition("x")[2].removeprefix("tensor<").removesuffix(">")
    return element in _DTYPES


def _choose_residuals(body: _Body, gradients: Iterable[int]) -> list[int]:
    """Return what the forward pass hands on.

    It is what the gradients need, but for what depends on sizes alone, what is of a dtype that
    TensorFlow does not have, and what saves memory cheaply: these are computed again.
    """
    makers = body.makers()
    _, read = body.needed(gradients, but=makers)
    again = _computed_again(body, read & makers.keys(), makers)
    handed = {n for n in makers if n not in again}
    _, read = body.needed(gradients, but=handed)
    return sorted(handed & read)


def _computed_again(body: _Body, residuals: Iterable[int], makers: Mapping[int, int]) -> set[int]:
    """Return what is better computed again in the backward pass than handed on.

    It is what cheap operations alone make of other residuals, of arguments, or of what takes no
    more memory. XLA would not write it to memory either, were both passes one program.
    """
    sizes = functools.cache(lambda number: _bytes_of(body.values[number]))
    handed, again = set(residuals), set[int]()
    for residual in sorted(handed, key=sizes, reverse=True):
        chain, sources = _cheap_chain(body, residual, makers, handed - {residual})
        if sum(map(sizes, sources)) <= sizes(residual):
            again |= chain
            handed = (handed - {residual}) | sources
    return again - handed


def _cheap_chain(
    body: _Body, number: int, makers: Mapping[int, int], handed: Collection[int]
) -> tuple[set[int], set[int]]:
    """Return the values between some and a new one, and what else that is computed of."""
    chain, sources, pending = set[int](), set[int](), [number]
    while pending:
        current = pending.pop()
        if body.operations[makers[current]].name in _CHEAP:
            chain.add(current)
            inputs = body.inputs[makers[current]] & makers.keys()
            pending.extend(n for n in inputs if n not in handed and n not in chain)
        else:
            sources.add(current)
    return chain, sources


def _bytes_of(value: Any) -> int:
    type_ = tensor_type(str(value.type))
    sizes = (_TYPICAL_SIZE if size is None else size for size in type_.shape)
    return math.prod(sizes) * _DTYPES[type_.element].itemsize


def _drop(parsed: ParsedCall) -> ParsedCall:
    call = parsed.call
    inline_calls(parsed.module)
    body = _Body.of(parsed.module, call, len(call.args))
    kept = body.keep(body.returned[: len(call.own_results)], arguments=call.kept)
    return parsed.rewritten(results=call.own_results, kept=kept, residual_results=0)


# For a forward pass whose residuals nothing takes, or are computed again where they are taken.
DROP_RESIDUALS = ModulePass(
    name="dropped_residuals",
    ensures="no result is a residual",
    violation=lambda parsed: "it returns residuals" if parsed.call.residual_results else "",
    rewrite=_drop,
    requires=("restored_constants",),
    may_apply=lambda call: call.residual_results > 0,
)


def join_residuals(forward: ParsedCall, backward: ParsedCall) -> ParsedCall:
    """Return the VJP that a backward pass is once it computes its residuals."""
    primal, vjp = forward.call, backward.call
    count = primal.residual_results
    own = len(primal.args) + len(primal.own_results)
    if count != vjp.residual_args or len(vjp.own_args) != own:
        raise StructureError(
            f"{primal.name} takes {len(primal.args)} arguments and hands {count} residuals on; "
            f"{vjp.name} takes {len(vjp.own_args)} and {vjp.residual_args}. "
            "Expected a forward pass and its backward pass."
        )
    kept = _call_both(forward, backward, residuals=count)
    return backward.rewritten(args=vjp.own_args, kept=kept, residual_args=0)


def join_results(primal: ParsedCall, vjp: ParsedCall) -> ParsedCall:
    """Return the program of both that a call and its VJP are."""
    primal, vjp = (run_on_module(parsed, [RETURN_FUNCTIONS]) for parsed in (primal, vjp))
    for parsed in (primal, vjp):
        call_definitions(parsed.module)  # two equal composites would stay two
    kept = _call_both(primal, vjp, results=len(primal.call.results))
    return vjp.rewritten(
        results=(*primal.call.results, *vjp.call.results),
        kept=kept,
    )


def _call_both(
    forward: ParsedCall, backward: ParsedCall, *, results: int = 0, residuals: int = 0
) -> tuple[int, ...]:
    """Let a parsed VJP call a function, too, and return the arguments that it takes then.

    The first results of the function become its first; the last ones it takes after its arguments.
    """
    first = _named_apart(forward.module, "forward")
    second = _named_apart(backward.module, "backward")
    for function in functions_of(forward.module).values():
        function.operation.detach_from_parent()
        backward.module.body.append(function)
    indices = [
        [*([_PLATFORM_INDEX] if call.has_platform_index else ()), *call.kept]
        for call in (forward.call, backward.call)
    ]
    count = len(backward.call.args) - residuals
    return _write_main(backward.module, (first, second), indices, count, results, residuals)


def _named_apart(module: Any, prefix: str) -> Any:
    """Make the functions of a module private, under names with a prefix, and return the main."""
    main, functions = find_main(module), functions_of(module)
    for name, function in functions.items():
        new = f"{prefix}_{name}"
        while new in functions:
            new += "_"
        ir.SymbolTable.replace_all_symbol_uses(name, new, module.operation)
        ir.SymbolTable.set_symbol_name(function, new)
        ir.SymbolTable.set_visibility(function, "private")
    return main


def _write_main(
    module: Any,
    mains: tuple[Any, Any],
    indices: Sequence[Sequence[int]],
    count: int,
    results: int,
    residuals: int,
) -> tuple[int, ...]:
    """Write a function that calls a forward and then a backward pass."""
    sources = dict[int, Any]()
    for main, numbers in zip(reversed(mains), reversed(indices), strict=True):
        for number, argument in zip(numbers, main.regions[0].blocks[0].arguments, strict=True):
            sources.setdefault(number, argument)
    taken = sorted(number for number in sources if number < count)
    forward, backward = mains
    call: Any = func.CallOp  # its stub lacks the form that takes a function
    types = [sources[number].type for number in taken]
    returned = [*list(forward.type.results)[:results], *backward.type.results]
    of_results = [*_result_attributes(forward)[:results], *_result_attributes(backward)]
    with module.context, backward.location:
        main = new_function(module, "main", types, returned, visibility="public")
        main.attributes["arg_attrs"] = ir.ArrayAttr.get([_attributes_of(sources[n]) for n in taken])
        main.attributes["res_attrs"] = ir.ArrayAttr.get(of_results)
        with ir.InsertionPoint(main.add_entry_block([sources[n].location for n in taken])):
            values = dict(zip(taken, main.arguments, strict=True))

            def run(function: Any, numbers: Sequence[int]) -> list[Any]:
                given = zip(numbers, function.type.inputs, strict=True)
                return list(
                    call(function, [_converted(values[n], kind) for n, kind in given]).results
                )

            found = run(forward, indices[0])
            values.update(enumerate(found[len(found) - residuals :], count))
            func.ReturnOp([*found[:results], *run(backward, indices[1])])
    return tuple(number for number in taken if number != _PLATFORM_INDEX)


def _result_attributes(function: Any) -> list[Any]:
    if "res_attrs" in function.attributes:
        return list(function.attributes["res_attrs"])
    with function.context:
        return [ir.DictAttr.get({}) for _ in function.type.results]


def _attributes_of(value: Any) -> Any:
    """Return the attributes of a function's argument, such as its sharding; of others none."""
    attributes: Any = value.owner.owner.attributes if isinstance(value.owner, ir.Block) else {}
    if "arg_attrs" not in attributes:
        return ir.DictAttr.get({})
    found = dictionary(ir.ArrayAttr(attributes["arg_attrs"])[ir.BlockArgument(value).arg_number])
    return ir.DictAttr.get({name: each for name, each in found.items() if name not in _DONATED})


def _converted(value: Any, kind: Any) -> Any:
    """Return a value in the element type that is taken, at the current insertion point.

    It is another one for the platform index alone, which has 64 bits in what was exported while
    x64 was on.
    """
    if value.type == kind:
        return value
    made = ir.Operation.create("stablehlo.convert", results=[kind], operands=[value])
    return made.results[0]
