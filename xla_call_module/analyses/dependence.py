"""The dependences of a call's results on its arguments, as far as its operations tell."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import ml_dtypes

from xla_call_module.call import CallModule
from xla_call_module.dtypes import DTYPES, NARROW_DTYPES
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

_Arguments = frozenset[int | str]


def dependencies(call: CallModule) -> tuple[frozenset[int], ...]:
    """Return, for each result, the indices of the arguments that it may depend on.

    Every result of an operation depends on all that the operation takes, its regions included; what
    a function returns is followed through it, result by result. A size of an argument counts as the
    argument only where it is the first one: the others are no matter of its rows.

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
    places = [[i - first for i in one if isinstance(i, int) and i >= first] for one in results]
    return tuple(frozenset(call.kept[place] for place in one) for one in places)


def operations_behind(call: CallModule, names: Iterable[str]) -> tuple[frozenset[str], ...]:
    """Return, for each result, those of some operations that it may depend on.

    Example:
        >>> import jax
        >>> from xla_call_module import from_exported
        >>> exported = jax.export.export(jax.jit(lambda x: (x + 1, jax.numpy.sin(x))))(1.0)
        >>> operations_behind(from_exported(exported), ["stablehlo.sine"])
        (frozenset(), frozenset({'stablehlo.sine'}))
    """
    wanted = frozenset(names)
    typed = {name.partition(" ")[0] for name in wanted if " " in name}

    def marks(op: Any) -> frozenset[str]:
        found = {custom_call_target(op) or op.name}
        if typed.intersection(found):
            element = tensor_type(str(op.operands[0].type)).element
            found |= {f"{name} {element}" for name in found}
        return wanted & found

    return _marks_behind(call, marks)


def narrowest_floats(call: CallModule) -> tuple[str, ...]:
    """Return, for each result, the least precise dtype of floats that it was computed with.

    That is one that an operation rounds to; arguments and constants of a dtype round nothing, nor
    does what moves them. It is the name of a real dtype; empty where no floats are computed.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from xla_call_module import from_exported
        >>> halves = lambda x: (x.astype(jnp.float16).astype(jnp.float32), x * 2)
        >>> narrowest_floats(from_exported(jax.export.export(jax.jit(halves))(1.0)))
        ('float16', 'float32')
    """
    return tuple(max(one, key=epsilon_of, default="") for one in _marks_behind(call, _rounds_to))


# They return elements that they take, or exact ones. What is computed in a region of one counts.
_EXACT = frozenset(
    f"stablehlo.{name}"
    for name in (
        "abs", "broadcast", "broadcast_in_dim", "case", "clamp", "concatenate", "constant",
        "dynamic_broadcast_in_dim", "dynamic_gather", "dynamic_pad", "dynamic_reshape",
        "dynamic_slice", "dynamic_update_slice", "gather", "get_tuple_element", "if", "iota",
        "maximum", "minimum", "negate", "optimization_barrier", "pad", "real_dynamic_slice",
        "reduce", "reduce_window", "reshape", "reverse", "scatter", "select", "select_and_scatter",
        "sign", "slice", "sort", "transpose", "tuple", "while",
    )
)  # fmt: skip
_FLOATS = {
    dtype.mlir: dtype.name for dtype in (*DTYPES, *NARROW_DTYPES) if "float" in dtype.name
} | {"complex<f32>": "float32", "complex<f64>": "float64"}
_PRECISIONS = re.compile(r"[lr]hs_precision_type = (\w+)")


def epsilon_of(name: str) -> float:
    """Return the difference between 1 and the next greater number of a dtype of floats."""
    limits: Any = ml_dtypes.finfo(name)  # type: ignore[no-untyped-call]
    return float(limits.eps)


def _rounds_to(op: Any) -> frozenset[str]:
    """Return the dtypes of floats that an operation rounds to."""
    if op.name in _EXACT or not op.name.startswith(("stablehlo.", "chlo.")):
        return frozenset()
    elements = {tensor_type(str(result.type)).element for result in op.results}
    if "algorithm" in op.attributes:
        elements.update(_PRECISIONS.findall(str(op.attributes["algorithm"])))
    if op.name == "stablehlo.reduce_precision":
        least = 2.0 ** -int(op.attributes["mantissa_bits"])
        kept = [name for name in _FLOATS.values() if epsilon_of(name) >= least]
        return frozenset([min(kept, key=epsilon_of)])
    return frozenset(_FLOATS[element] for element in elements if element in _FLOATS)


def _marks_behind(
    call: CallModule, marks: Callable[[Any], frozenset[str]]
) -> tuple[frozenset[str], ...]:
    with open_module(call.module) as module:
        results = _Functions(functions_of(module), marks).of(find_main(module))
    return tuple(frozenset(i for i in one if isinstance(i, str)) for one in results)


def _no_marks(op: Any) -> frozenset[str]:
    del op
    return frozenset()


class _Functions:
    """The functions of a module, each of which is gone through once.

    What is looked for in operations, their marks, counts as if it were an argument.
    """

    def __init__(
        self, functions: dict[str, Any], marks: Callable[[Any], frozenset[str]] = _no_marks
    ) -> None:
        self._functions = functions
        self._marks = marks
        self._results_of: dict[str, tuple[_Arguments, ...]] = {}

    def of(self, function: Any) -> tuple[_Arguments, ...]:
        """Return, for each result of a function, the arguments that it depends on."""
        block = function.regions[0].blocks[0]
        known: dict[Any, _Arguments] = {
            argument: frozenset([i]) for i, argument in enumerate(block.arguments)
        }
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
                _union([taken[i] if isinstance(i, int) else frozenset([i]) for i in one])
                for one in self._of_name(callee_of(op))
            ]
        if op.name == "stablehlo.get_dimension_size" and int(op.attributes["dimension"]) > 0:
            return [frozenset()]
        return [_union([*taken, self._marks_in(op)])] * len(op.results)

    def _of_name(self, name: str) -> tuple[_Arguments, ...]:
        if name not in self._results_of:
            self._results_of[name] = self.of(self._functions[name])
        return self._results_of[name]

    def _marks_in(self, op: Any) -> _Arguments:
        """Return the marks of an operation and of the ones in it."""
        if self._marks is _no_marks:
            return frozenset()
        found: set[int | str] = set()
        for inner in walk(op):
            found |= self._marks(inner)
            for name in named_by(inner):
                found.update(mark for one in self._of_name(name) for mark in one)
        return frozenset(mark for mark in found if isinstance(mark, str))


def _union(sets: list[_Arguments]) -> _Arguments:
    return frozenset[int | str]().union(*sets)
