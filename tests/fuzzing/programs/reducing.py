"""From a program that fails to the few lines of it that fail."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.fuzzing.programs.program import (
    Argument,
    Container,
    Parameter,
    Program,
    Statement,
    leaf_names,
    without_leaf,
)

_SMALL_SIZES = (1, 2, 3)


def reduce(
    program: Program,
    fails: Callable[[Program], bool],
    *,
    seconds: float = 60,
    more: Callable[[Program], Iterator[Program]] = lambda _: iter(()),
) -> Program:
    """The smallest program found that still fails.

    Args:
        program: one that fails.
        fails: whether a simpler one does in the same way; of what is no program at all, False.
        seconds: after this the smallest one so far is returned.
        more: further simplifications of a program.
    """
    end = time.monotonic() + seconds
    found = True
    while found:
        found = False
        for candidate in _candidates(program, more):
            if time.monotonic() > end:
                return program
            if candidate != program and fails(candidate):
                program, found = candidate, True
                break
    return program


def _candidates(
    program: Program, more: Callable[[Program], Iterator[Program]]
) -> Iterator[Program]:
    """Simpler programs, the boldest first."""
    for step in (
        _single_results, _fewer_results, _earlier_results, _fewer_options, _fewer_statements,
        _arguments_for_statements, _fewer_arguments, _plain_structure, more, _plain_arguments,
        _smaller_shapes,
    ):  # fmt: skip
        for candidate in step(program):
            yield _pruned(candidate)


def _single_results(program: Program) -> Iterator[Program]:
    names = list(leaf_names(program.returns))
    if len(names) > 1:
        yield from (dataclasses.replace(program, returns=name) for name in names)


def _fewer_results(program: Program) -> Iterator[Program]:
    names = list(leaf_names(program.returns))
    if len(names) > 1:
        for name in names:
            yield dataclasses.replace(program, returns=without_leaf(program.returns, name))


def _earlier_results(program: Program) -> Iterator[Program]:
    """Return the operand of the last statement instead."""
    if isinstance(program.returns, str):
        for statement in program.statements:
            if statement.target != program.returns:
                yield dataclasses.replace(program, returns=statement.target)


def _fewer_options(program: Program) -> Iterator[Program]:
    for index, (name, value) in enumerate(program.options):
        rest = (*program.options[:index], *program.options[index + 1 :])
        yield dataclasses.replace(program, options=rest)
        simpler: tuple[Any, ...] = ()
        if isinstance(value, tuple) and len(value) > 1:
            simpler = tuple((part,) for part in value)
        elif name == "order" and value == 2:
            simpler = (1,)
        for other in simpler:
            changed = (*program.options[:index], (name, other), *program.options[index + 1 :])
            yield dataclasses.replace(program, options=changed)


def _fewer_statements(program: Program) -> Iterator[Program]:
    """Take an earlier value in the place of a statement's."""
    avals = {a.name: _aval(a) for a in program.arguments}
    for index, statement in enumerate(program.statements):
        fit = [name for name, aval in avals.items() if aval == statement.aval]
        for name in [*[o for o in statement.operands if o in fit], *fit][:3]:
            rest = (*program.statements[:index], *program.statements[index + 1 :])
            yield _renamed(dataclasses.replace(program, statements=rest), statement.target, name)
        avals[statement.target] = statement.aval


def _arguments_for_statements(program: Program) -> Iterator[Program]:
    """Take a new argument in the place of a statement's result."""
    for index, statement in reversed(list(enumerate(program.statements))):
        if statement.target == program.returns:
            continue
        argument = _argument_like(statement)
        if argument is None:
            continue
        rest = (*program.statements[:index], *program.statements[index + 1 :])
        # Before the keyword-only ones.
        first = [p for p in program.parameters if not p.keyword]
        last = [p for p in program.parameters if p.keyword]
        yield dataclasses.replace(
            program,
            statements=rest,
            arguments=(*program.arguments, argument),
            parameters=(*first, Parameter(argument.name, argument.name), *last),
        )


def _argument_like(statement: Statement) -> Argument | None:
    dtype, _, dims = statement.aval.lstrip("~").rstrip("]").partition("[")
    shape = [int(dim) if dim.isdigit() else dim for dim in dims.split(",") if dim]
    if any(isinstance(dim, str) and not dim.isidentifier() for dim in shape):
        return None
    return Argument(f"a{statement.target}", tuple(shape), dtype)


def _fewer_arguments(program: Program) -> Iterator[Program]:
    used = {name for s in program.statements for name in s.operands}
    used |= set(leaf_names(program.returns))
    for argument in program.arguments:
        if argument.name not in used and len(program.arguments) > 1:
            yield _without_argument(program, argument.name)
    same: dict[str, str] = {}
    for argument in program.arguments:
        other = same.setdefault(_aval(argument), argument.name)
        if other != argument.name:
            yield _without_argument(_renamed(program, argument.name, other), argument.name)


def _without_argument(program: Program, name: str) -> Program:
    parameters = []
    for parameter in program.parameters:
        node = without_leaf(parameter.node, name)
        if any(True for _ in leaf_names(node)) or parameter.node is None:
            parameters.append(dataclasses.replace(parameter, node=node))
    return dataclasses.replace(
        program,
        arguments=tuple(a for a in program.arguments if a.name != name),
        parameters=tuple(parameters),
    )


def _plain_structure(program: Program) -> Iterator[Program]:
    names = [a.name for a in program.arguments]
    plain = tuple(Parameter(name, name) for name in names)
    yield dataclasses.replace(program, parameters=plain)
    results = list(leaf_names(program.returns))
    if len(results) == 1:
        yield dataclasses.replace(program, returns=results[0])
    else:
        children = tuple((str(i), name) for i, name in enumerate(results))
        yield dataclasses.replace(program, returns=Container("tuple", children))
    for index, parameter in enumerate(program.parameters):
        if parameter.node is None:
            rest = (*program.parameters[:index], *program.parameters[index + 1 :])
            yield dataclasses.replace(program, parameters=rest)


def _plain_arguments(program: Program) -> Iterator[Program]:
    for index, argument in enumerate(program.arguments):
        for changed in (
            dataclasses.replace(argument, weak=False),
            dataclasses.replace(argument, domain="normal"),
        ):
            if changed != argument:
                yield _with_argument(program, index, changed)


def _smaller_shapes(program: Program) -> Iterator[Program]:
    """Sizes for dimension variables, and smaller sizes, everywhere at once."""
    dims = list(dict.fromkeys(dim for a in program.arguments for dim in a.shape))
    for dim in dims:
        smaller = (3,) if isinstance(dim, str) else [n for n in _SMALL_SIZES if n < dim]
        for other in smaller:
            arguments = tuple(
                dataclasses.replace(a, shape=tuple(other if d == dim else d for d in a.shape))
                for a in program.arguments
            )
            yield dataclasses.replace(program, arguments=arguments)
    for index, argument in enumerate(program.arguments):
        if argument.shape:
            yield _with_argument(
                program, index, dataclasses.replace(argument, shape=argument.shape[1:])
            )


def _with_argument(program: Program, index: int, argument: Argument) -> Program:
    arguments = (*program.arguments[:index], argument, *program.arguments[index + 1 :])
    return dataclasses.replace(program, arguments=arguments)


def _renamed(program: Program, old: str, new: str) -> Program:
    """With another value in the place of one."""
    statements = tuple(
        dataclasses.replace(s, operands=tuple(new if o == old else o for o in s.operands))
        for s in program.statements
    )
    return dataclasses.replace(
        program, statements=statements, returns=_renamed_node(program.returns, old, new)
    )


def _renamed_node(node: Any, old: str, new: str) -> Any:
    if isinstance(node, Container):
        children = tuple((key, _renamed_node(child, old, new)) for key, child in node.children)
        return dataclasses.replace(node, children=children)
    return new if node == old else node


def _pruned(program: Program) -> Program:
    """Without statements that no result depends on."""
    kept = needed(program.statements, list(leaf_names(program.returns)))
    return dataclasses.replace(program, statements=kept)


def needed(statements: Sequence[Statement], results: Sequence[str]) -> tuple[Statement, ...]:
    """Those statements that the results depend on."""
    wanted, kept = set(results), []
    for statement in reversed(statements):
        if statement.target in wanted:
            wanted.update(statement.operands)
            kept.append(statement)
    return tuple(reversed(kept))


def _aval(argument: Argument) -> str:
    weak = "~" if argument.weak else ""
    return f"{weak}{argument.dtype}[{','.join(map(str, argument.shape))}]"
