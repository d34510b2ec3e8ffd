"""The dependences of a call's results on its arguments, as far as its operations tell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from xla_call_module.call import CallModule
from xla_call_module.stablehlo.attributes import callee_of
from xla_call_module.stablehlo.call_graph import named_by
from xla_call_module.stablehlo.modules import (
    custom_call_target,
    find_main,
    functions_of,
    open_module,
    read_main,
    tensor_type,
    walk,
)

__all__ = ["dependencies", "operations_behind"]

_Arguments = frozenset[int]


def dependencies(call: CallModule) -> tuple[frozenset[int], ...]:
    """Return, for each result, the indices of the arguments that it may depend on.

    Every result of an operation depends on all that the operation takes, its regions included; what
    a function returns is followed through it, result by result. A size of an argument counts as the
    argument only where it is the first one: the others are no matter of its rows.

    Args:
        call: any call.

    Raises:
        FormatError: its module is damaged.

    Example:
        >>> import jax
        >>> from xla_call_module import from_exported
        >>> exported = jax.export.export(jax.jit(lambda x, y: (x + 1, x * y)))(1.0, 2.0)
        >>> [sorted(indices) for indices in dependencies(from_exported(exported))]
        [[0], [0, 1]]
    """
    with open_module(call.module) as module:
        first = int(read_main(module).has_platform_index)
        results = _Functions(functions_of(module)).of(find_main(module))
    return tuple(frozenset(call.kept[i - first] for i in one if i >= first) for one in results)


def operations_behind(call: CallModule, names: Iterable[str]) -> tuple[frozenset[str], ...]:
    """Return, for each result, those of some operations that it may depend on.

    Args:
        call: any call.
        names: the names of operations, such as `stablehlo.maximum`, or targets of custom calls;
            with an element type behind it, such as `stablehlo.convert i4`, those whose first
            operand has such elements.

    Raises:
        FormatError: its module is damaged.

    Example:
        >>> import jax
        >>> from xla_call_module import from_exported
        >>> exported = jax.export.export(jax.jit(lambda x: (x + 1, jax.numpy.sin(x))))(1.0)
        >>> operations_behind(from_exported(exported), ["stablehlo.sine"])
        (frozenset(), frozenset({'stablehlo.sine'}))
    """
    wanted = sorted(set(names))
    with open_module(call.module) as module:
        results = _Functions(functions_of(module), wanted).of(find_main(module))
    return tuple(frozenset(wanted[-1 - i] for i in one if i < 0) for one in results)


class _Functions:
    """The functions of a module, each of which is gone through once.

    An operation that is looked for counts as an argument of a negative index.
    """

    def __init__(self, functions: dict[str, Any], wanted: Sequence[str] = ()) -> None:
        self._functions = functions
        self._wanted = {name: -1 - index for index, name in enumerate(wanted)}
        self._typed = {name.partition(" ")[0] for name in wanted if " " in name}
        self._results_of: dict[str, tuple[_Arguments, ...]] = {}

    def of(self, function: Any) -> tuple[_Arguments, ...]:
        """Return, for each result of a function, the arguments that it depends on."""
        block = function.regions[0].blocks[0]
        known = {argument: frozenset([i]) for i, argument in enumerate(block.arguments)}
        for operation in block.operations:
            op = operation.operation
            taken = [
                known.get(value, frozenset()) for inner in walk(op) for value in inner.operands
            ]
            if op.name == "func.return":
                return tuple(taken)
            known.update(zip(op.results, self._results(op, taken), strict=True))
        return ()

    def _results(self, op: Any, taken: list[_Arguments]) -> list[_Arguments]:
        if op.name == "func.call":
            return [
                _union([taken[i] if i >= 0 else frozenset([i]) for i in one])
                for one in self._of_name(callee_of(op))
            ]
        if op.name == "stablehlo.get_dimension_size" and int(op.attributes["dimension"]) > 0:
            return [frozenset()]
        return [_union([*taken, self._wanted_in(op)])] * len(op.results)

    def _of_name(self, name: str) -> tuple[_Arguments, ...]:
        if name not in self._results_of:
            self._results_of[name] = self.of(self._functions[name])
        return self._results_of[name]

    def _wanted_in(self, op: Any) -> _Arguments:
        """Return those that are looked for among an operation and the ones in it."""
        if not self._wanted:
            return frozenset()
        indices: set[int] = set()
        for inner in walk(op):
            name = custom_call_target(inner) or inner.name
            indices.add(self._wanted.get(name, 0))
            if name in self._typed:
                element = tensor_type(str(inner.operands[0].type)).element
                indices.add(self._wanted.get(f"{name} {element}", 0))
            for name in named_by(inner):
                indices.update(*self._of_name(name))
        return frozenset(index for index in indices if index < 0)


def _union(sets: list[_Arguments]) -> _Arguments:
    return frozenset[int]().union(*sets)
