"""From a seed to a program that is hostile to optimizers."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import jax
import jax.export

from tests.fuzzing.plain_programs.statements import HOSTILE
from tests.fuzzing.programs.generating import (
    Value,
    aval_of,
    draw_arguments,
    draw_parameters,
    draw_results,
    draw_statements,
    draw_tree,
    statement_of,
)
from tests.fuzzing.programs.program import Argument, Container, Program, Statement, numpy_dtype
from tests.fuzzing.programs.statements import STATEMENTS, Template, kind_of

# The beginnings of arguments' names, and the keys of dicts in the place of those of `programs`.
# A keyword that begins with `_` is none to a `tf.function`, which calls it `arg_…`.
NAMES = ("x", "x", "größe", "日本", "x_", "Ä")
KEYS = {"w": "größe", "b": "日本", "y": "a b", "a": "x(y", "z": "~", "c": "a:0", "u": "👍"}
_BATCHES = ((1,), (3,), (1, 17), (3, 1))
_ATTEMPTS = 30
_OF_DUE = 8
# Factorizations of NaN and infinities are a named deviation, and a value here may be one of them.
_OTHERS = [template for template in STATEMENTS if "linalg" not in template.text]


def generate(seed: int, *, x64: bool) -> Program:
    """Return the program of a seed. JAX must be in the mode that `x64` says."""
    rng = random.Random(f"plain {seed} {x64}")
    due = HOSTILE[seed % len(HOSTILE)]
    arguments = [_hostile(rng, one) for one in draw_arguments(rng, due, x64=x64)]
    prefix = rng.choice(NAMES)
    arguments = [dataclasses.replace(a, name=f"{prefix}{n}") for n, a in enumerate(arguments)]
    scope = jax.export.SymbolicScope()
    values = [Value(a.name, aval_of(a, scope), 2.0) for a in arguments]

    def make(templates: list[Template] | None, target: str) -> tuple[Statement, Value] | None:
        return statement_of(rng, templates or _picked(rng), values, target, x64=x64)

    count = rng.randint(2, 7)
    statements = draw_statements(rng, [due] * _OF_DUE, count, values, make)
    kept, results = draw_results(rng, statements, values, len(arguments), due.name)
    renamed = rng.random() < 0.5
    parameters = draw_parameters(rng, [a.name for a in arguments])
    returns = draw_tree(rng, results, top=True)
    program = Program(
        seed=seed,
        x64=x64,
        arguments=tuple(arguments),
        parameters=tuple(
            dataclasses.replace(p, node=_with_keys(p.node) if renamed else p.node)
            for p in parameters
        ),
        statements=kept,
        returns=_with_keys(returns) if renamed else returns,
        checks=("session",),
    )
    options: list[tuple[str, Any]] = [("batches", rng.choice(_BATCHES))] if program.symbols else []
    if rng.random() < 0.3:
        options.append(("order", 1))
    return dataclasses.replace(program, options=tuple(options))


def _picked(rng: random.Random) -> list[Template]:
    return [
        rng.choice(HOSTILE)
        if rng.random() < 0.6
        else rng.choices(_OTHERS, [template.weight for template in _OTHERS])[0]
        for _ in range(_ATTEMPTS)
    ]


def _hostile(rng: random.Random, argument: Argument) -> Argument:
    """Return the argument with special values, or without rows, now and then."""
    is_real = kind_of(numpy_dtype(argument.dtype)) == "f"
    if is_real and not argument.weak and rng.random() < 0.5:
        argument = dataclasses.replace(argument, domain="special")
    shape = argument.shape
    if shape and isinstance(shape[0], int) and rng.random() < 0.06:
        argument = dataclasses.replace(argument, shape=(rng.choice([0, 1]), *shape[1:]))
    return argument


def _with_keys(node: Any) -> Any:
    """Return a pytree whose dicts have keys of any letters."""
    if not isinstance(node, Container):
        return node
    is_dict = node.kind == "dict"
    children = tuple((KEYS[k] if is_dict else k, _with_keys(child)) for k, child in node.children)
    return dataclasses.replace(node, children=children)
