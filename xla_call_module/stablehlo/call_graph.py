"""The call graph of a module's functions, and their size once their calls are written out.

XLA writes out every call, and so does whoever walks a module as one function. Functions that call
themselves, which StableHLO has none of, would take for ever, and a few that each call the one
before twice nearly so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from xla_call_module._jax import ir
from xla_call_module.errors import StructureError

COMPOSITE = "stablehlo.composite"
# The attribute by which an operation names functions of the module; of a custom call it is a list.
REFERENCES: Mapping[str, str] = {
    "func.call": "callee",
    COMPOSITE: "decomposition",
    "stablehlo.custom_call": "called_computations",
}
# How deep calls are in calls, since each takes some frames of Python's stack: JAX has tens of them.
MAX_DEPTH = 100
# How many operations a module may have when its calls are written out: so many times as many as it
# has itself, and so many more. A function that is called in a thousand places is well below.
MAX_GROWTH = 100
MAX_WRITTEN_OUT = 100_000

_Graph = Mapping[str, Counter[str]]


def check_calls(functions: Mapping[str, Any]) -> None:
    """Refuse functions that cannot be written out where they are called."""
    sizes: dict[str, int] = {}
    graph: dict[str, Counter[str]] = {}
    for name, function in functions.items():
        sizes[name], graph[name] = _measure(function, functions)
    if not any(graph.values()):
        return
    own = sum(sizes.values())
    written, depths = dict[str, int](), dict[str, int]()
    for name in _callees_first(graph):
        calls = graph[name]
        written[name] = sizes[name] + sum(n * written[other] for other, n in calls.items())
        depths[name] = 1 + max((depths[other] for other in calls), default=0)
        if depths[name] > MAX_DEPTH:
            raise StructureError(
                f"The function {name} of the module calls functions that call others, more than "
                f"{MAX_DEPTH} deep. To do: write some of them out where they are called."
            )
        if written[name] > MAX_GROWTH * own + MAX_WRITTEN_OUT:
            raise StructureError(
                f"The function {name} of the module has {written[name]:,} operations once what it "
                f"calls is written out; expected at most {MAX_GROWTH * own + MAX_WRITTEN_OUT:,} of "
                f"a module that has {own:,}. To do: repeat what it calls in a loop."
            )


def _measure(function: Any, known: Mapping[str, Any]) -> tuple[int, Counter[str]]:
    """Return the number of operations of a function, and how often it names each other one."""
    count = 0
    calls: Counter[str] = Counter()

    def visit(operation: Any) -> Any:
        nonlocal count
        count += 1
        calls.update(name for name in named_by(operation) if name in known)
        return ir.WalkResult.ADVANCE

    function.operation.walk(visit)
    return count, calls


def named_by(operation: Any) -> Iterator[str]:
    """Return the functions that an operation calls, or says that it is made of."""
    key = REFERENCES.get(operation.name)
    if key is not None and key in operation.attributes:
        named = operation.attributes[key]
        for symbol in ir.ArrayAttr(named) if key == "called_computations" else (named,):
            yield ir.FlatSymbolRefAttr(symbol).value


def _callees_first(graph: _Graph) -> Iterator[str]:
    """Return the functions, each behind those that it calls."""
    done: set[str] = set()
    for start in graph:
        path: dict[str, Iterator[str]] = {} if start in done else {start: iter(graph[start])}
        while path:
            name = next(reversed(path))
            callee = next((other for other in path[name] if other not in done), None)
            if callee is None:
                done.add(name)
                del path[name]
                yield name
            elif callee in path:
                names = list(path)
                circle = " calls ".join([*names[names.index(callee) :], callee])
                raise StructureError(
                    f"A function of the module calls itself: {circle}. Such a module never ends, "
                    "and XLA does not take it. To do: write a loop, a stablehlo.while."
                )
            else:
                path[callee] = iter(graph[callee])
