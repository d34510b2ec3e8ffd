"""The operations of a module, counted for each platform that it was lowered for.

A module for several platforms has a branch for each where JAX lowers something differently, so that
a count of the whole module is of no program that runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from xla_call_module._jax import PassManager
from xla_call_module.analyses.branches import CASE, keep_platform
from xla_call_module.call import CallModule
from xla_call_module.stablehlo.modules import open_module, walk

# Operations that hold other ones and compute nothing.
_STRUCTURE = frozenset({"builtin.module", "func.func", "func.return", "stablehlo.return"})
_MAX_SHOWN = 12


@dataclass(frozen=True, slots=True)
class OperationCount:
    """The operations that run on some platforms.

    Attributes:
        platforms: the platforms; empty where the module does not say.
        operations: the number of each operation, the most frequent first.
    """

    platforms: tuple[str, ...]
    operations: Mapping[str, int]

    @property
    def where(self) -> str:
        """The words for the platforms, such as `on cpu, tpu`."""
        return f"on {', '.join(self.platforms)}" if self.platforms else "on any platform"


def most_frequent(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the counts of operations that compute something, the most frequent first."""
    items = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return {name: count for name, count in items if name not in _STRUCTURE}


def count_by_platform(call: CallModule, module: Any) -> tuple[OperationCount, ...]:
    """Return the operations of each platform; those with equal ones are counted together."""
    whole = Counter(operation.name for operation in walk(module))
    if not call.has_platform_index or CASE not in whole:
        return (OperationCount(call.platforms, most_frequent(whole)),)
    counts: dict[tuple[tuple[str, int], ...], list[str]] = {}
    for index, platform in enumerate(call.platforms):
        counted = most_frequent(_on_platform(call.module, index))
        counts.setdefault(tuple(counted.items()), []).append(platform)
    return tuple(OperationCount(tuple(names), dict(items)) for items, names in counts.items())


def _on_platform(artifact: bytes, index: int) -> Counter[str]:
    """Return the operations that are left of a module for one of its platforms."""
    with open_module(artifact) as module:
        keep_platform(module, index)
        PassManager.parse("builtin.module(symbol-dce)").run(module.operation)
        return Counter(operation.name for operation in walk(module))


def operations_text(operations: Mapping[str, int]) -> str:
    """Return counted operations as text, the most frequent ones."""
    shown = [f"{count} {name}" for name, count in list(operations.items())[:_MAX_SHOWN]]
    rest = len(operations) - len(shown)
    return ", ".join([*shown, *([f"and {rest} other kinds"] if rest else [])])
