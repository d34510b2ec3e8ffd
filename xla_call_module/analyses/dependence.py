"""Which results of a call depend on which of its arguments, as far as its operations tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from xla_call_module.call import CallModule
from xla_call_module.stablehlo.modules import find_main, functions_of, open_module, read_main

__all__ = ["dependencies", "operations_behind"]

_Arguments = frozenset[int]
_CALL = "custom_call"


def dependencies(call: CallModule) -> tuple[frozenset[int], ...]:
    """For each result the indices of the arguments that it may depend on.

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
        >>> [sorted(found) for found in dependencies(from_exported(exported))]
        [[0], [0, 1]]
    """
    with open_module(call.module) as module:
        first = int(read_main(module).has_platform_index)
        found = _Functions(functions_of(module)).of(find_main(module))
    return tuple(frozenset(call.kept[i - first] for i in one if i >= first) for one in found)


def operations_behind(call: CallModule, names: Iterable[str]) -> tuple[frozenset[str], ...]:
    """For each result those of some operations that it may depend on.

    Args:
        call: any call.
        names: of operations, such as `stablehlo.maximum`, or targets of custom calls.

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
        found = _Functions(functions_of(module), wanted).of(find_main(module))
    return tuple(frozenset(wanted[-1 - i] for i in one if i < 0) for one in found)


class _Functions:
    """The functions of a module, each of which is gone through once.

    An operation that is looked for counts as an argument of a negative index.
    """

    def __init__(self, functions: dict[str, Any], wanted: Sequence[str] = ()) -> None:
        self._functions = functions
        self._wanted = {name: -1 - index for index, name in enumerate(wanted)}
        self._found: dict[str, tuple[_Arguments, ...]] = {}

    def of(self, function: Any) -> tuple[_Arguments, ...]:
        """For each result of a function the arguments that it depends on."""
        block = function.regions[0].blocks[0]
        known = {argument: frozenset([i]) for i, argument in enumerate(block.arguments)}
        for operation in block.operations:
            op = operation.operation
            taken = [known.get(value, frozenset()) for value in _taken(op)]
            if op.name == "func.return":
                return tuple(taken)
            known.update(zip(op.results, self._results(op, taken), strict=True))
        return ()

    def _results(self, op: Any, taken: list[_Arguments]) -> list[_Arguments]:
        if op.name == "func.call":
            name = str(op.attributes["callee"]).strip('@"')
            return [
                _union([taken[i] if i >= 0 else frozenset([i]) for i in one])
                for one in self._of_name(name)
            ]
        if op.name == "stablehlo.get_dimension_size" and int(op.attributes["dimension"]) > 0:
            return [frozenset()]
        return [_union([*taken, self._wanted_in(op)])] * len(op.results)

    def _of_name(self, name: str) -> tuple[_Arguments, ...]:
        if name not in self._found:
            self._found[name] = self.of(self._functions[name])
        return self._found[name]

    def _wanted_in(self, op: Any) -> _Arguments:
        """The operations that are looked for, of which this is one or has some in it."""
        if not self._wanted:
            return frozenset()
        found: set[int] = set()
        for inner in _with_inner(op):
            target = inner.attributes["call_target_name"] if _CALL in inner.name else inner.name
            found.add(self._wanted.get(str(target).strip('"'), 0))
            for key in ("callee", "decomposition"):
                if key in inner.attributes:
                    called = self._of_name(str(inner.attributes[key]).strip('@"'))
                    found.update(*called)
        return frozenset(index for index in found if index < 0)


def _taken(op: Any) -> Iterator[Any]:
    """Return the operands of an operation and of those in its regions."""
    for inner in _with_inner(op):
        yield from inner.operands


def _with_inner(op: Any) -> Iterator[Any]:
    """An operation and those in its regions."""
    pending = [op]
    while pending:
        found = pending.pop()
        yield found
        pending += [o.operation for region in found.regions for block in region for o in block]


def _union(sets: list[_Arguments]) -> _Arguments:
    return frozenset[int]().union(*sets)
