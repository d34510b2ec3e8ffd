"""The checks of a program, and their options: a few of all, so that seeds cover the pairs."""

from __future__ import annotations

import random
from typing import Any

from tests.fuzzing.programs.program import Program, leaf_names

CHECKS = {
    "save": 4.0, "load": 1.5, "convert": 3.0, "onnx": 2.0, "retarget": 1.0, "resave": 0.4,
    "plain": 2.0,
}  # fmt: skip
_NOT_ONNX = ("complex",)

# The values of each option, and how often it is drawn.
VALUES: dict[str, tuple[float, tuple[Any, ...]]] = {
    "order": (0.5, (1, 1, 1, 2)),
    "mode": (0.75, ("graph", "jit", "signature")),
    "function": (0.4, (True,)),
    "residuals": (0.3, (True,)),
    "hoist_constants": (0.3, (0, 16, None)),
    "tensorflow": (0.3, ("2.14", "2.16", "2.18", "2.19", "2.20", "2.21")),
    "platforms": (0.4, (("cpu",), ("cpu", "cuda", "tpu"), ("cuda", "cpu"), ("tpu", "cpu"))),
    "params": (0.3, (True,)),
    "batch_buckets": (0.15, ((2, 8), (4,), (1, 3, 32))),
    "donate": (0.15, (True,)),
    "serialized": (0.2, (True,)),
    "unchecked": (0.1, (("platform",), ("shape_assertions",), ("platform", "shape_assertions"))),
    "batches": (1.0, ((3,), (1,), (17,), (3,), (1,), (17,), (1, 17), (3, 1), (1, 3, 17))),
}


def draw_options(
    rng: random.Random, program: Program
) -> tuple[tuple[str, ...], tuple[tuple[str, Any], ...]]:
    """The checks and the options of a program."""
    weights = dict(CHECKS)
    if any(a.dtype.startswith(_NOT_ONNX) for a in program.arguments):
        weights["onnx"] = 0.1
    checks: list[str] = []
    for _ in range(rng.choice([1, 1, 1, 2])):
        name = rng.choices(list(weights), list(weights.values()))[0]
        if name not in checks:
            checks.append(name)
    options = [
        (name, rng.choice(values))
        for name, (rate, values) in VALUES.items()
        if rng.random() < rate and _fits(name, program)
    ]
    return tuple(sorted(checks)), tuple(options)


def _fits(name: str, program: Program) -> bool:
    by_name = {a.name: a for a in program.arguments}
    match name:
        case "batches":
            return bool(program.symbols)
        case "batch_buckets":
            return "b" in program.symbols
        case "params":
            first = program.parameters[0]
            leaves = [by_name[leaf] for leaf in leaf_names(first.node)]
            static = all(not isinstance(dim, str) for leaf in leaves for dim in leaf.shape)
            return (
                bool(leaves)
                and static
                and not first.keyword
                and not any(leaf.weak for leaf in leaves)
            )
    return True
