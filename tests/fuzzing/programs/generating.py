"""From a seed to a program."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from tests.fuzzing.programs.options import draw_options
from tests.fuzzing.programs.program import (
    PREAMBLE,
    Argument,
    Container,
    Parameter,
    Program,
    Statement,
    fill,
    numpy_dtype,
)
from tests.fuzzing.programs.reducing import needed
from tests.fuzzing.programs.statements import STATEMENTS, Draw, Template, kind_of, takes, write

_NARROW = {
    "float32": 12, "bfloat16": 2, "float16": 2, "complex64": 2, "int32": 3, "int8": 0.7,
    "int16": 0.7, "uint8": 0.7, "uint16": 0.4, "uint32": 0.5, "bool": 1, "float8_e4m3fn": 0.2,
    "float8_e5m2": 0.2,
}  # fmt: skip
_WIDE = {"float64": 12, "complex128": 2, "int64": 3, "uint64": 0.7}
_ATTEMPTS = 30
_ATTEMPTS_OF_ONE = 8
_LARGEST = 3000
_HIGHEST_LEVEL = 11
# Half precision ends at 65504.
_HALF_LEVEL = 7


@dataclass(frozen=True, slots=True)
class Value:
    """A value that later statements may take: its name, its aval, and how large it is."""

    name: str
    aval: Any
    level: float


def generate(seed: int, *, x64: bool) -> Program:
    """The program of a seed. JAX must be in the mode that `x64` says."""
    rng = random.Random(f"{seed} {x64}")
    due = STATEMENTS[seed % len(STATEMENTS)]
    arguments = draw_arguments(rng, due, x64=x64)
    scope = jax.export.SymbolicScope()
    values = [Value(a.name, aval_of(a, scope), 2.0) for a in arguments]
    count = min(rng.randint(3, 15), rng.randint(3, 15))

    def make(templates: list[Template] | None, target: str) -> tuple[Statement, Value] | None:
        return statement_of(rng, templates or _picked(rng), values, target, x64=x64)

    statements = draw_statements(rng, [due] * _ATTEMPTS_OF_ONE, count, values, make)
    kept, results = draw_results(rng, statements, values, len(arguments), due.name)
    program = Program(
        seed=seed,
        x64=x64,
        arguments=tuple(arguments),
        parameters=draw_parameters(rng, [a.name for a in arguments]),
        statements=kept,
        returns=draw_tree(rng, results, top=True),
    )
    checks, options = draw_options(rng, program)
    return dataclasses.replace(program, checks=checks, options=options)


def draw_statements(
    rng: random.Random,
    due: list[Template],
    count: int,
    values: list[Any],
    make: Callable[[list[Template] | None, str], tuple[Statement, Any] | None],
) -> list[Statement]:
    """Return statements, one of them of the template that is due; their values are added.

    Args:
        rng: the source of randomness.
        due: the template that is due, as often as it is tried.
        count: how many statements there are, unless none fits any more.
        values: the values so far.
        make: makes a statement of a name from the first of some templates that fits, or of drawn
            ones for None.
    """
    statements: list[Statement] = []
    while len(statements) < count:
        target, placed = f"v{len(statements)}", {s.template for s in statements}
        is_last = len(statements) == count - 1
        made = None
        if due[0].name not in placed and (is_last or rng.random() < 0.5):
            made = make(due, target)
        made = made or make(None, target)
        if made is None:
            break
        statements.append(made[0])
        values.append(made[1])
    return statements


def draw_arguments(rng: random.Random, due: Template, *, x64: bool) -> list[Argument]:
    """Arguments, such that a template finds its operands among them."""
    weights = {**_NARROW, **_WIDE} if x64 else _NARROW
    symbols = () if due.static else rng.choice([(), (), ("b",), ("b",), ("b",), ("b", "t")])
    sizes = [rng.randint(2, 5) for _ in range(3)]
    wanted = [_dtype_of(rng, kinds, weights) for kinds in due.kinds if kinds[0] not in "=~"]
    main = wanted.pop(0)
    found = []
    for index in range(rng.choice([1, 2, 2, 3, 3, 4])):
        other = rng.choices(list(weights), list(weights.values()))[0]
        dtype = main if rng.random() < 0.6 or not found else other
        dtype = wanted.pop() if wanted and found else dtype
        weak = rng.random() < 0.06 and dtype in ("float32", "int32")
        shape = () if weak else _shape(rng, sizes, symbols, due.rank, first=index == 0)
        domain = rng.choice(["normal", "normal", "positive", "unit", "wide"])
        if kind_of(numpy_dtype(dtype)) in "iu":
            domain = rng.choice(["normal", "index"])
        if weak and x64:
            dtype = dtype.replace("32", "64")
        found.append(Argument(f"x{index}", shape, dtype, domain, weak))
    return found


def _shape(
    rng: random.Random, sizes: Sequence[int], symbols: Sequence[str], rank: int, *, first: bool
) -> tuple[int | str, ...]:
    a, b, c = sizes
    shapes: list[tuple[int, ...]] = [
        (), (a,), (b,), (a, b), (a, b), (b, a), (b, b), (1, b), (a, b, c), (a, b, b), (b, 1), (c,)
    ]  # fmt: skip
    shape = rng.choice([shape for shape in shapes if not first or len(shape) >= rank])
    if rng.random() < 0.03 and shape:
        shape = (*shape[:-1], 0)
    if symbols and (first or rng.random() < 0.6):
        dims: list[int | str] = list(shape) or [symbols[0]]
        dims[0] = symbols[0]
        if len(symbols) > 1 and len(dims) > 1 and rng.random() < 0.7:
            dims[rng.randrange(1, len(dims))] = symbols[1]
        if rng.random() < 0.1:
            rng.shuffle(dims)
        return tuple(dims)
    return shape


def _dtype_of(rng: random.Random, kinds: str, weights: Mapping[str, float]) -> str:
    fit = {name: weight for name, weight in weights.items() if takes(kinds, numpy_dtype(name))}
    return rng.choices(list(fit), list(fit.values()))[0]


def aval_of(argument: Argument, scope: jax.export.SymbolicScope) -> Any:
    """Return the aval of an argument."""
    text = ",".join(map(str, argument.shape))
    shape = jax.export.symbolic_shape(f"({text},)" if text else "()", scope=scope)
    return jax.ShapeDtypeStruct(shape, numpy_dtype(argument.dtype), weak_type=argument.weak)


def _picked(rng: random.Random) -> list[Template]:
    return rng.choices(STATEMENTS, [template.weight for template in STATEMENTS], k=_ATTEMPTS)


def statement_of(
    rng: random.Random,
    templates: Sequence[Template],
    values: list[Value],
    target: str,
    *,
    x64: bool,
) -> tuple[Statement, Value] | None:
    """Return a statement of the first template that fits, with its result."""
    for template in templates:
        operands = draw_operands(rng, template, values)
        if operands is None:
            continue
        level = combine_levels(template.level, [value.level for value in operands])
        if level > _HIGHEST_LEVEL:
            continue
        avals = [value.aval for value in operands]
        try:
            text, preamble = write(template, Draw(rng, avals, x64=x64))
        except (IndexError, ValueError):  # such as no axis that is static
            continue
        aval = _trace(text, preamble, avals)
        half = aval is not None and aval.dtype.itemsize == 2 and kind_of(aval.dtype) == "f"
        if aval is None or (half and level > _HALF_LEVEL):
            continue
        names = tuple(value.name for value in operands)
        shape = ",".join(map(str, aval.shape))
        weak = "~" if aval.weak_type else ""
        statement = Statement(
            target=target,
            text=text,
            operands=names,
            aval=f"{weak}{aval.dtype}[{shape}]",
            template=template.name,
            preamble=(preamble,) if preamble else (),
        )
        return statement, Value(target, aval, level)
    return None


def draw_operands(
    rng: random.Random, template: Template, values: list[Value]
) -> list[Value] | None:
    """Operands that the template takes; late values are likelier."""
    chosen: list[Value] = []
    for position, kinds in enumerate(template.kinds):
        fit = [value for value in values if _fits(kinds, value.aval, chosen)]
        if position == 0:
            fit = [value for value in fit if len(value.aval.shape) >= template.rank]
            if template.static:
                fit = [v for v in fit if all(isinstance(dim, int) for dim in v.aval.shape)]
        if not fit:
            return None
        chosen.append(rng.choices(fit, [1 + 2 * (v in values[-3:]) for v in fit])[0])
    return chosen


def _fits(kinds: str, aval: Any, chosen: list[Value]) -> bool:
    if kinds[0] not in "=~":
        return takes(kinds, aval.dtype)
    other = chosen[int(kinds[-1])].aval
    if aval.dtype != other.dtype:
        return False
    if kinds.startswith("=="):
        return bool(aval.shape == other.shape)
    return True


def combine_levels(rule: str, levels: list[float]) -> float:
    base, _, more = rule.partition("+")
    extra = float(more or 0)
    match base:
        case "max":
            return max(levels) + extra
        case "sum":
            return sum(levels) + extra
    return float(base) + extra


def _trace(text: str, preamble: str, avals: list[Any]) -> Any:
    """The aval of a statement's result; None where JAX refuses it or it is too large."""
    names = tuple(f"x{index}" for index in range(len(avals)))
    namespace: dict[str, Any] = {}
    source = f"{PREAMBLE}\n{preamble}\ndef f({', '.join(names)}):\n    return {fill(text, names)}\n"
    exec(source, namespace)
    try:
        aval = jax.eval_shape(namespace["f"], *avals)
    except Exception:  # noqa: BLE001 - of many classes; the next template may fit
        return None
    is_array = isinstance(aval, jax.ShapeDtypeStruct)
    if not is_array or len(aval.shape) > 4 or kind_of(aval.dtype) == "?":
        return None
    static = [dim for dim in aval.shape if isinstance(dim, int)]
    if np.prod(static, dtype=float) * 20 ** (len(aval.shape) - len(static)) > _LARGEST * 20:
        return None
    return None if jnp.issubdtype(aval.dtype, jax.dtypes.extended) else aval


def draw_results(
    rng: random.Random,
    statements: list[Statement],
    values: list[Value],
    arguments: int,
    due: str,
) -> tuple[tuple[Statement, ...], list[str]]:
    """The statements that results need, and the results: what nothing uses, and a few more."""
    used = {name for statement in statements for name in statement.operands}
    sinks = [s.target for s in statements if s.target not in used]
    if len(sinks) > 4:
        sinks = sorted(rng.sample(sinks, 4))
    results = list(sinks)
    made = {statement.template: statement.target for statement in statements}
    if due in made and due not in {s.template for s in needed(statements, results)}:
        results.append(made[due])
    if statements and rng.random() < 0.25:
        results.append(rng.choice(statements).target)
    if not results or rng.random() < 0.08:
        results.append(values[rng.randrange(arguments)].name)
    return needed(statements, results), results


def draw_tree(rng: random.Random, names: Sequence[str], *, top: bool = False) -> Any:
    """A pytree of these leaves."""
    names = list(names)
    if len(names) == 1 and rng.random() < 0.6:
        return names[0]
    kinds = ["tuple", "list", "dict", "tuple", "dict"]
    if len(names) == 2:
        kinds += ["dataclass", "namedtuple"]
    kind = rng.choice(kinds)
    children: list[Any] = list(names)
    if len(children) > 2 and rng.random() < 0.4:
        cut = rng.randint(1, len(children) - 1)
        children = [*children[:cut], draw_tree(rng, children[cut:])]
    if rng.random() < 0.12 and kind in ("tuple", "list", "dict"):
        children.insert(rng.randint(0, len(children)), None)
    keys = ["first", "second"] if kind in ("dataclass", "namedtuple") else list("wbyazcu")
    if kind in ("dataclass", "namedtuple") and len(children) != 2:
        kind = "tuple"
    return Container(kind, tuple(zip(keys, children, strict=False)))


def draw_parameters(rng: random.Random, names: list[str]) -> tuple[Parameter, ...]:
    """Groups of the leaves, one parameter for each."""
    found, rest = [], list(names)
    while rest:
        count = rng.choice([1, 1, 1, 2, 3]) if len(rest) > 1 else 1
        group, rest = rest[:count], rest[count:]
        plain = len(group) == 1 and rng.random() < 0.8
        node = group[0] if plain else draw_tree(rng, group)
        name = node if isinstance(node, str) else f"p{len(found)}"
        found.append(Parameter(name, node))
    if len(found) > 1 and rng.random() < 0.2:
        last = found[-1]
        found[-1] = Parameter(last.name, last.node, keyword=True)
    if rng.random() < 0.05:
        found.insert(rng.randint(0, 1), Parameter("unused", None))
    return tuple(found)
