"""From a seed to a TensorFlow function: statements are tried on values of two sizes."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tests.fuzzing.programs import generating
from tests.fuzzing.programs.program import Argument, Container, Program, Statement, fill
from tests.fuzzing.programs.statements import Template, kind_of, write
from tests.fuzzing.tf_programs.sizes import SIZES, shape_of
from tests.fuzzing.tf_programs.statements import STATEMENTS, TensorFlowDraw

PREAMBLE = """\
import collections
import numpy as np
import tensorflow as tf
"""
_ATTEMPTS = 40
_HIGHEST_LEVEL, _HALF_LEVEL = 11, 7
_LARGEST = 4000
CHECKS = {"eager": 2.0, "jit": 2.0, "export": 3.0, "vmap": 1.0, "scan": 1.0, "jvp": 1.0,
          "callback": 0.7, "graph": 1.0}  # fmt: skip
_BATCHES = ((3,), (1,), (17,), (3, 1), (2, 6))


@dataclass(frozen=True, slots=True)
class _Aval:
    shape: tuple[int | str, ...]
    dtype: Any


@dataclass(frozen=True, slots=True)
class _Value:
    name: str
    aval: _Aval
    level: float
    tensors: tuple[Any, ...]


def generate(seed: int, *, x64: bool) -> Program:
    """The program of a seed; each statement of the table has its own seeds."""
    rng = random.Random(f"tensorflow {seed} {x64}")
    due = STATEMENTS[seed % len(STATEMENTS)]
    arguments = _arguments(rng, due, x64=x64)
    values = [_value_of(a, seed) for a in arguments]
    count = min(rng.randint(3, 12), rng.randint(3, 12))

    def make(templates: list[Template] | None, target: str) -> tuple[Statement, _Value] | None:
        return _statement(rng, templates or _picked(rng), values, target, x64=x64)

    statements = generating.draw_statements(rng, [due] * _ATTEMPTS, count, values, make)
    kept, results = generating.draw_results(rng, statements, values, len(arguments), due.name)
    program = Program(
        seed=seed,
        x64=x64,
        arguments=tuple(arguments),
        parameters=tuple(
            dataclasses.replace(p, node=_without_classes(p.node))
            for p in generating.draw_parameters(rng, [a.name for a in arguments])
        ),
        statements=kept,
        returns=_without_classes(generating.draw_tree(rng, results, top=True)),
        preamble=PREAMBLE,
    )
    checks, options = _draw_options(rng, program)
    return dataclasses.replace(program, checks=checks, options=options)


def _without_classes(node: Any) -> Any:
    """TensorFlow takes dataclasses of its own kind only."""
    if not isinstance(node, Container):
        return node
    kind = "namedtuple" if node.kind == "dataclass" else node.kind
    return Container(kind, tuple((key, _without_classes(child)) for key, child in node.children))


def _picked(rng: random.Random) -> list[Template]:
    return rng.choices(STATEMENTS, [t.weight for t in STATEMENTS], k=_ATTEMPTS)


def _arguments(rng: random.Random, due: Template, *, x64: bool) -> list[Argument]:
    """Those that TensorFlow takes: no Python numbers, and no dimension of size 0 or one of b's."""
    drawn = generating.draw_arguments(rng, due, x64=x64)
    return [dataclasses.replace(a, weak=False) for a in drawn]


def _value_of(argument: Argument, seed: int) -> _Value:
    tensors = tuple(tf.constant(argument.draw(sizes, seed)) for sizes in SIZES)
    aval = _Aval(argument.shape, np.dtype(tensors[0].dtype.as_numpy_dtype))
    return _Value(argument.name, aval, 2.0, tensors)


def _statement(
    rng: random.Random, templates: list[Template], values: list[_Value], target: str, *, x64: bool
) -> tuple[Statement, _Value] | None:
    for template in templates:
        operands: Any = generating.draw_operands(rng, template, values)
        if operands is None:
            continue
        level = generating.combine_levels(template.level, [value.level for value in operands])
        if level > _HIGHEST_LEVEL:
            continue
        avals = [value.aval for value in operands]
        try:
            text, preamble = write(template, TensorFlowDraw(rng, avals, x64=x64))
        except (IndexError, ValueError):
            continue
        found = _try(text, preamble, operands)
        if found is None or (level > _HALF_LEVEL and found[0].dtype.itemsize == 2):
            continue
        aval, tensors = found
        statement = Statement(
            target=target,
            text=text,
            operands=tuple(value.name for value in operands),
            aval=f"{aval.dtype}[{','.join(map(str, aval.shape))}]",
            template=template.name,
            preamble=(preamble,) if preamble else (),
        )
        return statement, _Value(target, aval, level, tensors)
    return None


def _try(text: str, preamble: str, operands: list[_Value]) -> tuple[_Aval, tuple[Any, ...]] | None:
    """Run a statement with both sizes; None where it is refused, too large or not finite."""
    names = tuple(f"x{index}" for index in range(len(operands)))
    namespace: dict[str, Any] = {}
    source = f"{PREAMBLE}\n{preamble}\ndef f({', '.join(names)}):\n    return {fill(text, names)}\n"
    exec(source, namespace)
    try:
        found = [namespace["f"](*(value.tensors[i] for value in operands)) for i in range(2)]
    except Exception:  # noqa: BLE001 - of many classes; the next template may fit
        return None
    if not all(isinstance(tensor, tf.Tensor) for tensor in found):
        return None
    first, second = found
    if first.dtype != second.dtype or first.shape.rank != second.shape.rank or first.shape.rank > 4:
        return None
    dtype = np.dtype(first.dtype.as_numpy_dtype)
    if kind_of(dtype) in "?e" or max(first.shape.num_elements(), 0) > _LARGEST:
        return None
    if first.dtype.is_floating or first.dtype.is_complex:
        finite = np.isfinite(np.abs(np.asarray(first.numpy(), np.complex128)))
        if finite.size and finite.mean() < 0.7:
            return None
    return _Aval(shape_of(first.shape, second.shape), dtype), (first, second)


def _draw_options(
    rng: random.Random, program: Program
) -> tuple[tuple[str, ...], tuple[tuple[str, Any], ...]]:
    weights = dict(CHECKS)
    if program.symbols:
        weights["graph"] = 12.0
    checks = {rng.choices(list(weights), list(weights.values()))[0] for _ in range(2)}
    options: list[tuple[str, Any]] = []
    if rng.random() < 0.65:
        options.append(("order", rng.choice([1, 1, 1, 2])))
    if rng.random() < 0.4:
        options.append(("variables", rng.choice(["constant", "argument"])))
    if rng.random() < 0.3:
        options.append(("traced", True))
    if program.symbols:
        options.append(("batches", rng.choice(_BATCHES)))
    return tuple(sorted(checks)), tuple(options)
