"""The pass that leaves of a call nothing but its shape assertions, and what they say of sizes.

A module asserts of its own what its dimension variables may be. Where sizes make an operation
impossible, TensorFlow ends with MLIR's message about that operation before it comes to them
(tensorflow/compiler/tf2xla/kernels/xla_call_module_loader.cc, `RefineDynamicShapes`). So a file has
them once more, in a module of their own, which runs first where a size is wrong.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from xla_call_module._jax import func, ir
from xla_call_module.call import CallModule
from xla_call_module.checks import SHAPE_ASSERTIONS
from xla_call_module.dimensions import evaluate_shape
from xla_call_module.dtypes import DTYPES, DType
from xla_call_module.errors import InteropError
from xla_call_module.passes.module_pass import ModulePass, ParsedCall, open_call
from xla_call_module.shape_checks import (
    OperandSize,
    ScalarConstant,
    ScalarOperation,
    ShapeCheck,
    Step,
)
from xla_call_module.stablehlo.attributes import comparison_direction
from xla_call_module.stablehlo.inlining import inline_calls
from xla_call_module.stablehlo.modules import (
    copy_module,
    find_main,
    has_platform_index,
    is_shape_assertion,
    splat,
    walk,
)
from xla_call_module.stablehlo.refining import refine_results
from xla_call_module.stablehlo.rewriting import new_function, rewire, run_passes
from xla_call_module.versions import LAST_WITHOUT_SHARDY

_NO_NAMES: Mapping[int, str] = MappingProxyType({})
_MAX_SYMBOLS = 3
_MAX_BYTES = 1 << 22
_TYPICAL = 8
_FRONTEND = "mhlo.frontend_attributes"
# TensorFlow's operation on the same scalars; those of comparisons are below.
_OPERATIONS = {
    "stablehlo.add": "AddV2", "stablehlo.and": "LogicalAnd", "stablehlo.convert": "Cast",
    "stablehlo.divide": "TruncateDiv", "stablehlo.maximum": "Maximum",
    "stablehlo.minimum": "Minimum", "stablehlo.multiply": "Mul", "stablehlo.negate": "Neg",
    "stablehlo.not": "LogicalNot", "stablehlo.or": "LogicalOr",
    "stablehlo.remainder": "TruncateMod", "stablehlo.select": "SelectV2",
    "stablehlo.sign": "Sign", "stablehlo.subtract": "Sub",
}  # fmt: skip
_COMPARISONS = {
    "EQ": "Equal", "NE": "NotEqual", "GE": "GreaterEqual", "GT": "Greater", "LE": "LessEqual",
    "LT": "Less",
}  # fmt: skip
_DIVISIONS = ("stablehlo.divide", "stablehlo.remainder")
_REPEATING = (
    "stablehlo.broadcast_in_dim", "stablehlo.convert", "stablehlo.dynamic_broadcast_in_dim",
    "stablehlo.reshape",
)  # fmt: skip
_DTYPES: Mapping[str, DType] = {
    f"tensor<{dtype.mlir}>": dtype for dtype in DTYPES if dtype.name in ("bool", "int32", "int64")
}


def to_shape_check(call: CallModule, names: Mapping[int, str] = _NO_NAMES) -> ShapeCheck | None:
    """Return the assertions of a call; None where its own module says as much.

    So it is where it asserts nothing, something else than sizes, or only that no variable is zero,
    and can be computed where one is.

    Example:
        >>> import jax
        >>> from xla_call_module import from_exported
        >>> from xla_call_module.passes.asserting import to_shape_check
        >>> spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, b"), "float32")
        >>> check = to_shape_check(from_exported(jax.export.export(jax.jit(jax.numpy.sin))(spec)))
        >>> [step.op for step in check.steps[2:]], check.call.results
        (['Equal'], ())
    """
    if not _may_assert(call):
        return None
    with open_call(call) as parsed:
        return read_shape_check(parsed, names)


def to_assertions(call: CallModule) -> tuple[CallModule, tuple[int, ...]] | None:
    """Return a call that asserts what another one does, and which arguments of that it takes.

    None where it asserts nothing, or something else than sizes.
    """
    if not _may_assert(call):
        return None
    with open_call(call) as parsed:
        if (used := _arguments_of(_asserting(parsed.module))) is None:
            return None
        offset = int(call.has_platform_index)
        alone = dataclasses.replace(KEEP_ASSERTIONS.rewrite(parsed).serialized(), changes=())
        return alone, tuple(call.kept[number - offset] for number in used)


def read_shape_check(parsed: ParsedCall, names: Mapping[int, str] = _NO_NAMES) -> ShapeCheck | None:
    """Return what `to_shape_check` does, of a parsed call, whose module is of no use afterwards."""
    call = parsed.call
    if not _may_assert(call) or (used := _arguments_of(_asserting(parsed.module))) is None:
        return None
    offset = int(call.has_platform_index)
    takes_zeros = _takes_zeros(parsed)
    alone = KEEP_ASSERTIONS.rewrite(parsed)
    needed = copy_module(alone.module)
    if takes_zeros:
        _drop_positivity(needed)
    if not (steps := _read_steps(find_main(needed), offset)):
        return None
    if names:
        _add_to_messages(alone.module, _by_name(call, names))
    asserting = dataclasses.replace(alone.serialized(), changes=())
    return ShapeCheck(asserting, tuple(call.kept[number - offset] for number in used), steps)


def with_note(check: ShapeCheck, note: str) -> ShapeCheck:
    """Return the assertions with something more at the end of their messages."""
    with open_call(check.call) as parsed:
        _add_to_messages(parsed.module, note)
        return dataclasses.replace(check, call=parsed.rewritten().serialized())


def with_names(check: ShapeCheck, call: CallModule, names: Mapping[int, str]) -> ShapeCheck:
    """Return the assertions of a call with names of its arguments, by index, in their messages."""
    return with_note(check, _by_name(call, names)) if names else check


def _by_name(call: CallModule, names: Mapping[int, str]) -> str:
    pairs = [f"{call.args[index].path} is {name}" for index, name in names.items()]
    return f"By name: {', '.join(pairs)}."


def _may_assert(call: CallModule) -> bool:
    return bool(call.symbols) and SHAPE_ASSERTIONS not in call.disabled_checks


def _violation(parsed: ParsedCall) -> str:
    results = parsed.call.results
    return f"it returns {results[0].path}" if results else ""


def _keep_assertions(parsed: ParsedCall) -> ParsedCall:
    call, module = parsed.call, parsed.module
    operations = _asserting(module)
    used = _arguments_of(operations) or ()
    offset = int(call.has_platform_index)
    _leave_only(module, operations, [*range(offset), *used])
    args = [call.args[call.kept[number - offset]] for number in used]
    return parsed.rewritten(
        version=min(call.version, LAST_WITHOUT_SHARDY),
        args=tuple(dataclasses.replace(spec, sharding=None) for spec in args),
        results=(),
        kept=tuple(range(len(args))),
        uses_shardy=False,
        nr_devices=1,
        function_list=(),
        functions=(),
        exported=b"",
        residual_results=0,
        residual_args=0,
        hoisted=(),
    )


# For a call whose assertions are about sizes alone.
KEEP_ASSERTIONS = ModulePass(
    name="assertions",
    ensures="the module asserts sizes of its arguments, and computes nothing",
    violation=_violation,
    rewrite=_keep_assertions,
    may_apply=_may_assert,
)


def _divides_by_sizes(module: Any) -> bool:
    """Return whether the module divides integers by what a size of zero may make zero.

    StableHLO's folding of constants divides without looking, and the process ends with it
    (stablehlo/transforms/optimization/StablehloAggressiveFolder.cpp).
    """
    return any(
        operation.name in _DIVISIONS
        and isinstance(ir.ShapedType(operation.results[0].type).element_type, ir.IntegerType)
        and not _is_constant(operation.operands[1])
        for operation in walk(module)
    )


def _is_constant(value: Any) -> bool:
    if _is_argument(value):
        return False
    made = value.owner
    if made.name == "stablehlo.select":
        return all(map(_is_constant, made.operands[1:]))
    if made.name in _REPEATING:
        return _is_constant(made.operands[0])
    return bool(made.name == "stablehlo.constant")


def _takes_zeros(parsed: ParsedCall) -> bool:
    """Return whether what the module computes allows zero for each of its variables.

    Then TensorFlow comes to the assertions of the module itself.
    """
    call, module = parsed.call, parsed.module
    if len(call.symbols) > _MAX_SYMBOLS or len(call.module) > _MAX_BYTES:
        return False  # it takes longer to find out than it is worth
    if _divides_by_sizes(module):
        inlined = copy_module(module)
        inline_calls(inlined)  # jnp.floor_divide is a function, and takes the divisor
        if _divides_by_sizes(inlined):
            return False
    for zero in call.symbols:
        values = {name: int(name != zero) * _TYPICAL for name in call.symbols}
        shapes = [evaluate_shape(spec.shape or (), values) for spec in call.operands]
        try:
            sizes = [tuple(size or 0 for size in shape) for shape in shapes]
            refine_results(call, sizes, copy_module(module))
        except InteropError:
            return False
    return True


def _add_to_messages(module: Any, text: str) -> None:
    """Say something more in each message of an assertion."""
    for operation in filter(is_shape_assertion, walk(module)):
        message = ir.StringAttr(operation.attributes["error_message"]).value
        with operation.context:
            longer = ir.StringAttr.get(f"{message.rstrip()} {text}")
            operation.attributes["error_message"] = longer


def _drop_positivity(module: Any) -> None:
    """Drop, in place, the assertions that variables are 1 or more."""
    for operation in [op.operation for op in find_main(module).regions[0].blocks[0].operations]:
        if is_shape_assertion(operation) and _compares_with_one(operation.operands[0].owner):
            operation.erase()
    run_passes(module, "canonicalize")


def _compares_with_one(operation: Any) -> bool:
    if operation.name != "stablehlo.compare" or comparison_direction(operation) != "GE":
        return False
    size, least = (operand.owner for operand in operation.operands)
    return (
        size.name == "stablehlo.get_dimension_size"
        and least.name == "stablehlo.constant"
        and splat(least) == "1"
    )


def _asserting(module: Any) -> list[Any]:
    """Return the assertions in `main` with all that they depend on, in order."""
    operations = [op.operation for op in find_main(module).regions[0].blocks[0].operations]
    needed: list[Any] = []
    wanted: set[Any] = set()
    for operation in reversed(operations):
        is_wanted = any(result in wanted for result in operation.results)
        if is_wanted or is_shape_assertion(operation):
            needed.append(operation)
            wanted.update(operation.operands)
    return needed[::-1]


def _arguments_of(operations: Sequence[Any]) -> list[int] | None:
    """Return the numbers of the arguments of `main` whose sizes are taken.

    None where their values are taken, too, or where there is no operation.
    """
    numbers = set()
    for operation in operations:
        for operand in operation.operands:
            if not _is_argument(operand):
                continue
            if operation.name != "stablehlo.get_dimension_size":
                return None
            numbers.add(_number_of(operand))
    return sorted(numbers) if operations else None


def _is_argument(value: Any) -> bool:
    return isinstance(value.owner, ir.Block)


def _number_of(argument: Any) -> int:
    # With JAX 0.9.0 an operand says less of itself than what it is.
    number: int = ir.BlockArgument(argument).arg_number
    return number


def _leave_only(module: Any, operations: Sequence[Any], numbers: Sequence[int]) -> None:
    """Make, in place, of some operations and arguments of `main` all that there is."""
    main = find_main(module)
    arguments = [main.regions[0].blocks[0].arguments[number] for number in numbers]
    with module.context, main.location:
        main.attributes["sym_name"] = ir.StringAttr.get("_whole")
        main.attributes["sym_visibility"] = ir.StringAttr.get("private")
        types = [argument.type for argument in arguments]
        front = new_function(module, "main", types, [], visibility="public")
        if has_platform_index(main):
            # Shardings of the others mean nothing where nothing is computed.
            index, empty = ir.ArrayAttr(main.attributes["arg_attrs"])[0], ir.DictAttr.get({})
            given = [index, *[empty] * (len(numbers) - 1)]
            front.attributes["arg_attrs"] = ir.ArrayAttr.get(given)
        with ir.InsertionPoint(front.add_entry_block()):
            values = dict(zip(arguments, front.arguments, strict=True))
            for operation in operations:
                copy = operation.clone().operation
                rewire(copy, values)
                values.update(zip(operation.results, copy.results, strict=True))
            func.ReturnOp([])
        main.operation.erase()
        for operation in list(module.body.operations):
            if operation.operation.name != "func.func":  # a mesh
                operation.operation.erase()
        one = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 1)
        module.operation.attributes["mhlo.num_partitions"] = one
        if _FRONTEND in module.operation.attributes:
            del module.operation.attributes[_FRONTEND]
    run_passes(module, "symbol-dce")
    inline_calls(module)
    run_passes(module, "canonicalize,cse")


def _read_steps(main: Any, offset: int) -> tuple[Step, ...] | None:
    """Return the assertions of `main` about sizes; empty or None where TensorFlow has no form."""
    steps: list[Step] = []
    numbers: dict[Any, int] = {}
    holds: list[int] = []
    for operation in (op.operation for op in main.regions[0].blocks[0].operations):
        if operation.name == "func.return":
            continue
        if is_shape_assertion(operation):
            holds.append(numbers[operation.operands[0]])
            continue
        step = _to_step(operation, numbers, offset)
        if step is None:
            return None
        if isinstance(step, ScalarOperation) and step.op == "Cast" and step.taken == step.dtype:
            numbers[operation.results[0]] = step.inputs[0]
            continue
        numbers[operation.results[0]] = len(steps)
        steps.append(step)
    return (*steps, *_all_of(dict.fromkeys(holds), len(steps))) if holds else ()


def _to_step(operation: Any, numbers: Mapping[Any, int], offset: int) -> Step | None:
    results = list(operation.results)
    dtype = _DTYPES.get(str(results[0].type)) if len(results) == 1 else None
    if dtype is None:
        return None
    if operation.name == "stablehlo.get_dimension_size":
        axis = ir.IntegerAttr(operation.attributes["dimension"]).value
        return OperandSize(_number_of(operation.operands[0]) - offset, axis)
    if operation.name == "stablehlo.constant":
        text = str(splat(operation))
        return ScalarConstant(int(text == "true") if dtype.name == "bool" else int(text), dtype)
    op = _OPERATIONS.get(operation.name)
    if operation.name == "stablehlo.compare":
        op = _COMPARISONS.get(comparison_direction(operation))
    taken = _DTYPES.get(str(operation.operands[-1].type)) if len(operation.operands) else None
    if op is None or taken is None:
        return None
    return ScalarOperation(op, tuple(numbers[value] for value in operation.operands), taken, dtype)


def _all_of(holds: Mapping[int, None], first: int) -> Iterator[ScalarOperation]:
    """The steps that say whether several hold."""
    boolean = _DTYPES["tensor<i1>"]
    every, *others = holds
    if not others and every != first - 1:  # it is to be the last
        others = [every]
    for position, other in enumerate(others):
        yield ScalarOperation("LogicalAnd", (every, other), boolean, boolean)
        every = first + position
